package vllm

import (
	"bytes"
	"slices"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/python/plan"
)

// A core that is part of a program sends no messages. What they would say is in the
// objects that it makes at the end of a step.

// promptsInside hands over the requests that a step is the first with.
func (d *Decoder) promptsInside(c *core, v reading, at signal.Mono, emit func(signal.Signal)) {
	items, _, ok := v.list(slotPrompts, 2)
	if !ok {
		return
	}
	for i := 0; i+1 < len(items); i += 2 {
		d.newInside(c, &items[i], &items[i+1], at, emit)
	}
}

// newInside hands over a request that a step is the first with, if it was not known or
// more is known of it now. at is when the step began.
func (d *Decoder) newInside(c *core, id, prompt *plan.Value, at signal.Mono, emit func(signal.Signal)) {
	if !id.IsStr() || id.Str == "" {
		return
	}
	q := &d.request
	if r := c.running[id.Str]; r != nil {
		if r.looked == nil {
			return
		}
		*q, r.looked = *r.looked, nil
		if c.begun(q) {
			emit(q)
		}
		return
	}
	*q = signal.RequestAdded{At: at, Core: c.id, ID: id.Str, Outline: true, AdapterUnknown: true}
	external, sure := "", true
	if d.schema.externalIDs() {
		external, sure = externalID(q.ID)
	}
	if sure {
		q.ExternalID, q.ResponseID, q.Child = ids(q.ID, external, d.schema.externalIDs())
	}
	if prompt.Tag == capture.TagInt && prompt.Int >= 0 {
		q.PromptTokens = signal.Some(prompt.Int)
	}
	c.track(q)
	c.seen(q.ID, at)
	c.begun(q)
	d.stats.Requests++
	emit(q)
}

// lookedInside takes in a request that a look has found, and hands it over if it is
// known when it began. Else that may come with its first step.
func (d *Decoder) lookedInside(c *core, q signal.RequestAdded, at signal.Mono, emit func(signal.Signal)) {
	c.seen(q.ID, at)
	r := c.running[q.ID]
	if r == nil || r.begun || r.gave {
		return
	}
	if d.request = q; c.begun(&d.request) {
		emit(&d.request)
		return
	}
	r.looked = &q
}

// outputsInside hands over the outputs of a step. at is when they were made: the core
// stamps them a moment later.
func (d *Decoder) outputsInside(c *core, v reading, at signal.Mono, emit func(signal.Signal)) {
	outs, whole, ok := v.list(slotOuts, 2)
	ends, wholeEnds, endsOK := v.list(slotEnds, 2)
	if !ok {
		return
	}
	if !endsOK || !whole || !wholeEnds || len(outs) != len(ends) {
		d.stats.Truncated++
	}
	d.step = signal.StepOutput{At: at, Core: c.id, Stamp: at}
	d.outputs = d.outputs[:0]
	for i := 0; i+1 < len(outs); i += 2 {
		id, n := &outs[i], &outs[i+1]
		if !id.IsStr() || n.Tag != capture.TagInt || n.Int < 0 {
			d.stats.Truncated++
			continue
		}
		o := signal.Output{ID: d.keep(id.Str), NumTokens: int(n.Int)}
		if i+1 < len(ends) {
			if end := &ends[i]; end.Tag == capture.TagInt { // a member of FinishReason, else None
				d.finishNumber(end.Int, &o)
			}
			// A tensor is an object of another type than can be sent.
			x := &ends[i+1]
			o.Pooled = x.Tag == capture.TagMissing && x.Missing == capture.MissingType
		}
		c.outputOf(id.Str, at)
		if o.Finish != signal.FinishNone {
			c.end(id.Str)
		}
		d.outputs = append(d.outputs, o)
	}
	if len(d.outputs) == 0 {
		return
	}
	d.step.Outputs = d.outputs
	d.stats.Steps++
	d.stats.Outputs += uint64(len(d.outputs))
	emit(&d.step)
}

// outputOf notes that a request has given outputs.
func (c *core) outputOf(id string, at signal.Mono) {
	r := c.running[id]
	if r == nil {
		if len(c.running) >= maxRunning {
			return
		}
		r = new(running)
		c.running[id] = r
	}
	r.gave, r.looked = true, nil
	c.seen(id, at)
}

// seen notes that the core had a request at a time.
func (c *core) seen(id string, at signal.Mono) {
	if r := c.running[id]; r != nil && r.from == 0 {
		r.from = at
	}
}

// abortedInside hands over the requests that have ended without an output that says so,
// as the program ends those with a stop string. ids are those that the scheduler lists
// as over since the step before.
func (d *Decoder) abortedInside(c *core, ids [][]byte, at signal.Mono, emit func(signal.Signal)) {
	if !d.inside[c.id.PID] {
		return
	}
	a := &d.abort
	*a = signal.RequestAborted{At: at, Core: c.id, IDs: a.IDs[:0], Late: true}
	for _, id := range ids {
		if r := c.running[string(id)]; r != nil && r.gave {
			a.IDs = append(a.IDs, string(id))
			c.end(string(id))
		}
	}
	if len(a.IDs) > 0 {
		d.stats.Aborts++
		emit(a)
	}
}

// idleInside is abortedInside for a core that a look found without requests: no step
// follows that lists those that ended last. Captures may be on their way that are older
// than the look, so that they are taken for over at the next one.
func (d *Decoder) idleInside(c *core, idle bool, at signal.Mono, emit func(signal.Signal)) {
	if !d.inside[c.id.PID] {
		return
	}
	var over [][]byte
	for id, r := range c.running {
		switch {
		case r.idle != 0 && r.idle < at:
			over = append(over, []byte(id))
		case idle && r.idle == 0 && r.from < at:
			r.idle = at
		}
	}
	slices.SortFunc(over, bytes.Compare)
	d.abortedInside(c, over, at, emit)
}
