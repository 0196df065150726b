package vllm

import (
	"bytes"
	"slices"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
)

// Steps seen when the workers were told of them. What was in a step is known then; when
// it ended, the stamp of its outputs says. Which outputs are whose is worked out from
// what is certain:
//
//   - Steps end in the order in which they began, all on one thread. How many were under
//     way at each dispatch is known, so that it is known between which two dispatches a
//     step ended.
//   - With its statistics on, the engine sends them once for each step, with the first
//     of its outputs.
//   - With statistics off, a step sends outputs if and only if one of its requests has
//     got tokens.
//
// A step whose outputs cannot be told has no end.

// maxDispatched bounds the steps whose ends are looked for, and dispatchWait for how long
// after the next dispatch that shows that they have ended: outputs are sent by another
// thread, some time after they were stamped.
const (
	maxDispatched = maxOpenSteps
	dispatchWait  = signal.Mono(1e9)
)

// dispatches are the steps of a core that were dispatched.
type dispatches struct {
	open    []*dispatched // by dispatch
	free    []*dispatched // for reuse
	counted int64         // steps, where the engine does not number them
	stats   bool          // the core sends statistics
	blind   bool          // it is not known how many steps are under way
	clocked bool          // the clock shows their ends: the source has changed
	// Of a core without statistics: the latest step whose end is known, and the sockets
	// by which its outputs came: each front end gets its own.
	last  *dispatched
	socks []uint64
}

// dispatched is a step that was dispatched. Its memory is its own.
type dispatched struct {
	step   signal.Step
	names  []byte
	unseen bool // it is not to be handed over: its dispatch was not seen, or it was handed over
	// The step ended after the one and before the other; 0: not known, or not yet.
	after, before signal.Mono
}

// dispatchSeen: the workers are told of a step.
func (d *Decoder) dispatchSeen(c *core, at signal.Mono, v reading, cut bool, emit func(signal.Signal)) {
	out, notify := v.value(slotOutput), v.value(slotNotify)
	if out == nil || out.Tag != capture.TagAddr || notify == nil || notify.Tag != capture.TagAddr {
		d.stats.Other++ // a part of a long message, before the wake-up
		return
	}
	d.toldWorkers(c, at, v, true, emit)
	x := &c.dispatches
	x.counted++
	number, numbered := v.int(slotStep)
	if !numbered {
		number = x.counted
	}
	under, sure := v.inFlight()
	x.blind, x.clocked = !sure, false
	if n := len(x.open); n > 0 && (x.open[n-1].step.Number.V >= number || number-x.open[n-1].step.Number.V > maxDispatched) {
		d.giveUp(c, n, emit) // the count began anew
	}
	x.unseen(number, int(min(under, maxDispatched)))
	x.bound(at, int(under), sure)
	d.expire(c, at, emit)
	// Steps that the clock showed to begin, before the source changed.
	for len(c.steps.open) > 0 {
		if c.steps.open[0].number >= number {
			c.steps.open = c.steps.open[:0]
			break
		}
		d.abandon(c, 1, !numbered, emit)
	}
	g := d.newStep(c, signal.StepNoEnd, !numbered)
	g.Method, g.Number, g.Dispatch = signal.StepByDispatch, signal.Some(number), at
	g.Partial = cut
	g.Running = known(v.int(slotRunning))
	g.Waiting, g.Deferred = queues(v)
	g.FreeBlocks, g.Blocks = d.blocks(v)
	d.stepLists(c, v)
	d.stepRequests(c, v)
	if n := len(x.open) - maxDispatched + 1; n > 0 {
		d.giveUp(c, n, emit)
	}
	x.open = append(x.open, x.keep(g))
}

// unseen puts in place the steps before one that are under way, or have a number, and
// whose dispatch was not seen.
func (x *dispatches) unseen(number int64, under int) {
	if n := len(x.open); n > 0 {
		for i := x.open[n-1].step.Number.V + 1; i < number; i++ {
			x.open = append(x.open, &dispatched{unseen: true, step: signal.Step{Number: signal.Some(i), Partial: true}})
		}
	}
	for len(x.open) < under {
		before := number - 1 - int64(len(x.open))
		x.open = slices.Insert(x.open, 0, &dispatched{unseen: true, step: signal.Step{Number: signal.Some(before), Partial: true}})
	}
}

// bound notes what a dispatch at a time says of the steps before: all but the under
// latest have ended.
func (x *dispatches) bound(at signal.Mono, under int, sure bool) {
	if !sure {
		return
	}
	for i, p := range x.open {
		if i < len(x.open)-under {
			if p.before == 0 {
				p.before = at
			}
		} else {
			p.after = at
		}
	}
}

// keep copies a step to memory of its own.
func (x *dispatches) keep(g *signal.Step) *dispatched {
	var p *dispatched
	if n := len(x.free); n > 0 {
		p, x.free = x.free[n-1], x.free[:n-1]
	} else {
		p = new(dispatched)
	}
	requests, preempted, finished, names := p.step.Requests[:0], p.step.Preempted[:0], p.step.Finished[:0], p.names[:0]
	name := func(b []byte) []byte {
		from := len(names)
		names = append(names, b...)
		return names[from:len(names):len(names)]
	}
	need := 0
	for i := range g.Requests {
		need += len(g.Requests[i].ID)
	}
	for _, id := range slices.Concat(g.Preempted, g.Finished) {
		need += len(id)
	}
	names = slices.Grow(names, need)
	*p = dispatched{step: *g}
	for _, r := range g.Requests {
		r.ID = name(r.ID)
		requests = append(requests, r)
	}
	for _, id := range g.Preempted {
		preempted = append(preempted, name(id))
	}
	for _, id := range g.Finished {
		finished = append(finished, name(id))
	}
	p.step.Requests, p.step.Preempted, p.step.Finished, p.names = requests, orNil(preempted), orNil(finished), names
	return p
}

// giveUp hands over the n oldest steps, whose ends are not known.
func (d *Decoder) giveUp(c *core, n int, emit func(signal.Signal)) {
	x := &c.dispatches
	for _, p := range x.open[:n] {
		x.hand(p, emit)
		x.retire(p)
	}
	x.open = slices.Delete(x.open, 0, n)
}

// hand hands a step over.
func (x *dispatches) hand(p *dispatched, emit func(signal.Signal)) {
	if !p.unseen {
		emit(&p.step)
	}
}

func (x *dispatches) retire(p *dispatched) {
	if p != x.last && !p.unseen {
		x.free = append(x.free, p)
	}
}

// expire hands over steps that ended long before now, of which no outputs came.
func (d *Decoder) expire(c *core, now signal.Mono, emit func(signal.Signal)) {
	n := 0
	for n < len(c.dispatches.open) && c.dispatches.open[n].before != 0 && now-c.dispatches.open[n].before > dispatchWait {
		n++
	}
	if n > 0 {
		d.giveUp(c, n, emit)
	}
}

// idle: at a time the core had no requests. Steps from long before have given what they
// had to give: they are handed over, and stay in line for outputs that might come.
func (d *Decoder) idle(c *core, at signal.Mono, emit func(signal.Signal)) {
	for _, p := range c.dispatches.open {
		if at-p.step.Dispatch > dispatchWait {
			c.dispatches.hand(p, emit)
			p.unseen = true
		}
	}
}

// endDispatched finds the step whose outputs a message has, and hands it over.
func (d *Decoder) endDispatched(c *core, m *signal.StepOutput, sock uint64, emit func(signal.Signal)) {
	x := &c.dispatches
	if m.Stats != nil {
		x.stats = true
	}
	if len(x.open) == 0 || x.blind || x.clocked || m.Stamp <= 0 || x.stats && m.Stats == nil {
		return
	}
	if !x.stats && x.another(m, sock) {
		return
	}
	for i, p := range x.open {
		if m.Stamp <= p.step.Dispatch || p.after != 0 && m.Stamp <= p.after {
			return
		}
		if p.before != 0 && m.Stamp >= p.before {
			continue // it ended before that
		}
		switch p.fits(m, x.stats) {
		case fitsNot:
			if x.stats {
				return // each step has its own: one of the two is not what it seems
			}
			continue
		case fitsUnsure:
			if !x.alone(i) {
				return
			}
		}
		d.giveUp(c, i, emit)
		x.open = slices.Delete(x.open, 0, 1)
		p.step.Detail, p.step.Update = signal.StepSeen, m.Stamp
		if p.step.Schedule = p.begun(m); p.step.Schedule == 0 {
			p.step.Detail = signal.StepNoBeginning
		}
		x.hand(p, emit)
		if last := x.last; last != nil {
			x.last = nil
			x.retire(last)
		}
		x.last, x.socks = p, append(x.socks[:0], sock)
		return
	}
}

// endByClock hands over step number, which was seen at its dispatch and ends by the
// clock, after a change of the source. It reports whether there is one.
func (d *Decoder) endByClock(c *core, number int64, at signal.Mono, emit func(signal.Signal)) bool {
	x := &c.dispatches
	n := 0
	for n < len(x.open) && x.open[n].step.Number.V < number {
		n++
	}
	d.giveUp(c, n, emit)
	x.clocked = true
	if len(x.open) == 0 || x.open[0].step.Number.V != number || x.open[0].unseen {
		return false
	}
	x.open[0].step.Detail, x.open[0].step.Update = signal.StepNoBeginning, at
	d.giveUp(c, 1, emit)
	for len(c.steps.open) > 0 && c.steps.open[0].number <= number {
		c.steps.open = c.steps.open[1:]
	}
	return true
}

// another reports whether a message is that of one more front end for the latest step.
func (x *dispatches) another(m *signal.StepOutput, sock uint64) bool {
	if x.last == nil || slices.Contains(x.socks, sock) || x.last.before != 0 && m.Stamp >= x.last.before || x.last.fits(m, false) == fitsNot {
		return false
	}
	x.socks = append(x.socks, sock)
	return true
}

// alone reports whether open step i is the only one that ended between two dispatches.
func (x *dispatches) alone(i int) bool {
	p := x.open[i]
	if p.before == 0 {
		return false
	}
	for k, q := range x.open {
		if k != i && q.after == p.after && q.before == p.before {
			return false
		}
	}
	return true
}

const (
	fitsNot = iota
	fitsUnsure
	fitsSurely
)

// fits reports whether a message has a step's outputs, if the steps before it have
// theirs. With statistics that is so unless it has others' outputs. Without, the
// step must have given one of its requests tokens.
func (p *dispatched) fits(m *signal.StepOutput, stats bool) int {
	fit := fitsNot
	for i := range m.Outputs {
		o := &m.Outputs[i]
		r := p.find(o.ID)
		switch {
		case r == nil && !p.step.Partial:
			if !stats {
				return fitsNot
			}
			// One that was aborted has an output, too, and need not be in a step.
			if o.NumTokens > 0 {
				return fitsNot
			}
		case r == nil, o.NumTokens == 0 && !o.Pooled:
			fit = max(fit, fitsUnsure)
		case r.Phase == signal.StepPrefillEnd, r.Phase == signal.StepDecode:
			fit = fitsSurely
		case r.Phase != signal.StepPrefillChunk:
			fit = max(fit, fitsUnsure)
		}
	}
	if stats {
		return fitsSurely
	}
	return fit
}

func (p *dispatched) find(id []byte) *signal.StepRequest {
	for i := range p.step.Requests {
		if r := &p.step.Requests[i]; bytes.Equal(r.ID, id) {
			return r
		}
	}
	return nil
}

// begun gives when a step began to be scheduled: a request that was scheduled for the
// first time has the same clock read in its events. 0 if there is none.
func (p *dispatched) begun(m *signal.StepOutput) signal.Mono {
	for i := range m.Outputs {
		r := p.find(m.Outputs[i].ID)
		if r == nil || r.Entry != signal.StepNew {
			continue
		}
		for _, e := range m.Outputs[i].Events {
			if e.Kind == signal.EventScheduled && e.At <= p.step.Dispatch {
				return e.At
			}
		}
	}
	return 0
}
