package sglang

import (
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/note"
	"inferspan/probes/target"
)

// stagesOf collects the stages of signals, by name, and what else there was.
type stagesOf struct {
	stages map[string][2]signal.Mono
	times  signal.RequestTimes
	peeked []signal.RequestPeeked
	state  signal.EngineState
	again  []string // stages that came more than once
}

func (h *stagesOf) put(s signal.Signal) {
	switch s := s.(type) {
	case *signal.Stage:
		if _, ok := h.stages[s.Name]; ok {
			h.again = append(h.again, s.Name)
		}
		h.stages[s.Name] = [2]signal.Mono{s.Start, s.End}
	case *signal.RequestTimes:
		h.times = *s
	case *signal.RequestPeeked:
		h.peeked = append(h.peeked, *s)
	case *signal.EngineState:
		h.state = *s
	}
}

func putNote(t *testing.T, d *Decoder, k note.Kind, pid uint32, v any, emit func(signal.Signal)) {
	t.Helper()
	r, err := note.Put(k, pid, 1000, v)
	if err != nil {
		t.Fatal(err)
	}
	d.Note(r, emit)
}

// TestPeeked: what is read of a request that was in flight, in the scheduler and in the
// front end, gives its stages, each once.
func TestPeeked(t *testing.T) {
	d, err := NewDecoder(testEngine("0.5.23"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := stagesOf{stages: map[string][2]signal.Mono{}}
	topK, stream, prompt := int64(noTopK), true, int64(7)
	core := note.Requests{Requests: []note.Request{{
		ID: "a", Status: statusRunning, Prompt: &prompt, Stream: &stream, Params: &note.Params{TopK: &topK},
		Times: map[string]int64{
			"scheduler_recv_time": 100, "wait_queue_entry_time": 110, "forward_entry_time": 120, "last_forward_entry_time": 120,
			"prefill_finished_time": 150, "last_prefill_finished_time": 150, "last_decode_finish_time": 170, "completion_time": 0,
		},
	}}}
	server := note.Requests{Requests: []note.Request{{ID: "a", Times: map[string]int64{
		nameCreated: 50, nameTokenized: 60, nameDispatch: 70, nameDispatched: 80, nameFirst: 160,
	}}}}
	for range 2 {
		putNote(t, d, note.KindRequests, schedulerPID, core, h.put)
		putNote(t, d, note.KindRequests, serverPID, server, h.put)
	}
	for name, want := range map[string][2]signal.Mono{
		stageTokenize: {50, 60}, stageAPIDispatch: {70, 80}, stageProcess: {100, 110}, stageWaiting: {110, 120}, stagePrefill: {120, 150},
	} {
		if h.stages[name] != want {
			t.Errorf("%s: %v, want %v", name, h.stages[name], want)
		}
	}
	if len(h.again) > 0 {
		t.Errorf("stages that came twice: %v", h.again)
	}
	if h.times.Created != 50 || h.times.Dispatched != 80 || h.times.First != 160 || h.times.Finished != 0 {
		t.Errorf("%+v", h.times)
	}
	p := h.peeked[0]
	if p.State != signal.RequestRunning || p.Request.PID != serverPID || p.Request.Core.PID != schedulerPID || p.Request.Param.TopK.V != -1 ||
		p.Request.PromptTokens.V != 7 || p.Output.OK {
		t.Errorf("%+v", p)
	}
}

// TestSentAfterPeek: a request that was looked at before it was sent, or whose front end
// was seen at work on it, is added when it is sent.
func TestSentAfterPeek(t *testing.T) {
	var frame []byte
	var id string
	for _, s := range load(t, "testdata/real-0.5.23-msgpack.jsonl") {
		if m, err := codec(t, "0.5.23").Decode(whole(s.Frame)); err == nil && m.Kind == KindGenerate {
			frame, id = s.Frame, m.Requests[0].ID
			break
		}
	}
	d, err := NewDecoder(testEngine("0.5.23"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	emit := d.once(func(signal.Signal) { n++ })
	emit(&signal.Stage{PID: serverPID, ID: id, Name: stageTokenize})
	emit(&signal.Stage{PID: serverPID, ID: id, Name: stageTokenize})
	if n != 1 {
		t.Errorf("%d stages, want 1", n)
	}
	var h heard
	for range 2 {
		d.Message(sent(serverPID, frame), h.put)
	}
	if len(h.added) != 1 || h.added[0].PID != serverPID {
		t.Errorf("%+v", h.added)
	}
	if emit(&signal.Stage{PID: serverPID, ID: id, Name: stageTokenize}); n != 1 {
		t.Error("a stage came again after the request was sent")
	}
}

func TestNotes(t *testing.T) {
	d, err := NewDecoder(testEngine("0.5.23"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := stagesOf{stages: map[string][2]signal.Mono{}}
	used, usage, none := int64(12), 0.5, int64(-1)
	putNote(t, d, note.KindState, schedulerPID, note.State{UsedTokens: &used, KVUsage: &usage, Running: &none}, h.put)
	if s := h.state; s.UsedTokens.V != 12 || s.KVUsage.V != 0.5 || s.Running.OK || s.Core.PID != schedulerPID {
		t.Errorf("%+v", s)
	}
	d.Note(&event.Record{Note: uint32(note.KindState), Header: event.Header{PID: schedulerPID}, Data: []byte("{")}, h.put)
	if d.Stats().Broken != 1 {
		t.Errorf("%+v", d.Stats())
	}
}

// TestRanks: of several schedulers that work on the same batches only the first tells of
// requests, steps and state; all have stages.
func TestRanks(t *testing.T) {
	const second = 200
	one, zero := 1, 0
	d, err := NewDecoder(testEngine("0.5.23", target.Process{PID: second, Role: target.RoleCore, Ranks: target.Ranks{TP: &one, PP: &zero}}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	req := note.Requests{Requests: []note.Request{{ID: "a", Status: statusRunning, Times: map[string]int64{"scheduler_recv_time": 100, "wait_queue_entry_time": 110}}}}
	running := int64(1)
	for _, pid := range []uint32{schedulerPID, second} {
		h := stagesOf{stages: map[string][2]signal.Mono{}}
		putNote(t, d, note.KindRequests, pid, req, h.put)
		putNote(t, d, note.KindState, pid, note.State{Running: &running}, h.put)
		if first := pid == schedulerPID; (len(h.peeked) == 1) != first || h.state.Running.OK != first {
			t.Errorf("%d: %+v %+v", pid, h.peeked, h.state)
		}
		if h.stages[stageProcess] != [2]signal.Mono{100, 110} {
			t.Errorf("%d: %v", pid, h.stages)
		}
		steps := 0
		d.first(pid, func(signal.Signal) { steps++ })(&signal.Step{})
		if (steps == 1) != (pid == schedulerPID) {
			t.Errorf("%d: %d steps", pid, steps)
		}
	}
}

// TestSnapshot reads what a scheduler publishes: a map of what differs from 0.
func TestSnapshot(t *testing.T) {
	for _, tt := range []struct {
		b     string
		used  int64
		usage float64
		ok    bool
	}{
		{"\x80", 0, 0, true},
		{"\x82\xafnum_used_tokens\x2a\xabtoken_usage\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00", 42, 0.5, true},
		{"\x81\xafnum_used_tokens\xa1x", 0, 0, false},
		{"\x81\xaf", 0, 0, false},
		{"", 0, 0, false},
	} {
		used, usage, ok := snapshot([]byte(tt.b))
		if ok != tt.ok || ok && (used != tt.used || *usage != tt.usage) {
			t.Errorf("%q: %d %v %v", tt.b, used, usage, ok)
		}
	}
}
