package vllm

import (
	"fmt"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/note"
	"inferspan/probes/python/plan"
)

// Names of the capture plans.
const (
	planSchedule = "schedule"
	planUpdate   = "update"
	planDispatch = "dispatch"
	planMessage  = "message"   // a core's message to its workers that is no step
	planTake     = "take"      // a worker takes a message; slots as of the ring before that
	planTakeLong = "take_long" // one that came by a socket; as after that
	planIdle     = "idle"      // it waits for one
)

// slot is a value of a capture that the decoder reads.
type slot uint8

// Slots of the plan for the clock read at the start of Scheduler.schedule, and for
// the one that stamps the outputs at the end of Scheduler.update_from_output.
const (
	slotStep     slot = iota // current_step
	slotInFlight             // steps under way, with asynchronous scheduling; at the end of a step, the others
	slotHeldBack             // at the end of a step: another one, which waits for its tokens
	slotRunning              // lengths of queues
	slotWaiting
	slotHolding  // waiting with KV blocks
	slotDeferred // those of the two that wait for something else
	slotSkipped  // the same in a queue of its own
	slotFree     // KV blocks
	slotPool
	slotOutput // the SchedulerOutput
	slotTokens // total
	slotPreempted
	slotFinished
	slotScheduled // tokens by request
	slotNew       // requests scheduled for the first time: id, computed tokens
	slotComputed  // computed tokens of the others, in order
	slotResumed   // those of the others that are back after a preemption: ids
	slotLoading   // at the beginning: requests that are put off, each with its status
	slotLoaded    // requests whose KV blocks have come: those that still wait; at the end of a step, those of the step
	slotUnloaded  // of those that still wait: whose blocks did not all come
	slotListed    // at the beginning: running requests, each with its computed tokens
	slotLengths   // where the core sends no messages: the tokens of the prompts of these
	slotPrompts   // where the core sends no messages: new requests, with the tokens of their prompts
	slotOuts      // the outputs there: id, number of tokens
	slotEnds      // of the same: finish reason, result of pooling
	slotNotify    // at a dispatch: the object that wakes the workers
	slotQueue     // of messages to workers: its object
	slotPlace     // of it: index of the next message
	slotPlaces    // and how many it has
	slotStamp     // the core's stamp of a message, s
	slotEngine    // index of the core
	slotText      // the first text of a call of the tokenizer: its address
	slotChars     // length of it
	slotTexts     // texts of the call
	slotID        // id that the front end gives a request
	slotPrompt    // tokens of its prompt
	slotArrival   // when it arrived, s since the epoch
	slotLoRA      // None if it asks for no adapter
	slotAdapter   // name of the adapter
	slotTemperature
	slotTopP
	slotTopK
	slotMaxTokens
	slotN
	slotLogprobs
	slotStop // stop strings
	slots
)

var slotNames = [slots]string{"step", "in_flight", "held_back", "running", "waiting", "holding", "deferred", "skipped", "free", "pool",
	"output", "tokens", "preempted", "finished", "scheduled", "new", "computed", "resumed",
	"loading", "loaded", "unloaded", "listed", "lengths",
	"prompts", "outputs", "ends",
	"notify", "queue", "place", "places", "stamp", "engine", "text", "chars", "texts", "id", "prompt", "arrival",
	"lora", "adapter", "temperature", "top_p", "top_k", "max_tokens", "n", "logprobs", "stop"}

func (s slot) String() string { return slotNames[s] }

// captures is how the captures of a process are to be read.
type captures map[uint32]layout // by plan

// layout is the place of each slot in the captures of a plan.
type layout struct {
	plan     string
	place    [slots]int // number, -1 if the plan has no such slot
	overhead int64      // what measuring adds to durations, ns
}

func layoutOf(p note.Plan) layout {
	l := layout{plan: p.Name}
	for s := range slots {
		l.place[s] = -1
		for n, name := range p.Slots {
			if name == slotNames[s] {
				l.place[s] = n
			}
		}
	}
	return l
}

// reading is a capture being read.
type reading struct {
	c *plan.Capture
	l *layout
}

func (r reading) value(s slot) *plan.Value { return r.c.Slot(r.l.place[s]) }

// int gives the int of a slot, if it has one that is not negative.
func (r reading) int(s slot) (n int64, ok bool) {
	v := r.value(s)
	if v == nil || v.Tag != capture.TagInt || v.Int < 0 {
		return 0, false
	}
	return v.Int, true
}

// lacking reports whether the engine has no such thing, rather than that it could
// not be read.
func (r reading) lacking(s slot) bool {
	v := r.value(s)
	return v == nil || v.Tag == capture.TagMissing && v.Missing == capture.MissingName
}

// none reports whether a slot has None.
func (r reading) none(s slot) bool {
	v := r.value(s)
	return v != nil && v.Tag == capture.TagNone
}

// inFlight gives the steps under way; None if there is but one at a time.
func (r reading) inFlight() (n int64, ok bool) {
	if r.none(slotInFlight) {
		return 0, true
	}
	return r.int(slotInFlight)
}

// list gives the items of a slot with per values each, and whether these are all;
// ok is false if it has none such.
func (r reading) list(s slot, per int) (items []plan.Value, whole, ok bool) {
	v := r.value(s)
	if v == nil || v.Tag != capture.TagItems || v.Per != per {
		return nil, false, false
	}
	return v.Values, v.Complete(), true
}

// probeNote learns how to read the captures of a process.
func (d *Decoder) probeNote(r *event.Record) error {
	n, err := note.Get[note.Probe](r)
	if err != nil {
		return err
	}
	if len(n.Plans) > 0 && d.captures[r.PID] == nil {
		d.captures[r.PID] = make(captures)
	}
	for id, p := range n.Plans {
		l := layoutOf(p)
		l.overhead = n.Overhead
		d.captures[r.PID][id] = l
	}
	if n.Detail == signal.DetailMessages {
		d.watched(r.PID, n.Active)
	}
	if n.Detail == signal.DetailStamps && !n.Active {
		delete(d.stamps.on, r.PID)
	}
	return nil
}

// Capture reads what a probe read in one of the engine's processes.
func (d *Decoder) Capture(r *event.Record, emit func(signal.Signal)) {
	l, ok := d.captures[r.PID][r.Capture.Plan]
	if !ok {
		d.stats.Unplanned++
		return
	}
	if err := d.capture.Decode(r); err != nil {
		d.stats.Broken++
		d.problem = fmt.Errorf("reading a capture of plan %s: %w", l.plan, err)
		return
	}
	d.stats.Captures++
	at, v := signal.Mono(r.Time), reading{&d.capture, &l}
	switch l.plan {
	case planSchedule:
		d.scheduled(d.core(r.PID, 0), at, v, emit)
	case planUpdate:
		d.updated(d.core(r.PID, 0), at, v, r.Capture.Flags&event.CaptureCut != 0, emit)
	case planDispatch:
		d.dispatchSeen(d.core(r.PID, 0), at, v, r.Capture.Flags&event.CaptureCut != 0, emit)
	case planMessage:
		if n := v.value(slotNotify); n != nil && n.Tag == capture.TagAddr {
			d.toldWorkers(d.core(r.PID, 0), at, v, false, emit)
		}
	case planTake, planTakeLong:
		d.takes(r.PID, at, v, l.plan == planTakeLong, emit)
	case planIdle: // its mark says it all
	case planArrive:
		d.arrived(d.core(r.PID, 0), at, v)
	case planEncode:
		d.encoded(r, l.overhead, v, emit)
	case planDecode:
		d.decoded(r, l.overhead, v, emit)
	case planInput:
		d.input(r.PID, v, emit)
	case planStamp:
		d.stamped(r.PID, at, v, emit)
	}
}

// StepMark tells what the moment of a plan's captures is to a step.
func (d *Decoder) StepMark(pid, plan uint32) signal.StepMark {
	switch d.captures[pid][plan].plan {
	case planSchedule:
		return signal.StepBegins
	case planTake, planTakeLong:
		return signal.StepTaken
	case planIdle:
		return signal.StepIdle
	}
	return signal.StepUnmarked
}
