package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Release returns the release of the running kernel, "" if it is not known.
func Release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// minKernel: the BPF programs are verified for 5.10 on, where process descriptors
// that do not block came; the BPF ring buffer is older (5.8).
var minKernel = [2]int{5, 10}

func checkKernel(release string) Item {
	it := Item{Name: Kernel, State: OK, Detail: release, NeededFor: "everything", Required: true}
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		it.State, it.Detail = Degraded, fmt.Sprintf("release %q is not understood", release)
		return it
	}
	if !atLeast(release, minKernel) {
		it.State = Missing
		it.Fix = fmt.Sprintf("Linux %d.%d or newer", minKernel[0], minKernel[1])
	}
	return it
}

func (c Checker) btf() Item {
	it := Item{Name: BTF, State: OK, NeededFor: "loading the BPF programs", Required: true}
	p := filepath.Join(c.Sys, "kernel/btf/vmlinux")
	st, err := os.Stat(p)
	switch {
	case err == nil:
		it.Detail = fmt.Sprintf("%s, %d KiB", p, st.Size()>>10)
	case errors.Is(err, os.ErrNotExist):
		it.State, it.Detail = Missing, p+" does not exist"
		it.Fix = "a kernel built with CONFIG_DEBUG_INFO_BTF=y"
	default:
		it.State, it.Detail = Missing, err.Error()
	}
	return it
}

// mount is a line of mountinfo.
type mount struct{ point, kind string }

func (c Checker) mounts() []mount {
	b, err := os.ReadFile(filepath.Join(c.Proc, "self/mountinfo"))
	if err != nil {
		return nil
	}
	return parseMounts(b)
}

func parseMounts(b []byte) []mount {
	var out []mount
	for line := range strings.Lines(string(b)) {
		before, after, ok := strings.Cut(line, " - ")
		w, k := strings.Fields(before), strings.Fields(after)
		if ok && len(w) >= 5 && len(k) >= 1 {
			out = append(out, mount{point: unescape.Replace(w[4]), kind: k[0]})
		}
	}
	return out
}

// unescape undoes what mountinfo does to characters that separate.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func findMount(mounts []mount, kind string) string {
	for _, m := range mounts {
		if m.kind == kind {
			return m.point
		}
	}
	return ""
}

// tracefsPath returns where tracefs is mounted, "" if nowhere.
func tracefsPath(mounts []mount) string {
	if p := findMount(mounts, "tracefs"); p != "" {
		return p
	}
	if p := findMount(mounts, "debugfs"); p != "" {
		return filepath.Join(p, "tracing")
	}
	return ""
}

func (c Checker) tracefs(mounts []mount) Item {
	it := Item{Name: TraceFS, State: OK, NeededFor: "entry spans (syscall tracepoints) and noticing that a process ends", Required: true}
	p := tracefsPath(mounts)
	if p == "" {
		it.State, it.Detail = Missing, "not mounted"
		it.Fix = "mount -t tracefs tracefs /sys/kernel/tracing (in a container: mount the host's /sys/kernel/tracing)"
		return it
	}
	it.Detail = p
	if _, err := os.ReadDir(filepath.Join(p, "events")); err != nil {
		it.State, it.Detail = Missing, err.Error()
		if errors.Is(err, os.ErrPermission) {
			it.Fix = "run as root, or with CAP_DAC_READ_SEARCH"
		}
	}
	return it
}

func bpffs(mounts []mount) Item {
	it := Item{Name: BPFFS, State: OK, NeededFor: "nothing now: no maps or programs are pinned"}
	if it.Detail = findMount(mounts, "bpf"); it.Detail == "" {
		it.State, it.Detail = Degraded, "not mounted"
	}
	return it
}

// capability numbers, with what they are for. Where another capability will do,
// it is named in or.
var capabilities = []struct {
	name     string
	number   int
	or       []int
	use      string
	required bool
}{
	{"CAP_BPF", unix.CAP_BPF, []int{unix.CAP_SYS_ADMIN}, "loading BPF programs", true},
	{"CAP_PERFMON", unix.CAP_PERFMON, []int{unix.CAP_SYS_ADMIN}, "attaching uprobes and tracepoints", true},
	{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, nil, "reading the engine's memory and its /proc entries: finding engines, message layouts", true},
	{"CAP_CHECKPOINT_RESTORE", unix.CAP_CHECKPOINT_RESTORE, []int{unix.CAP_SYS_ADMIN}, "opening mapped libraries through map_files, which also works in other mount namespaces and for replaced files", false},
	{"CAP_DAC_READ_SEARCH", unix.CAP_DAC_READ_SEARCH, []int{unix.CAP_DAC_OVERRIDE}, "reading files of other users: libraries, tokenizer, tracefs", false},
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, nil, "attaching uprobes on kernels since mid-2025; stands in for CAP_BPF, CAP_PERFMON and CAP_CHECKPOINT_RESTORE on older ones", false},
	{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE, nil, "raising the memory-lock limit on kernels before 5.11", false},
}

// capabilities returns the effective capabilities of this process.
func (c Checker) capabilities() uint64 {
	b, err := os.ReadFile(filepath.Join(c.Proc, "self/status"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return n
		}
	}
	return 0
}

func has(caps uint64, number int) bool { return caps>>number&1 != 0 }

// sinceKernel has the release since which a capability is of no use here, as
// {major, minor}: memory of BPF maps is charged to the memory cgroup since 5.11.
var sinceKernel = map[string][2]int{
	"CAP_SYS_RESOURCE": {5, 11},
}

func atLeast(release string, v [2]int) bool {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return n == 2 && (major > v[0] || major == v[0] && minor >= v[1])
}

func capItems(caps uint64, release string) []Item {
	var out []Item
	for _, c := range capabilities {
		it := Item{Name: c.name, State: OK, NeededFor: c.use, Required: c.required}
		if !has(caps, c.number) {
			it.State, it.Fix = Missing, "grant "+c.name+" (or run as root)"
			for _, o := range c.or {
				if has(caps, o) {
					it.State, it.Fix, it.Detail = OK, "", "another capability of this process stands in for it"
				}
			}
			if it.State == Missing && !c.required {
				it.State = Degraded
			}
			if v, ok := sinceKernel[c.name]; ok && atLeast(release, v) {
				it.State, it.Fix, it.Detail = OK, "", "absent; not needed on this kernel"
			}
		}
		out = append(out, it)
	}
	return out
}

// initPIDNS is the inode of the first PID namespace (PROC_PID_INIT_INO,
// include/linux/proc_ns.h).
const initPIDNS = "pid:[4026531836]"

func (c Checker) pidNamespace() Item {
	it := Item{Name: PIDNamespace, State: OK, Detail: "the host's", NeededFor: "seeing the engines of the whole host"}
	ns, err := os.Readlink(filepath.Join(c.Proc, "self/ns/pid"))
	switch {
	case err != nil:
		it.State, it.Detail = Degraded, err.Error()
	case ns != initPIDNS:
		it.State, it.Detail = Degraded, "nested: only processes in this PID namespace are seen"
		it.Fix = "run in the host's PID namespace (hostPID: true, --pid=host)"
	}
	return it
}

func (c Checker) lockdown() Item {
	it := Item{Name: Lockdown, State: OK, NeededFor: "reading memory in BPF programs"}
	line, err := read(c.Sys, "kernel/security/lockdown")
	if err != nil {
		it.Detail = "not in use"
		return it
	}
	mode := line
	if _, rest, ok := strings.Cut(line, "["); ok {
		mode, _, _ = strings.Cut(rest, "]")
	}
	it.Detail = mode
	switch mode {
	case "none":
	case "integrity":
		it.State = Degraded
		it.Detail = "integrity: fentry programs may be refused, tracepoints are used"
	default:
		it.State, it.Required = Missing, true
		it.Fix = "boot with lockdown=integrity or without lockdown"
	}
	return it
}

// sysctls are settings that bind processes without capabilities.
func (c Checker) sysctls(caps uint64) []Item {
	list := []struct {
		name, file, use string
		cap             []int
		free            int // up to this value no capability is needed
	}{
		{Unprivileged, "sys/kernel/unprivileged_bpf_disabled", "loading BPF programs without CAP_BPF", []int{unix.CAP_BPF, unix.CAP_SYS_ADMIN}, 0},
		{Paranoid, "sys/kernel/perf_event_paranoid", "attaching probes without CAP_PERFMON", []int{unix.CAP_PERFMON, unix.CAP_SYS_ADMIN}, -1},
		{Yama, "sys/kernel/yama/ptrace_scope", "reading the memory of other processes without CAP_SYS_PTRACE", []int{unix.CAP_SYS_PTRACE}, 0},
	}
	var out []Item
	for _, s := range list {
		it := Item{Name: s.name, State: OK, NeededFor: s.use}
		line, err := read(c.Proc, s.file)
		if err != nil {
			it.Detail = "not in use"
			out = append(out, it)
			continue
		}
		it.Detail = line
		capable := false
		for _, n := range s.cap {
			capable = capable || has(caps, n)
		}
		n, err := strconv.Atoi(line)
		switch {
		case s.name == Yama && n >= 3:
			it.State, it.Fix = Missing, "sysctl kernel.yama.ptrace_scope=1 needs a reboot once it is 3"
			it.Required = true
		case err == nil && n > s.free && !capable:
			it.State = Degraded
		}
		out = append(out, it)
	}
	return out
}

// nvml looks for the library; it is not loaded.
func (c Checker) nvml() Item {
	it := Item{Name: NVML, State: OK, NeededFor: "GPU utilisation, memory, power and clocks"}
	triple := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	dirs := []string{
		"usr/lib/" + triple, "usr/lib64", "usr/lib", "lib64",
		"usr/local/nvidia/lib64", "usr/local/nvidia/lib", // Kubernetes device plugins
		"run/nvidia/driver/usr/lib/" + triple, "run/nvidia/driver/usr/lib64", // GPU operator
		"usr/lib/wsl/lib",
	}
	for _, d := range dirs {
		p := filepath.Join(c.Root, d, "libnvidia-ml.so.1")
		if _, err := os.Stat(p); err == nil {
			it.Detail = p
			if _, err := os.Stat(filepath.Join(c.Root, "dev/nvidiactl")); err != nil {
				it.State = Degraded
				it.Detail += "; no /dev/nvidiactl: the driver is not loaded, or the device is not passed into this container"
			}
			return it
		}
	}
	it.State, it.Detail = Missing, "libnvidia-ml.so.1 not found"
	it.Fix = "normal without an NVIDIA GPU; else install the driver's libraries, or pass them into the container"
	return it
}
