package governor

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf/link"

	"inferspan/bpf"
	"inferspan/probes/attach"
	"inferspan/probes/procfs"
)

// RunTime is what the program for interpreter probes takes for a call that it only
// counts; one that it captures takes some 2 us. Measured on a 3 GHz server core.
const RunTime = 600 * time.Nanosecond

// Calibrate measures what one hit of program costs: a function of this process is
// called with and without the probe. The program finds that this process is no
// target and ends; RunTime comes on top. It takes some 10 ms.
func Calibrate(t attach.Tracer, program bpf.Program) (time.Duration, error) {
	off, err := procfs.FS{}.FileOffset(os.Getpid(), uint64(probedPC()))
	if err != nil {
		return 0, fmt.Errorf("measuring a trap: %w", err)
	}
	exe, err := link.OpenExecutable("/proc/self/exe")
	if err != nil {
		return 0, fmt.Errorf("measuring a trap: %w", err)
	}
	without := perCall()
	l, err := exe.Uprobe("probed", t.Program(program), &link.UprobeOptions{Address: off, PID: os.Getpid()})
	if err != nil {
		return 0, fmt.Errorf("measuring a trap: attaching: %w", err)
	}
	defer l.Close()
	return max(0, perCall()-without), nil
}

// perCall times calls; the median of rounds keeps out what else the host did.
func perCall() time.Duration {
	const rounds, calls = 15, 50
	var times []time.Duration
	for range rounds {
		start := time.Now()
		for range calls {
			probed()
		}
		times = append(times, time.Since(start)/calls)
	}
	slices.Sort(times)
	return times[rounds/2]
}
