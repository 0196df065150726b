package decode

import (
	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

// stepper is what the messages of an engine may know of captures.
type stepper interface {
	// StepMark tells what the moment of a plan's captures is to a step.
	StepMark(pid, plan uint32) signal.StepMark
}

// marker is what the messages of an engine may learn from marks.
type marker interface {
	// Marked is called for each mark of a process, before the capture that it is of.
	Marked(r *event.Record)
}

// gpuPoint passes on what a thread had its GPU do.
func (d *Decoder) gpuPoint(r *event.Record, emit func(signal.Signal)) {
	e := d.engine[r.PID]
	if e == nil {
		d.unknown++
		return
	}
	g := &r.GPU
	n := func(counts ...event.GPUCount) (sum int64) {
		for _, c := range counts {
			sum += int64(g.Counts[c])
		}
		return sum
	}
	p := signal.GPUPoint{
		At: signal.Mono(r.Time), Engine: e.id, PID: r.PID, TID: r.TID,
		Work: signal.GPUWork{
			Kernels: n(event.GPUKernels, event.GPUKernelsEx, event.GPUCooperative),
			Graphs:  n(event.GPUGraphs), GraphKernels: n(event.GPUGraphKernels), GraphsUnknown: n(event.GPUGraphsUnknown),
			Copies:    n(event.GPUCopiesIn, event.GPUCopiesOut, event.GPUCopiesDevice, event.GPUCopiesOther),
			CopyBytes: n(event.GPUBytesIn, event.GPUBytesOut, event.GPUBytesDevice, event.GPUBytesOther),
		},
		Epoch: g.Epoch, Continues: g.Continues(), Launches: g.Flags&event.GPULaunches != 0,
		First: signal.Mono(g.First), Last: signal.Mono(g.Last), Marks: g.Marks,
	}
	switch g.What {
	case event.GPUMark:
		d.sig.mark = signal.GPUMark{GPUPoint: p}
		bursts, n := r.Bursts()
		for i, b := range bursts[:n] {
			d.sig.mark.Bursts[i] = signal.GPUBurst{First: signal.Mono(b.First), Last: signal.Mono(b.Last)}
		}
		if s, ok := e.msg.(stepper); ok {
			d.sig.mark.Step = s.StepMark(r.PID, g.Plan)
		}
		if m, ok := e.msg.(marker); ok {
			m.Marked(r)
		}
		emit(&d.sig.mark)
	case event.GPUSyncEvent, event.GPUSyncStream, event.GPUSyncContext:
		d.sig.wait = signal.GPUWait{
			GPUPoint: p, Entry: signal.Mono(g.Entry), Slept: g.Flags&event.GPUSlept != 0, Failed: g.Result != 0,
			Submitted: signal.Mono(g.Recorded), Submitter: g.Recorder, Event: g.What == event.GPUSyncEvent,
		}
		if w := &d.sig.wait; !w.Event {
			w.Submitted, w.Submitter = w.Entry, r.TID
		}
		emit(&d.sig.wait)
	default:
		d.unknownGPU++
	}
}
