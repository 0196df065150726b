package attach

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf/link"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
)

// timingOverhead measures what a timed probe adds to each duration: the way out of the
// probe at the function's entry, with or without the second trap of an instruction that
// is not emulated, and that into the one at its return. A function of this process is
// timed that does nothing. It takes some 10 ms.
func timingOverhead(t PythonTracer, stepped bool) (time.Duration, error) {
	measuring.Lock()
	defer measuring.Unlock()
	fail := func(err error) (time.Duration, error) { return 0, fmt.Errorf("measuring what timing adds: %w", err) }
	nothing := pushing
	if stepped {
		nothing = plain
	}
	pid, addr := os.Getpid(), uint64(reflect.ValueOf(nothing).Pointer())
	own, err := Own(addr)
	if err != nil {
		return fail(err)
	}
	if err := t.SetInterpreter(pid, capture.Process{}); err != nil {
		return fail(err)
	}
	defer t.RemoveInterpreter(pid)
	at, probe := addr+own.Return-own.Entry, t.NewProbe()
	for _, pt := range []struct {
		addr, off uint64
		prog      bpf.Program
		flags     uint32
	}{{at, own.Return, bpf.ProgPyHit, event.CaptureReturn}, {addr, own.Entry, bpf.ProgPyEntry, 0}} {
		if err := t.SetProbe(pid, pt.addr, probe, pt.flags); err != nil {
			return fail(err)
		}
		l, err := own.Executable.Uprobe("nothing", t.Program(pt.prog), &link.UprobeOptions{Address: pt.off, PID: pid})
		if err != nil {
			return fail(explain(err))
		}
		defer l.Close()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The median of rounds keeps out what else the host did.
	const rounds, each = 15, 50
	var means []float64
	var calls, ns uint64
	for range rounds {
		for range each {
			result = nothing(result)
		}
		use, err := t.ProbeUse(pid, at)
		if err != nil {
			return fail(err)
		}
		if use.Timed > calls {
			means = append(means, float64(use.TimedNS-ns)/float64(use.Timed-calls))
		}
		calls, ns = use.Timed, use.TimedNS
	}
	if len(means) < rounds {
		return fail(fmt.Errorf("the probes saw %d of %d calls", calls, rounds*each))
	}
	slices.Sort(means)
	return time.Duration(means[len(means)/2]), nil
}

// plain begins with arithmetic on x86-64, pushing with a push, since it calls and has no
// check of the stack before.
//
//go:noinline
func plain(n int) int { return n*5 + 1 }

//go:noinline
//go:nosplit
func pushing(n int) int { return plain(n) + 1 }

// measuring is held while this process has probes.
var measuring sync.Mutex

var result int
