package correlate

import (
	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// A request's way through the threads of its engine: stages, marks and stamps of
// its front end, kept until its spans are built.

// way is what was seen of the way of one request.
type way struct {
	created, dispatched, first, finished signal.Mono // stamps of the front end, 0: not seen
	prefilled                            signal.Mono // end of the first prefill, by the scheduler's stamp
	threads                              []thread    // in order of appearance
	kept                                 int         // stages and marks
}

// thread is what was seen of a request in one thread of the engine.
type thread struct {
	pid      uint32
	kind     threadKind
	from, to signal.Mono // of all that was seen, levels that are not kept too; 0: nothing with a time
	complete signal.Mono // it was done with the request then, 0 if that was not seen
	stages   []stage
	marks    []mark
	dropped  bool     // there were more than are kept
	unseen   bool     // there were stages whose stamps were not seen
	unkept   []string // stages and events of which the engine keeps no stamps
	madeUp   bool     // it is known only that it was there
}

type stage struct {
	def        *stageDef
	start, end signal.Mono // end 0: until the request left the thread
	n          int64       // the number that goes with the name, -1 if not known
	retract    bool
	method     string
}

type mark struct {
	event       *semconv.Event
	at          signal.Mono
	batch, size signal.Opt[int64]
	mode        string
	method      string
}

// Bounds on what is kept of a request; those on all requests together are in
// Options. A request with an output of 16384 tokens has as many stages.
const (
	maxThreads = 256 // ranks of a large engine
	maxKept    = 1 << 17
)

// onItsWay returns the request of a signal that does not name a core, nil if it is
// over and exported.
func (c *Correlator) onItsWay(e *engine, pid uint32, id string, at signal.Mono) *request {
	for _, co := range e.cores {
		if r := co.find(id); r != nil {
			return r
		}
	}
	for _, co := range e.cores {
		if _, gone := co.gone.ids[id]; gone {
			c.own.droppedOutputs++
			return nil
		}
	}
	for _, co := range e.cores {
		if co.PID == pid && pid != 0 {
			return c.newRequest(co, id, at)
		}
	}
	return c.newRequest(e.core(signal.Core{Engine: e.id, Index: signal.CoreUnknown}), id, at)
}

// on returns the thread of that process, nil if there are too many.
func (r *request) on(pid uint32) *thread {
	if r.way == nil {
		r.way = &way{}
	}
	w := r.way
	for i := range w.threads {
		if w.threads[i].pid == pid {
			return &w.threads[i]
		}
	}
	if len(w.threads) >= maxThreads {
		return nil
	}
	w.threads = append(w.threads, thread{pid: pid})
	return &w.threads[len(w.threads)-1]
}

// inThread returns a request and its thread in a process; nil without the one or room for
// the other.
func (c *Correlator) inThread(e *engine, pid uint32, id string, at signal.Mono) (*request, *thread) {
	r := c.onItsWay(e, pid, id, at)
	if r == nil {
		return nil, nil
	}
	t := r.on(pid)
	if t == nil {
		c.own.evicted("stage")
	}
	return r, t
}

// keepOnWay reports whether one more stage or mark can be kept.
func (c *Correlator) keepOnWay(r *request, t *thread) bool {
	if r.way.kept >= maxKept || c.kept >= c.opt.MaxStages {
		t.dropped = true
		c.own.evicted("stage")
		return false
	}
	r.way.kept++
	c.kept++
	return true
}

func (t *thread) extend(at signal.Mono) {
	if at <= 0 {
		return
	}
	if t.from == 0 || at < t.from {
		t.from = at
	}
	t.to = max(t.to, at)
}

func (c *Correlator) stage(s *signal.Stage) {
	e := c.engine(s.Engine)
	def := stageDefs[s.Name]
	if def == nil {
		c.own.evicted("stage_unknown")
		return
	}
	if !plausible(s.Start, c.now) || (s.End != 0 && (s.End < s.Start || !plausible(s.End, c.now))) {
		c.own.evicted("stage_times")
		return
	}
	e.seen.Stages = true
	r, t := c.inThread(e, s.PID, s.ID, s.At)
	if t == nil {
		return
	}
	t.kind = def.thread
	t.extend(s.Start)
	t.extend(s.End)
	if def.name == semconv.NamePrefillForward && r.way.prefilled == 0 {
		r.way.prefilled = s.End
	}
	if def.level > r.level {
		return
	}
	// Of one without an end the end may come later.
	for i := len(t.stages) - 1; i >= 0 && i >= len(t.stages)-8; i-- {
		if k := &t.stages[i]; k.def == def && k.start == s.Start && k.end == 0 {
			k.end = s.End
			return
		}
	}
	if !c.keepOnWay(r, t) {
		return
	}
	n := signal.Opt[int64]{}
	switch def.number {
	case semconv.AttrDecodeCt:
		n = s.Round
	case semconv.AttrNumCorrectDrafts:
		n = s.Drafts
	case semconv.AttrPPMBID:
		n = s.MicroBatch
	}
	k := stage{def: def, start: s.Start, end: s.End, n: -1, retract: s.Retract, method: s.Method}
	if n.OK && n.V >= 0 {
		k.n = n.V
	}
	t.stages = append(t.stages, k)
}

func (c *Correlator) mark(s *signal.Mark) {
	e := c.engine(s.Engine)
	if !plausible(s.At, c.now) {
		c.own.evicted("stage_times")
		return
	}
	var event *semconv.Event
	switch s.Name {
	case signal.MarkSchedule:
		event = eventSchedule
	case signal.MarkRetract:
		event = eventRetract
	case signal.MarkComplete, signal.MarkUnseen, signal.MarkUnkept:
	default:
		c.own.evicted("stage_unknown")
		return
	}
	r, t := c.inThread(e, s.PID, s.ID, s.At)
	if t == nil {
		return
	}
	t.kind = threadScheduler
	switch s.Name {
	case signal.MarkUnseen:
		t.unseen = true
		return
	case signal.MarkUnkept:
		t.unkept = s.Unkept
		return
	}
	t.extend(s.At)
	switch {
	case event == nil:
		if t.complete = s.At; r.waiting {
			c.settle(r)
		}
	case event.MinLevel <= r.level && c.keepOnWay(r, t):
		t.marks = append(t.marks, mark{event: event, at: s.At, batch: s.Batch, size: notNegative(s.Size), mode: s.Mode, method: s.Method})
	}
}

func (c *Correlator) requestTimes(s *signal.RequestTimes) {
	e := c.engine(s.Engine)
	e.seen.Times = true
	r := c.onItsWay(e, s.PID, s.ID, s.At)
	if r == nil {
		return
	}
	if r.way == nil {
		r.way = &way{}
	}
	w := r.way
	for _, x := range [...]struct {
		to *signal.Mono
		at signal.Mono
	}{{&w.created, s.Created}, {&w.dispatched, s.Dispatched}, {&w.finished, s.Finished}} {
		if plausible(x.at, c.now) {
			*x.to = x.at
		}
	}
	// Of a client that does not stream an engine with metrics keeps the end of the prefill
	// in the place of the first output.
	if plausible(s.First, c.now) {
		w.first = max(w.first, s.First)
	}
	if r.pid == 0 {
		r.pid = s.PID
	}
	c.countFirst(r)
	switch {
	case w.finished == 0:
	case r.waiting:
		c.settle(r)
	case !r.done:
		c.closing = append(c.closing, closing{r, c.now, endLost})
	}
}

// firstToken is when the request had its first token, 0 if not known. The front end of a
// client that does not stream hears of it only with a later one, so that the engine takes
// the end of the prefill there.
func (r *request) firstToken() signal.Mono {
	w := r.way
	if r.stream == signal.Some(false) && w.created != 0 && w.prefilled > w.created && (w.first == 0 || w.prefilled <= w.first) {
		return w.prefilled
	}
	return w.first
}

// settle ends the wait for what still belongs to r, which is over in its core.
func (c *Correlator) settle(r *request) {
	if r.core.eng.rules.settled(r) {
		if r.awaitsWork() {
			if !r.forWork { // from now on
				r.forWork, r.settleFrom = true, c.now
			}
			return
		}
		r.waiting = false
		c.requestDone(r)
	}
}

// closing is a request that seems to be over though its core has not said so.
type closing struct {
	r    *request
	at   signal.Mono // since when
	kind endKind     // what it comes to if the core does not say
}

// closeUp ends the requests whose cores have not said how they ended.
func (c *Correlator) closeUp() {
	n := 0
	list := c.closing
	for _, k := range list {
		wait := deliveryWait
		if k.kind == endAborted {
			wait = abortWait
		}
		switch {
		case !k.r.live || k.r.done:
		case c.now-k.at > wait:
			at := k.at
			if k.kind == endLost && k.r.way != nil {
				at = max(k.r.way.finished, k.r.lastSend)
			}
			c.endRequest(k.r, k.kind, at)
		default:
			list[n] = k
			n++
		}
	}
	clear(list[n:])
	c.closing = list[:n]
	// What has not reached a core in a minute will not: it was refused.
	for _, e := range c.engines {
		if e.unplaced == nil || len(e.unplaced.reqs) == 0 {
			continue
		}
		var late []*request
		for r := c.reqs.head; r != nil && c.now-r.began > claimWait; r = r.next {
			if r.core == e.unplaced && !r.done {
				late = append(late, r)
			}
		}
		for _, r := range late {
			c.endRequest(r, endLost, max(r.added, r.lastSend))
		}
	}
}
