package vllm_test

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
)

var (
	loadingSlots = []string{"step", "in_flight", "loading", "loaded", "unloaded"}
	loadedSlots  = []string{"step", "in_flight", "output", "loaded"}
)

// loader feeds captures of a scheduler with a KV connector, step by step.
type loader struct {
	t   *testing.T
	d   *vllm.Decoder
	out []string
}

// remote and grammar are numbers of states of requests.
const grammar, remote = 2, 3

func newLoader(t *testing.T) *loader {
	s := newStepper(t, "0.32.0")
	l := &loader{t: t, d: s.d}
	l.note(note.KindProbe, note.Probe{Detail: "steps", Active: true, Plans: map[uint32]note.Plan{
		schedulePlan: {Name: "schedule", Slots: loadingSlots}, updatePlan: {Name: "update", Slots: loadedSlots},
	}})
	l.note(note.KindConfig, note.Config{RemoteKVs: ptr(int64(remote))})
	return l
}

func (l *loader) note(k note.Kind, v any) {
	l.t.Helper()
	r, err := note.Put(k, core, 1, v)
	if err != nil {
		l.t.Fatal(err)
	}
	l.d.Note(r, l.emit)
}

// begin is the beginning of a step at its number times 100. loading has ids and states.
func (l *loader) begin(step int, loading []any, done, failed []any) {
	l.beginWith(step, pairs("loading", loading...), list("loaded", done...), list("unloaded", failed...))
}

func (l *loader) beginWith(step int, values ...vllmtest.Slot) {
	r := vllmtest.Capture(uint64(step*100), core, schedulePlan, loadingSlots, append([]vllmtest.Slot{val("step", step), val("in_flight", nil)}, values...)...)
	l.d.Capture(&r, l.emit)
}

// end is the end of a step, 50 later; workers tell what has come.
func (l *loader) end(step int, done ...any) {
	loaded := val("loaded", vllmtest.Missing(capture.MissingType)) // None has no attributes
	if len(done) > 0 {
		loaded = list("loaded", done...)
	}
	r := vllmtest.Capture(uint64(step*100+50), core, updatePlan, loadedSlots, val("step", step), val("in_flight", nil), val("output", vllmtest.Addr(step)), loaded)
	l.d.Capture(&r, l.emit)
}

func (l *loader) emit(s signal.Signal) {
	k, ok := s.(*signal.KVTransfer)
	if !ok {
		return
	}
	if k.Exact || k.Method != "steps" {
		l.t.Errorf("%+v: want it derived from steps", k)
	}
	text := fmt.Sprintf("%s %d-%d", k.ID, k.Start, k.End)
	switch {
	case !k.Failed.OK:
		text += " ?"
	case k.Failed.V:
		text += " failed"
	}
	l.out = append(l.out, text)
}

func (l *loader) want(want ...string) {
	l.t.Helper()
	if got, want := strings.Join(l.out, "\n"), strings.Join(want, "\n"); got != want {
		l.t.Errorf("loads\n%s\nwant\n%s", got, want)
	}
}

func TestLoads(t *testing.T) {
	ids := func(v ...any) []any { return v }
	for _, c := range []struct {
		name string
		run  func(l *loader)
		want []string
	}{
		{"over some steps", func(l *loader) {
			l.begin(1, nil, nil, nil)
			l.end(1)
			l.begin(2, ids("a", remote, "g", grammar), nil, nil)
			l.end(2)
			l.begin(3, ids("g", grammar, "a", remote, "b", remote), nil, nil)
			l.end(3, "a")
			l.begin(4, ids("a", remote, "b", remote), ids("a"), nil)
			l.end(4)
			l.begin(5, ids("b", remote), nil, nil)
			l.end(5, "b")
			l.begin(6, ids("b", remote), ids("b"), ids("b"))
			l.end(6)
			l.begin(7, nil, nil, nil)
		}, []string{"a 100-350", "b 200-550 failed"}},
		{"within a step", func(l *loader) {
			l.begin(1, nil, nil, nil)
			l.end(1, "a")
			l.begin(2, ids("a", remote), ids("a"), nil)
			l.end(2)
			l.begin(3, ids("a", remote), ids("a"), nil) // there was no room for it
			l.end(3)
		}, []string{"a 100-150"}},
		{"tried again", func(l *loader) {
			l.begin(1, nil, nil, nil)
			l.end(1)
			l.begin(2, ids("a", remote), nil, nil)
			l.end(2, "a")
			l.begin(3, ids("a", remote), ids("a"), ids("a"))
			l.end(3)
			l.begin(4, ids("a", remote), nil, nil)
			l.end(4, "a")
			l.begin(5, ids("a", remote), ids("a"), ids("a"))
			l.end(5, "a") // within the step
			l.begin(6, ids("a", remote), ids("a"), nil)
			l.end(6)
		}, []string{"a 100-250 failed", "a 300-450 failed", "a 500-550"}},
		{"given up", func(l *loader) {
			l.begin(1, nil, nil, nil)
			l.end(1)
			l.begin(2, ids("a", remote, "b", remote), nil, nil)
			l.end(2, "b")
			l.begin(3, nil, nil, nil)
			l.end(3, "a")
			l.begin(4, nil, nil, nil)
		}, nil},
		{"no end of a step seen", func(l *loader) {
			l.begin(1, nil, nil, nil)
			l.begin(2, ids("a", remote), nil, nil)
			l.begin(3, ids("a", remote), ids("a"), nil)
		}, []string{"a 100-300"}},
		{"there from the beginning", func(l *loader) {
			l.begin(1, ids("a", remote), nil, nil)
			l.end(1, "a")
			l.begin(2, ids("a", remote), ids("a"), nil)
		}, []string{"a 0-150"}},
		{"a step was not seen", func(l *loader) {
			l.begin(1, nil, nil, nil)
			l.end(1)
			l.begin(2, ids("a", remote), nil, nil)
			l.begin(4, ids("a", remote, "b", remote), nil, nil)
			l.end(4, "a", "b")
			l.begin(5, ids("a", remote, "b", remote), ids("a", "b"), nil)
		}, []string{"a 0-450", "b 0-450"}},
		{"some were not seen", func(l *loader) {
			l.beginWith(1, val("loading", vllmtest.Items{Of: [][]any{{"g", grammar}}, Per: 2, More: 1}), list("loaded"), list("unloaded"))
			l.end(1)
			l.begin(2, ids("a", remote), nil, nil)
			l.end(2, "a")
			l.beginWith(3, pairs("loading", "a", remote), list("loaded", "a"), val("unloaded", vllmtest.Missing(capture.MissingFault)))
		}, []string{"a 0-250 ?"}},
		{"what has come is not known", func(l *loader) {
			l.begin(1, nil, nil, nil)
			l.end(1)
			l.begin(2, ids("a", remote), nil, nil)
			l.end(2)
			l.beginWith(3, pairs("loading", "a", remote), val("loaded", vllmtest.Missing(capture.MissingFault)), list("unloaded"))
			l.end(3, "a")
			l.begin(4, ids("a", remote), ids("a"), nil)
		}, []string{"a 0-350"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLoader(t)
			c.run(l)
			l.want(c.want...)
		})
	}
}

// Without the number of the state nothing is known of loads.
func TestLoadsUnknownState(t *testing.T) {
	l := newLoader(t)
	l.note(note.KindConfig, note.Config{})
	l.begin(1, nil, nil, nil)
	l.begin(2, []any{"a", remote}, nil, nil)
	l.begin(3, []any{"a", remote}, []any{"a"}, nil)
	l.want()
}

// FuzzLoads decodes any bytes as captures of a scheduler with a KV connector: a load
// that comes of it has ended, and not before it began.
func FuzzLoads(f *testing.F) {
	add := func(r event.Record) { f.Add(r.Capture.Plan == updatePlan, r.Capture.Values, r.Data) }
	add(vllmtest.Capture(1, core, schedulePlan, loadingSlots, val("step", 2), val("in_flight", nil), pairs("loading", "a", remote, "b", grammar), list("loaded", "a"), list("unloaded")))
	add(vllmtest.Capture(1, core, updatePlan, loadedSlots, val("step", 1), val("in_flight", nil), val("output", vllmtest.Addr(5)), list("loaded", "a", "b")))
	f.Fuzz(func(t *testing.T, update bool, values uint16, data []byte) {
		l := newLoader(t)
		l.begin(1, nil, nil, nil)
		r := event.Record{Header: event.Header{Time: 170, Kind: event.KindCapture, PID: core}, Capture: event.Capture{Plan: schedulePlan, Values: values}, Data: data}
		if update {
			r.Capture.Plan = updatePlan
		}
		check := func(s signal.Signal) {
			if k, ok := s.(*signal.KVTransfer); ok && (k.End <= 0 || k.Start < 0 || k.End < k.Start) {
				t.Fatalf("%+v", k)
			}
		}
		l.d.Capture(&r, check)
		for step, done := range [][]any{2: nil, 3: {"a"}, 4: {"a"}} {
			if step < 2 {
				continue
			}
			again := vllmtest.Capture(uint64(step*100), core, schedulePlan, loadingSlots, val("step", step), val("in_flight", nil), pairs("loading", "a", remote), list("loaded", done...), list("unloaded"))
			l.d.Capture(&again, check)
		}
	})
}
