package sglang

import (
	"slices"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/python/plan"
)

// prompt is what a request that enters a batch comes with.
type prompt struct {
	now   moment
	made  signal.Opt[int64]
	chunk signal.Opt[bool]
	back  bool // it was put back since, so that what it was in the batch is not known
}

// prompts takes the requests of a batch that does not decode only; there is false if the
// capture has none. of says what a request comes with.
func (c *Captures) prompts(p *process, s *stager, v reading, l *list, slots promptSlots, b *batch, of func(n int, i item) prompt) (there bool) {
	extend, prefix := v.value(slots.extend), v.value(slots.prefix)
	there, whole := c.items(v, l, func(n int, i item) {
		x := of(n, i)
		if l := c.see(p, s, i.id(), x.now); i.id() != "" {
			b.enter(i, l, ints(extend, n), ints(prefix, n), &x)
		}
	})
	if there {
		b.mode, b.partial = "prefill", !whole
		b.size = opt(v.int(slots.size))
	}
	return there
}

// due: a capture shows what was put off of batch n. Its result is still to come, or it is
// over: then what that has left in its requests is not what their stamps were at its launch.
func (c *Captures) due(p *process, s *stager, v reading, n int64, over bool) {
	at := slices.IndexFunc(p.batches, func(b *batch) bool { return b.putOff && b.number == signal.Some(n) })
	if at < 0 {
		return
	}
	b := p.batches[at]
	more, known := v.chunked()
	there := c.prompts(p, s, v, &v.l.due, dueSlots, b, func(_ int, i item) prompt {
		x := prompt{now: i.moment(), chunk: signal.Opt[bool]{V: i.id() == more, OK: known}}
		if !over {
			// Its result makes them less.
			held, ok := i.int(partHeld)
			x.chunk = signal.Opt[bool]{V: held > 0, OK: ok}
			x.back = p.lives[i.id()] == nil && x.now.at[stampQueued] > x.now.at[stampForward]
		} else if l := p.lives[i.id()]; l == nil || !l.retract {
			// Nothing has shown it, and in its first run it had no result before.
			for _, k := range []timing{stampPrefilled, stampLastPrefilled, stampDecoded} {
				x.now.have[k] = l == nil && x.now.at[stampForward] == x.now.at[stampLastForward]
			}
		}
		return x
	})
	if b.putOff = !there; !there {
		return
	}
	if b.partial {
		p.lapse(p.count)
	}
	c.schedule(p, s, b)
}

// chunked is the request of whose prompt more is to come after a batch, "" if there is
// none. That chunks are under way it does not say: one may be the one before the last.
func (r reading) chunked() (id string, known bool) {
	v := r.value(slotChunked)
	switch {
	case v == nil:
		return "", false
	case v.IsStr():
		return v.Str, true
	case v.Tag != capture.TagMissing:
		return "", false
	}
	// None has no id.
	return "", v.Missing == capture.MissingName || v.Missing == capture.MissingType || v.Missing == capture.MissingUnset
}

// enter adds a request to a batch that does not decode only.
func (b *batch) enter(i item, l *life, tokens, computed signal.Opt[int64], as *prompt) {
	q := signal.StepRequest{ID: []byte(i.id()), Tokens: -1, Computed: computed}
	if tokens.OK {
		q.Tokens = tokens.V
	}
	switch {
	case l == nil, as.back:
	case l.retract:
		q.Phase = signal.StepRecompute
	case as.made.V > 0, l.rest: // its tokens may be in an array, whose length is not captured
		q.Phase = signal.StepDecode
	case as.chunk.V:
		q.Phase = signal.StepPrefillChunk
	case as.chunk.OK:
		q.Phase = signal.StepPrefillEnd
		l.rest = true
	}
	switch {
	case l == nil:
	case as.back:
		l.entered, l.back = true, true
	default:
		q.Entry = l.entry(b.after)
		if as.chunk.V {
			l.chunks++
		}
	}
	b.reqs = append(b.reqs, q)
}

// ints gives element n of a list of ints.
func ints(v *plan.Value, n int) signal.Opt[int64] {
	if v == nil || v.Tag != capture.TagItems || n >= v.Count() || v.Per != 1 {
		return signal.Opt[int64]{}
	}
	if x := &v.Values[n]; x.Tag == capture.TagInt && x.Int >= 0 {
		return signal.Some(x.Int)
	}
	return signal.Opt[int64]{}
}
