package correlate

import (
	"cmp"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// engineConfig notes what a core was configured with.
func (c *Correlator) engineConfig(s *signal.EngineConfig) {
	e := c.engine(s.Core.Engine)
	if s.LogStats.OK {
		e.logStats = s.LogStats
	}
	if s.LoRA.OK {
		e.lora = s.LoRA
	}
	co := e.core(s.Core)
	co.config = nil
	for _, x := range []struct {
		key string
		v   signal.Opt[int64]
	}{
		{semconv.AttrInferspanEngineMaxNumSeqs, s.MaxSeqs},
		{semconv.AttrInferspanEngineMaxNumBatchedTokens, s.MaxBatchedTokens},
		{semconv.AttrInferspanEngineBlockSize, s.BlockSize},
		{semconv.AttrInferspanEngineKVBlocks, s.Blocks},
		{semconv.AttrInferspanEngineTensorParallelSize, s.TensorParallel},
		{semconv.AttrInferspanEnginePipelineParallelSize, s.PipelineParallel},
		{semconv.AttrInferspanEngineDataParallelSize, s.DataParallel},
	} {
		if x.v.OK {
			co.config = append(co.config, signal.KV{Key: x.key, Value: x.v.V})
		}
	}
	if s.PrefixCaching.OK {
		co.config = append(co.config, signal.KV{Key: semconv.AttrInferspanEnginePrefixCaching, Value: s.PrefixCaching.V})
	}
	if s.SpecMethod.OK && s.SpecMethod.V != "" {
		co.config = append(co.config, signal.KV{Key: semconv.AttrInferspanEngineSpecMethod, Value: s.SpecMethod.V})
	}
	e.describeProcesses()
}

// requestPeeked takes in a request that was running or waiting when its core was
// looked at.
func (c *Correlator) requestPeeked(s *signal.RequestPeeked) {
	a := &s.Request
	e := c.engine(a.Core.Engine)
	e.seen.Peeks = true
	co := e.core(a.Core)
	r := e.running(co, a.ID)
	if s.State == signal.RequestFinished {
		if r != nil && !e.seen.Outputs {
			c.endRequest(r, endStepped, r.lastSeen())
		}
		return
	}
	if r == nil {
		if _, gone := co.gone.ids[a.ID]; gone {
			return // over by the time this comes
		}
		r = c.newRequest(co, a.ID, s.At)
	}
	r.there = max(r.there, s.At)
	if (!r.arrivalSeen || r.outline) && !r.peeked {
		r.peeked = true
		arrival := r.arrival
		c.describe(r, a)
		r.arrival = cmp.Or(r.arrival, arrival)
	}
	if r.firstOK || r.before.OK {
		return
	}
	seen, ok := r.seenAt(s.At)
	if s.Output.OK && ok && s.Output.V >= seen.tokens && s.Output.V < mostTokens {
		r.before = signal.Some(s.Output.V - seen.tokens)
	}
	if s.Preemptions.OK && ok {
		pending := int64(0)
		for _, ev := range s.Events {
			if ev.Kind == signal.EventPreempted {
				pending++
			}
		}
		if n := s.Preemptions.V - pending - seen.preempted; n >= 0 && n < mostTokens {
			r.preBefore = signal.Some(n)
		}
	}
	r.lookedAt = s.At
	if !s.Output.OK || s.Output.V != 0 {
		return
	}
	// It had no output yet: everything of it is still to come.
	r.fresh = true
	if s.Cached.OK && !r.cached.OK {
		r.cached = s.Cached
	}
	for _, ev := range s.Events {
		if !plausible(ev.At, c.now) || r.outputs > 0 {
			continue
		}
		switch {
		case ev.Kind == signal.EventQueued && r.queued == 0:
			r.queued = ev.At
			c.stateEvent(r, ev)
		case ev.Kind == signal.EventScheduled && r.queued != 0 && r.sched == 0:
			r.sched = ev.At
		}
	}
	if r.outputs > 0 && seen.n == 0 && r.outputs <= recentOutputs && !e.events() {
		// Its first output came before this did.
		first := r.recent[1]
		r.firstOK, r.first, r.firstSend, r.firstMsg = true, first.stamp, first.send, first.msg
		if m := e.msgs.get(first.msg); m != nil && m.recv.at != 0 {
			r.firstRecv = m.recv
		}
	}
}

// countedBefore: an output comes that was made before r was looked at, on its way then:
// what it has was counted there.
func (r *request) countedBefore(tokens, preempted int64) {
	r.before.V -= tokens
	r.preBefore.V -= preempted
	if r.before.V < 0 {
		r.before = signal.Opt[int64]{}
	}
	if r.preBefore.V < 0 {
		r.preBefore = signal.Opt[int64]{}
	}
}

// seenAt returns what had been seen of r's outputs stamped before a time; false
// if that is not known any more.
func (r *request) seenAt(at signal.Mono) (output, bool) {
	if r.outputs == 0 {
		return output{}, true
	}
	if r.unstamped {
		return output{}, false
	}
	if r.last < at {
		return output{n: r.outputs, tokens: r.tokens, preempted: r.preempted}, true
	}
	if r.firstOK {
		return output{}, false // outputs are not kept
	}
	n := min(r.outputs, recentOutputs)
	best, ok := output{}, r.outputs <= recentOutputs
	for i := r.outputs - n + 1; i <= r.outputs; i++ {
		if o := r.recent[i%recentOutputs]; o.stamp < at {
			best, ok = o, true
		}
	}
	return best, ok
}

// engineState takes in the state of a core. It counts where the engine itself
// does not report it.
func (c *Correlator) engineState(s *signal.EngineState) {
	e := c.engine(s.Core.Engine)
	e.seen.State = true
	co := e.core(s.Core)
	e.rules.state(co, s)
	if t := &co.steps; !t.ever && !t.base.OK {
		t.base = notNegative(s.Step)
	}
	co.m.peek = gauges{running: notNegative(s.Running), waiting: notNegative(s.Waiting), usage: share(s.KVUsage)}
	if s.Blocks.OK && s.FreeBlocks.OK {
		co.m.setBlocks(s.Blocks.V, s.FreeBlocks.V)
	}
	if s.Running.OK && s.Running.V == 0 && s.Waiting.OK && s.Waiting.V == 0 && s.Deferred.V == 0 {
		c.allOver(co, s.At)
	}
}

func notNegative(v signal.Opt[int64]) signal.Opt[int64] {
	if v.V < 0 {
		return signal.Opt[int64]{}
	}
	return v
}

// share refuses what is none, NaN too.
func share(v signal.Opt[float64]) signal.Opt[float64] {
	if v.OK && v.V >= 0 && v.V <= 1 {
		return v
	}
	return signal.Opt[float64]{}
}
