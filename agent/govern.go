package agent

import (
	"context"
	"strings"
	"sync"

	"inferspan/bpf"
	"inferspan/probes/attach"
	"inferspan/probes/attach/governor"
)

// trap tells what one hit of a probe on an interpreter costs here, measured when it
// is first asked for.
type trap struct {
	once  sync.Once
	costs governor.Costs
	err   error
}

func (t *trap) of(tracer attach.PythonTracer) (governor.Costs, error) {
	t.once.Do(func() { t.costs, t.err = governor.Calibrate(tracer, bpf.ProgPyHit) })
	return t.costs, t.err
}

// govern begins to watch over the cost of the probes. Without a measure of it they
// are left in place: then nothing says that they cost too much.
func (w *watching) govern() {
	p := w.inside
	costs, err := p.trap.of(p.tracer)
	if err != nil {
		return
	}
	var probes []governor.Probe
	for n, s := range w.interp.Report() {
		// A busy probe keeps itself in bounds, unless requests are looked at closely.
		if s.Attached && (!w.probes[n].Busy || p.opt.DetokenizeSample > 0) || w.sources.off(n) {
			probes = append(probes, governor.Probe{
				N: n, Number: s.Probe, Detail: w.probes[n].Detail, PerTurn: w.probes[n].PerTurn,
				Stepped: s.Stepped, Shared: s.Shared, Out: !s.Attached, Levels: w.probes[n].Levels(),
			})
		}
	}
	w.governor = governor.New(w.interp, p.opt.Budget, costs, w.waiting, probes...)
}

// waiting tells code that calls a probed function only while it waits.
func (w *watching) waiting(name, file string) bool {
	for i := range w.probes {
		for _, c := range w.probes[i].Waiting {
			// Before Python 3.11 code has no qualified name.
			plain := c.Name[strings.LastIndexByte(c.Name, '.')+1:]
			if (name == c.Name || name == plain) && strings.HasSuffix(file, c.File) {
				return true
			}
		}
	}
	return false
}

// tick looks at what the probes cost and tells of those that were taken out or put
// back, or look at less or more. It is to be called about once a second.
func (w *watching) tick(ctx context.Context) {
	if w.governor == nil {
		return
	}
	_, changes, _ := w.governor.Tick(int64(bpf.Monotonic()))
	for _, c := range changes {
		if !c.Moved {
			w.sources.change(c, w.interp, w.governor.Told)
		}
	}
	if len(changes) > 0 {
		w.report(ctx)
	}
}
