package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"inferspan/probes/attach"
	"inferspan/probes/attach/governor"
	"inferspan/probes/engine"
	"inferspan/probes/note"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// watching is the probes on the interpreter of one process.
type watching struct {
	inside *inside
	pid    uint32
	probes []engine.Probe
	// resting says that the busy probe is out for a while, as it should be.
	resting bool
	sources *sources            // nil if there is nothing to choose
	interp  *attach.Interpreter // nil if nothing could be attached
	// governor is nil if the cost of a probe could not be measured.
	governor *governor.Governor
}

// attach puts probes on an interpreter and sends a note for each detail.
func (p *inside) attach(ctx context.Context, proc *target.Process, in *python.Interp, probes []engine.Probe) *watching {
	w := &watching{inside: p, pid: uint32(proc.PID), probes: probes, sources: newSources(probes, p.opt.StepSource)}
	specs := make([]attach.PythonProbe, len(probes))
	for i, s := range probes {
		specs[i].Callable, specs[i].ZMQ, specs[i].Behind = s.Callable, s.ZMQ, s.Behind
		specs[i].Timed, specs[i].Off = s.Timed, w.sources.off(i)
		if s.Busy && p.opt.DetokenizeSample == 0 {
			s.Watches = nil
			w.probes[i] = s
		}
		for _, x := range s.Watches {
			spec := attach.Watch{Caller: x.Caller, Plans: x.Plans}
			for _, l := range x.Lighter {
				spec.Lighter = append(spec.Lighter, l.Plans)
			}
			specs[i].Watches = append(specs[i].Watches, spec)
		}
	}
	var err error
	if w.interp, err = attach.AttachInterpreter(p.tracer, proc, in, specs); err != nil {
		w.interp = nil
		for _, detail := range w.details() {
			p.probe(ctx, w.pid, note.Probe{Detail: detail, Reason: err.Error()})
		}
		return w
	}
	if w.sources != nil {
		w.sources.begin(w.interp)
	}
	w.report(ctx)
	w.govern()
	return w
}

// details are what the probes are for, each once.
func (w *watching) details() []string {
	var out []string
	add := func(detail string) {
		if !slices.Contains(out, detail) {
			out = append(out, detail)
		}
	}
	for _, s := range w.probes {
		add(s.Detail)
		for _, x := range s.Watches {
			add(cmp.Or(x.Detail, s.Detail))
		}
	}
	return out
}

// report sends a note for each detail: it is there if each of its probes is
// attached and each of their functions watched.
func (w *watching) report(ctx context.Context) {
	status := w.interp.Report()
	for _, detail := range w.details() {
		n := note.Probe{Detail: detail, Active: true, Plans: make(map[uint32]note.Plan)}
		var why []string
		for i := range status {
			s, of := &status[i], w.probes[i].Detail
			mine := of == detail
			for k, x := range s.Watches {
				if cmp.Or(w.probes[i].Watches[k].Detail, of) != detail {
					continue
				}
				mine = true
				if x.Reason != "" && !w.sources.off(i) {
					why = append(why, fmt.Sprintf("%s: %s", x.Caller, x.Reason))
				}
				if !w.sources.off(i) {
					why = append(why, unloaded(&x)...)
				}
				for _, pl := range x.Plans {
					if pl.Plan != 0 {
						n.Plans[pl.Plan] = note.Plan{Name: pl.Name, Slots: pl.Slots, Dropped: pl.Dropped, Level: x.Level, Behind: w.probes[i].Behind && !s.Shared}
					}
				}
				if s.Attached && x.Level > 0 {
					n.Less = union(n.Less, w.probes[i].Watches[k].Lighter[x.Level-1].Lacks)
					n.Why = strings.Join(union(strings.Split(n.Why, "; "), []string{s.Less}), "; ")
				}
			}
			if mine && w.probes[i].Source != "" {
				n.Source, n.Lacks, n.Reason = w.sources.state()
				if n.Source == "" && !slices.Contains(why, n.Reason) {
					why = append(why, n.Reason)
				}
			}
			if mine && !s.Attached && !(w.probes[i].Busy && w.resting) && !w.sources.off(i) {
				why = append(why, fmt.Sprintf("%s: %s", s.Callable, s.Reason))
			}
			if mine && w.probes[i].Timed {
				n.Overhead = int64(s.Overhead)
			}
		}
		if len(why) > 0 {
			n.Active, n.Reason = false, strings.Join(why, "; ")
		}
		w.inside.probe(ctx, w.pid, n)
	}
}

// unloaded says which plans of watched code are missing, but for those that are for other
// versions of it: what they would show is, too.
func unloaded(x *attach.WatchStatus) (why []string) {
	for _, pl := range x.Plans {
		if pl.Plan == 0 && !pl.Absent {
			why = append(why, fmt.Sprintf("%s: %s", x.Caller, pl.Reason))
		}
	}
	return why
}

// union appends what is not in a list; a list of nothing but "" is none.
func union(list, more []string) []string {
	list = slices.DeleteFunc(list, func(s string) bool { return s == "" })
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// refresh resolves watched functions again that have changed.
func (w *watching) refresh(ctx context.Context) {
	if w.interp == nil {
		return
	}
	if stale, err := w.interp.Stale(); err != nil || len(stale) == 0 {
		return
	}
	if changed, err := w.interp.Refresh(); err == nil && changed {
		w.report(ctx)
	}
}

func (w *watching) close() {
	if w.interp != nil {
		w.interp.Close()
	}
}
