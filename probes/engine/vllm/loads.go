package vllm

import (
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/python/plan"
)

// A KV connector may load the blocks of a request beside the steps. The scheduler sets
// the request's status while it puts a step together, and puts it off from step to step.
// The workers tell it at the end of a step what has come; the next time that it looks at
// the request, it sets the status back.
//
// So a load begins within the step before the first one that finds the request so, and
// is over, for the engine, at the end of the step with which the workers told of it.

const statusRemoteKVs = "WAITING_FOR_REMOTE_KVS"

// maxLoads bounds the loads followed in one core; a capture shows fewer.
const maxLoads = 4096

// connected reports whether the scheduler has a KV connector.
func (p *Peeker) connected() bool {
	v, err := p.sched.Attr("connector")
	return err == nil && !v.IsNone()
}

// loads adds what says which requests wait for their KV blocks. 0.28 and before have
// these in queues that a plan cannot go through.
func (p *Peeker) loads(schedule *plan.Plan) {
	if !p.connected() {
		return
	}
	self := schedule.Local("self")
	p.has(self, "deferred_waiting", func(r *plan.Ref) {
		r.Each(slotLoading.String(), maxStepItems, maxIDBytes, "request_id", "status")
	})
	p.has(self, "finished_recving_kv_req_ids", func(r *plan.Ref) { r.Elements(slotLoaded.String(), maxStepItems, maxIDBytes) })
	p.has(self, "failed_recving_kv_req_ids", func(r *plan.Ref) { r.Elements(slotUnloaded.String(), maxStepItems, maxIDBytes) })
}

// loaded adds what the workers tell at the end of a step.
func (p *Peeker) loaded(update *plan.Plan) {
	if p.connected() {
		update.Local("kv_connector_output").Attr("finished_recving").Elements(slotLoaded.String(), maxStepItems, maxIDBytes)
	}
}

// load is the load of KV blocks for a request.
type load struct {
	start signal.Mono // 0 if it was not seen
	end   signal.Mono // 0 if it goes on
	told  bool
	seen  int64 // number of the latest step that began with it
}

// loads are those of one core.
type loads struct {
	of map[string]*load // by request
	// The beginning of the latest step: when and which, if all that were put off are known.
	at     signal.Mono
	number int64
	whole  bool
	// Those that ended since then and were not seen going on.
	ended map[string]signal.Mono
}

// loading compares the requests that wait for KV blocks at the beginning of a step with
// those at the beginning of the step before.
func (d *Decoder) loading(c *core, at signal.Mono, number int64, v reading, emit func(signal.Signal)) {
	if v.l.place[slotLoading] < 0 || !c.remoteKVs.OK {
		return
	}
	l := &c.steps.loads
	if l.of == nil {
		l.of, l.ended = make(map[string]*load), make(map[string]signal.Mono)
	}
	from := l.at
	if !l.whole || number != l.number+1 {
		// What went on meanwhile is not known.
		from = 0
		clear(l.of)
	}
	items, whole, ok := v.list(slotLoading, 2)
	l.at, l.number, l.whole = at, number, ok && whole
	done, doneOK := idSet(v, slotLoaded)
	failed, failedOK := idSet(v, slotUnloaded)
	for i := 0; ok && i+1 < len(items); i += 2 {
		id, status := &items[i], &items[i+1]
		if !id.IsStr() || status.Tag != capture.TagInt {
			l.whole = false
			continue
		}
		if status.Int != c.remoteKVs.V || !doneOK {
			continue
		}
		x := l.of[id.Str]
		if x == nil || x.told && !done[id.Str] { // it has failed, and is tried again
			if x == nil && len(l.of) >= maxLoads {
				continue
			}
			x = &load{start: from, end: l.ended[id.Str]}
			l.of[id.Str] = x
		}
		x.seen = number
		if !done[id.Str] || x.told {
			continue
		}
		if x.end == 0 {
			x.end = at // the end of the step was not seen
		}
		x.told = true
		s := &signal.KVTransfer{Core: c.id, ID: id.Str, Start: x.start, End: x.end, Method: methodSteps}
		if failedOK {
			s.Failed = signal.Some(failed[id.Str])
		}
		emit(s)
	}
	clear(l.ended)
	if !l.whole || !doneOK {
		l.whole = false
		clear(l.of)
		return
	}
	for id, x := range l.of {
		if x.seen != number {
			delete(l.of, id) // it is scheduled, or has ended
		}
	}
}

// methodSteps says in signals that a time is that of a step.
const methodSteps = "steps"

// loadsEnded notes when loads ended, as the workers told at the end of a step.
func (d *Decoder) loadsEnded(c *core, at signal.Mono, v reading) {
	l := &c.steps.loads
	if v.l.place[slotLoaded] < 0 || l.of == nil {
		return
	}
	items, _, _ := v.list(slotLoaded, 1)
	for i := range items {
		if !items[i].IsStr() {
			continue
		}
		switch x := l.of[items[i].Str]; {
		case x == nil && len(l.ended) < maxLoads:
			l.ended[items[i].Str] = at
		case x == nil:
		case x.told:
			// Another one, begun in the step at hand.
			*x = load{start: l.at, end: at, seen: x.seen}
		case x.end == 0:
			x.end = at
		}
	}
}

// idSet reads a set of request ids. ok is false if it could not be read whole.
func idSet(v reading, s slot) (set map[string]bool, ok bool) {
	items, whole, ok := v.list(s, 1)
	if !ok || !whole {
		return nil, false
	}
	if len(items) == 0 {
		return nil, true
	}
	set = make(map[string]bool, len(items))
	for i := range items {
		if !items[i].IsStr() {
			return nil, false
		}
		set[items[i].Str] = true
	}
	return set, true
}
