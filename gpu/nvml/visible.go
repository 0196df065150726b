package nvml

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Names of the variables that say which devices a process may use.
const (
	// EnvCUDA is read by the CUDA driver in the process: indices, UUIDs or their beginnings,
	// or instances.
	EnvCUDA = "CUDA_VISIBLE_DEVICES"
	// EnvOrder says how it counts: by PCI address, or the fastest first.
	EnvOrder = "CUDA_DEVICE_ORDER"
	// EnvContainer is read by the container runtime: which devices the container has.
	EnvContainer = "NVIDIA_VISIBLE_DEVICES"
)

// Seen is a device as Visible needs it, in the order of NVML, which is that of PCI
// addresses.
type Seen struct {
	UUID   string
	Name   string
	Parent string // of an instance: UUID of its GPU; instances come after their GPU
	Split  bool   // a GPU that is split into instances
}

// Visible returns the UUIDs of the devices that a process may use, by the environment that
// it was started with. container says that it runs in another container than we do, so that
// EnvContainer holds. The error says why it cannot be told.
func Visible(all []Seen, env map[string]string, container bool) ([]string, error) {
	have := all
	if container {
		var err error
		if have, err = inContainer(all, env); err != nil {
			return nil, err
		}
	}
	v, ok := env[EnvCUDA]
	if !ok {
		return uuids(usable(have)), nil
	}
	var out []string
	for item := range strings.SplitSeq(v, ",") {
		item = strings.TrimSpace(item)
		id, err := chosen(have, item, env[EnvOrder])
		if err != nil {
			return nil, fmt.Errorf("%s=%q: %w", EnvCUDA, v, err)
		}
		// The driver takes what comes before an item that is none, and nothing after it.
		if id == "" {
			break
		}
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out, nil
}

// usable leaves out GPUs that are split: CUDA sees their instances.
func usable(list []Seen) []Seen {
	return slices.DeleteFunc(slices.Clone(list), func(s Seen) bool { return s.Split })
}

func uuids(list []Seen) []string {
	var out []string
	for _, s := range list {
		out = append(out, s.UUID)
	}
	return out
}

// chosen is the device that an item of EnvCUDA means, "" if none.
func chosen(have []Seen, item, order string) (string, error) {
	if strings.HasPrefix(item, "GPU-") || strings.HasPrefix(item, "MIG-") {
		found := ""
		for _, s := range have {
			if !strings.HasPrefix(s.UUID, item) {
				continue
			}
			if found != "" {
				return "", errors.New("it fits several devices")
			}
			found = s.UUID
		}
		return found, nil
	}
	n, err := strconv.Atoi(item)
	if err != nil || n < 0 {
		return "", nil
	}
	if slices.ContainsFunc(have, func(s Seen) bool { return s.Split }) {
		return "", errors.New("an index, with GPUs that are split into instances")
	}
	// The order "fastest first" is that of NVML only among equal devices.
	same := !slices.ContainsFunc(have, func(s Seen) bool { return s.Name == "" || s.Name != have[0].Name })
	if order != "PCI_BUS_ID" && !same {
		return "", fmt.Errorf("an index, with GPUs of several kinds and without %s=PCI_BUS_ID", EnvOrder)
	}
	if n >= len(have) {
		return "", nil
	}
	return have[n].UUID, nil
}

// inContainer are the devices of the container of a process.
func inContainer(all []Seen, env map[string]string) ([]Seen, error) {
	v, ok := env[EnvContainer]
	switch {
	case !ok || v == "" || v == "void":
		return nil, fmt.Errorf("it runs in a container, and %s does not say which devices that has", EnvContainer)
	case v == "all":
		return all, nil
	case v == "none":
		return nil, nil
	}
	want := make([]bool, len(all))
	for item := range strings.SplitSeq(v, ",") {
		item = strings.TrimSpace(item)
		gpu, instance, of := strings.Cut(item, ":")
		found := false
		g := -1 // index of GPU
		in := -1
		for i, s := range all {
			if s.Parent == "" {
				g, in = g+1, -1
			} else {
				in++
			}
			index, err := strconv.Atoi(gpu)
			byIndex := err == nil && index == g
			switch {
			case s.UUID == item,
				byIndex && !of,
				of && byIndex && s.Parent != "" && strconv.Itoa(in) == instance:
				want[i], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("%s=%q: no such device here: %q", EnvContainer, v, item)
		}
	}
	var out []Seen
	for i, s := range all {
		if want[i] || s.Split && slices.ContainsFunc(all, func(m Seen) bool { return m.Parent == s.UUID && want[slices.Index(all, m)] }) {
			out = append(out, s)
		}
	}
	return out, nil
}
