package sglang

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/python/plan"
)

// lonely is a scene in which prompts are launched while no result is to come.
type lonely struct {
	*scene
	off bool  // what can be put off is
	due []req // what was, as of the launch; nil: nothing was
}

// lone plays the launch of prompts while no result is to come.
func (s *lonely) lone(launch float64, reqs ...req) {
	s.t.Helper()
	if !s.off {
		s.prefill(launch, nil, reqs...)
		return
	}
	s.number++
	s.due = reqs
	s.play(1, launch+1, s.slots, map[string]plan.Value{
		slotNumber: intValue(s.number), slotLaunch: timeValue(launch), slotNoDrafts: {Tag: capture.TagAddr, Addr: 1}, slotPutOff: intValue(1),
	})
}

func lens(reqs []req) plan.Value {
	v := plan.Value{Tag: capture.TagItems, Total: len(reqs), Per: 1}
	for n := range reqs {
		v.Values = append(v.Values, intValue(int64(n+5)))
	}
	return v
}

// shown are the slots with what was put off, of which the requests are as of now.
func (s *lonely) shown(stats []timing, now []req) map[string]plan.Value {
	if s.due == nil {
		return nil
	}
	s.due = nil
	return map[string]plan.Value{
		dueSlots.size: intValue(int64(len(now))), dueSlots.list: listValue(now, stats, len(enteringParts)), dueSlots.extend: lens(now), dueSlots.prefix: lens(now),
	}
}

// prefill plays a launch that is not alone, or of which nothing is put off.
func (s *lonely) prefill(launch float64, more map[string]plan.Value, reqs ...req) {
	s.t.Helper()
	off := s.shown(batchStats, s.due)
	if off != nil {
		off[slotDueNumber] = intValue(s.number)
	}
	s.number++
	values := map[string]plan.Value{
		slotNumber: intValue(s.number), slotLaunch: timeValue(launch), slotQueue: intValue(0), slotSize: intValue(int64(len(reqs))),
		slotEntering: listValue(reqs, batchStats, len(enteringParts)), slotExtend: lens(reqs), slotPrefix: lens(reqs), slotNoDrafts: {Tag: capture.TagAddr, Addr: 1},
		slotChunked: {Tag: capture.TagMissing, Missing: capture.MissingName},
	}
	if off != nil || s.number > 1 {
		values[slotQueue] = intValue(1)
	}
	maps.Copy(values, more)
	maps.Copy(values, off)
	s.play(1, launch+1, s.slots, values)
}

func (s *lonely) decode(launch float64, queue int64, reqs ...req) {
	s.t.Helper()
	off := s.shown(batchStats, s.due)
	if off != nil {
		off[slotDueNumber] = intValue(s.number)
	}
	s.decodeAnd(launch, queue, off, reqs)
}

// sent plays the message of a batch. now are the requests of it as of then, if nothing was
// launched behind it.
func (s *lonely) sent(at float64, number int64, now, ended []req, reqs ...req) {
	s.t.Helper()
	slot, list := slotSent, listValue(reqs, resultStats, 0)
	if s.decodes[number] {
		slot, list = slotDecoded, addressed(reqs, loopStats, false)
	}
	values := map[string]plan.Value{slotNumber: intValue(number), slot: list, slotEnded: listValue(ended, endStats, 0)}
	if now != nil {
		values[slotChunked] = plan.Value{Tag: capture.TagMissing, Missing: capture.MissingName}
		maps.Copy(values, s.shown(dueStats, now))
	}
	s.play(2, at, s.ends, values)
}

var late = req{id: "c", at: map[timing]float64{stampReceived: 14, stampQueued: 15, stampForward: 16, stampLastForward: 16}}

// TestPutOff: what the launch of prompts that nothing is before does not show, but a later
// capture, gives the same stages, marks and steps.
func TestPutOff(t *testing.T) {
	ends := with(prefilled, map[timing]float64{stampCompleted: 21})
	second := req{id: "b", at: map[timing]float64{stampReceived: 10, stampQueued: 11, stampForward: 12, stampLastForward: 12}}
	secondEnds := with(second, map[timing]float64{stampPrefilled: 20, stampLastPrefilled: 20, stampCompleted: 21})
	chunk := func(q req, held int64) req { q.parts = []int64{held}; return q }
	for name, play := range map[string]func(s *lonely){
		"one token": func(s *lonely) {
			s.lone(13, arrived)
			s.sent(22, 1, []req{ends}, []req{ends})
		},
		"two, of which one goes on": func(s *lonely) {
			s.lone(13, arrived, second)
			s.decode(18, 1, arrived)
			s.sent(22, 1, nil, []req{secondEnds}, prefilled)
			s.decode(23, 1, prefilled)
			s.sent(27, 2, nil, nil, decoded(26))
		},
		"no message of the prompt": func(s *lonely) {
			s.lone(13, arrived)
			s.decode(18, 1, arrived)
			s.decode(23, 1, prefilled)
			s.decode(28, 1, decoded(26))
			s.sent(32, 3, nil, []req{with(decoded(31), map[timing]float64{stampCompleted: 31.5})})
		},
		"a prompt behind it": func(s *lonely) {
			s.lone(13, arrived)
			s.prefill(17, nil, late)
			s.sent(21, 1, nil, nil, prefilled)
			s.decode(23, 1, prefilled, late)
			s.sent(27, 2, nil, nil, with(late, map[timing]float64{stampPrefilled: 26, stampLastPrefilled: 26}))
		},
		"in chunks": func(s *lonely) {
			first := chunk(arrived, 1)
			more := map[string]plan.Value{slotChunked: strValue("a")}
			if !s.off {
				s.prefill(13, more, first)
			} else {
				s.lone(13, first)
			}
			s.prefill(17, nil, chunk(arrived, 1))
			then := with(arrived, map[timing]float64{stampChunk: 19})
			s.decode(23, 1, with(then, map[timing]float64{stampPrefilled: 22, stampLastPrefilled: 22}))
			s.sent(24, 2, nil, nil, with(then, map[timing]float64{stampPrefilled: 22, stampLastPrefilled: 22}))
		},
		"its result before the next launch": func(s *lonely) {
			s.lone(13, arrived)
			s.sent(21, 1, []req{prefilled}, nil, prefilled)
			s.decode(23, 0, prefilled)
			s.sent(27, 2, nil, nil, decoded(26))
		},
		"again after an end": func(s *lonely) {
			s.lone(13, arrived)
			s.sent(22, 1, []req{ends}, []req{ends})
			again := req{id: "d", at: map[timing]float64{stampReceived: 30, stampQueued: 31, stampForward: 32, stampLastForward: 32}}
			s.lone(33, again)
			s.decode(38, 1, again)
			s.sent(42, 2, nil, nil, with(again, map[timing]float64{stampPrefilled: 40, stampLastPrefilled: 40}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var said [2][]string
			for i := range said {
				s := &lonely{scene: newScene(t), off: i == 1}
				play(s)
				said[i] = slices.Sorted(slices.Values(s.w.lines))
			}
			if len(said[0]) == 0 || !slices.Equal(said[0], said[1]) {
				t.Errorf("put off\n%s\nwithout\n%s", strings.Join(said[1], "\n"), strings.Join(said[0], "\n"))
			}
		})
	}
}

// TestPutOffLost: of prompts that no capture has shown it is known that they were launched.
func TestPutOffLost(t *testing.T) {
	s := &lonely{scene: newScene(t), off: true}
	s.lone(13, arrived)
	s.due = nil
	s.decode(18, 1, arrived)
	s.scene.sent(21, 1, nil, prefilled)
	s.decode(23, 1, prefilled)
	s.scene.sent(27, 2, nil, decoded(26))
	want := "step 1 13-21 partial"
	if !slices.Contains(s.w.lines, want) {
		t.Errorf("no %q in\n%s", want, strings.Join(s.w.lines, "\n"))
	}
	if i := slices.IndexFunc(s.w.lines, func(l string) bool { return strings.Contains(l, "#") }); i >= 0 {
		t.Errorf("a round has a number: %s", s.w.lines[i])
	}
}

// TestPutOffAndBack: a request that is put back before its launch was read was in the batch, in
// a way that is not known.
func TestPutOffAndBack(t *testing.T) {
	s := &lonely{scene: newScene(t), off: true}
	s.lone(13, arrived, late)
	back := with(late, map[timing]float64{stampQueued: 18, stampLastForward: 0})
	s.due[1] = back
	s.decode(19, 1, arrived)
	s.sent(22, 1, nil, nil, prefilled)
	s.prefill(24, nil, with(back, map[timing]float64{stampLastForward: 23}))
	s.sent(30, 3, nil, nil, with(back, map[timing]float64{stampLastForward: 23, stampPrefilled: 28, stampLastPrefilled: 28}))
	want := []string{
		fmt.Sprintf("step 1 13-22 a:5+5/%d%d c:6+6/%d%d", signal.StepEntryUnknown, signal.StepPrefillEnd, signal.StepEntryUnknown, signal.StepPhaseUnknown),
		fmt.Sprintf("step 3 24-30 c:5+5/%d%d", signal.StepResumed, signal.StepRecompute),
	}
	for _, l := range want {
		if !slices.Contains(s.w.lines, l) {
			t.Errorf("no %q in\n%s", l, strings.Join(s.w.lines, "\n"))
		}
	}
}

// TestPutOffElsewhere: outputs of no batch leave a batch whose requests are still to be shown.
func TestPutOffElsewhere(t *testing.T) {
	s := &lonely{scene: newScene(t), off: true}
	s.lone(13, arrived)
	s.sentApart(15, nil)
	s.decode(18, 1, arrived)
	s.sent(22, 1, nil, nil, prefilled)
	if want := "a schedule at 13 prefill 1 of 1"; !slices.Contains(s.w.lines, want) {
		t.Errorf("no %q in\n%s", want, strings.Join(s.w.lines, "\n"))
	}
}

// TestPutOffAborted: a request that was given up before its launch was read stays ended.
func TestPutOffAborted(t *testing.T) {
	s := &lonely{scene: newScene(t), off: true}
	s.lone(13, arrived, late)
	s.aborted(15, with(arrived, map[timing]float64{stampChunk: 14}))
	said := len(s.w.lines)
	s.prefill(18, nil, late)
	for _, l := range s.w.lines[said:] {
		if strings.HasPrefix(l, "a ") {
			t.Errorf("%q behind its end", l)
		}
	}
}
