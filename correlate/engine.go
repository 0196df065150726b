package correlate

import (
	"slices"
	"strconv"
	"strings"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// engine is what is known of one engine instance.
type engine struct {
	id     signal.EngineID
	kind   string
	rules  rules
	model  string
	pdRole string
	base   []signal.KV     // resource attributes of the whole engine
	res    *trace.Resource // of them
	procs  []process
	cores  []*core
	// unplaced has the requests whose core is not known yet; nil if there were none.
	unplaced *core
	msgs     messages
	fronts   []front // front ends by index, as learned
	seen     Seen

	exchanges map[signal.Exchange]*exchange
	byID      map[string][]*exchange // by response id, known or announced
	byResp    map[string][]*request  // live requests by response id
	usage     []usageCounter

	interval    signal.Opt[int64] // tokens of a streamed request in one output
	planned     signal.Opt[int64] // front ends that it is to have
	logStats    signal.Opt[bool]  // the engine sends events and statistics
	lora        signal.Opt[bool]  // requests may ask for adapters
	bare        int               // messages with outputs and without statistics, while none had any
	details     []detail
	lookedInto  map[uint32]bool // processes that are looked into, or will be
	tokenizings []tokenizing    // calls of the tokenizer, in order
	untokenized []*request      // those that have not looked for theirs, in order
	tokenCosts  []tokenCost
	gpuHosts    []*gpuHost // processes that have their GPU work seen
	kernels     gpuKernels
	energy      engineEnergy
	ledger      gpuLedger
	held        []*heldStep // in order
}

type process struct {
	pid                                uint32
	role                               string
	host                               string // as the engine names it
	nspid                              uint32
	tensorRank, pipelineRank, dataRank signal.Opt[int64]
	rank                               signal.Opt[int64]
	core                               uint32
	joined                             signal.Mono // the engine started it while it was traced; 0: it was there before
	own                                []signal.KV
	res                                *trace.Resource
}

// front ties a front end's index to its process.
type front struct {
	client int
	pid    uint32
}

// core is one engine core.
type core struct {
	signal.Core
	eng  *engine
	reqs map[string]*request // running requests by the engine's id
	over map[string]*request // those that are over and not exported yet
	gone tombs
	m    coreMetrics

	config []signal.KV // resource attributes read from its memory
	steps  stepTrack

	unshared []stepShare // in order, from one on whose pass is not known yet
	inVain   bool        // one waited in vain, and nothing was told since
}

func (c *Correlator) engine(id signal.EngineID) *engine {
	for _, e := range c.engines {
		if e.id == id {
			return e
		}
	}
	e := &engine{id: id, rules: rulesOf(""), res: &trace.Resource{}, exchanges: map[signal.Exchange]*exchange{}, byID: map[string][]*exchange{}, byResp: map[string][]*request{}, lookedInto: map[uint32]bool{}}
	c.engines = append(c.engines, e)
	return e
}

func (e *engine) core(k signal.Core) *core {
	for _, co := range e.cores {
		if co.Core == k {
			return co
		}
	}
	co := &core{Core: k, eng: e, reqs: map[string]*request{}, over: map[string]*request{}}
	e.cores = append(e.cores, co)
	if k.Index == signal.CoreUnknown {
		e.unplaced = co
	}
	return co
}

// running returns the request of that id in co. One that waited for its core to be
// known is there from now on; if it is co that is not known, it may be anywhere.
func (e *engine) running(co *core, id string) *request {
	if r := co.reqs[id]; r != nil {
		return r
	}
	if e.unplaced == nil {
		return nil
	}
	if co == e.unplaced {
		for _, o := range e.cores {
			if r := o.reqs[id]; r != nil {
				return r
			}
		}
		return nil
	}
	r := e.unplaced.reqs[id]
	if r != nil {
		delete(e.unplaced.reqs, id)
		r.core, co.reqs[id] = co, r
	}
	return r
}

func (c *Correlator) engineFacts(s *signal.Engine) {
	e := c.engine(s.ID)
	if e.kind != s.Kind {
		e.rules = rulesOf(s.Kind)
	}
	e.kind, e.model, e.pdRole, e.interval, e.planned = s.Kind, s.Model, s.PDRole, s.StreamInterval, s.FrontEnds
	e.base = cloneKV(s.Resource)
	e.res = resource(e.res, e.base, nil)
	procs := make([]process, 0, len(s.Process))
	for _, p := range s.Process {
		old, joined := &trace.Resource{}, signal.Mono(0)
		known := len(e.procs) == 0
		for _, q := range e.procs {
			if q.pid == p.PID {
				old, joined, known = q.res, q.joined, true
			}
		}
		if !known {
			joined = c.now
			c.addNote(c.now, "the engine started process "+strconv.FormatUint(uint64(p.PID), 10)+" ("+p.Role+")")
		}
		procs = append(procs, process{
			joined: joined,
			pid:    p.PID, role: p.Role, host: p.HostID, nspid: p.NSPID,
			tensorRank: p.TensorRank, pipelineRank: p.PipelineRank, dataRank: p.DataRank, rank: p.Rank, core: p.Core,
			own: cloneKV(p.Resource), res: old,
		})
	}
	e.procs = procs
	e.describeProcesses()
}

// describeProcesses makes the resources of the processes anew, of which those that
// have not changed stay.
func (e *engine) describeProcesses() {
	for i := range e.procs {
		p := &e.procs[i]
		own := p.own
		for _, co := range e.cores {
			if co.PID == p.pid {
				own = slices.Concat(own, co.config)
			}
		}
		p.res = resource(p.res, e.base, own)
	}
}

func cloneKV(list []signal.KV) []signal.KV {
	list = slices.Clone(list)
	for i := range list {
		if v, ok := list[i].Value.([]string); ok {
			list[i].Value = slices.Clone(v)
		}
	}
	return list
}

// resource merges attributes, those of own winning, and returns old if nothing changed.
func resource(old *trace.Resource, base, own []signal.KV) *trace.Resource {
	var attrs []trace.Attr
	for _, list := range [2][]signal.KV{own, base} {
	next:
		for _, kv := range list {
			for _, a := range attrs {
				if a.Key == kv.Key {
					continue next
				}
			}
			v := kv.Value
			if s, ok := v.([]string); ok {
				v = slices.Clone(s)
			}
			attrs = append(attrs, trace.Attr{Key: kv.Key, Value: v})
		}
	}
	slices.SortFunc(attrs, func(a, b trace.Attr) int { return strings.Compare(a.Key, b.Key) })
	if slices.EqualFunc(attrs, old.Attrs, func(a, b trace.Attr) bool { return a.Key == b.Key && sameValue(a.Value, b.Value) }) {
		return old
	}
	return &trace.Resource{Attrs: attrs}
}

func sameValue(a, b any) bool {
	x, xok := a.([]string)
	y, yok := b.([]string)
	if xok || yok {
		return xok && yok && slices.Equal(x, y)
	}
	return a == b
}

// resource of a process, of the engine if the process is not known.
func (e *engine) resource(pid uint32) *trace.Resource {
	for i := range e.procs {
		if e.procs[i].pid == pid {
			return e.procs[i].res
		}
	}
	return e.res
}

// learnFront notes which process is the front end of that index.
func (e *engine) learnFront(client int, pid uint32) {
	if client < 0 {
		return
	}
	for i := range e.fronts {
		if e.fronts[i].client == client {
			e.fronts[i].pid = pid
			return
		}
	}
	e.fronts = append(e.fronts, front{client, pid})
}

// isFront reports whether pid can be the front end of that index: it is not
// known to be another one.
func (e *engine) isFront(client int, pid uint32) bool {
	for _, f := range e.fronts {
		if f.client == client {
			return f.pid == pid
		}
	}
	for _, f := range e.fronts {
		if f.pid == pid {
			return false
		}
	}
	return true
}

// coreEnded ends what a core was running.
func (c *Correlator) coreEnded(e *engine, pid uint32, at signal.Mono) {
	var reqs []*request
	for r := c.reqs.head; r != nil; r = r.next {
		if r.core.eng == e && r.core.PID == pid && (!r.done || r.waiting) {
			reqs = append(reqs, r)
		}
	}
	for _, co := range e.cores {
		if co.PID == pid {
			co.m.forgetGauges()
			co.steps.forget()
		}
	}
	for _, r := range reqs {
		if r.waiting {
			// What the core had sent may still be read, but need not be.
			r.waiting = false
			c.requestDone(r)
		} else if !r.done {
			c.endRequest(r, endExit, at)
		}
	}
}

func (c *Correlator) processExit(s *signal.ProcessExit) {
	e := c.engine(s.Engine)
	c.coreEnded(e, s.PID, s.At)
	for i := range e.details {
		e.details[i].exited(s.PID, s.At)
	}
	var exs []*exchange
	for ex := c.exs.head; ex != nil; ex = ex.next {
		if ex.key.Engine == s.Engine && ex.key.PID == s.PID && !ex.ended {
			exs = append(exs, ex)
		}
	}
	for _, ex := range exs {
		ex.end(s.At, signal.OutcomeExit)
		c.exchangeEnded(ex)
	}
}

// tombs remembers the ids of requests that ended, so that their late outputs
// are not taken for requests never seen. It keeps the latest 4096: the outputs
// of the steps under way when an abort arrives are far fewer.
type tombs struct {
	ids  map[string]struct{}
	ring []string
	next int
}

const tombSize = 4096

func (t *tombs) add(id string) {
	if t.ids == nil {
		t.ids = map[string]struct{}{}
	}
	if _, ok := t.ids[id]; ok {
		return
	}
	if len(t.ring) < tombSize {
		t.ring = append(t.ring, id)
	} else {
		delete(t.ids, t.ring[t.next])
		t.ring[t.next] = id
		t.next = (t.next + 1) % tombSize
	}
	t.ids[id] = struct{}{}
}

// remove forgets an id that is in use again.
func (t *tombs) remove(id string) { delete(t.ids, id) }
