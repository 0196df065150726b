package sglang

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/note"
	"inferspan/probes/python/plan"
)

// TestFront plays the clock reads of a front end and of a DP controller.
func TestFront(t *testing.T) {
	slots := append([]string{slotID, slotAborted, slotFinished}, frontNames...)
	const dispatch, first, finish, controller = 1, 2, 3, 4
	yes, no := plan.Value{Tag: capture.TagBool, Int: 1}, plan.Value{Tag: capture.TagBool}
	gone := plan.Value{Tag: capture.TagMissing, Missing: capture.MissingFrame}
	begun := map[string]plan.Value{slotID: strValue("a"), nameCreated: timeValue(10), nameTokenized: timeValue(12), nameDispatch: timeValue(13), nameDispatched: timeValue(14)}
	and := func(more map[string]plan.Value) map[string]plan.Value {
		all := map[string]plan.Value{}
		for _, m := range []map[string]plan.Value{begun, more} {
			for k, v := range m {
				all[k] = v
			}
		}
		return all
	}
	for name, test := range map[string]struct {
		plan   uint32
		values map[string]plan.Value
		want   string
	}{
		"handed over": {dispatch, map[string]plan.Value{slotID: strValue("a"), nameCreated: timeValue(10), nameTokenized: timeValue(12)},
			"a tokenize 10-12, a times 10 0 0 0"},
		"first output":          {first, and(map[string]plan.Value{slotFinished: no}), "a tokenize 10-12, a api_server_dispatch 13-14, a times 10 14 20 0"},
		"first and last output": {first, and(map[string]plan.Value{slotFinished: yes}), "a tokenize 10-12, a api_server_dispatch 13-14, a times 10 14 20 20"},
		"last output":           {finish, and(map[string]plan.Value{nameFirst: timeValue(18)}), "a times 0 0 18 20"},
		"aborted in the queue":  {finish, map[string]plan.Value{slotID: gone, slotAborted: strValue("b"), nameFirst: timeValue(0)}, "b times 0 0 0 20"},
		"aborted without output": {finish, map[string]plan.Value{slotID: gone, slotAborted: strValue("b"), nameFirst: timeValue(0), nameDispatch: timeValue(13), nameDispatched: timeValue(14)},
			"b api_server_dispatch 13-14, b times 0 14 0 20"},
		"no id":             {finish, map[string]plan.Value{slotID: gone, slotAborted: gone}, ""},
		"by the controller": {controller, map[string]plan.Value{slotID: strValue("a"), dispatchName: timeValue(19)}, "a dpc_dispatch 19-20"},
	} {
		s := &scene{t: t, c: NewCaptures(1, "none")}
		for n, name := range []string{planDispatch, planFirst, planFinish} {
			s.c.Plan(uint32(n+1), note.Plan{Name: name, Slots: slots})
		}
		s.c.Plan(controller, note.Plan{Name: planController, Slots: []string{slotID, dispatchName}})
		all := slots
		if test.plan == controller {
			all = []string{slotID, dispatchName}
		}
		s.play(test.plan, 20, all, test.values)
		if got := strings.Join(s.w.lines, ", "); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// TestSteps checks what steps are made of a scheduler's batches.
func TestSteps(t *testing.T) {
	s := newScene(t)
	a := req{id: "a", at: map[timing]float64{stampReceived: 10, stampQueued: 11, stampForward: 12, stampLastForward: 12}, parts: []int64{1}}
	s.number = 3
	s.decode(5, 0, req{id: "z"})
	s.prefill(13, 0, nil, a)
	b := req{id: "b", at: map[timing]float64{stampReceived: 14, stampQueued: 15, stampForward: 16, stampLastForward: 16}}
	a.parts = []int64{0}
	s.prefill(17, 1, nil, a, b)
	ended := with(a, map[timing]float64{stampPrefilled: 19, stampLastPrefilled: 19, stampCompleted: 20})
	s.sent(21, 6, []req{ended}, with(b, map[timing]float64{stampPrefilled: 19, stampLastPrefilled: 19}))
	s.decode(22, 0, b)
	s.decode(24, 1, b)
	s.decode(26, 1, b)
	s.sent(29, 8, nil, b)
	steps := slices.DeleteFunc(slices.Clone(s.w.lines), func(l string) bool { return !strings.HasPrefix(l, "step") })
	want := []string{"step 4 5-0 z:0+1/23", "step 5 13-0 a:0+-1/11", "step 6 17-21 a:0+-1/22 b:0+-1/12", "step 7 22-0 b:0+1/23", "step 8 24-29 b:0+1/23"}
	if !slices.Equal(steps, want) {
		t.Errorf("steps\n%s\nwant\n%s", strings.Join(steps, "\n"), strings.Join(want, "\n"))
	}
}

// TestMixed checks the phases of a batch in which some decode while another's prompt is
// computed: what they have so far is not in the capture.
func TestMixed(t *testing.T) {
	s := newScene(t)
	a := req{id: "a", at: map[timing]float64{stampReceived: 1, stampQueued: 2, stampForward: 3, stampLastForward: 3}, parts: []int64{0}}
	b := req{id: "b", at: map[timing]float64{stampReceived: 4, stampQueued: 5, stampForward: 6, stampLastForward: 6}, parts: []int64{1}}
	s.prefill(3, 0, nil, a)
	s.prefill(7, 1, nil, a, b)
	b.parts = []int64{0}
	s.prefill(9, 1, nil, a, b)
	s.sent(10, 2, nil, a)
	s.prefill(11, 1, nil, a, b)
	s.sent(14, 3, nil, a, b)
	s.sent(15, 4, nil, a, b)
	steps := slices.DeleteFunc(slices.Clone(s.w.lines), func(l string) bool { return !strings.HasPrefix(l, "step") })
	want := []string{"step 1 3-0 a:0+-1/02", "step 2 7-10 a:0+-1/23 b:0+-1/11", "step 3 9-14 a:0+-1/23 b:0+-1/22", "step 4 11-15 a:0+-1/23 b:0+-1/23"}
	if !slices.Equal(steps, want) {
		t.Errorf("steps\n%s\nwant\n%s", strings.Join(steps, "\n"), strings.Join(want, "\n"))
	}
}

// TestStepsUnsent checks that steps whose outputs are not sent are not held back: those of a
// prefill server, which answers when the caches are handed over.
func TestStepsUnsent(t *testing.T) {
	s := newScene(t)
	a := req{id: "a", at: map[timing]float64{stampReceived: 10, stampBootstrap: 10, stampQueued: 11, stampForward: 12, stampLastForward: 12}}
	b := with(a, nil)
	b.id = "b"
	var got []string
	steps := func(when string) {
		n := 0
		for _, l := range s.w.lines {
			if strings.HasPrefix(l, "step") {
				n++
			}
		}
		got = append(got, fmt.Sprintf("%s %d", when, n))
	}
	end := func(q req) []req { return []req{with(q, map[timing]float64{stampCompleted: 30})} }
	s.prefill(13, 0, nil, a)
	s.prefill(15, 1, nil, b)
	steps("both launched:")
	s.prefill(17, 0, nil, b) // the results of both are there
	steps("a third:")
	s.sentApart(31, end(a))
	steps("one ended:")
	s.sentApart(32, end(b))
	steps("the other:")
	want := []string{"both launched: 0", "a third: 2", "one ended: 2", "the other: 3"}
	if !slices.Equal(got, want) {
		t.Errorf("steps %q, want %q", got, want)
	}
}

// TestBounds checks that a process does not take more memory than it should, whatever
// happens in it.
func TestBounds(t *testing.T) {
	s := newScene(t)
	var all []req
	for i := range maxLives + 100 {
		all = append(all, req{id: fmt.Sprint(i)})
		if len(all) == 400 {
			s.decode(float64(s.number+1), 0, all...)
			all = all[:0]
		}
	}
	if n := len(s.c.processes[testPID].lives); n > maxLives {
		t.Errorf("%d requests are remembered, at most %d should", n, maxLives)
	}
	if s.c.Stats().Evicted == 0 {
		t.Error("nothing was forgotten")
	}
	s.c.Exit(testPID)
	if len(s.c.processes) != 0 {
		t.Error("the process is not forgotten")
	}
}

// FuzzCapture checks that no capture breaks the decoder.
func FuzzCapture(f *testing.F) {
	s := newScene(f)
	f.Add(uint32(1), []byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, number uint32, data []byte, values uint16) {
		r := &event.Record{Header: event.Header{Kind: event.KindCapture, Time: 1e9, PID: testPID},
			Capture: event.Capture{Plan: number%4 + 1, Values: values, Flags: event.CaptureCut}, Data: data}
		_ = s.c.Capture(r, func(x signal.Signal) {
			if st, ok := x.(*signal.Stage); ok && (st.Start == 0 || st.End != 0 && st.End < st.Start) {
				t.Errorf("stage %+v", st)
			}
		})
	})
}

// TestUnkept: of a version that keeps few times it is said once for each request which
// stages that leaves out.
func TestUnkept(t *testing.T) {
	c := NewCaptures(1, "none")
	ended := slotEnded + ":rid,wait_queue_entry_time,forward_entry_time,completion_time"
	c.Plan(1, note.Plan{Name: planBatch, Slots: []string{slotLaunch, slotEntering + ":rid,wait_queue_entry_time"}})
	c.Plan(2, note.Plan{Name: planOutputs, Slots: []string{ended}})
	ids := plan.Value{Slot: 1, Tag: capture.TagItems, Per: 2, Total: 1, Values: []plan.Value{
		strValue("a"), timeValue(1000),
	}}
	for i := range ids.Values {
		ids.Values[i].Slot = ids.Slot
	}
	launch := plan.Value{Slot: 0, Tag: capture.TagMissing, Missing: capture.MissingName}
	var got []string
	for range 2 {
		r := &event.Record{Header: event.Header{Kind: event.KindCapture, Time: 2e9, PID: testPID},
			Capture: event.Capture{Plan: 1, Values: 2}, Data: plan.Append(nil, []plan.Value{launch, ids})}
		if err := c.Capture(r, func(s signal.Signal) {
			if m, ok := s.(*signal.Mark); ok {
				got = append(got, m.Name+" "+m.ID+" "+strings.Join(m.Unkept, " "))
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"unkept a request_process prefill_forward chunked_prefill decode_waiting decode_forward decode_loop schedule"}
	if !slices.Equal(got, want) {
		t.Errorf("marks %q, want %q", got, want)
	}
}

// TestHanding: a server's stamps are those of its part.
func TestHanding(t *testing.T) {
	for loop, want := range map[string][]timing{
		"event_loop_overlap":                {},
		"event_loop_pp":                     {},
		"event_loop_overlap_disagg_prefill": {stampBootstrap, stampTransfer, stampTransferred},
		"event_loop_normal_disagg_decode":   {stampPrealloc, stampIncoming, stampPrebuilt},
	} {
		all := slices.Clone(stampNames[:])
		got := handing(loop, all)
		names := slices.Clone(stampNames[:stampBootstrap])
		for _, k := range want {
			names = append(names, stampNames[k])
		}
		if !slices.Equal(got, names) || !slices.Equal(all, stampNames[:]) {
			t.Errorf("%s: %v, want %v", loop, got, names)
		}
	}
}

// TestStepLaunched: a step says when it had been launched, and whether that was all.
func TestStepLaunched(t *testing.T) {
	const batch, launch, outputs = 1, 2, 3
	slots := []string{slotNumber, slotLaunch, slotSample, "decoding:rid"}
	missing := func(why capture.Missing) plan.Value { return plan.Value{Tag: capture.TagMissing, Missing: why} }
	for _, c := range []struct {
		name string
		plan uint32
		mark signal.StepMark
		// delay_sample_func
		sample plan.Value
		want   signal.Step
	}{
		{"overlap", batch, signal.StepLaunched, plan.Value{Tag: capture.TagNone}, signal.Step{Schedule: 10e6, Launched: 12e6}},
		{"a function that samples later", batch, signal.StepLaunched, missing(capture.MissingType), signal.Step{Schedule: 10e6, Launched: 12e6, More: true}},
		{"a result without one", batch, signal.StepLaunched, missing(capture.MissingName), signal.Step{Schedule: 10e6, Launched: 12e6}},
		{"no overlap", launch, signal.StepBegins, missing(capture.MissingName), signal.Step{Schedule: 12e6}},
	} {
		s := &scene{t: t, c: NewCaptures(1, "none"), decodes: map[int64]bool{}}
		s.c.Plan(batch, note.Plan{Name: planBatch, Slots: slots})
		s.c.Plan(launch, note.Plan{Name: planLaunch, Slots: slots})
		s.c.Plan(outputs, note.Plan{Name: planOutputs, Slots: []string{slotNumber}})
		if m := s.c.StepMark(c.plan); m != c.mark || s.c.StepMark(outputs) != signal.StepUnmarked {
			t.Errorf("%s: marked %d, want %d", c.name, m, c.mark)
		}
		s.play(c.plan, 12, slots, map[string]plan.Value{slotNumber: intValue(1), slotLaunch: timeValue(10), slotSample: c.sample, slotDecoding: listValue([]req{{id: "a"}}, nil, 0)})
		s.play(outputs, 15, []string{slotNumber}, map[string]plan.Value{slotNumber: intValue(1)})
		if got := s.w.steps; len(got) != 1 {
			t.Errorf("%s: %d steps", c.name, len(got))
		} else if g := got[0]; g.Schedule != c.want.Schedule || g.Launched != c.want.Launched || g.More != c.want.More || g.Update != 15e6 {
			t.Errorf("%s: %+v, want %+v", c.name, g, c.want)
		}
	}
}

// TestStepEnds: a step ends with the message of its outputs, also where the look is behind it.
func TestStepEnds(t *testing.T) {
	const batch, outputs = 1, 2
	for _, c := range []struct {
		name   string
		behind bool
		sent   []signal.Mono // of the second batch
		want   []signal.Mono
	}{
		{"looked at behind its message", true, []signal.Mono{23e6}, []signal.Mono{14e6, 23e6}},
		{"its message was lost", true, nil, []signal.Mono{14e6, 25e6}},
		{"looked at before its message", false, []signal.Mono{23e6}, []signal.Mono{15e6, 25e6}},
	} {
		s := &scene{t: t, c: NewCaptures(1, "none"), decodes: map[int64]bool{}}
		slots := []string{slotNumber, slotLaunch, "decoding:rid"}
		s.c.Plan(batch, note.Plan{Name: planBatch, Slots: slots})
		s.c.Plan(outputs, note.Plan{Name: planOutputs, Slots: []string{slotNumber}, Behind: c.behind})
		for n, sent := range [][]signal.Mono{{14e6}, c.sent} {
			at := float64(10 * (n + 1))
			s.play(batch, at, slots, map[string]plan.Value{slotNumber: intValue(int64(n + 1)), slotLaunch: timeValue(at), slotDecoding: listValue([]req{{id: "a"}}, nil, 0)})
			for _, x := range sent {
				s.c.Sent(testPID, x)
			}
			s.play(outputs, at+5, []string{slotNumber}, map[string]plan.Value{slotNumber: intValue(int64(n + 1))})
		}
		var got []signal.Mono
		for _, g := range s.w.steps {
			got = append(got, g.Update)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: ends %v, want %v", c.name, got, c.want)
		}
	}
}
