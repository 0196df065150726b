package sglang

import (
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
	case note.KindState:
		err = d.stateNote(r, emit)
	case note.KindRequests:
		err = d.requestsNote(r, emit)
	case note.KindProbe:
		err = d.probeNote(r)
	default:
		d.stats.Other++
	}
	if err != nil {
		d.stats.Broken++
		d.problem = err
	}
}

func (d *Decoder) core(pid uint32) signal.Core {
	if c, ok := d.cores[pid]; ok {
		return c
	}
	return signal.Core{Engine: d.engine, PID: pid}
}

func (d *Decoder) configNote(r *event.Record, emit func(signal.Signal)) error {
	n, err := note.Get[note.Config](r)
	if err != nil {
		return err
	}
	if d.behind[r.PID] {
		return nil // no core of its own: what it says of requests is about those of the first
	}
	config := engine.ConfigSignal(&n, signal.Mono(r.Time), d.core(r.PID))
	config.LogStats = signal.Some(false) // it sends neither events nor statistics
	emit(config)
	return nil
}

func (d *Decoder) stateNote(r *event.Record, emit func(signal.Signal)) error {
	n, err := note.Get[note.State](r)
	if err != nil {
		return err
	}
	if d.behind[r.PID] {
		return nil // it has the state of the first of its ranks
	}
	emit(&signal.EngineState{
		At: signal.Mono(r.Time), Core: d.core(r.PID),
		Running: signal.Count(n.Running), Waiting: signal.Count(n.Waiting), Deferred: signal.Count(n.Deferred), FreeBlocks: signal.Count(n.FreeBlocks), Blocks: signal.Count(n.Blocks), Step: signal.Count(n.Step),
		UsedTokens: signal.Count(n.UsedTokens), KVUsage: signal.Known(n.KVUsage), AcceptLength: d.acceptLength(r.PID),
	})
	return nil
}

// probeNote says how the captures of a process are to be read.
func (d *Decoder) probeNote(r *event.Record) error {
	n, err := note.Get[note.Probe](r)
	if err != nil {
		return err
	}
	for number, p := range n.Plans {
		d.capture.Plan(number, p)
	}
	return nil
}

// Capture reads what a probe captured.
func (d *Decoder) Capture(r *event.Record, emit func(signal.Signal)) {
	if err := d.capture.Capture(r, d.first(r.PID, d.once(emit))); err != nil {
		d.problem = err
	}
}

// first leaves out the steps of schedulers that do what the first of their ranks does.
func (d *Decoder) first(pid uint32, emit func(signal.Signal)) func(signal.Signal) {
	if !d.behind[pid] {
		return emit
	}
	return func(s signal.Signal) {
		if _, ok := s.(*signal.Step); !ok {
			emit(s)
		}
	}
}

// once leaves out the stages in a front end that were handed over before.
func (d *Decoder) once(emit func(signal.Signal)) func(signal.Signal) {
	return func(s signal.Signal) {
		if st, ok := s.(*signal.Stage); ok && front(d.roles[st.PID]) {
			q := d.know(st.ID)
			had := &q.tokenized
			switch st.Name {
			case stageTokenize:
			case stageAPIDispatch:
				had = &q.dispatched
			default:
				emit(s)
				return
			}
			if *had {
				return
			}
			*had = true
		}
		emit(s)
	}
}

func (d *Decoder) requestsNote(r *event.Record, emit func(signal.Signal)) error {
	n, err := note.Get[note.Requests](r)
	if err != nil {
		return err
	}
	for i := range n.Requests {
		q := &n.Requests[i]
		if q.ID == "" {
			d.stats.Broken++
			continue
		}
		d.stats.Peeked++
		if front(d.roles[r.PID]) {
			d.peekedInFront(r, q, emit)
		} else {
			d.peekedInCore(r, q, emit)
		}
	}
	return nil
}

// peekedInCore: a scheduler has a request.
func (d *Decoder) peekedInCore(r *event.Record, q *note.Request, emit func(signal.Signal)) {
	known := d.know(q.ID)
	defer d.capture.peeked(r, q, emit)
	if d.behind[r.PID] {
		return
	}
	p := &d.peeked
	*p = signal.RequestPeeked{
		At: signal.Mono(r.Time), Status: q.Status,
		Output: signal.Count(q.Output), Preemptions: signal.Count(q.Preemptions),
		Request: signal.RequestAdded{
			Core: d.core(r.PID), ID: q.ID, ExternalID: q.ID, ResponseID: q.ID, Client: -1, Pooling: q.Pooling, PromptTokens: signal.Count(q.Prompt),
			AdapterUnknown: q.Adapter == nil, Adapter: signal.Known(q.Adapter).V, PID: known.front, Stream: signal.Known(q.Stream), Room: signal.Count(q.Room),
		},
	}
	if p.Request.PID == 0 {
		p.Request.PID = d.server
	}
	switch q.Status {
	case statusRunning:
		p.State = signal.RequestRunning
	case statusWaiting, statusGrammar:
		p.State = signal.RequestWaiting
	}
	if s := q.Params; s != nil {
		p.Request.Param = asked(signal.Param{Temperature: signal.Known(s.Temperature), TopP: signal.Known(s.TopP), TopK: signal.Known(s.TopK), MaxTokens: signal.Known(s.MaxTokens), N: signal.Known(s.N)})
	}
	emit(p)
}

// peekedInFront: a front end waits for a request.
func (d *Decoder) peekedInFront(r *event.Record, q *note.Request, emit func(signal.Signal)) {
	known := d.know(q.ID)
	if known.front == 0 {
		known.front = r.PID
	}
	at := func(name string) signal.Mono { return signal.Mono(q.Times[name]) }
	d.times = signal.RequestTimes{At: signal.Mono(r.Time), Engine: d.engine, PID: r.PID, ID: q.ID,
		Created: at(nameCreated), Dispatched: at(nameDispatched), First: at(nameFirst)}
	if t := &d.times; t.Created|t.Dispatched|t.First != 0 {
		emit(t)
	}
	s := stager{engine: d.engine, pid: r.PID, at: signal.Mono(r.Time), emit: d.once(emit)}
	if end := at(nameTokenized); end != 0 {
		s.first(q.ID, stageTokenize, at(nameCreated), end)
	}
	if end := at(nameDispatched); end != 0 {
		s.first(q.ID, stageAPIDispatch, at(nameDispatch), end)
	}
}

// peeked takes the stamps of a request that was there when its scheduler was looked at.
// Captures may have seen it by then, and what they have of it is newer.
func (c *Captures) peeked(r *event.Record, q *note.Request, emit func(signal.Signal)) {
	p := c.process(r.PID)
	l := p.lives[q.ID]
	if len(q.Times) == 0 || l != nil && l.done {
		return
	}
	var m moment
	for k, name := range stampNames {
		if at, ok := q.Times[name]; ok && (l == nil || !l.seen.have[k]) {
			m.at[k], m.have[k] = signal.Mono(at), true
		}
	}
	lapsed := l != nil && l.lapsed
	p.count++
	l = c.see(p, &stager{engine: c.engine, pid: r.PID, at: signal.Mono(r.Time), emit: emit}, q.ID, m)
	if l != nil {
		l.lapsed = lapsed // this says nothing of the steps in between
	}
}
