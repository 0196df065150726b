package decode

import (
	"encoding/binary"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/target"
)

// TestGPUPoint: counters of one kind add up, and a wait says what it was for.
func TestGPUPoint(t *testing.T) {
	const pid, tid = 7, 8
	var counts [event.GPUCounts]uint64
	for i := range counts {
		counts[i] = 1 << i
	}
	work := signal.GPUWork{Kernels: 1 + 2 + 4, Graphs: 8, GraphsUnknown: 16, GraphKernels: 32, Copies: 128 + 256 + 512 + 1024, CopyBytes: 2048 + 4096 + 8192 + 16384}
	point := signal.GPUPoint{At: 100, Engine: 3, PID: pid, TID: tid, Work: work, Epoch: 5, Launches: true, First: 60, Last: 70, Marks: 9}
	gpu := event.GPU{Object: 1, Entry: 80, Recorded: 75, First: 60, Last: 70, Counts: counts, Recorder: 6, Epoch: 5, Marks: 9, Flags: event.GPULaunches}
	for _, c := range []struct {
		name string
		edit func(*event.GPU)
		want signal.Signal
	}{
		{"mark", func(g *event.GPU) { g.What = event.GPUMark }, &signal.GPUMark{GPUPoint: point, Bursts: [signal.GPUBursts]signal.GPUBurst{{First: 60, Last: 62}, {First: 65, Last: 70}}}},
		{"event", func(g *event.GPU) { g.What, g.Flags = event.GPUSyncEvent, g.Flags|event.GPUSlept },
			&signal.GPUWait{GPUPoint: point, Entry: 80, Slept: true, Submitted: 75, Submitter: 6, Event: true}},
		{"event that was not seen being recorded", func(g *event.GPU) { g.What, g.Recorded, g.Recorder = event.GPUSyncEvent, 0, 0 },
			&signal.GPUWait{GPUPoint: point, Entry: 80, Event: true}},
		{"stream", func(g *event.GPU) { g.What, g.Recorded, g.Recorder = event.GPUSyncStream, 0, 0 },
			&signal.GPUWait{GPUPoint: point, Entry: 80, Submitted: 80, Submitter: tid}},
		{"context, failed", func(g *event.GPU) { g.What, g.Result = event.GPUSyncContext, 700 },
			&signal.GPUWait{GPUPoint: point, Entry: 80, Submitted: 80, Submitter: tid, Failed: true}},
		{"unknown", func(g *event.GPU) { g.What = 99 }, nil},
	} {
		d := New(Options{})
		_ = d.Engine(&target.Engine{ID: 3, Kind: "other", Processes: []target.Process{{PID: pid}}}, func(signal.Signal) {})
		r := event.Record{Header: event.Header{Time: 100, Kind: event.KindGPU, PID: pid, TID: tid}, GPU: gpu}
		for _, at := range []uint64{65, 70, 60, 62} { // bursts of a mark, in no order
			r.Data = binary.LittleEndian.AppendUint64(r.Data, at)
		}
		c.edit(&r.GPU)
		var got signal.Signal
		d.Record(&r, func(s signal.Signal) {
			switch s := s.(type) {
			case *signal.GPUMark:
				x := *s
				got = &x
			case *signal.GPUWait:
				x := *s
				got = &x
			}
		})
		switch want := c.want.(type) {
		case nil:
			if got != nil || d.unknownGPU != 1 {
				t.Errorf("%s: %+v, %d counted", c.name, got, d.unknownGPU)
			}
		case *signal.GPUMark:
			if g, ok := got.(*signal.GPUMark); !ok || *g != *want {
				t.Errorf("%s: %+v, want %+v", c.name, got, want)
			}
		case *signal.GPUWait:
			if g, ok := got.(*signal.GPUWait); !ok || *g != *want {
				t.Errorf("%s: %+v, want %+v", c.name, got, want)
			}
		}
	}
}
