package vllm_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
	"inferspan/probes/target"
)

const (
	messagePlan = 31
	takePlan    = 32
	longPlan    = 33
	idlePlan    = 34

	worker0, worker1 = 5000, 5001
)

var (
	toldSlots = append([]string{"queue", "place", "places"}, dispatchSlots...)
	takeSlots = []string{"place"}
)

// ring plays a core that writes messages to a ring of places, and two workers that take
// them, each step by step as the real ones, at times of its own.
type ring struct {
	t       *testing.T
	d       *vllm.Decoder
	rng     *rand.Rand
	places  int
	at      uint64
	lose    float64 // share of records, in runs
	losing  [3]bool // the core's, and the workers'
	written int     // messages
	count   int     // steps
	outside bool    // the message that is being written is outside of a step
	phase   int     // of the core: 0 free, 1 written, 2 woken
	woken   uint64
	steps   map[int]uint64 // messages that are steps: time of the wake-up
	workers [2]ringWorker
	truth   map[signal.Mono]map[uint32]int // message by time and worker
	tied    map[uint32]map[int]bool
	lost    int
	alone   bool // no message is outside of a step
}

type ringWorker struct {
	pid    uint32
	seen   bool // its probes are in
	taken  int
	phase  int
	at     uint64
	marks  uint32
	epoch  uint32
	flags  uint16
	dark   bool // nothing of it is counted
	weight float64
}

// counted moves what is counted of a worker, and tells whether marks are.
func (r *ring) counted(w *ringWorker) bool {
	switch {
	case w.dark && r.rng.IntN(3) == 0:
		w.dark, w.epoch, w.flags = false, w.epoch+1, 0
	case w.dark, r.lose > 0 && r.rng.IntN(200) == 0:
		w.dark = true
	case r.rng.IntN(30) == 0:
		n := 1 + r.rng.Uint32N(3)
		w.epoch, w.flags = w.epoch+n, uint16(min(uint32(w.flags>>8)+n, 255)<<8)
	}
	return !w.dark
}

// mark is a record of a worker's.
func (w *ringWorker) mark(at uint64, plan uint32) *event.Record {
	m := &event.Record{Header: event.Header{Time: at, Kind: event.KindGPU, PID: w.pid, TID: w.pid}}
	m.GPU.What, m.GPU.Plan, m.GPU.Marks, m.GPU.Epoch, m.GPU.Flags = event.GPUMark, plan, w.marks, w.epoch, w.flags
	return m
}

func newRing(t *testing.T, seed uint64, lose float64) *ring {
	e := vllmtest.SyntheticEngine("0.32.0")
	if classes["0.32.0"] == nil {
		classes["0.32.0"] = structs(t, "0.32.0")
	}
	e.Structs = classes["0.32.0"]
	r := &ring{t: t, rng: rand.New(rand.NewPCG(seed, 9)), places: 10, at: 1000, lose: lose, steps: map[int]uint64{},
		truth: map[signal.Mono]map[uint32]int{}, tied: map[uint32]map[int]bool{}}
	for i, pid := range []uint32{worker0, worker1} {
		e.Processes = append(e.Processes, target.Process{PID: int(pid), PPID: vllmtest.SyntheticCore, Role: target.RoleWorker, Index: i})
		r.workers[i] = ringWorker{pid: pid, weight: 0.2 + 3*r.rng.Float64()}
		r.tied[pid] = map[int]bool{}
	}
	d, err := vllm.NewDecoder(e, vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.d = d
	for pid, plans := range map[uint32]map[uint32]note.Plan{
		core:    {dispatchPlan: {Name: "dispatch", Slots: toldSlots}, messagePlan: {Name: "message", Slots: toldSlots}},
		worker0: {takePlan: {Name: "take", Slots: takeSlots}, longPlan: {Name: "take_long", Slots: takeSlots}, idlePlan: {Name: "idle"}},
		worker1: {takePlan: {Name: "take", Slots: takeSlots}, longPlan: {Name: "take_long", Slots: takeSlots}, idlePlan: {Name: "idle"}},
	} {
		n, err := note.Put(note.KindProbe, pid, 1, note.Probe{Detail: map[bool]string{true: "steps", false: "messages"}[pid == core], Active: true, Plans: plans})
		if err != nil {
			t.Fatal(err)
		}
		d.Note(n, r.emit)
	}
	return r
}

func (r *ring) emit(s signal.Signal) {
	m, ok := s.(*signal.MessageTaken)
	if !ok {
		return
	}
	number, ok := r.truth[m.At][m.PID]
	if !ok {
		r.t.Fatalf("nothing was taken at %d", m.At)
	}
	if want := signal.Mono(r.steps[number]); m.Step != want || m.Core.PID != core {
		r.t.Fatalf("worker %d took message %d, of step %d, at %d: %+v", m.PID, number, want, m.At, m)
	}
	r.tied[m.PID][number] = true
}

// gone decides whether the next record of an actor is lost.
func (r *ring) gone(actor int) bool {
	if r.lose == 0 {
		return false
	}
	if r.losing[actor] {
		r.losing[actor] = r.rng.Float64() < 0.9 // several at once
	} else {
		r.losing[actor] = r.rng.Float64() < r.lose
	}
	if r.losing[actor] {
		r.lost++
	}
	return r.losing[actor]
}

// turn lets one of the three do its next piece.
func (r *ring) turn(sees bool) {
	r.at += 1 + r.rng.Uint64N(50)
	x := r.rng.Float64() * (1 + r.workers[0].weight + r.workers[1].weight)
	for i := range r.workers {
		if x -= r.workers[i].weight; x < 0 {
			r.take(i)
			return
		}
	}
	switch r.phase {
	case 0:
		for i := range r.workers {
			if r.written-r.workers[i].taken >= r.places {
				return // it has not taken what is in the place
			}
		}
		r.written++
		r.phase = 1
	case 1:
		r.woken = r.at
		if r.outside = !r.alone && r.rng.IntN(50) == 0; !r.outside && r.rng.Float64() < 0.6 {
			r.steps[r.written] = r.at
			r.count++
		}
		r.phase = 2
	default:
		r.phase = 0
		if !sees || r.gone(0) {
			return
		}
		plan := uint32(messagePlan)
		values := []vllmtest.Slot{val("queue", vllmtest.Addr(0x77)), val("place", r.written%r.places), val("places", r.places), val("notify", vllmtest.Addr(0x100))}
		if r.steps[r.written] != 0 {
			plan = dispatchPlan
			values = append(values, val("output", vllmtest.Addr(0x1000)), val("in_flight", 0))
		}
		if !r.outside {
			values = append(values, val("step", r.count))
		}
		c := vllmtest.Capture(r.woken, core, plan, toldSlots, values...)
		r.d.Capture(&c, r.emit)
		if r.rng.IntN(20) == 0 {
			other := vllmtest.Capture(r.woken, core, messagePlan, toldSlots, val("queue", vllmtest.Addr(0x88)), val("place", 3), val("places", r.places), val("notify", vllmtest.Addr(0x200)))
			r.d.Capture(&other, r.emit) // to another queue
		}
	}
}

// take has a worker begin to read a message, or be done with it.
func (r *ring) take(i int) {
	w := &r.workers[i]
	if w.phase == 0 {
		if w.taken == r.written {
			return
		}
		w.at, w.phase = r.at, 1
		if r.truth[signal.Mono(r.at)] == nil {
			r.truth[signal.Mono(r.at)] = map[uint32]int{}
		}
		r.truth[signal.Mono(r.at)][w.pid] = w.taken + 1
		return
	}
	w.phase = 0
	w.taken++
	if !w.seen {
		return
	}
	plan, place := uint32(takePlan), (w.taken-1)%r.places
	if r.rng.IntN(15) == 0 {
		plan, place = longPlan, w.taken%r.places
	}
	if !r.counted(w) {
		return
	}
	w.marks++
	if !r.gone(1 + i) {
		if is := r.d.StepMark(w.pid, plan); is != signal.StepTaken {
			r.t.Fatalf("a mark at a message is %d", is)
		}
		r.d.Marked(w.mark(w.at, plan))
	}
	if !r.gone(1 + i) {
		c := vllmtest.Capture(w.at, w.pid, plan, takeSlots, val("place", place))
		r.d.Capture(&c, r.emit)
	}
	if r.rng.IntN(10) == 0 {
		w.marks++
		if is := r.d.StepMark(w.pid, idlePlan); is != signal.StepIdle {
			r.t.Fatalf("a mark where it waits is %d", is)
		}
		r.d.Marked(w.mark(r.at, idlePlan))
	}
}

// TestPropertyMessages: a worker that is some messages behind, or takes one before the core
// has woken it, is never said to have taken another one, whatever is lost; and while nothing
// is lost, each message is known after the first one that is.
func TestPropertyMessages(t *testing.T) {
	for _, lose := range []float64{0, 0.01, 0.1} {
		t.Run(fmt.Sprint(lose), func(t *testing.T) {
			ties, messages, lost := 0, 0, 0
			for seed := range uint64(300) {
				r := newRing(t, seed, lose)
				r.alone = seed%2 == 0
				from := [3]int{}
				for i := range from {
					from[i] = r.rng.IntN(400)
				}
				for n := range 3000 {
					for i := range r.workers {
						r.workers[i].seen = n >= from[i]
					}
					r.turn(n >= from[2])
				}
				for i := range r.workers {
					w := &r.workers[i]
					messages += w.taken
					ties += len(r.tied[w.pid])
					known := false
					for n := 1; n <= min(w.taken, r.written-2) && lose == 0 && r.alone; n++ {
						known = known || r.tied[w.pid][n]
						if known && !r.tied[w.pid][n] {
							t.Fatalf("seed %d: worker %d: message %d of %d is not known", seed, i, n, w.taken)
						}
					}
				}
				lost += r.lost
			}
			t.Logf("%d of %d messages known, %d records lost", ties, messages, lost)
			if ties == 0 {
				t.Error("no message is known")
			}
		})
	}
}

// TestToldBehindOutputs: a core that has two steps under way wakes its workers for all of them
// before they take the first message. Which one that was is known by the wake-up for the third
// step, behind the outputs of the first.
func TestToldBehindOutputs(t *testing.T) {
	r := newRing(t, 1, 0)
	var got []string
	emit := func(x signal.Signal) {
		switch x := x.(type) {
		case *signal.Step:
			got = append(got, fmt.Sprintf("step %d", x.Number.V))
		case *signal.MessageTaken:
			got = append(got, fmt.Sprintf("taken at %d: step of %d", x.At, x.Step))
		}
	}
	wake := func(at uint64, place, step int, dispatch bool) {
		plan := uint32(messagePlan)
		values := []vllmtest.Slot{val("queue", vllmtest.Addr(0x77)), val("place", place), val("places", r.places), val("notify", vllmtest.Addr(0x100)), val("step", step)}
		if dispatch {
			plan = dispatchPlan
			values = append(values, val("output", vllmtest.Addr(0x1000)), val("in_flight", min(step-1, 1)), list("resumed"), list("computed", 100), pairs("new"), pairs("scheduled", "a", 1))
		}
		c := vllmtest.Capture(at, core, plan, toldSlots, values...)
		r.d.Capture(&c, emit)
	}
	take := func(at uint64, place int) {
		w := &r.workers[0]
		w.marks++
		r.d.Marked(w.mark(at, takePlan))
		c := vllmtest.Capture(at, w.pid, takePlan, takeSlots, val("place", place))
		r.d.Capture(&c, emit)
	}
	outputs := func(stamp uint64) {
		r.d.EndDispatched(core, &signal.StepOutput{Stamp: signal.Mono(stamp), Stats: &signal.SchedulerStats{}, Outputs: []signal.Output{{ID: []byte("a"), NumTokens: 1}}}, 1, emit)
	}
	for i, dispatch := range []bool{true, false, true, false} { // for the model and for sampling
		wake(uint64(10*i+10), i+1, i/2+1, dispatch)
	}
	for i := range 4 {
		take(uint64(50+10*i), i)
	}
	outputs(100)
	wake(110, 5, 3, true)
	take(120, 4)
	wake(130, 6, 3, false)
	outputs(140)
	want := []string{"step 1", "taken at 50: step of 10", "taken at 60: step of 0", "taken at 70: step of 30", "taken at 80: step of 0", "taken at 120: step of 110", "step 2"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzTold: whatever the captures and marks of a core and its workers say, it is read.
func FuzzTold(f *testing.F) {
	f.Add([]byte{0, 1, 10, 1, 1, 1, 2, 10, 2, 1, 2, 1, 0, 0, 0, 3, 1, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newRing(t, 1, 0)
		emit := func(s signal.Signal) {
			if m, ok := s.(*signal.MessageTaken); ok && (m.PID != worker0 && m.PID != worker1 || m.Core.PID != core) {
				t.Fatalf("%+v", m)
			}
		}
		for ; len(b) >= 5; b = b[5:] {
			at := uint64(b[4])
			switch pid := []uint32{worker0, worker1}[b[0]>>7]; b[0] & 3 {
			case 0, 1:
				plan := []uint32{messagePlan, dispatchPlan}[b[0]&1]
				c := vllmtest.Capture(at, core, plan, toldSlots, val("queue", vllmtest.Addr(uint64(b[0]>>2&1))), val("place", int(b[1])), val("places", int(b[2])),
					val("notify", vllmtest.Addr(1)), val("output", vllmtest.Addr(2)), val("step", int(b[3])), val("in_flight", 0))
				r.d.Capture(&c, emit)
			default:
				m := event.Record{Header: event.Header{Time: at, Kind: event.KindGPU, PID: pid, TID: pid}}
				m.GPU.What, m.GPU.Plan, m.GPU.Marks, m.GPU.Epoch = event.GPUMark, uint32(b[2]), uint32(b[3]), uint32(b[0]>>5&1)
				r.d.Marked(&m)
				c := vllmtest.Capture(at, pid, uint32(b[2]), takeSlots, val("place", int(b[1])))
				r.d.Capture(&c, emit)
			}
		}
	})
}
