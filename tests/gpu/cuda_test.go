package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"inferspan/bpf/event"
	"inferspan/gpu/cuda"
	"inferspan/tests/child"
)

// traced runs apps/calls.c with the probes of a mode in it, and returns its records and
// the log of the rig.
func traced(t *testing.T, mode cuda.Mode, env ...string) ([]event.GPU, []event.Record, []operation) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	cmd := callsCommand(t, log, env...)
	if os.Getuid() != 0 {
		t.Skip("not root: probes cannot be attached")
	}
	cmd.Args = append(cmd.Args, "wait")
	run := child.Start(t, cmd)
	run.Expect("ready")
	objs, p := attached(t, run.PID(), mode)
	for _, s := range p.Report() {
		if s.Points == 0 {
			t.Logf("not attached: %s %s: %s", s.Symbol, s.Where, s.Reason)
		}
	}
	if err := run.Send(""); err != nil {
		t.Fatal(err)
	}
	run.Wait()
	var records []event.Record
	var gpu []event.GPU
	rd := objs.Reader()
	rd.SetDeadline(time.Now().Add(time.Second))
	for {
		var r event.Record
		err := rd.Read(&r)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind == event.KindGPU {
			r.Data = nil
			records, gpu = append(records, r), append(gpu, r.GPU)
		}
	}
	lost, err := objs.Losses()
	if err != nil || lost != [event.LossReasons]uint64{} {
		t.Errorf("lost %v, %v", lost, err)
	}
	return gpu, records, operations(t, log)
}

// TestCalls compares what the probes count with what the program does, call by call.
func TestCalls(t *testing.T) {
	for _, mode := range []cuda.Mode{cuda.Graph, cuda.All} {
		t.Run(string(mode), func(t *testing.T) {
			gpu, records, ops := traced(t, mode)
			// loops waits for an event; for a stream; for that of a copy; after the graphs; for all.
			if len(gpu) != loops+4 {
				t.Fatalf("%d synchronises were seen, want %d: %+v", len(gpu), loops+4, gpu)
			}
			var events []operation
			for _, o := range ops {
				if o.Op == "event_record" {
					events = append(events, o)
				}
			}
			var want [event.GPUCounts]uint64
			for i, g := range gpu {
				what := event.GPUSyncEvent
				switch {
				case i < loops:
					want[event.GPURecords]++
					if mode == cuda.All {
						want[event.GPUKernels]++
						want[event.GPUKernelsEx]++
					}
				case i == loops:
					what = event.GPUSyncStream
				case i == loops+1:
					what = event.GPUSyncStream
					if mode == cuda.All {
						want[event.GPUCopiesOut], want[event.GPUBytesOut] = 1, 4096
					}
				case i == loops+2:
					what = event.GPUSyncStream
					want[event.GPUGraphs] = loops
					if mode == cuda.All {
						want[event.GPUGraphKernels] = 6 * loops
						want[event.GPUCaptured] = 7 // two on a stream that joined
					} else {
						want[event.GPUGraphsUnknown] = loops
						want[event.GPURecords]++ // on the stream that joined: that is not looked at
					}
				default:
					what = event.GPUSyncContext
					if mode == cuda.All {
						want[event.GPUKernels]++
						want[event.GPUKernelsEx] += 2 // one on the stream that had joined
					}
				}
				if g.What != what || g.Result != 0 || g.Counts != want || (g.Flags&event.GPULaunches != 0) != (mode == cuda.All) {
					t.Errorf("synchronise %d: %+v, want what %d, counts %v", i, g, what, want)
				}
				if i >= loops {
					continue
				}
				e := events[i]
				returned := int64(records[i].Time)
				if int(g.Recorder) != e.Tid || int64(g.Recorded) > e.Enq || int64(g.Entry) < e.Enq {
					t.Errorf("event %d: recorded by %d at %d, waited for from %d; the log has %+v", i, g.Recorder, g.Recorded, g.Entry, e)
				}
				// Two kernels of 320 us: it had to wait.
				if returned < e.End || g.Flags&event.GPUSlept == 0 {
					t.Errorf("event %d: the wait ended at %d, the event came at %d; slept: %v", i, returned, e.End, g.Flags&event.GPUSlept != 0)
				}
			}
		})
	}
}

// TestNoDriver: a process without the driver is told from a failure.
func TestNoDriver(t *testing.T) {
	if _, err := cuda.Driver(os.Getpid()); !errors.Is(err, cuda.ErrNoDriver) {
		t.Errorf("%v, want ErrNoDriver", err)
	}
	if _, err := cuda.Driver(1 << 21); err == nil || errors.Is(err, cuda.ErrNoDriver) {
		t.Errorf("of no process: %v", err)
	}
}
