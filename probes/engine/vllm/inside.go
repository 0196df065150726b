package vllm

import (
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
)

// A core that is part of a program sends no messages. What they would say is in the
// objects that it makes at the end of a step.

// newInside hands over the requests that a step is the first with.
func (d *Decoder) newInside(c *core, v reading, at signal.Mono, emit func(signal.Signal)) {
	items, _, ok := v.list(slotPrompts, 2)
	if !ok {
		return
	}
	for i := 0; i+1 < len(items); i += 2 {
		id, n := &items[i], &items[i+1]
		if !id.IsStr() || id.Str == "" || c.running[id.Str] != nil {
			continue
		}
		d.request = signal.RequestAdded{At: at, Core: c.id, ID: id.Str}
		q := &d.request
		external, sure := "", true
		if d.schema.externalIDs() {
			external, sure = externalID(q.ID)
		}
		if sure {
			q.ExternalID, q.ResponseID, q.Child = ids(q.ID, external, d.schema.externalIDs())
		}
		if n.Tag == capture.TagInt && n.Int >= 0 {
			q.PromptTokens = signal.Some(n.Int)
		}
		c.track(q)
		d.stats.Requests++
		emit(q)
	}
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
