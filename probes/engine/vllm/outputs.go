package vllm

import (
	"fmt"
	"strconv"
	"strings"

	"inferspan/correlate/signal"
	"inferspan/probes/wire"
)

// outputsMessage reads what a core sends to a front end after a step.
func (d *Decoder) outputsMessage(m *wire.Message, emit func(signal.Signal)) error {
	p := &m.Parts[0]
	s := d.schema
	d.step = signal.StepOutput{At: signal.Mono(m.End), Client: -1, Key: m.Key()}
	d.outputs, d.events, d.ids, d.logprobs = d.outputs[:0], d.events[:0], d.ids[:0], d.logprobs[:0]
	index, utility := 0, false
	r := reader{b: p.Head}
	n := r.array()
	ended := p.Whole()
	for i := range n {
		d.outputsField(&r, s.outputs[i], m.Parts, &index, &utility)
		if r.err == nil {
			continue
		}
		if r.err != errShort || p.Whole() || p.Tail == nil {
			return fmt.Errorf("reading outputs: %s: %w", describe(s.names.outputs, i), r.err)
		}
		// The middle of the frame is missing: what the other fields say is in
		// its last bytes.
		d.stats.Truncated++
		at, ok := findFields(p.Tail, s.outputs[i+1:n], outputsType)
		r, ended = reader{}, true
		if ok && at.single {
			r.b = p.Tail[at.at:]
			for _, f := range s.outputs[i+1 : n] {
				d.outputsField(&r, f, m.Parts, &index, &utility)
			}
			if r.err != nil {
				return fmt.Errorf("reading the end of outputs: %w", r.err)
			}
		}
		break
	}
	if len(r.b) > 0 || !ended {
		return fmt.Errorf("reading outputs: %w", errTrail)
	}
	c := d.core(m.PID, index)
	d.step.Core = c.id
	if c.repeats(m, &d.step) {
		d.stats.Repeated++
		return nil
	}
	client, known := d.learnClient(c, m.Sock, utility)
	if known {
		d.step.Client = client
	}
	switch {
	case len(d.outputs) > 0:
	case d.step.Stats == nil, d.coordinated && !known:
		// A reply to a call, a wave of the data-parallel engines, or what the
		// coordinator is told.
		d.stats.Other++
		return nil
	}
	if len(d.outputs) > 0 {
		d.step.Outputs = d.outputs
	}
	d.stats.Steps++
	d.stats.Outputs += uint64(len(d.outputs))
	d.stamps.add(&d.step)
	d.endDispatched(c, &d.step, m.Sock, emit)
	emit(&d.step)
	d.stopTokens(&d.step, emit)
	return nil
}

// sent is what tells a message from others on its socket.
type sent struct {
	tid   uint32
	key   uint64
	stamp signal.Mono
}

// maxSockets bounds the sockets of a core: one for each front end.
const maxSockets = 1 << 12

// repeats reports whether a message is the one before on its socket, seen again: a send
// is seen at its beginning, and one that finds no room is tried again. The thread, the
// core's own stamp, the size and the last bytes are the same then. Of a message of
// several parts it is not known which of them were sent.
func (c *core) repeats(m *wire.Message, s *signal.StepOutput) bool {
	if s.Key == 0 || s.Stamp == 0 || len(m.Parts) != 1 {
		delete(c.sent, m.Sock)
		return false
	}
	x := sent{m.TID, s.Key, s.Stamp}
	if c.sent[m.Sock] == x {
		return true
	}
	if _, known := c.sent[m.Sock]; known || len(c.sent) < maxSockets {
		c.sent[m.Sock] = x
	}
	return false
}

// outputsField reads one field of EngineCoreOutputs.
func (d *Decoder) outputsField(r *reader, f field, parts []wire.Part, index *int, utility *bool) {
	switch f {
	case fieldEngineIndex:
		*index = int(r.int())
	case fieldOutputs:
		if r.null() {
			return
		}
		n := r.array()
		for range n {
			d.outputs = append(d.outputs, signal.Output{})
			if !d.output(r, &d.outputs[len(d.outputs)-1], parts) {
				d.outputs = d.outputs[:len(d.outputs)-1]
				return
			}
		}
	case fieldSchedulerStats:
		if r.null() {
			return
		}
		d.schedulerStats(r)
		if r.err == nil {
			d.step.Stats = &d.sched
		}
	case fieldTimestamp:
		d.step.Stamp = signal.Mono(r.seconds())
	case fieldUtilityOutput:
		if r.null() {
			return
		}
		*utility = true
		r.skip()
	default:
		r.skip()
	}
}

// output reads one EngineCoreOutput.
func (d *Decoder) output(r *reader, o *signal.Output, parts []wire.Part) bool {
	n := r.array()
	if r.err == nil && n != len(d.schema.output) {
		r.fail(errField)
	}
	if r.err != nil {
		return false
	}
	cached := signal.Opt[int64]{}
	for _, f := range d.schema.output {
		if r.null() {
			if f == fieldRequestID {
				r.fail(errType)
				return false
			}
			continue
		}
		switch f {
		case fieldOther:
			r.skip()
		case fieldRequestID:
			o.ID = r.str()
		case fieldNewTokenIDs:
			o.NumTokens = r.array()
			if !d.tokens {
				r.ints(o.NumTokens)
				break
			}
			from := len(d.ids)
			for range o.NumTokens {
				if r.err != nil {
					break
				}
				d.ids = append(d.ids, r.int())
			}
			o.Tokens = d.ids[from:len(d.ids):len(d.ids)]
		case fieldNewLogprobs:
			if !d.tokens {
				r.skip()
				break
			}
			from := len(d.logprobs)
			if v := r.logprobs(d.logprobs, parts); v != nil && len(v)-from == o.NumTokens {
				d.logprobs = v
				o.Logprobs = v[from:len(v):len(v)]
			}
		case fieldPoolingOutput:
			o.Pooled = true
			r.skip()
		case fieldFinishReason:
			d.finishReason(r, o)
		case fieldStopReason:
			switch c := r.peek(); {
			case isString(c):
				o.StopReason = string(r.str())
			case isInt(c):
				o.StopReason = strconv.FormatInt(r.int(), 10)
			default:
				r.skip()
			}
		case fieldEvents:
			d.readEvents(r, o)
		case fieldPrefillStats:
			r.counts(namedCount{"num_prompt_tokens", &o.PromptTokens}, namedCount{"num_cached_tokens", &o.CachedTokens},
				namedCount{"num_external_cached_tokens", &o.ExternalTokens})
		case fieldNumCachedTokens:
			if v := r.int(); v >= 0 {
				cached = signal.Some(v)
			}
		default:
			r.skip()
		}
		if r.err != nil {
			return false
		}
	}
	// Where the field is a plain number it is 0 too for requests that never ran.
	if cached.OK && (o.NumTokens > 0 || o.Pooled) {
		o.CachedTokens = cached
	}
	return true
}

// finishReason reads a member of FinishReason: a number, or its word.
func (d *Decoder) finishReason(r *reader, o *signal.Output) {
	if isString(r.peek()) {
		word := string(r.str())
		o.Finish, o.FinishReason = finishKind(strings.ToUpper(word)), word
		return
	}
	v := r.int()
	if r.err == nil {
		d.finishNumber(v, o)
	}
}

func (d *Decoder) finishNumber(v int64, o *signal.Output) {
	if v >= 0 && v < int64(len(d.schema.finish)) && d.schema.finish[v].word != "" {
		o.Finish, o.FinishReason = d.schema.finish[v].kind, d.schema.finish[v].word
		return
	}
	o.Finish, o.FinishReason = signal.FinishOther, strconv.FormatInt(v, 10)
}

// readEvents reads the events that the scheduler stamped, a list of maps.
// Events of unknown kinds are left out.
func (d *Decoder) readEvents(r *reader, o *signal.Output) {
	from := len(d.events)
	n := r.array()
	for range n {
		kind, at := int64(0), int64(0)
		for range r.mapping() {
			switch k := r.str(); string(k) {
			case "type":
				kind = r.int()
			case "timestamp":
				at = r.seconds()
			default:
				r.skip()
			}
			if r.err != nil {
				return
			}
		}
		if r.err != nil {
			return
		}
		// The numbers of EngineCoreEventType are those of EventKind.
		if kind >= int64(signal.EventQueued) && kind <= int64(signal.EventPreempted) && at > 0 {
			d.events = append(d.events, signal.EngineEvent{Kind: signal.EventKind(kind), At: signal.Mono(at)})
		}
	}
	if len(d.events) > from {
		o.Events = d.events[from:len(d.events):len(d.events)]
	}
}

// count reads a number that must not be negative to be known.
func (r *reader) count() signal.Opt[int64] {
	v := r.optInt()
	if v.V < 0 {
		return signal.Opt[int64]{}
	}
	return v
}

// schedulerStats reads the scheduler's state into d.sched.
func (d *Decoder) schedulerStats(r *reader) {
	s := &d.sched
	*s = signal.SchedulerStats{}
	var skipped signal.Opt[int64]
	n := r.mapping()
	for range n {
		switch k := r.str(); string(k) {
		case "num_running_reqs":
			s.Running = r.count()
		case "num_waiting_reqs":
			s.Waiting = r.count()
		case "num_skipped_waiting_reqs":
			skipped = r.count()
		case "kv_cache_usage", "gpu_cache_usage":
			if s.KVUsage = r.optFloat(); s.KVUsage.V < 0 || s.KVUsage.V > 1 {
				s.KVUsage = signal.Opt[float64]{}
			}
		case "prefix_cache_stats":
			r.counts(namedCount{"queries", &s.PrefixQueries}, namedCount{"hits", &s.PrefixHits})
		case "spec_decoding_stats":
			r.counts(namedCount{"num_drafts", &s.SpecDrafts}, namedCount{"num_draft_tokens", &s.SpecDraft}, namedCount{"num_accepted_tokens", &s.SpecAccepted})
		default:
			r.skip()
		}
		if r.err != nil {
			return
		}
	}
	// Requests set aside for this step are waiting all the same: the engine's
	// own gauge of waiting requests is the sum.
	if s.Waiting.OK && skipped.OK {
		s.Waiting.V += skipped.V
	}
}

// namedCount is a count in a map.
type namedCount struct {
	name string
	v    *signal.Opt[int64]
}

// counts reads some counts of a map, which may be nil.
func (r *reader) counts(want ...namedCount) {
	if r.null() {
		return
	}
	for range r.mapping() {
		name, found := r.str(), false
		for _, w := range want {
			if string(name) == w.name {
				*w.v, found = r.count(), true
				break
			}
		}
		if !found {
			r.skip()
		}
		if r.err != nil {
			return
		}
	}
}

// learnClient finds which front end a sending socket leads to: that of the
// requests whose outputs it carries. known is also true, with client -1, for a
// socket that is a front end's, but not which one.
func (d *Decoder) learnClient(c *core, sock uint64, utility bool) (client int, known bool) {
	client, known = c.clients[sock]
	for i := range d.outputs {
		o := &d.outputs[i]
		if client >= 0 && known && o.Finish == signal.FinishNone {
			continue
		}
		if r := c.running[string(o.ID)]; r != nil {
			if !known || client != r.client {
				client, known = r.client, true
				c.clients[sock] = client
			}
			if o.Finish != signal.FinishNone {
				c.end(string(o.ID))
			}
		}
	}
	if !known && (utility || len(d.outputs) > 0) {
		client, known = -1, true
		c.clients[sock] = -1
	}
	return client, known
}
