// Package host says what this host and the rights of this process allow: which
// parts of tracing work here, and what to do about those that do not.
package host

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// State of an item.
type State string

// States.
const (
	OK       State = "ok"
	Missing  State = "missing"
	Degraded State = "degraded" // works in part, or with something in its place
)

// Item is one thing that tracing builds on.
type Item struct {
	Name      string `json:"name"`
	State     State  `json:"state"`
	Detail    string `json:"detail,omitempty"`
	NeededFor string `json:"needed_for,omitempty"`
	Fix       string `json:"fix,omitempty"` // "" if the state is ok or nothing helps
	// Required: without it nothing can be attached.
	Required bool `json:"required,omitempty"`
}

// Names of items.
const (
	Kernel       = "kernel"
	BTF          = "btf"
	TraceFS      = "tracefs"
	BPFFS        = "bpffs"
	PIDNamespace = "pid namespace"
	Lockdown     = "lockdown"
	Uprobe       = "uprobe"
	UprobeMulti  = "uprobe_multi"
	Syscalls     = "syscall tracepoints"
	Fentry       = "fentry"
	RingBuffer   = "ring buffer"
	NVML         = "nvml"
	CUDA         = "cuda driver"
	Unprivileged = "unprivileged_bpf_disabled"
	Paranoid     = "perf_event_paranoid"
	Yama         = "yama ptrace_scope"
	// Capabilities go by their own names: "CAP_BPF" and so on.
)

// Report is the result of Check.
type Report struct {
	Kernel string `json:"kernel"` // release
	Arch   string `json:"arch"`
	Items  []Item `json:"items"`
}

// Item returns the item with a name, nil if the report has none.
func (r *Report) Item(name string) *Item {
	for i := range r.Items {
		if r.Items[i].Name == name {
			return &r.Items[i]
		}
	}
	return nil
}

// OK reports whether an item is in order; also true if the report lacks it, so
// that an empty Report stands for a host about which nothing bad is known.
func (r *Report) OK(name string) bool {
	it := r.Item(name)
	return it == nil || it.State == OK
}

// Usable reports whether everything required is there.
func (r *Report) Usable() bool {
	for _, it := range r.Items {
		if it.Required && it.State == Missing {
			return false
		}
	}
	return true
}

// Checker says where to look. The zero value looks at the host itself.
type Checker struct {
	Proc string // "/proc"
	Sys  string // "/sys"
	Root string // "/", for libraries
	// Passive leaves out what loads programs and attaches probes.
	Passive bool
}

// Check looks at the host. It loads and attaches a few programs of its own, to
// this process only, and removes them: some 100 ms. When ctx ends, the remaining
// items are left out.
func Check(ctx context.Context) Report { return Checker{}.Check(ctx) }

// Check is the method form of the function Check.
func (c Checker) Check(ctx context.Context) Report {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Sys == "" {
		c.Sys = "/sys"
	}
	if c.Root == "" {
		c.Root = "/"
	}
	r := Report{Kernel: Release(), Arch: runtime.GOARCH}
	mounts := c.mounts()
	caps := c.capabilities()
	steps := []func() []Item{
		func() []Item { return one(checkKernel(r.Kernel)) },
		func() []Item { return one(c.btf()) },
		func() []Item { return one(c.tracefs(mounts)) },
		func() []Item { return one(bpffs(mounts)) },
		func() []Item { return capItems(caps, r.Kernel) },
		func() []Item { return one(c.pidNamespace()) },
		func() []Item { return one(c.lockdown()) },
		func() []Item { return c.sysctls(caps) },
		func() []Item { return one(c.nvml()) },
		func() []Item { return one(c.cuda()) },
	}
	if !c.Passive {
		t := trier{privileged: has(caps, unix.CAP_SYS_ADMIN)}
		tracing := tracefsPath(mounts)
		steps = append(steps,
			func() []Item { return one(t.ringBuffer()) },
			func() []Item { return one(t.uprobe()) },
			func() []Item { return one(t.uprobeMulti()) },
			func() []Item { return one(t.syscalls(tracing)) },
			func() []Item { return one(t.fentry()) },
		)
	}
	for _, f := range steps {
		if ctx.Err() != nil {
			break
		}
		r.Items = append(r.Items, f()...)
	}
	r.admin()
	return r
}

// admin says of a CAP_SYS_ADMIN that is absent what the try of a uprobe has shown: no
// release tells, since stable kernels ask for it, too, from some day in 2025 on.
func (r *Report) admin() {
	it, probe := r.Item("CAP_SYS_ADMIN"), r.Item(Uprobe)
	if it == nil || it.State == OK || probe == nil {
		return
	}
	switch probe.State {
	case OK:
		it.State, it.Fix, it.Detail = OK, "", "absent; not needed on this kernel"
	case Missing:
		it.State, it.Required = Missing, true
	}
}

func one(i Item) []Item { return []Item{i} }

// within runs f and gives up waiting for it after a while; f goes on.
func within(d time.Duration, f func() error) (error, bool) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err, true
	case <-time.After(d):
		return nil, false
	}
}

// read returns the first line of a small file.
func read(elem ...string) (string, error) {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line), nil
}
