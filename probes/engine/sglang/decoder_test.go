package sglang

import (
	"maps"
	"slices"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// Processes of the engine of tests.
const (
	serverPID = 100 + iota
	schedulerPID
	detokenizerPID
	launcherPID
	controllerPID
)

func testEngine(version string, more ...target.Process) *target.Engine {
	zero := 0
	return &target.Engine{ID: 1, Kind: "sglang", Version: version, Processes: append([]target.Process{
		{PID: serverPID, Role: target.RoleAPIServer},
		{PID: schedulerPID, Role: target.RoleCore, Ranks: target.Ranks{TP: &zero, PP: &zero}},
		{PID: detokenizerPID, Role: target.RoleDetokenizer},
		{PID: launcherPID, Role: target.RoleLauncher},
	}, more...)}
}

// sentBy says which process sends a message that a front end had sent before or not.
func sentBy(class string, again bool) uint32 {
	switch class {
	case "BatchTokenIDOutput", "BatchEmbeddingOutput":
		return schedulerPID
	case "BatchStrOutput":
		return detokenizerPID
	}
	if again {
		return launcherPID
	}
	return serverPID
}

func sent(pid uint32, b []byte) *wire.Message {
	return &wire.Message{Begin: 1, End: 1, PID: pid, Dir: event.FrameSend, Parts: []wire.Part{*whole(b)}}
}

// heard collects signals, which it copies as far as tests look at them.
type heard struct {
	added   []signal.RequestAdded
	aborted []string
	tokens  map[string]int
	ends    map[string]signal.Output
	total   map[string]int64
	all     int
}

func (h *heard) put(s signal.Signal) {
	if h.tokens == nil {
		h.tokens, h.ends, h.total = map[string]int{}, map[string]signal.Output{}, map[string]int64{}
	}
	h.all++
	switch s := s.(type) {
	case *signal.RequestAdded:
		h.added = append(h.added, *s)
	case *signal.RequestAborted:
		h.aborted = append(h.aborted, s.IDs...)
	case *signal.StepOutput:
		for _, o := range s.Outputs {
			id := string(o.ID)
			h.tokens[id] += o.NumTokens
			if o.Total.OK {
				h.total[id] = o.Total.V
			}
			if o.Finish != signal.FinishNone {
				h.ends[id] = o
			}
		}
	}
}

// TestLeads: which of the schedulers get requests.
func TestLeads(t *testing.T) {
	rank := func(tp, pp int) *target.Process { return &target.Process{Ranks: target.Ranks{TP: &tp, PP: &pp}} }
	attention := &target.Engine{Settings: map[string]any{"enable_dp_attention": true, "tp_size": float64(4), "dp_size": int64(1), "attn_dp_size": int64(2)}}
	older := &target.Engine{Settings: map[string]any{"enable_dp_attention": true, "tp_size": int64(2), "dp_size": int64(2)}}
	for i, c := range []struct {
		engine *target.Engine
		of     *target.Process
		want   bool
	}{
		{&target.Engine{}, &target.Process{}, true},
		{&target.Engine{}, rank(0, 0), true},
		{&target.Engine{}, rank(1, 0), false},
		{&target.Engine{}, rank(0, 1), false},
		{attention, rank(0, 0), true},
		{attention, rank(1, 0), false},
		{attention, rank(2, 0), true},
		{attention, rank(3, 0), false},
		{attention, rank(2, 1), false},
		{older, rank(1, 0), true},
		{&target.Engine{Settings: map[string]any{"tp_size": int64(2), "dp_size": int64(2), "attn_dp_size": int64(1)}}, rank(1, 0), false},
	} {
		if got := leads(c.engine, c.of); got != c.want {
			t.Errorf("case %d: %v, want %v", i, got, c.want)
		}
	}
}

// TestLeader: whose steps a scheduler launches that gets no requests of its own.
func TestLeader(t *testing.T) {
	sched := func(pid, dp, tp, pp int) target.Process {
		p := target.Process{PID: pid, Role: target.RoleCore, Ranks: target.Ranks{TP: &tp, PP: &pp}}
		if dp >= 0 {
			p.Ranks.DP = &dp
		}
		return p
	}
	attention := map[string]any{"enable_dp_attention": true, "tp_size": int64(4), "dp_size": int64(1), "attn_dp_size": int64(2)}
	for _, c := range []struct {
		name     string
		settings map[string]any
		procs    []target.Process
		want     []int // PID of each, 0: none
	}{
		{"TP 2", nil, []target.Process{sched(11, -1, 1, 0), sched(10, -1, 0, 0)}, []int{10, 0}},
		{"DP 2, TP 2", nil, []target.Process{sched(10, 0, 0, 0), sched(11, 0, 1, 0), sched(20, 1, 0, 0), sched(21, 1, 1, 0)}, []int{0, 10, 0, 20}},
		{"DP attention", attention, []target.Process{sched(10, 0, 0, 0), sched(11, 0, 1, 0), sched(12, 1, 2, 0), sched(13, 1, 3, 0)}, []int{0, 10, 0, 12}},
		{"PP 2, TP 2", nil, []target.Process{sched(10, -1, 0, 0), sched(11, -1, 1, 0), sched(20, -1, 0, 1), sched(21, -1, 1, 1)}, []int{0, 10, 0, 0}},
		{"it is on another host", nil, []target.Process{sched(11, -1, 1, 0), sched(21, 1, 1, 0), sched(10, 0, 0, 0)}, []int{0, 0, 0}},
	} {
		e := &target.Engine{Settings: c.settings, Processes: c.procs}
		for i := range c.procs {
			p, got := &e.Processes[i], 0
			if !leads(e, p) {
				if first := leader(e, p); first != nil {
					got = first.PID
				}
			}
			if got != c.want[i] {
				t.Errorf("%s: process %d follows %d, want %d", c.name, p.PID, got, c.want[i])
			}
		}
	}
}

// TestDecoderRuns decodes what servers sent for a few requests: each is added once
// though two processes send it, and has the tokens that the engine counts for it.
func TestDecoderRuns(t *testing.T) {
	for _, tt := range []struct {
		file   string
		added  int
		aborts int
	}{{"testdata/real-0.5.23-msgpack.jsonl", 7, 1}, {"testdata/real-0.5.23-workers.jsonl", 9, 1}} {
		d, err := NewDecoder(testEngine("0.5.23"), Options{Tokens: true})
		if err != nil {
			t.Fatal(err)
		}
		c := codec(t, "0.5.23")
		seen := map[string]bool{}
		var h heard
		for i, s := range load(t, tt.file) {
			m, err := c.Decode(whole(s.Frame))
			if err != nil {
				t.Fatal(err)
			}
			key := m.Class + m.Abort.ID
			for _, r := range m.Requests {
				key += r.ID
			}
			pid := sentBy(m.Class, seen[key])
			seen[key] = true
			at := uint64(i + 1)
			d.Message(&wire.Message{Begin: at, End: at, PID: pid, Dir: event.FrameSend, Parts: []wire.Part{*whole(s.Frame)}}, h.put)
		}
		if len(h.added) != tt.added {
			t.Errorf("%s: %d requests, want %d", tt.file, len(h.added), tt.added)
		}
		if len(h.aborted) != tt.aborts {
			t.Errorf("%s: aborts %v, want %d", tt.file, h.aborted, tt.aborts)
		}
		for _, a := range h.added {
			if a.PID != serverPID || a.Core.PID != schedulerPID || !a.Known || a.ResponseID != a.ID || !a.PromptTokens.OK {
				t.Errorf("%s: %+v", tt.file, a)
			}
			if a.ID == h.aborted[0] {
				continue // it ended in no batch
			}
			if h.tokens[a.ID] == 0 || int64(h.tokens[a.ID]) != h.total[a.ID] || h.ends[a.ID].Finish == signal.FinishNone {
				t.Errorf("%s: %s has %d tokens of %d, ends with %v", tt.file, a.ID, h.tokens[a.ID], h.total[a.ID], h.ends[a.ID].Finish)
			}
		}
		if s := d.Stats(); s.Broken != 0 || s.Truncated != 0 || s.Outputs == 0 {
			t.Errorf("%s: %+v: %v", tt.file, s, d.Problem())
		}
		delete(d.running, h.aborted[0]) // its last output did not come
		if len(d.running) != 0 {
			t.Errorf("%s: still running %v", tt.file, slices.Sorted(maps.Keys(d.running)))
		}
	}
}

// TestRepeated: a send that is tried again gives no second signal, and a name that is
// used again gives one.
func TestRepeated(t *testing.T) {
	var outputs, request []byte
	for _, s := range load(t, "testdata/real-0.5.23-msgpack.jsonl") {
		m, err := codec(t, "0.5.23").Decode(whole(s.Frame))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case request == nil && m.Kind == KindGenerate:
			request = s.Frame
		case outputs == nil && m.Kind == KindTokens && len(m.Outputs) == 1 && m.Outputs[0].Finish == nil:
			outputs = s.Frame
		}
	}
	if request == nil || outputs == nil {
		t.Fatal("the run has no message of such a kind")
	}
	d, err := NewDecoder(testEngine("0.5.23"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	send := func(pid uint32, b []byte) int {
		var h heard
		d.Message(sent(pid, b), h.put)
		return h.all
	}
	for _, x := range []struct {
		what string
		pid  uint32
		b    []byte
		want int
	}{
		{"request", serverPID, request, 1},
		{"request, again", serverPID, request, 0},
		{"request, passed on", controllerPID, request, 0},
		{"outputs", schedulerPID, outputs, 1},
		{"outputs, again", schedulerPID, outputs, 0},
		{"outputs, passed on", launcherPID, outputs, 0},
		{"other bytes", schedulerPID, []byte("hello"), 0},
	} {
		if got := send(x.pid, x.b); got != x.want {
			t.Errorf("%s: %d signals, want %d", x.what, got, x.want)
		}
	}
}

// TestCoreOfRequests: which scheduler gets a request is known where there is one.
func TestCoreOfRequests(t *testing.T) {
	one, zero := 1, 0
	for _, tt := range []struct {
		name string
		more []target.Process
		want int
	}{
		{"one", nil, 0},
		{"TP 2", []target.Process{{PID: 200, Role: target.RoleCore, Ranks: target.Ranks{TP: &one, PP: &zero}}}, 0},
		{"DP 2", []target.Process{{PID: 200, Role: target.RoleCore, Index: 1, Ranks: target.Ranks{TP: &zero, PP: &zero, DP: &one}}}, signal.CoreUnknown},
	} {
		d, err := NewDecoder(testEngine("0.5.23", tt.more...), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if d.only.Index != tt.want || (tt.want == 0) != (d.only.PID == schedulerPID) {
			t.Errorf("%s: %+v", tt.name, d.only)
		}
	}
}

// TestAsked: the engine's normal form of parameters is undone where it tells what was
// asked for.
func TestAsked(t *testing.T) {
	num, whole := signal.Some[float64], signal.Some[int64]
	for _, tt := range []struct{ in, want signal.Param }{
		{signal.Param{Temperature: num(1), TopK: whole(noTopK), HasStop: true}, signal.Param{Temperature: num(1), TopK: whole(-1)}},
		{signal.Param{Temperature: num(1), TopK: whole(1)}, signal.Param{}},
		{signal.Param{Temperature: num(0.5), TopK: whole(1)}, signal.Param{Temperature: num(0.5), TopK: whole(1)}},
		{signal.Param{Temperature: num(0.5), TopK: whole(20)}, signal.Param{Temperature: num(0.5), TopK: whole(20)}},
	} {
		if got := asked(tt.in); got != tt.want {
			t.Errorf("%+v: %+v, want %+v", tt.in, got, tt.want)
		}
	}
}

func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		f      Finish
		finish signal.Finish
		stop   string
	}{
		{Finish{Type: "stop", MatchedToken: signal.Some[int64](2)}, signal.FinishStop, "2"},
		{Finish{Type: "stop", MatchedText: []byte("END")}, signal.FinishStop, "END"},
		{Finish{Type: "length"}, signal.FinishLength, ""},
		{Finish{Type: "abort", Message: []byte("no"), Status: signal.Some[int64](503), ErrorType: []byte("X")}, signal.FinishAbort, ""},
		{Finish{Type: "new"}, signal.FinishOther, ""},
	} {
		var o signal.Output
		ends(&o, &tt.f)
		if o.Finish != tt.finish || o.FinishReason != tt.f.Type || o.StopReason != tt.stop || (o.Failure != nil) != (tt.finish == signal.FinishAbort) {
			t.Errorf("%+v: %+v", tt.f, o)
		}
	}
}
