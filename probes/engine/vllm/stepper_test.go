package vllm_test

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
)

const (
	schedulePlan = 11
	updatePlan   = 12
	insidePlan   = 13
)

var (
	scheduleSlots = []string{"step", "running", "waiting", "holding", "deferred", "skipped", "free", "pool", "in_flight", "listed"}
	insideSlots   = []string{"step", "in_flight", "output", "resumed", "computed", "new", "prompts", "outputs", "ends", "scheduled"}
	updateSlots   = []string{"step", "free", "pool", "in_flight", "held_back", "output", "tokens", "preempted", "finished", "resumed", "computed", "new", "scheduled"}
)

// stepper feeds made-up captures to a decoder and describes the steps that come out.
type stepper struct {
	t   *testing.T
	d   *vllm.Decoder
	out []string
}

// classes are the fields of messages, by version.
var classes = map[string]map[string][]string{}

func newStepper(t *testing.T, version string) *stepper {
	e := vllmtest.SyntheticEngine(version)
	if classes[version] == nil {
		classes[version] = structs(t, version)
	}
	e.Structs = classes[version]
	d, err := vllm.NewDecoder(e, vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &stepper{t: t, d: d}
	s.note(note.KindProbe, note.Probe{Detail: "steps", Active: true, Plans: map[uint32]note.Plan{
		schedulePlan: {Name: "schedule", Slots: scheduleSlots}, updatePlan: {Name: "update", Slots: updateSlots},
	}})
	return s
}

func (s *stepper) note(k note.Kind, v any) {
	s.t.Helper()
	r, err := note.Put(k, core, 1, v)
	if err != nil {
		s.t.Fatal(err)
	}
	s.d.Note(r, s.emit)
}

// knows tells the decoder of requests with their prompt tokens.
func (s *stepper) knows(prompts map[string]int64) {
	for id, n := range prompts {
		s.note(note.KindRequests, note.Requests{Requests: []note.Request{{ID: id, Status: "WAITING", Prompt: &n}}})
	}
}

func (s *stepper) schedule(at uint64, values ...vllmtest.Slot) {
	r := vllmtest.Capture(at, core, schedulePlan, scheduleSlots, values...)
	s.d.Capture(&r, s.emit)
}

func (s *stepper) update(at uint64, values ...vllmtest.Slot) {
	r := vllmtest.Capture(at, core, updatePlan, updateSlots, values...)
	s.d.Capture(&r, s.emit)
}

// emit describes a step: "number schedule-update tokens: id=tokens@computed entry phase".
func (s *stepper) emit(sig signal.Signal) {
	g, ok := sig.(*signal.Step)
	if !ok {
		return
	}
	var b strings.Builder
	opt := func(o signal.Opt[int64]) string {
		if !o.OK {
			return "?"
		}
		return fmt.Sprint(o.V)
	}
	fmt.Fprintf(&b, "%s %d-%d %s", opt(g.Number), g.Schedule, g.Update, opt(g.Tokens))
	if g.Counted {
		b.WriteString(" counted")
	}
	if g.Partial {
		b.WriteString(" partial")
	}
	if g.Preempted != nil {
		fmt.Fprintf(&b, " preempted %s", g.Preempted)
	}
	if g.Finished != nil {
		fmt.Fprintf(&b, " finished %s", g.Finished)
	}
	b.WriteString(":")
	for i := range g.Requests {
		r := &g.Requests[i]
		entry := map[signal.StepEntry]string{signal.StepNew: "new", signal.StepRunning: "running", signal.StepResumed: "resumed"}[r.Entry]
		phase := map[signal.StepPhase]string{signal.StepPrefillChunk: "chunk", signal.StepPrefillEnd: "end", signal.StepDecode: "decode", signal.StepRecompute: "again"}[r.Phase]
		fmt.Fprintf(&b, " %s=%d@%s %s %s", r.ID, r.Tokens, opt(r.Computed), entry, phase)
	}
	s.out = append(s.out, b.String())
}

func (s *stepper) want(want ...string) {
	s.t.Helper()
	if got, want := strings.Join(s.out, "\n"), strings.Join(want, "\n"); got != want {
		s.t.Errorf("steps\n%s\nwant\n%s", got, want)
	}
}

// Values of captures.

func val(name string, v any) vllmtest.Slot { return vllmtest.Slot{Name: name, Value: v} }

func pairs(name string, items ...any) vllmtest.Slot {
	var of [][]any
	for i := 0; i < len(items); i += 2 {
		of = append(of, items[i:i+2])
	}
	return val(name, vllmtest.Items{Of: of, Per: 2})
}

func list(name string, items ...any) vllmtest.Slot {
	var of [][]any
	for _, x := range items {
		of = append(of, []any{x})
	}
	return val(name, vllmtest.Items{Of: of, Per: 1})
}

// ended gives the values at the end of a step.
func ended(addr, current, tokens int, more ...vllmtest.Slot) []vllmtest.Slot {
	return append([]vllmtest.Slot{val("step", current), val("output", vllmtest.Addr(addr)), val("tokens", tokens)}, more...)
}
