package sglang

import (
	"fmt"
	"slices"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/note"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
)

// Captures turns what the probes of this package capture into the signals Stage, Mark,
// RequestTimes and Step. Like every decoder it is deterministic and for one goroutine.
type Captures struct {
	engine    signal.EngineID
	layouts   map[uint32]layout // by plan
	processes map[uint32]*process
	capture   plan.Capture
	times     signal.RequestTimes
	handed    map[string]bool // requests that were seen being handed over, and had no output yet
	role      string          // Engine.PDRole
	unkept    []string        // stages of which the engine's schedulers keep no stamps, and MarkSchedule
	stats     CaptureStats
}

// CaptureStats counts what Captures did not use.
type CaptureStats struct {
	Captures  uint64 // in all
	Unknown   uint64 // of plans that were not announced
	Malformed uint64
	NoID      uint64 // of a request whose id could not be read
	Cut       uint64 // lists of requests that were longer than a record has room for
	Requests  uint64 // requests that these lists lack
	Gaps      uint64 // batches that were not seen
	Evicted   uint64 // requests that were forgotten since there were too many
}

// NewCaptures returns the decoder of an engine's captures. role is its part in
// disaggregated serving, as target.Engine has it.
func NewCaptures(engine signal.EngineID, role string) *Captures {
	return &Captures{engine: engine, role: role, layouts: map[uint32]layout{}, processes: map[uint32]*process{}, handed: map[string]bool{}}
}

// Stats returns the counts so far.
func (c *Captures) Stats() CaptureStats { return c.stats }

// layout is how the captures of a plan are to be read.
type layout struct {
	plan                                                  string
	place                                                 map[string]int
	entering, due, decoding, before, sent, decoded, ended list
	dim                                                   bool // none of them has stamps
	behind                                                bool // note.Plan.Behind
	left                                                  [len(slotsLeft)]list
}

// Plan announces a plan by its number in captures.
func (c *Captures) Plan(number uint32, p note.Plan) {
	l := layout{
		plan: p.Name, place: map[string]int{}, behind: p.Behind,
		entering: listOf(p.Slots, slotEntering), due: listOf(p.Slots, dueSlots.list), decoding: listOf(p.Slots, slotDecoding),
		before: listOf(p.Slots, slotBefore), sent: listOf(p.Slots, slotSent), decoded: listOf(p.Slots, slotDecoded), ended: listOf(p.Slots, slotEnded),
	}
	for i, slot := range slotsLeft {
		l.left[i] = listOf(p.Slots, slot)
	}
	for n, name := range p.Slots {
		l.place[name] = n
	}
	l.dim = p.Level > 0 && l.entering.dim() && l.ended.dim()
	c.layouts[number] = l
	if l.ended.slot >= 0 && p.Level == 0 {
		launched := !slices.Contains(c.unkept, signal.MarkSchedule)
		c.unkept = target.SGLangUnstamped(c.role, func(stamp string) bool { _, ok := l.ended.part[stamp]; return ok })
		if !launched {
			c.unlaunched()
		}
	}
}

// unlaunched: batches of this version have no stamp of their launch.
func (c *Captures) unlaunched() {
	if !slices.Contains(c.unkept, signal.MarkSchedule) {
		c.unkept = append(slices.Clip(c.unkept), signal.MarkSchedule)
	}
}

// Core says which core a process runs.
func (c *Captures) Core(pid uint32, core signal.Core) { c.process(pid).core = core }

// Follows says that a scheduler does what another one does, the first of its ranks.
func (c *Captures) Follows(pid uint32, first signal.Core) { c.process(pid).first = first }

// Sent says that a scheduler sends outputs at a moment.
func (c *Captures) Sent(pid uint32, at signal.Mono) { c.process(pid).sent = at }

// Exit forgets a process.
func (c *Captures) Exit(pid uint32) { delete(c.processes, pid) }

func (c *Captures) process(pid uint32) *process {
	p := c.processes[pid]
	if p == nil {
		p = &process{lives: map[string]*life{}, core: signal.Core{Engine: c.engine, PID: pid}}
		c.processes[pid] = p
	}
	return p
}

// StepMark tells what the moment of a plan's captures is to a step.
func (c *Captures) StepMark(plan uint32) signal.StepMark {
	switch c.layouts[plan].plan {
	case planBatch:
		return signal.StepLaunched
	case planLaunch:
		return signal.StepBegins
	}
	return signal.StepUnmarked
}

// Capture handles a record of a capture. emit gets its signals; each is valid during
// the call. The error is that of a record that is none.
func (c *Captures) Capture(r *event.Record, emit func(signal.Signal)) error {
	c.stats.Captures++
	l, ok := c.layouts[r.Capture.Plan]
	if !ok {
		c.stats.Unknown++
		return nil
	}
	if err := c.capture.Decode(r); err != nil {
		c.stats.Malformed++
		return fmt.Errorf("capture of plan %s: %w", l.plan, err)
	}
	at := signal.Mono(r.Time)
	v := reading{&c.capture, &l}
	s := &stager{engine: c.engine, pid: r.PID, at: at, emit: emit, dim: l.dim}
	switch l.plan {
	case planBatch, planLaunch:
		c.batch(c.process(r.PID), s, v)
	case planOutputs:
		c.outputs(c.process(r.PID), s, v)
	case planAbort:
		c.abort(c.process(r.PID), s, v)
	case planDispatch, planFirst, planFinish:
		c.front(s, v)
	case planController:
		c.controller(s, v)
	}
	s.close()
	return nil
}

// reading is a capture being read.
type reading struct {
	c *plan.Capture
	l *layout
}

func (r reading) value(slot string) *plan.Value {
	n, ok := r.l.place[slot]
	if !ok {
		return nil
	}
	return r.c.Slot(n)
}

// int gives the int of a slot, if it has one that is not negative.
func (r reading) int(slot string) (n int64, ok bool) {
	v := r.value(slot)
	if v == nil || v.Tag != capture.TagInt || v.Int < 0 {
		return 0, false
	}
	return v.Int, true
}

func (r reading) str(slot string) string {
	if v := r.value(slot); v != nil && v.IsStr() {
		return v.Str
	}
	return ""
}

// mono gives a stamp, 0 if there is none.
func (r reading) mono(slot string) signal.Mono {
	at, _ := monoOf(r.value(slot))
	return at
}

// front: a front end reads the clock. The stamps of earlier reads are in the request's
// object; the one being read is the moment of the call.
func (c *Captures) front(s *stager, v reading) {
	id := v.str(slotID)
	if id == "" {
		id = v.str(slotAborted)
	}
	if id == "" {
		c.stats.NoID++
		return
	}
	c.times = signal.RequestTimes{At: s.at, Engine: s.engine, PID: s.pid, ID: id}
	t := &c.times
	created := v.mono(nameCreated)
	switch v.l.plan {
	case planDispatch:
		s.first(id, stageTokenize, created, v.mono(nameTokenized))
		t.Created = created
		if len(c.handed) >= maxLives {
			clear(c.handed)
		}
		c.handed[id] = true
	case planFirst:
		// Requests that came as one batch share a clock read that shows none of them.
		if !c.handed[id] {
			s.first(id, stageTokenize, created, v.mono(nameTokenized))
		}
		delete(c.handed, id)
		c.dispatched(s, id, v)
		t.Created, t.First = created, s.at
		// One that ends with its first output has no other clock read.
		if f := v.value(slotFinished); f != nil && f.Tag == capture.TagBool && f.Int != 0 {
			t.Finished = s.at
		}
	case planFinish:
		delete(c.handed, id)
		// One that was given up before it had an output.
		if t.First = v.mono(nameFirst); t.First == 0 {
			c.dispatched(s, id, v)
		}
		t.Finished = s.at
	}
	if t.Created|t.Dispatched|t.First|t.Finished != 0 {
		s.emit(t)
	}
}

// dispatched: the request was handed over, which no clock read shows that can be told
// apart, but the stamps of later ones do.
func (c *Captures) dispatched(s *stager, id string, v reading) {
	if done := v.mono(nameDispatched); done != 0 {
		s.first(id, stageAPIDispatch, v.mono(nameDispatch), done)
		c.times.Dispatched = done
	}
}

// controller: a DP controller has handed a request over, and reads the clock.
func (c *Captures) controller(s *stager, v reading) {
	id := v.str(slotID)
	if id == "" {
		c.stats.NoID++
		return
	}
	s.first(id, stageDPDispatch, v.mono(dispatchName), s.at)
}
