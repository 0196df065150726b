package vllm

import (
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
)

// With its statistics off, the engine reads no clock at the end of a step that gives
// no outputs: one with chunks of prompts only. What was in it shows when the next
// step begins, by how far the running requests have come.

// listing has the running requests at the beginning of a step.
type listing struct {
	ok       bool
	number   int64            // of the step
	computed map[string]int64 // tokens computed, those of steps under way counted
}

// silentStep is what the beginning of the next step says of a step.
type silentStep struct {
	requests []signal.StepRequest
	whole    bool // these are all
}

// list compares the running requests at the beginning of step number with those at
// the beginning of the step before.
func (d *Decoder) list(c *core, number int64, at signal.Mono, v reading, emit func(signal.Signal)) {
	s := &c.steps
	before := s.listed
	s.listed = listing{number: number}
	items, whole, ok := v.list(slotListed, 2)
	if !ok || !whole {
		return
	}
	lengths, whole, ok := v.list(slotLengths, 1)
	if !ok || !whole || len(lengths) != len(items)/2 {
		lengths = nil
	}
	now := listing{ok: true, number: number, computed: make(map[string]int64, len(items)/2)}
	silent := &silentStep{whole: true}
	if n := len(s.open); n > 0 && s.open[n-1].number == number-1 {
		at = s.open[n-1].at // those that are new began in that step
	}
	for i := 0; i+1 < len(items); i += 2 {
		id, n := &items[i], &items[i+1]
		if !id.IsStr() || n.Tag != capture.TagInt || n.Int < 0 {
			return
		}
		if lengths != nil {
			d.newInside(c, id, &lengths[i/2], at, emit)
		}
		now.computed[id.Str] = n.Int
		if before.ok {
			silent.add(c, id.Str, n.Int, before.computed)
		}
	}
	s.listed = now
	if !before.ok || before.number != number-1 || len(s.open) == 0 || s.open[len(s.open)-1].number != before.number {
		return
	}
	for id := range before.computed {
		if _, still := now.computed[id]; !still {
			silent.whole = false // it may have been in the step, and is gone
		}
	}
	s.open[len(s.open)-1].silent = silent
}

// add adds a request that has come to the count now.
func (x *silentStep) add(c *core, id string, now int64, before map[string]int64) {
	r := signal.StepRequest{ID: []byte(id), Tokens: -1, Entry: signal.StepRunning}
	was, ok := before[id]
	switch {
	case ok && now == was:
		return
	case ok && now > was && c.spec == signal.Some(int64(0)):
		// With drafts a count may also fall, when they are refused.
		r.Tokens, r.Computed = now-was, signal.Some(was)
	case ok:
	default:
		// What the prefix cache had is in whole blocks.
		if c.prefixCaching == signal.Some(false) || c.blockSize.OK && now < c.blockSize.V {
			r.Tokens, r.Computed = now, signal.Some(int64(0))
		}
		r.Entry = signal.StepNew
		if q := c.running[id]; q != nil && q.done > 0 {
			r.Entry = signal.StepResumed
		}
	}
	x.requests = append(x.requests, r)
}

// silent fills in the requests of a step that gave no outputs.
func (d *Decoder) silent(c *core, x *silentStep) {
	g := &d.stepSig
	if x == nil {
		g.Partial = true
		return
	}
	g.Partial = !x.whole
	total, known := int64(0), x.whole
	for _, r := range x.requests {
		if r.Computed.OK {
			phase(c, &r)
		}
		if r.Phase == signal.StepPhaseUnknown || r.Phase == signal.StepPrefillEnd || r.Phase == signal.StepDecode {
			// It gave no token.
			r.Phase = signal.StepPrefillChunk
			if r.Entry == signal.StepResumed {
				r.Phase = signal.StepRecompute
			}
		}
		known = known && r.Tokens >= 0
		total += r.Tokens
		g.Requests = append(g.Requests, r)
	}
	if known {
		g.Tokens = signal.Some(total)
	}
}
