package vllm_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
)

func TestStepsInTurn(t *testing.T) {
	s := newStepper(t, "0.32.0")
	s.knows(map[string]int64{"a": 10, "b": 20})
	s.schedule(100, val("step", 1), val("in_flight", nil), val("running", 0), val("waiting", 2))
	s.update(110, ended(0x10, 1, 26, val("in_flight", nil), list("resumed"), list("computed"),
		pairs("new", "a", 0, "b", 4), pairs("scheduled", "a", 10, "b", 8))...)
	s.schedule(120, val("step", 2), val("in_flight", nil))
	s.update(130, ended(0x20, 2, 9, val("in_flight", nil), list("resumed"), list("computed", 10, 12), pairs("new"), pairs("scheduled", "a", 1, "b", 8))...)
	s.schedule(140, val("step", 3), val("in_flight", nil))
	s.update(150, ended(0x10, 3, 1, val("in_flight", nil), list("finished", "b", "a"), list("resumed"), list("computed", 11), pairs("new"), pairs("scheduled", "a", 1))...)
	s.want("1 100-110 26: a=10@0 new end b=8@4 new chunk",
		"2 120-130 9: a=1@10 running decode b=8@12 running end",
		"3 140-150 1 finished [a b]: a=1@11 running decode")
}

// With asynchronous scheduling the next step begins before a step ends.
func TestStepsOverlap(t *testing.T) {
	s := newStepper(t, "0.32.0")
	s.knows(map[string]int64{"a": 4})
	one := func(addr, current, inFlight, computed int, more ...vllmtest.Slot) []vllmtest.Slot {
		return ended(addr, current, 1, append([]vllmtest.Slot{val("in_flight", inFlight), list("resumed"), list("computed", computed), pairs("new"), pairs("scheduled", "a", 1)}, more...)...)
	}
	s.schedule(100, val("step", 5), val("in_flight", 0))
	s.schedule(110, val("step", 6), val("in_flight", 1))
	s.update(120, one(0x10, 6, 1, 4)...)
	s.schedule(130, val("step", 7), val("in_flight", 1))
	s.update(140, one(0x20, 7, 1, 5)...)
	// The next one waits for the tokens of this one: it is held back, not in flight.
	s.schedule(150, val("step", 8), val("in_flight", 1))
	s.update(160, one(0x30, 8, 0, 6, val("held_back", vllmtest.Missing(capture.MissingType)))...)
	s.update(170, one(0x40, 8, 0, 7, val("held_back", nil))...)
	s.want("5 100-120 1: a=1@4 running decode", "6 110-140 1: a=1@5 running decode", "7 130-160 1: a=1@6 running decode", "8 150-170 1: a=1@7 running decode")
}

func TestStepsLost(t *testing.T) {
	s := newStepper(t, "0.32.0")
	empty := []vllmtest.Slot{list("resumed"), list("computed"), pairs("new"), pairs("scheduled")}
	sync := func(addr, n int) []vllmtest.Slot {
		return ended(addr, n, 0, append([]vllmtest.Slot{val("in_flight", nil)}, empty...)...)
	}
	s.update(90, sync(0x10, 1)...) // attached in the middle of a step
	s.schedule(100, val("step", 2), val("in_flight", nil))
	// The end of step 2 and the beginning of step 3 are lost.
	s.update(130, sync(0x20, 3)...)
	s.schedule(140, val("step", 4), val("in_flight", nil))
	s.schedule(150, val("step", 5), val("in_flight", nil)) // the end of step 4 is lost
	s.update(160, sync(0x20, 5)...)
	s.schedule(170, val("step", 6), val("in_flight", nil))
	s.schedule(180, val("step", 1), val("in_flight", nil)) // another scheduler
	s.update(190, sync(0x20, 1)...)
	s.want("1 0-90 0:", "2 100-0 ? partial:", "3 0-130 0:", "4 140-0 ? partial:", "5 150-160 0:", "1 180-190 0:")
}

// A step has as many messages as there are front ends with outputs.
func TestStepsOfSeveralFrontEnds(t *testing.T) {
	s := newStepper(t, "0.32.0")
	end := ended(0x10, 1, 2, val("in_flight", nil), list("resumed"), list("computed", 1, 2), pairs("new"), pairs("scheduled", "a", 1, "b", 1))
	s.schedule(100, val("step", 1), val("in_flight", nil))
	s.update(110, end...)
	s.update(111, end...)
	s.schedule(120, val("step", 2), val("in_flight", nil))
	end[0] = val("step", 2) // the next output may be at the same address
	s.update(130, end...)
	s.want("1 100-110 2: a=1@1 running  b=1@2 running ", "2 120-130 2: a=1@1 running  b=1@2 running ")
}

func TestStepsPreempted(t *testing.T) {
	s := newStepper(t, "0.32.0")
	s.knows(map[string]int64{"a": 4, "b": 6, "c": 3})
	step := func(n int, values ...vllmtest.Slot) {
		s.schedule(uint64(100*n), val("step", n), val("in_flight", nil))
		s.update(uint64(100*n+10), ended(0x10+n, n, 0, append(values, val("in_flight", nil))...)...)
	}
	none := list("preempted")
	step(1, none, list("resumed"), list("computed"), pairs("new", "a", 0, "b", 0), pairs("scheduled", "a", 4, "b", 6))
	step(2, none, list("resumed"), list("computed", 4, 6), pairs("new"), pairs("scheduled", "a", 1, "b", 1))
	step(3, list("preempted", "b"), list("resumed"), list("computed", 5), pairs("new"), pairs("scheduled", "a", 1))
	// b is back behind a new request: counts of those that were running come first.
	step(4, none, list("resumed", "b"), list("computed", 6, 0), pairs("new", "c", 0), pairs("scheduled", "a", 1, "c", 3, "b", 5))
	step(5, none, list("resumed"), list("computed", 7, 3, 5), pairs("new"), pairs("scheduled", "a", 1, "c", 1, "b", 3))
	step(6, none, list("resumed"), list("computed", 8, 4, 8), pairs("new"), pairs("scheduled", "a", 1, "c", 1, "b", 1))
	s.want("1 100-110 0: a=4@0 new end b=6@0 new end",
		"2 200-210 0: a=1@4 running decode b=1@6 running decode",
		"3 300-310 0 preempted [b]: a=1@5 running decode",
		"4 400-410 0: a=1@6 running decode c=3@0 new end b=5@0 resumed again",
		"5 500-510 0: a=1@7 running decode c=1@3 running decode b=3@5 running again",
		"6 600-610 0: a=1@8 running decode c=1@4 running decode b=1@8 running decode")
}

// Lighter plans say nothing of the requests of a step. What a request had computed is not
// known after such steps, until it is seen again.
func TestStepsWithoutRequests(t *testing.T) {
	s := newStepper(t, "0.32.0")
	slots := []string{"step", "in_flight", "output", "tokens", "preempted", "finished"}
	const light = 9
	s.note(note.KindProbe, note.Probe{Detail: "steps", Active: true, Plans: map[uint32]note.Plan{light: {Name: "update", Slots: slots, Level: 1}}})
	s.knows(map[string]int64{"a": 4, "b": 4})
	begin := func(n int) { s.schedule(uint64(100*n), val("step", n), val("in_flight", nil)) }
	whole := func(n int, values ...vllmtest.Slot) {
		begin(n)
		s.update(uint64(100*n+10), ended(0x10+n, n, 0, append(values, list("preempted"), val("in_flight", nil))...)...)
	}
	less := func(n int, values ...vllmtest.Slot) {
		begin(n)
		r := vllmtest.Capture(uint64(100*n+10), core, light, slots, ended(0x10+n, n, 2, append(values, val("in_flight", nil))...)...)
		s.d.Capture(&r, s.emit)
	}
	whole(1, list("resumed"), list("computed"), pairs("new", "a", 0, "b", 0), pairs("scheduled", "a", 4, "b", 4))
	less(2, list("preempted"))
	less(3, list("preempted"))
	// Both have 6 now, of which b loses all in this step.
	less(4, list("preempted", "b"), list("finished", "x"))
	whole(5, list("resumed", "b"), list("computed", 7, 0), pairs("new"), pairs("scheduled", "a", 1, "b", 4))
	whole(6, list("resumed"), list("computed", 8, 4), pairs("new"), pairs("scheduled", "a", 1, "b", 2))
	s.want("1 100-110 0: a=4@0 new end b=4@0 new end",
		"2 200-210 2 partial:", "3 300-310 2 partial:", "4 400-410 2 partial preempted [b] finished [x]:",
		"5 500-510 0: a=1@7 running decode b=4@0 resumed again",
		"6 600-610 0: a=1@8 running decode b=2@4 running ")
}

// Versions before 0.24 do not count their steps.
func TestStepsCounted(t *testing.T) {
	s := newStepper(t, "0.20.2")
	end := func(addr int) []vllmtest.Slot {
		return []vllmtest.Slot{val("output", vllmtest.Addr(addr)), val("tokens", 1), val("in_flight", 1), list("computed"), pairs("scheduled", "a", 1)}
	}
	s.schedule(100, val("in_flight", 0))
	s.schedule(110, val("in_flight", 1))
	s.update(120, end(0x10)...)
	s.schedule(130, val("in_flight", 1))
	s.update(140, end(0x20)...)
	s.want("1 100-120 1 counted: a=1@?  ", "2 110-140 1 counted: a=1@?  ")
}

func TestStepsIncomplete(t *testing.T) {
	for name, c := range map[string]struct {
		values []vllmtest.Slot
		flags  uint16
		want   string
	}{
		"not a step":       {values: []vllmtest.Slot{val("step", 1), val("output", vllmtest.Missing(capture.MissingFrame))}},
		"no requests":      {values: ended(1, 1, 2, val("scheduled", vllmtest.Missing(capture.MissingFault))), want: "? 0-10 2 partial:"},
		"more requests":    {values: ended(1, 1, 2, list("resumed"), list("computed", 5), pairs("new"), val("scheduled", vllmtest.Items{Of: [][]any{{"a", 1}}, Per: 2, More: 1})), want: "? 0-10 2 partial: a=1@? running "},
		"cut":              {values: ended(1, 1, 1, pairs("scheduled", "a", 1)), flags: event.CaptureCut, want: "? 0-10 1 partial: a=1@?  "},
		"a long id":        {values: ended(1, 1, 2, list("resumed"), list("computed", 5, 6), pairs("new"), pairs("scheduled", vllmtest.Missing(capture.MissingLimit), 1, "b", 1)), want: "? 0-10 2 partial: b=1@? running "},
		"counts and ids":   {values: ended(1, 1, 2, list("resumed"), list("computed", 5), pairs("new"), pairs("scheduled", "a", 1, "b", 1)), want: "? 0-10 2: a=1@? running  b=1@? running "},
		"unknown resumed":  {values: ended(1, 1, 1, list("computed", 5), pairs("new"), pairs("scheduled", "a", 1)), want: "? 0-10 1: a=1@?  "},
		"a count is wrong": {values: ended(1, 1, 2, list("resumed"), list("computed", vllmtest.Missing(capture.MissingBad), 6), pairs("new"), pairs("scheduled", "a", 1, "b", 1)), want: "? 0-10 2: a=1@? running  b=1@6 running "},
	} {
		s := newStepper(t, "0.32.0")
		r := vllmtest.Capture(10, core, updatePlan, updateSlots, c.values...)
		r.Capture.Flags = c.flags
		s.d.Capture(&r, s.emit)
		if got := strings.Join(s.out, "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if p := s.d.Problem(); p != nil {
			t.Errorf("%s: %v", name, p)
		}
	}
}

// With statistics off nothing marks the end of a step without outputs.
func TestStepsSilent(t *testing.T) {
	config := func(spec int64, caching bool) note.Config {
		block := int64(16)
		return note.Config{SpecTokens: &spec, PrefixCaching: &caching, BlockSize: &block}
	}
	run := func(c note.Config, want ...string) {
		t.Helper()
		s := newStepper(t, "0.32.0")
		s.note(note.KindConfig, c)
		s.knows(map[string]int64{"a": 40, "b": 12})
		sched := func(n int, listed ...any) {
			s.schedule(uint64(100*n), val("step", n), val("in_flight", nil), pairs("listed", listed...))
		}
		sched(1)
		sched(2, "a", 16)
		sched(3, "a", 32, "b", 8)
		s.update(310, ended(0x10, 3, 9, val("in_flight", nil), list("resumed"), list("computed", 32, 8), pairs("new"), pairs("scheduled", "a", 8, "b", 4))...)
		sched(4, "a", 40, "b", 12)
		sched(5, "a", 40, "b", 12) // nothing was scheduled
		sched(6, "b", 12)          // a was aborted
		s.schedule(700, val("step", 7), val("in_flight", nil), val("listed", vllmtest.Missing(capture.MissingFault)))
		sched(8, "b", 12)
		s.want(want...)
	}
	run(config(0, false),
		"1 100-0 16: a=16@0 new chunk",
		"2 200-0 24: a=16@16 running chunk b=8@0 new chunk",
		"3 300-310 9: a=8@32 running end b=4@8 running end",
		"4 400-0 0:", "5 500-0 ? partial:", "6 600-0 ? partial:", "7 700-0 ? partial:")
	// The prefix cache may have had the first block of a, but not of b.
	run(config(0, true),
		"1 100-0 ?: a=-1@? new chunk",
		"2 200-0 24: a=16@16 running chunk b=8@0 new chunk",
		"3 300-310 9: a=8@32 running end b=4@8 running end",
		"4 400-0 0:", "5 500-0 ? partial:", "6 600-0 ? partial:", "7 700-0 ? partial:")
	// Refused drafts take from the counts.
	run(config(2, false),
		"1 100-0 16: a=16@0 new chunk",
		"2 200-0 ?: a=-1@? running chunk b=8@0 new chunk",
		"3 300-310 9: a=8@32 running end b=4@8 running end",
		"4 400-0 0:", "5 500-0 ? partial:", "6 600-0 ? partial:", "7 700-0 ? partial:")
}

func TestCapturesOfUnknownPlans(t *testing.T) {
	s := newStepper(t, "0.32.0")
	r := vllmtest.Capture(1, core, 99, updateSlots, ended(1, 1, 0)...)
	s.d.Capture(&r, s.emit)
	if s.out != nil || s.d.Stats().Unplanned != 1 || s.d.Stats().Broken != 0 {
		t.Errorf("%q, %+v", s.out, s.d.Stats())
	}
}

// simulate plays a scheduler that runs some steps ahead, with losses, and checks
// that no step is mistaken for another.
func TestStepsSimulated(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := newStepper(t, "0.32.0")
		ahead, loss := 1+rnd.IntN(3), rnd.Float64()*0.3*float64(rnd.IntN(2))
		var inFlight []int
		now, next := uint64(0), 1
		begun, over := map[string]uint64{}, map[string]uint64{}
		s.out = nil
		check := func(sig signal.Signal) {
			g, ok := sig.(*signal.Step)
			if !ok {
				return
			}
			n := fmt.Sprint(g.Number.V)
			if !g.Number.OK || g.Schedule != 0 && uint64(g.Schedule) != begun[n] || g.Update != 0 && uint64(g.Update) != over[n] {
				t.Fatalf("seed %d: step %s from %d to %d, want %d to %d", seed, n, g.Schedule, g.Update, begun[n], over[n])
			}
			if g.Update != 0 && g.Tokens.V != g.Number.V {
				t.Fatalf("seed %d: step %s with the requests of step %d", seed, n, g.Tokens.V)
			}
			if loss == 0 && g.Detail != signal.StepSeen {
				t.Fatalf("seed %d: step %s: detail %d without losses", seed, n, g.Detail)
			}
		}
		put := func(r event.Record) {
			if rnd.Float64() >= loss {
				s.d.Capture(&r, check)
			}
		}
		for range 300 {
			now += 10
			if len(inFlight) < ahead && (len(inFlight) == 0 || rnd.IntN(2) == 0) {
				begun[fmt.Sprint(next)] = now
				put(vllmtest.Capture(now, core, schedulePlan, scheduleSlots, val("step", next), val("in_flight", len(inFlight))))
				inFlight = append(inFlight, next)
				next++
				continue
			}
			n := inFlight[0]
			inFlight = inFlight[1:]
			over[fmt.Sprint(n)] = now
			put(vllmtest.Capture(now, core, updatePlan, updateSlots, ended(0x10*(1+n%4), next-1, n, val("in_flight", len(inFlight)), pairs("scheduled"))...))
		}
	}
}

// FuzzCapture decodes any bytes as captures of both plans. A capture gives steps or
// is counted as broken, and a step has nothing that the engine cannot have said.
func FuzzCapture(f *testing.F) {
	add := func(r event.Record) { f.Add(r.Capture.Plan == updatePlan, r.Capture.Values, r.Data) }
	add(vllmtest.Capture(1, core, schedulePlan, scheduleSlots, val("step", 1), val("in_flight", 1), pairs("listed", "a", 1)))
	add(vllmtest.Capture(1, core, updatePlan, updateSlots, ended(16, 1, 3, val("in_flight", nil), list("preempted", "x"), list("resumed", "b"), list("computed", 4, 5), pairs("new", "c", 0), pairs("scheduled", "a", 1, "b", 1, "c", 1))...))
	add(vllmtest.Capture(1, core, updatePlan, updateSlots, val("output", vllmtest.Addr(5)), val("held_back", vllmtest.Missing(4)), val("scheduled", vllmtest.Items{Of: [][]any{{"\xff", -1}}, Per: 2, More: 7})))
	f.Fuzz(func(t *testing.T, update bool, values uint16, data []byte) {
		s := newStepper(t, "0.32.0")
		r := event.Record{Header: event.Header{Time: 100, Kind: event.KindCapture, PID: core}, Capture: event.Capture{Plan: schedulePlan, Values: values}, Data: data}
		if update {
			r.Capture.Plan = updatePlan
		}
		check := func(sig signal.Signal) {
			g, ok := sig.(*signal.Step)
			if !ok {
				t.Fatalf("a signal of type %T", sig)
			}
			for _, o := range []signal.Opt[int64]{g.Number, g.Tokens, g.Running, g.Waiting, g.Deferred, g.FreeBlocks, g.Blocks, g.FreeAfter} {
				if !o.OK && o.V != 0 {
					t.Fatalf("an unknown value of %d", o.V)
				}
			}
			for _, q := range g.Requests {
				if q.Tokens < -1 || q.Computed.OK && q.Computed.V < 0 {
					t.Fatalf("request %+v", q)
				}
			}
		}
		before := s.d.Stats()
		s.schedule(50, val("step", 1), val("in_flight", nil))
		s.d.Capture(&r, check)
		s.schedule(150, val("step", 2), val("in_flight", nil))
		after := s.d.Stats()
		if after.Broken+after.Captures != before.Broken+before.Captures+3 {
			t.Fatalf("a capture was neither read nor broken: %+v", after)
		}
	})
}
