package attach

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"inferspan/probes/python/plan"
)

// loaded is plans of a watch in the kernel.
type loaded struct {
	programs []*plan.Program
	ids      []uint32
	status   []PlanStatus
	level    int
}

// load compiles and loads the plans of a level.
func (i *Interpreter) load(w *Watch, level int) (l loaded) {
	plans, of := w.at(level)
	l.level = of
	for _, pl := range plans {
		ps := PlanStatus{Name: pl.Name, Function: pl.Function().String()}
		prog, err := pl.Compile(i.in)
		if err == nil {
			ps.Plan, err = i.tracer.AddPlan(&prog.Plan)
		}
		if err != nil {
			ps.Reason, ps.Absent = err.Error(), errors.Is(err, plan.ErrFunction)
		} else {
			ps.Slots, ps.Dropped = prog.Slots, prog.Dropped
			l.programs = append(l.programs, prog)
			l.ids = append(l.ids, ps.Plan)
		}
		l.status = append(l.status, ps)
	}
	return l
}

// unload gives the places of plans free.
func (i *Interpreter) unload(l loaded) {
	for _, id := range l.ids {
		i.tracer.RemovePlan(id)
	}
}

// Lighten has the watches of probe n of the report use their plans of a level, 0 being the
// first ones, or the lightest that they have; reason is what the report says of it. The
// probe stays where it is: hits find either the former plans or these, which have new
// numbers. On an error all are as they were.
func (i *Interpreter) Lighten(n, level int, reason string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return os.ErrClosed
	}
	p := i.probes[n]
	fresh := make(map[int]loaded)
	fail := func(err error) error {
		for k, l := range fresh {
			w := p.watched[k]
			err = errors.Join(err, i.tracer.Watch(i.pid, p.status.Probe, w.code.Addr(), w.ids...))
			i.unload(l)
		}
		return fmt.Errorf("other plans for %s of process %d: %w", p.status.Callable, i.pid, err)
	}
	for k, w := range p.watched {
		if _, of := w.spec.at(level); w.code == nil || of == w.level {
			continue // Refresh finds the level
		}
		l := i.load(&w.spec, level)
		if len(l.ids) == 0 {
			return fail(errors.New("none of them can be used"))
		}
		if err := i.tracer.Watch(i.pid, p.status.Probe, w.code.Addr(), l.ids...); err != nil {
			i.unload(l)
			return fail(err)
		}
		fresh[k] = l
	}
	for k, l := range fresh {
		w, s := p.watched[k], &p.status.Watches[k]
		// A hit that runs now may still use the former plans: their places are not taken soon.
		i.unload(w.loaded)
		w.loaded, s.Plans, s.Level = l, slices.Clone(l.status), l.level
	}
	p.status.Level, p.status.Less = level, reason
	return nil
}
