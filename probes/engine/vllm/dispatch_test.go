package vllm_test

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
)

const dispatchPlan = 21

var dispatchSlots = []string{"notify", "output", "step", "running", "waiting", "free", "pool", "in_flight", "tokens", "preempted", "finished", "resumed", "computed", "new", "scheduled"}

// dispatcher feeds dispatches and outputs to a decoder.
type dispatcher struct {
	*stepper
	ends []string
}

func newDispatcher(t *testing.T) *dispatcher {
	d := &dispatcher{stepper: newStepper(t, "0.32.0")}
	d.note(note.KindProbe, note.Probe{Detail: "steps", Active: true, Source: "dispatch", Plans: map[uint32]note.Plan{
		dispatchPlan: {Name: "dispatch", Slots: dispatchSlots},
		schedulePlan: {Name: "schedule", Slots: scheduleSlots}, updatePlan: {Name: "update", Slots: updateSlots},
	}})
	return d
}

// emit describes a step: "number: dispatch-end".
func (d *dispatcher) emit(sig signal.Signal) {
	if g, ok := sig.(*signal.Step); ok {
		s := fmt.Sprintf("%d: %d-%d", g.Number.V, g.Dispatch, g.Update)
		if g.Method != signal.StepByDispatch {
			s = fmt.Sprintf("%d by the clock: %d-%d", g.Number.V, g.Schedule, g.Update)
		} else if g.Schedule != 0 {
			s += fmt.Sprintf(" from %d", g.Schedule)
		}
		d.ends = append(d.ends, s)
	}
}

func (d *dispatcher) schedule(at uint64, values ...vllmtest.Slot) {
	r := vllmtest.Capture(at, core, schedulePlan, scheduleSlots, values...)
	d.d.Capture(&r, d.emit)
}

func (d *dispatcher) update(at uint64, values ...vllmtest.Slot) {
	r := vllmtest.Capture(at, core, updatePlan, updateSlots, values...)
	d.d.Capture(&r, d.emit)
}

// dispatch is that of a step with so many under way before it; of its requests a name
// in capitals is new, one that ends in "+" gets a chunk of its prompt of 100 tokens, the
// others decode.
func (d *dispatcher) dispatch(at uint64, step, under int, requests string) {
	var fresh, computed, scheduled []any
	for id := range strings.FieldsSeq(requests) {
		from, n := 100, 1
		if strings.HasSuffix(id, "+") {
			from, n = 0, 50
		}
		name := strings.ToLower(strings.TrimSuffix(id, "+"))
		if name != strings.TrimSuffix(id, "+") {
			if n == 1 {
				from, n = 0, 100
			}
			fresh = append(fresh, name, from)
		} else {
			computed = append(computed, from)
		}
		scheduled = append(scheduled, name, n)
	}
	r := vllmtest.Capture(at, core, dispatchPlan, dispatchSlots,
		val("notify", vllmtest.Addr(0x100)), val("output", vllmtest.Addr(0x1000)), val("step", step), val("in_flight", under),
		list("resumed"), list("computed", computed...), pairs("new", fresh...), pairs("scheduled", scheduled...))
	d.d.Capture(&r, d.emit)
}

// outputs are sent by a socket: those that end in "!" carry statistics, a request that
// ends in "0" was aborted.
func (d *dispatcher) outputs(stamp uint64, sock uint64, ids string, events ...signal.EngineEvent) {
	m := &signal.StepOutput{Stamp: signal.Mono(stamp)}
	if s, ok := strings.CutSuffix(ids, "!"); ok {
		ids, m.Stats = s, &signal.SchedulerStats{}
	}
	for id := range strings.FieldsSeq(ids) {
		o := signal.Output{ID: []byte(strings.TrimSuffix(id, "0")), NumTokens: 1, Events: events}
		if strings.HasSuffix(id, "0") {
			o.NumTokens, o.Finish = 0, signal.FinishAbort
		}
		m.Outputs = append(m.Outputs, o)
	}
	d.d.EndDispatched(core, m, sock, d.emit)
}

func (d *dispatcher) want(want ...string) {
	d.t.Helper()
	if got, want := strings.Join(d.ends, "\n"), strings.Join(want, "\n"); got != want {
		d.t.Errorf("steps\n%s\nwant\n%s", got, want)
	}
}

func TestDispatches(t *testing.T) {
	const far = 5e9
	for _, c := range []struct {
		name string
		play func(d *dispatcher)
		want []string
	}{
		{"one at a time", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "A")
			d.outputs(20, 1, "a !", signal.EngineEvent{Kind: signal.EventQueued, At: 3}, signal.EngineEvent{Kind: signal.EventScheduled, At: 9})
			d.dispatch(30, 2, 0, "a")
			d.outputs(40, 1, "a !")
		}, []string{"1: 10-20 from 9", "2: 30-40"}},
		{"outputs sent late", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a")
			d.dispatch(30, 2, 0, "a")
			d.outputs(20, 1, "a !")
			d.dispatch(50, 3, 0, "a")
			d.outputs(40, 1, "a !")
			d.outputs(60, 1, "a !")
		}, []string{"1: 10-20", "2: 30-40", "3: 50-60"}},
		{"two at a time", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a")
			d.dispatch(20, 2, 1, "a")
			d.outputs(30, 1, "a !")
			d.dispatch(40, 3, 1, "a")
			d.outputs(50, 1, "a !")
			d.outputs(60, 1, "a !")
		}, []string{"1: 10-30", "2: 20-50", "3: 40-60"}},
		{"outputs of a step from before", func(d *dispatcher) {
			d.dispatch(20, 8, 1, "a") // step 7 is under way
			d.outputs(30, 1, "a !")
			d.dispatch(40, 9, 1, "a")
			d.outputs(50, 1, "a !")
		}, []string{"8: 20-50"}},
		{"a dispatch that was lost", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a")
			d.outputs(30, 1, "a !")
			d.dispatch(40, 3, 1, "a") // 2 is under way
			d.outputs(50, 1, "a !")
			d.outputs(60, 1, "a !")
		}, []string{"1: 10-30", "3: 40-60"}},
		{"outputs that were lost", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a")
			d.dispatch(30, 2, 0, "a")
			d.outputs(40, 1, "a !")
		}, []string{"1: 10-0", "2: 30-40"}},
		{"steps under way are not known", func(d *dispatcher) {
			d.dispatch(10, 1, -1, "a")
			d.outputs(20, 1, "a !")
			d.dispatch(far, 2, 0, "a")
			d.outputs(far+5, 1, "a !")
		}, []string{"1: 10-0", "2: 5000000000-5000000005"}},
		{"others' outputs", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a")
			d.outputs(20, 1, "b !")
		}, nil},
		{"several front ends, the first with statistics", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a b")
			d.dispatch(20, 2, 1, "a b")
			d.outputs(30, 1, "a !")
			d.outputs(31, 2, "b")
			d.outputs(50, 1, "a !")
			d.outputs(51, 2, "b")
		}, []string{"1: 10-30", "2: 20-50"}},
		{"several front ends without statistics", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a b")
			d.dispatch(20, 2, 1, "a b")
			d.outputs(30, 1, "a")
			d.outputs(31, 2, "b")
			d.dispatch(40, 3, 1, "a b")
			d.outputs(50, 1, "a")
			d.outputs(51, 2, "b")
		}, []string{"1: 10-30", "2: 20-50"}},
		{"a chunk without outputs", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "A+")
			d.dispatch(30, 2, 0, "B")
			d.outputs(40, 1, "b")
		}, []string{"1: 10-0", "2: 30-40"}},
		{"a chunk while another step runs", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "A+")
			d.dispatch(20, 2, 1, "b")
			d.outputs(40, 1, "b") // 1 gave none
		}, []string{"1: 10-0", "2: 20-40"}},
		{"which of two steps gave them is not certain", func(d *dispatcher) {
			d.note(note.KindRequests, note.Requests{Requests: []note.Request{{ID: "x"}}}) // prompt not known
			d.dispatch(10, 1, 0, "x")
			d.dispatch(20, 2, 1, "x")
			d.outputs(30, 1, "x")
		}, nil},
		{"but is when it is the only one that ended", func(d *dispatcher) {
			d.note(note.KindRequests, note.Requests{Requests: []note.Request{{ID: "x"}}})
			d.dispatch(10, 1, 0, "x")
			d.dispatch(20, 2, 1, "x")
			d.dispatch(40, 3, 1, "x")
			d.outputs(30, 1, "x")
		}, []string{"1: 10-30"}},
		{"the end of an aborted request is no step's", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a b")
			d.outputs(15, 1, "b0")
			d.outputs(20, 1, "a")
		}, []string{"1: 10-20"}},
		{"nor with statistics", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a b")
			d.outputs(15, 1, "b0 a !")
		}, []string{"1: 10-15"}},
		{"no outputs for long", func(d *dispatcher) {
			d.outputs(5, 1, "a !")
			d.dispatch(10, 1, 0, "a")
			d.dispatch(20, 2, 0, "a")
			d.dispatch(far, 3, 0, "a")
		}, []string{"1: 10-0"}},
		{"an idle core", func(d *dispatcher) {
			zero, none := int64(0), note.State{}
			none.Running, none.Waiting = &zero, &zero
			idle := func(at uint64) {
				r, err := note.Put(note.KindState, core, at, none)
				if err != nil {
					d.t.Fatal(err)
				}
				d.d.Note(r, d.emit)
			}
			d.dispatch(10, 1, 0, "a")
			idle(100) // its outputs may be on their way
			idle(far)
			idle(far + 1)
			d.dispatch(far+10, 2, 1, "a")
			d.outputs(far+20, 1, "a !") // those of 1, late
			d.outputs(far+30, 1, "a !")
		}, []string{"1: 10-0", "2: 5000000010-5000000030"}},
		{"the count begins anew", func(d *dispatcher) {
			d.dispatch(10, 70, 0, "a")
			d.dispatch(20, 1, 0, "a")
			d.outputs(30, 1, "a !")
		}, []string{"70: 10-0", "1: 20-30"}},
		{"the clock takes over", func(d *dispatcher) {
			d.dispatch(10, 1, 0, "a")
			d.update(20, val("output", vllmtest.Addr(0x1000)), val("step", 1), val("in_flight", 0), val("tokens", 1), pairs("scheduled", "a", 1))
			d.outputs(20, 1, "a !")
			d.schedule(30, val("step", 1), val("in_flight", 0))
		}, []string{"1: 10-20"}},
		{"the clock is taken out", func(d *dispatcher) {
			d.schedule(10, val("step", 1), val("in_flight", 0))
			d.dispatch(30, 2, 0, "a")
			d.outputs(40, 1, "a !")
		}, []string{"1 by the clock: 10-0", "2: 30-40"}},
		{"the clock is taken out within a step", func(d *dispatcher) {
			d.schedule(10, val("step", 1), val("in_flight", 0))
			d.dispatch(30, 1, 0, "a")
			d.outputs(40, 1, "a !")
		}, []string{"1: 30-40"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDispatcher(t)
			d.knows(map[string]int64{"a": 100, "b": 100})
			c.play(d)
			d.want(c.want...)
		})
	}
}

// FuzzDispatch has captures of dispatches with any bytes between outputs: no step may
// end before its dispatch, nor two at the same outputs, nor out of turn.
func FuzzDispatch(f *testing.F) {
	r := vllmtest.Capture(10, core, dispatchPlan, dispatchSlots,
		val("notify", vllmtest.Addr(0x100)), val("output", vllmtest.Addr(0x1000)), val("step", 7), val("in_flight", 1),
		list("resumed"), list("computed", 100), pairs("new"), pairs("scheduled", "a", 1))
	f.Add(r.Data, uint8(0), true)
	f.Add(r.Data, uint8(3), false)
	f.Fuzz(func(t *testing.T, data []byte, every uint8, stats bool) {
		d := newDispatcher(t)
		seen := map[signal.Mono]bool{}
		var last signal.Mono
		emit := func(s signal.Signal) {
			g, ok := s.(*signal.Step)
			if !ok || g.Method != signal.StepByDispatch {
				return
			}
			if g.Dispatch < last {
				t.Fatalf("a step of %d after one of %d", g.Dispatch, last)
			}
			last = g.Dispatch
			if g.Update != 0 && (g.Update <= g.Dispatch || seen[g.Update]) {
				t.Fatalf("a step from %d to %d", g.Dispatch, g.Update)
			}
			seen[g.Update] = true
		}
		c := r
		c.Data = data
		for i := range 200 {
			c.Time = uint64(10 + 10*i)
			d.d.Capture(&c, emit)
			if every != 0 && i%int(every) == 0 {
				continue
			}
			m := &signal.StepOutput{Stamp: signal.Mono(5 + 10*i), Outputs: []signal.Output{{ID: []byte("a"), NumTokens: 1}}}
			if stats {
				m.Stats = &signal.SchedulerStats{}
			}
			d.d.EndDispatched(core, m, uint64(i%2), emit)
		}
	})
}
