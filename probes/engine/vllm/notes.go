package vllm

import (
	"strconv"
	"strings"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/note"
)

// Note reads a note about one of the engine's processes and hands over what it
// says. Notes of kinds that this build does not know say nothing.
func (d *Decoder) Note(r *event.Record, emit func(signal.Signal)) {
	var err error
	switch note.Kind(r.Note) {
	case note.KindConfig:
		err = d.configNote(r, emit)
	case note.KindRequests:
		err = d.requestsNote(r, emit)
	case note.KindState:
		err = d.stateNote(r, emit)
	case note.KindProbe:
		err = d.probeNote(r)
	case note.KindCost:
		err = d.costNote(r, emit)
	default:
		d.stats.Other++
	}
	if err != nil {
		d.stats.Broken++
		d.problem = err
	}
}

func (d *Decoder) configNote(r *event.Record, emit func(signal.Signal)) error {
	n, err := note.Get[note.Config](r)
	if err != nil {
		return err
	}
	c := d.core(r.PID, 0)
	c.spec, c.blockSize, c.prefixCaching = signal.Count(n.SpecTokens), signal.Count(n.BlockSize), signal.Known(n.PrefixCaching)
	c.remoteKVs = signal.Count(n.RemoteKVs)
	config := engine.ConfigSignal(&n, signal.Mono(r.Time), c.id)
	if d.inside[r.PID] {
		config.LogStats = signal.Some(false) // it keeps them to itself
	}
	emit(config)
	return nil
}

func (d *Decoder) stateNote(r *event.Record, emit func(signal.Signal)) error {
	n, err := note.Get[note.State](r)
	if err != nil {
		return err
	}
	if n.Running != nil && n.Waiting != nil && *n.Running == 0 && *n.Waiting == 0 && (n.Deferred == nil || *n.Deferred == 0) {
		d.idle(d.core(r.PID, 0), signal.Mono(r.Time), emit)
	}
	s := &signal.EngineState{
		At: signal.Mono(r.Time), Core: d.core(r.PID, 0).id,
		Running: signal.Count(n.Running), Waiting: signal.Count(n.Waiting), Deferred: signal.Count(n.Deferred), Step: signal.Count(n.Step),
	}
	s.FreeBlocks, s.Blocks, s.KVUsage = d.kvBlocks(n.FreeBlocks, n.Blocks)
	none := func(v signal.Opt[int64]) bool { return v.OK && v.V == 0 }
	d.idleInside(d.core(r.PID, 0), none(s.Running) && none(s.Waiting) && s.Deferred.V == 0, s.At, emit)
	emit(s)
	return nil
}

// kvBlocks gives the blocks of a pool that are free and that can be used, and the
// share in use as the engine works it out. One block, the null block, stands for
// no block and is never free; since 0.10.2 the engine leaves it out of the share.
func (d *Decoder) kvBlocks(free, pool *int64) (f, total signal.Opt[int64], usage signal.Opt[float64]) {
	f = signal.Count(free)
	if pool == nil || *pool < 2 || f.OK && f.V >= *pool {
		return f, total, usage
	}
	total = signal.Some(*pool - 1)
	if of := d.usageBlocks(*pool); f.OK && of > 0 {
		usage = signal.Some(1 - float64(f.V)/float64(of))
	}
	return f, total, usage
}

// usageBlocks is the number of blocks by which this version divides; 0 if the
// version is not known.
func (d *Decoder) usageBlocks(pool int64) int64 {
	switch c, ok := compareVersion(d.version, 0, 10, 2); {
	case !ok:
		return 0
	case c < 0:
		return pool
	}
	return pool - 1
}

// compareVersion compares the release of a version like "0.32.0+cpu" with another;
// ok is false if it does not begin with numbers.
func compareVersion(version string, want ...int) (c int, ok bool) {
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "+")
	parts := strings.Split(version, ".")
	for i, w := range want {
		if i >= len(parts) {
			return -1, i > 0
		}
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			return 0, i > 0 // 0.9.0rc1 is taken for 0.9
		}
		if n != w {
			return n - w, true
		}
	}
	return 0, true
}

func (d *Decoder) requestsNote(r *event.Record, emit func(signal.Signal)) error {
	n, err := note.Get[note.Requests](r)
	if err != nil {
		return err
	}
	c := d.core(r.PID, 0)
	for i := range n.Requests {
		q := &n.Requests[i]
		if q.ID == "" {
			d.stats.Broken++
			continue
		}
		p := &d.peeked
		*p = signal.RequestPeeked{
			At: signal.Mono(r.Time), State: requestState(q.Status), Status: q.Status,
			Computed: signal.Count(q.Computed), Output: signal.Count(q.Output), Cached: signal.Count(q.Cached), Preemptions: signal.Count(q.Preemptions),
			Events: p.Events[:0],
			Request: signal.RequestAdded{
				Core: c.id, ID: q.ID, Pooling: q.Pooling, PromptTokens: signal.Count(q.Prompt), TraceParent: q.TraceParent,
				AdapterUnknown: q.Adapter == nil, Adapter: signal.Known(q.Adapter).V,
			},
		}
		a := &p.Request
		// The core does not keep the external id, but its own is made from it.
		external, sure := "", true
		if d.schema.externalIDs() {
			external, sure = externalID(q.ID)
		}
		if sure {
			a.ExternalID, a.ResponseID, a.Child = ids(q.ID, external, d.schema.externalIDs())
		}
		if q.Arrival != nil && *q.Arrival > 0 {
			a.Arrival = signal.Wall(*q.Arrival)
		}
		if q.Client != nil && *q.Client >= 0 {
			a.Client = int(*q.Client)
		}
		if s := q.Params; s != nil {
			a.Param = signal.Param{Temperature: signal.Known(s.Temperature), TopP: signal.Known(s.TopP), TopK: signal.Known(s.TopK), MaxTokens: signal.Known(s.MaxTokens), N: signal.Known(s.N), Logprobs: s.Logprobs, HasStop: s.HasStop}
		}
		for _, e := range q.Events {
			if k := eventKind(e.Type); k != 0 && e.At > 0 {
				p.Events = append(p.Events, signal.EngineEvent{Kind: k, At: signal.Mono(e.At)})
			}
		}
		c.track(a)
		d.stats.Peeked++
		if d.inside[r.PID] {
			d.lookedInside(c, *a, signal.Mono(r.Time), emit)
		}
		emit(p)
	}
	return nil
}

// externalID gives the id that the front end knows a request by from the core's
// own, "<k>_<external>-<8 hexadecimal digits>": k only for the children of one
// request, the digits unless they are switched off. It is not sure where the
// number may be a part of the external id.
func externalID(internal string) (id string, sure bool) {
	id = internal
	if n := len(id) - suffixLen; n > 0 && id[n] == '-' && isHex(id[n+1:]) {
		id = id[:n]
	}
	if _, rest, ok := cutNumber(id, '_'); ok {
		if !hasIDPrefix(rest) && !isNumber(rest) {
			return "", false
		}
		id = rest
	}
	return id, true
}

// requestState sorts the members of the engine's enum RequestStatus.
func requestState(status string) signal.RequestState {
	switch {
	case strings.HasPrefix(status, "WAITING"):
		return signal.RequestWaiting
	case status == "RUNNING":
		return signal.RequestRunning
	case status == "PREEMPTED":
		return signal.RequestPreempted
	case strings.HasPrefix(status, "FINISHED"):
		return signal.RequestFinished
	}
	return signal.RequestUnknown
}

// eventKind reads the name of a member of the engine's enum EngineCoreEventType.
func eventKind(name string) signal.EventKind {
	switch name {
	case "QUEUED":
		return signal.EventQueued
	case "SCHEDULED":
		return signal.EventScheduled
	case "PREEMPTED":
		return signal.EventPreempted
	}
	return 0
}
