package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"inferspan/probes/procfs"
)

// limit bounds one try; the kernel answers within milliseconds.
const limit = 5 * time.Second

// trier tries what the kernel lets this process do.
type trier struct{ privileged bool }

// try runs f and fills in the state by its result.
func (t trier) try(it Item, bad State, fix string, f func() error) Item {
	it.State = OK
	err, done := within(limit, f)
	switch {
	case !done:
		it.State, it.Detail = bad, fmt.Sprintf("no answer from the kernel in %v", limit)
	case err == nil:
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		// The library guesses at the memory limit, which does not matter here.
		text, _, _ := strings.Cut(err.Error(), " (MEMLOCK may be too low")
		it.State, it.Detail, it.Fix = bad, "not permitted: "+text, "run as root, or with CAP_SYS_ADMIN (before mid-2025 kernels asked for CAP_BPF and CAP_PERFMON only)"
		if t.privileged {
			it.Detail = "refused in spite of the capabilities (lockdown, a security module or seccomp): " + text
			it.Fix = ""
		}
	default:
		it.State, it.Detail, it.Fix = bad, err.Error(), fix
	}
	return it
}

func (t trier) ringBuffer() Item {
	return t.try(Item{Name: RingBuffer, NeededFor: "everything", Required: true}, Missing, "Linux 5.8 or newer", func() error {
		// Kernels before 5.11 count maps against RLIMIT_MEMLOCK.
		_ = rlimit.RemoveMemlock()
		return features.HaveMapType(ebpf.RingBuf)
	})
}

func (t trier) uprobeMulti() Item {
	return t.try(Item{Name: UprobeMulti, NeededFor: "taking probes on the CUDA driver out at once; single uprobes do as well"}, Degraded, "Linux 6.6 or newer", features.HaveBPFLinkUprobeMulti)
}

// program loads one that returns 0.
func program(t ebpf.ProgramType, at ebpf.AttachType, to string) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: t, AttachType: at, AttachTo: to, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
}

//go:noinline
func uprobed(n int) int { return n*3 + 1 }

var sink int

// uprobe puts a counter on a function of this process, calls it, and looks at the
// count.
func (t trier) uprobe() Item {
	it := Item{Name: Uprobe, NeededFor: "engine spans and metrics (messages of the engine core)", Required: true}
	return t.try(it, Missing, "a kernel with CONFIG_UPROBE_EVENTS=y and CONFIG_BPF_EVENTS=y", func() error {
		count, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
		if err != nil {
			return err
		}
		defer count.Close()
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R1, 0),
			asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, count.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
			asm.Return(),
		}})
		if err != nil {
			return err
		}
		defer prog.Close()
		off, err := procfs.FS{}.FileOffset(os.Getpid(), uint64(reflect.ValueOf(uprobed).Pointer()))
		if err != nil {
			return err
		}
		exe, err := link.OpenExecutable("/proc/self/exe")
		if err != nil {
			return err
		}
		l, err := exe.Uprobe("uprobed", prog, &link.UprobeOptions{Address: off, PID: os.Getpid()})
		if err != nil {
			return fmt.Errorf("attaching: %w", err)
		}
		defer l.Close()
		const calls = 3
		for range calls {
			sink = uprobed(sink)
		}
		var n uint64
		if err := count.Lookup(uint32(0), &n); err != nil {
			return fmt.Errorf("reading the count: %w", err)
		}
		if n != calls {
			return fmt.Errorf("attached, but %d of %d calls were seen", n, calls)
		}
		return nil
	})
}

func (t trier) syscalls(tracefs string) Item {
	it := Item{Name: Syscalls, NeededFor: "entry spans (HTTP)"}
	return t.try(it, Missing, "a kernel with CONFIG_FTRACE_SYSCALLS=y, tracefs mounted", func() error {
		if tracefs != "" {
			if _, err := os.Stat(filepath.Join(tracefs, "events/syscalls/sys_enter_read/id")); err != nil {
				return err
			}
		}
		prog, err := program(ebpf.TracePoint, ebpf.AttachNone, "")
		if err != nil {
			return err
		}
		defer prog.Close()
		l, err := link.Tracepoint("syscalls", "sys_enter_shutdown", prog, nil)
		if err != nil {
			return fmt.Errorf("attaching: %w", err)
		}
		return l.Close()
	})
}

func (t trier) fentry() Item {
	it := Item{Name: Fentry, NeededFor: "nothing now: tracepoints are used"}
	return t.try(it, Degraded, "", func() error {
		prog, err := program(ebpf.Tracing, ebpf.AttachTraceFEntry, "tcp_shutdown")
		if err != nil {
			return err
		}
		defer prog.Close()
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			return fmt.Errorf("attaching: %w", err)
		}
		return l.Close()
	})
}
