package vllm_test

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
	"inferspan/probes/target"
)

const (
	arrivePlan = 14
	listPlan   = 15
)

var (
	arriveSlots = []string{"id", "arrival", "temperature", "top_p", "top_k", "max_tokens", "n", "logprobs", "stop", "lora", "adapter"}
	listSlots   = []string{"step", "in_flight", "listed", "lengths"}
)

// insider feeds made-up captures of a core inside a program to a decoder.
type insider struct {
	t   *testing.T
	d   *vllm.Decoder
	got []string
}

func newInsider(t *testing.T) *insider {
	e := vllmtest.SyntheticEngine("0.32.0")
	e.Structs, e.Enums = structs(t, "0.32.0"), map[string]map[int64]string{"FinishReason": {0: "STOP", 1: "LENGTH"}}
	e.Processes = []target.Process{{PID: core, Role: target.RoleCore, InProcess: true}}
	d, err := vllm.NewDecoder(e, vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	x := &insider{t: t, d: d}
	x.note(1, note.KindProbe, note.Probe{Detail: "steps", Plans: map[uint32]note.Plan{
		insidePlan: {Name: "update", Slots: append([]string{"finished"}, insideSlots...)}, listPlan: {Name: "schedule", Slots: listSlots}}})
	x.note(1, note.KindProbe, note.Probe{Detail: "arrivals", Plans: map[uint32]note.Plan{arrivePlan: {Name: "arrive", Slots: arriveSlots}}})
	return x
}

func (x *insider) emit(s signal.Signal) {
	switch s := s.(type) {
	case *signal.RequestAdded:
		line := fmt.Sprintf("added %s at %d known %v arrival %d prompt %d", s.ID, s.At, s.Known, s.Arrival, s.PromptTokens.V)
		if !s.Outline {
			line += fmt.Sprintf(" max %d stop %v", s.Param.MaxTokens.V, s.Param.HasStop)
		}
		if !s.AdapterUnknown {
			line += fmt.Sprintf(" adapter %q", s.Adapter)
		}
		x.got = append(x.got, line)
	case *signal.RequestPeeked:
		x.got = append(x.got, "peeked "+s.Request.ID)
	case *signal.RequestAborted:
		x.got = append(x.got, fmt.Sprintf("aborted %v at %d late %v", s.IDs, s.At, s.Late))
	case *signal.Step:
		line := fmt.Sprintf("step %d", s.Number.V)
		for _, q := range s.Requests {
			line += fmt.Sprintf(" %s entry %d phase %d", q.ID, q.Entry, q.Phase)
		}
		x.got = append(x.got, line)
	case *signal.StepOutput:
		for _, o := range s.Outputs {
			x.got = append(x.got, fmt.Sprintf("output %s %s", o.ID, o.FinishReason))
		}
	}
}

func (x *insider) note(at uint64, k note.Kind, v any) {
	x.t.Helper()
	r, err := note.Put(k, core, at, v)
	if err != nil {
		x.t.Fatal(err)
	}
	x.d.Note(r, x.emit)
}

func (x *insider) peek(at uint64, q note.Request) {
	x.t.Helper()
	x.note(at, note.KindRequests, note.Requests{Requests: []note.Request{q}})
}

func (x *insider) state(at uint64, running, waiting int64) {
	x.t.Helper()
	x.note(at, note.KindState, note.State{Running: &running, Waiting: &waiting})
}

func (x *insider) capture(at uint64, plan uint32, slots []string, values ...vllmtest.Slot) {
	r := vllmtest.Capture(at, core, plan, slots, values...)
	x.d.Capture(&r, x.emit)
}

// arrive is a program that makes a request, with the parameters that matter.
func (x *insider) arrive(at uint64, id string, values ...vllmtest.Slot) {
	x.capture(at, arrivePlan, arriveSlots, append([]vllmtest.Slot{val("id", id)}, values...)...)
}

func sampling(maxTokens any, stops int) []vllmtest.Slot {
	return []vllmtest.Slot{val("temperature", 1.0), val("top_p", 1.0), val("top_k", 0), val("max_tokens", maxTokens), val("n", 1), val("stop", stops)}
}

// begin is the beginning of a step, with the running requests and their computed tokens.
func (x *insider) begin(at uint64, n int, listed, lengths vllmtest.Slot) {
	x.capture(at, listPlan, listSlots, val("step", n), val("in_flight", nil), listed, lengths)
}

// end is the end of a step.
func (x *insider) end(at uint64, n int, values ...vllmtest.Slot) {
	x.capture(at, insidePlan, append([]string{"finished"}, insideSlots...), append([]vllmtest.Slot{val("step", n), val("in_flight", nil), val("output", vllmtest.Addr(16*n)), list("resumed")}, values...)...)
}

// first is the end of a step that a request of 6 prompt tokens is new in.
func (x *insider) first(at uint64, n int, id string, values ...vllmtest.Slot) {
	x.end(at, n, append([]vllmtest.Slot{list("computed"), pairs("new", id, 0), pairs("prompts", id, 6), pairs("outputs", id, 1), pairs("ends", nil, nil), pairs("scheduled", id, 6)}, values...)...)
}

func (x *insider) want(want ...string) {
	x.t.Helper()
	if got := strings.Join(x.got, "\n"); got != strings.Join(want, "\n") {
		x.t.Errorf("\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

const insideID = "0-84f4343d"

// When a request was made is known by the clock read there, and goes with the first that
// shows it in the core.
func TestInsideArrivals(t *testing.T) {
	whole := note.Request{ID: insideID, Status: "RUNNING", Prompt: ptr(int64(6)), Adapter: ptr(""), Params: &note.Params{MaxTokens: ptr(int64(9))}}
	step := []string{"step 1 0-84f4343d entry 1 phase 2", "output 0-84f4343d "}
	for _, c := range []struct {
		name string
		do   func(*insider)
		want []string
	}{
		{"a step shows it", func(x *insider) {
			x.arrive(5, "0", append(sampling(7, 2), val("arrival", 1.5), val("lora", nil))...)
			x.first(20, 1, insideID)
		}, append([]string{`added 0-84f4343d at 5 known true arrival 1500000000 prompt 6 max 7 stop true adapter ""`}, step...)},
		{"an adapter, and no bound to the tokens", func(x *insider) {
			x.arrive(5, "0", append(sampling(nil, 0), val("lora", vllmtest.Missing(4)), val("adapter", "sql"))...)
			x.first(20, 1, insideID)
		}, append([]string{`added 0-84f4343d at 5 known true arrival 0 prompt 6 adapter "sql"`}, step...)},
		{"a look shows it", func(x *insider) {
			x.arrive(5, "0", sampling(7, 0)...)
			x.peek(15, whole)
			x.first(20, 1, insideID)
		}, append([]string{`added 0-84f4343d at 5 known true arrival 0 prompt 6 max 9 stop false adapter ""`, "peeked 0-84f4343d"}, step...)},
		{"a look shows it before its capture comes", func(x *insider) {
			x.peek(15, whole)
			x.arrive(5, "0", sampling(7, 0)...)
			x.first(20, 1, insideID)
		}, append([]string{"peeked 0-84f4343d", `added 0-84f4343d at 5 known true arrival 0 prompt 6 max 9 stop false adapter ""`}, step...)},
		{"its capture is missing", func(x *insider) {
			x.arrive(5, "1", sampling(7, 0)...)
			x.first(20, 1, insideID)
		}, append([]string{"added 0-84f4343d at 20 known false arrival 0 prompt 6"}, step...)},
		{"the look is late", func(x *insider) {
			x.end(20, 1, list("computed", 6), pairs("new"), pairs("prompts"), pairs("outputs", insideID, 1), pairs("ends", nil, nil), pairs("scheduled", insideID, 1))
			x.arrive(5, "0", sampling(7, 0)...)
			x.peek(25, whole)
		}, []string{"step 1 0-84f4343d entry 2 phase 0", "output 0-84f4343d ", "peeked 0-84f4343d"}},
		{"another request of that name", func(x *insider) {
			x.arrive(5, "0", append(sampling(7, 0), val("arrival", 1.5))...)
			other := whole
			other.Arrival = ptr(int64(2e9))
			x.peek(15, other)
		}, []string{"peeked 0-84f4343d"}},
		{"children share it", func(x *insider) {
			x.arrive(5, "7", sampling(7, 0)...)
			x.first(20, 1, "0_7-84f4343d")
			x.first(30, 2, "1_7-84f4343d")
		}, []string{"added 0_7-84f4343d at 5 known true arrival 0 prompt 6 max 7 stop false", "step 1 0_7-84f4343d entry 1 phase 2", "output 0_7-84f4343d ",
			"added 1_7-84f4343d at 5 known true arrival 0 prompt 6 max 7 stop false", "step 2 1_7-84f4343d entry 1 phase 2", "output 1_7-84f4343d "}},
		{"its first step has a part of its prompt only, and no end", func(x *insider) {
			x.arrive(5, "0", sampling(7, 0)...)
			x.begin(10, 1, pairs("listed"), list("lengths"))
			x.begin(30, 2, pairs("listed", insideID, 4), list("lengths", 6))
			x.end(40, 2, list("computed", 4), pairs("new"), pairs("prompts"), pairs("outputs", insideID, 1), pairs("ends", nil, nil), pairs("scheduled", insideID, 2))
		}, []string{"added 0-84f4343d at 5 known true arrival 0 prompt 6 max 7 stop false", "step 1 0-84f4343d entry 1 phase 1", "step 2 0-84f4343d entry 2 phase 2", "output 0-84f4343d "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newInsider(t)
			c.do(x)
			x.want(c.want...)
			if s := x.d.Stats(); s.Broken != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A program ends a request with a stop string by itself: the scheduler lists it as over
// in the next step, and if there is none the core is found empty.
func TestInsideAborts(t *testing.T) {
	begun := []string{"added 0-84f4343d at 20 known false arrival 0 prompt 6", "step 1 0-84f4343d entry 1 phase 2", "output 0-84f4343d "}
	other := []string{"added 1-9e31b7ca at 30 known false arrival 0 prompt 6", "step 2 1-9e31b7ca entry 1 phase 2", "output 1-9e31b7ca "}
	aborted := func(at int) string { return fmt.Sprintf("aborted [0-84f4343d] at %d late true", at) }
	for _, c := range []struct {
		name string
		do   func(*insider)
		want []string
	}{
		{"the next step lists it", func(x *insider) { x.first(30, 2, "1-9e31b7ca", list("finished", insideID)) }, append([]string{aborted(30)}, other...)},
		{"its end was seen", func(x *insider) {
			x.end(25, 2, list("computed", 6), pairs("new"), pairs("prompts"), pairs("outputs", insideID, 1), pairs("ends", 1, nil), pairs("scheduled", insideID, 1))
			x.first(30, 3, "1-9e31b7ca", list("finished", insideID))
		}, []string{"step 2 0-84f4343d entry 2 phase 3", "output 0-84f4343d length", other[0], "step 3 1-9e31b7ca entry 1 phase 2", other[2]}},
		{"a step in between was not seen, nor its end maybe", func(x *insider) { x.first(30, 3, "1-9e31b7ca", list("finished", insideID)) },
			[]string{other[0], "step 3 1-9e31b7ca entry 1 phase 2", other[2]}},
		{"the core is empty", func(x *insider) { x.state(1000, 0, 0); x.state(2000, 0, 0) }, []string{aborted(2000)}},
		{"the core is busy", func(x *insider) { x.state(1000, 1, 0); x.state(2000, 0, 1) }, nil},
		{"the core was empty before", func(x *insider) { x.state(10, 0, 0); x.state(2000, 1, 0) }, nil},
		{"its end came after the look", func(x *insider) {
			x.state(1000, 0, 0)
			x.end(900, 2, list("computed", 6), pairs("new"), pairs("prompts"), pairs("outputs", insideID, 1), pairs("ends", 1, nil), pairs("scheduled", insideID, 1))
			x.state(2000, 0, 0)
		}, []string{"step 2 0-84f4343d entry 2 phase 3", "output 0-84f4343d length"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newInsider(t)
			x.first(20, 1, insideID)
			c.do(x)
			x.want(append(append([]string{}, begun...), c.want...)...)
		})
	}
}

// What a program makes and no core shows is forgotten in time, and what is made last is
// not.
func TestInsideArrivalsBound(t *testing.T) {
	x := newInsider(t)
	const many = 3 << 16
	for i := range many {
		x.arrive(uint64(i), fmt.Sprint(i), sampling(7, 0)...)
	}
	x.arrive(many, "0", sampling(7, 0)...)
	if n := x.d.Arrivals(); n > 1<<16 {
		t.Errorf("%d are kept", n)
	}
	x.first(many+1, 1, insideID)
	x.first(many+2, 2, fmt.Sprintf("%d-84f4343d", many-1))
	if len(x.got) != 6 || !strings.Contains(x.got[0], fmt.Sprintf("at %d known true", many)) || !strings.Contains(x.got[3], fmt.Sprintf("at %d known true", many-1)) {
		t.Errorf("%q", x.got)
	}
}

// A core that is part of a program sends nothing: requests and outputs are in its
// captures.
func TestInside(t *testing.T) {
	e := vllmtest.SyntheticEngine("0.32.0")
	e.Structs, e.Enums = structs(t, "0.32.0"), map[string]map[int64]string{"FinishReason": {0: "STOP", 1: "LENGTH"}}
	e.Processes = []target.Process{{PID: core, Role: target.RoleCore, InProcess: true}}
	d, err := vllm.NewDecoder(e, vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	emit := func(s signal.Signal) {
		switch s := s.(type) {
		case *signal.EngineConfig:
			got = append(got, fmt.Sprintf("config %+v", s.LogStats))
		case *signal.RequestAdded:
			got = append(got, fmt.Sprintf("added %s %s %v at %d %v", s.ID, s.ExternalID, s.PromptTokens, s.At, s.Known))
		case *signal.Step:
			got = append(got, fmt.Sprintf("step %d of %d phases %d", s.Number.V, len(s.Requests), s.Requests[0].Phase))
		case *signal.StepOutput:
			for _, o := range s.Outputs {
				got = append(got, fmt.Sprintf("output %s %d %s %v at %d of %d", o.ID, o.NumTokens, o.FinishReason, o.Pooled, s.At, s.Stamp))
			}
		}
	}
	put := func(k note.Kind, v any) {
		r, err := note.Put(k, core, 1, v)
		if err != nil {
			t.Fatal(err)
		}
		d.Note(r, emit)
	}
	put(note.KindProbe, note.Probe{Detail: "steps", Plans: map[uint32]note.Plan{insidePlan: {Name: "update", Slots: insideSlots}}})
	put(note.KindConfig, note.Config{LogStats: ptr(true)}) // what it keeps, it does not send
	none := vllmtest.Missing(capture.MissingType)
	step := func(at uint64, n int, values ...vllmtest.Slot) {
		r := vllmtest.Capture(at, core, insidePlan, insideSlots, append([]vllmtest.Slot{val("step", n), val("in_flight", nil), val("output", vllmtest.Addr(16*n)), list("resumed")}, values...)...)
		d.Capture(&r, emit)
	}
	step(10, 1, list("computed"), pairs("new", "0-84f4343d", 0, "1-9e31b7ca", 0), pairs("prompts", "0-84f4343d", 6, "1-9e31b7ca", none),
		pairs("outputs", "0-84f4343d", 1, "1-9e31b7ca", 0), pairs("ends", nil, nil, 0, none), pairs("scheduled", "0-84f4343d", 6, "1-9e31b7ca", 3))
	step(20, 2, list("computed", 6), pairs("new"), pairs("prompts"), pairs("outputs", "0-84f4343d", 3), pairs("ends", 1, nil), pairs("scheduled", "0-84f4343d", 3))
	step(30, 3, list("computed", 9), pairs("new"), pairs("prompts"), pairs("outputs", none, 1), pairs("ends", 77, nil), pairs("scheduled", "0-84f4343d", 1))
	want := []string{
		"config {V:false OK:true}",
		"added 0-84f4343d 0 {6 true} at 10 false", "added 1-9e31b7ca 1 {0 false} at 10 false",
		"step 1 of 2 phases 2", "output 0-84f4343d 1  false at 10 of 10", "output 1-9e31b7ca 0 stop true at 10 of 10",
		"step 2 of 1 phases 3", "output 0-84f4343d 3 length false at 20 of 20",
		"step 3 of 1 phases 3",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s := d.Stats(); s.Broken != 0 || s.Truncated != 1 {
		t.Errorf("%+v", s)
	}
}
