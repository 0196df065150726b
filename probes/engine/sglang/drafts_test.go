package sglang

import (
	"testing"

	"inferspan/correlate/signal"
	"inferspan/probes/note"
	"inferspan/probes/wire"
)

// TestDrafts checks that the tokens of a pass over drafts are those of the outputs
// between two looks, of requests whose counts before are known.
func TestDrafts(t *testing.T) {
	d, err := NewDecoder(testEngine("0.5.23"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	d.know("new").added = true
	h := stagesOf{stages: map[string][2]signal.Mono{}}
	say := func(id string, tokens, checks, accepted int64) {
		t.Helper()
		d.begin(&wire.Message{PID: schedulerPID})
		q := &Output{ID: []byte(id), NumTokens: signal.Some(int64(1)), CompletionTokens: signal.Some(tokens), SpecVerifies: signal.Some(checks), SpecAccepted: signal.Some(accepted)}
		if !d.count(q) {
			t.Fatalf("%s: taken for seen before", id)
		}
	}
	look := func(want signal.Opt[float64]) {
		t.Helper()
		putNote(t, d, note.KindState, schedulerPID, note.State{}, h.put)
		if got := h.state.AcceptLength; got != want {
			t.Errorf("%v tokens for each check, want %v", got, want)
		}
	}
	look(signal.Opt[float64]{})
	say("new", 4, 2, 1)
	say("old", 40, 30, 20) // in flight when it was first seen
	look(signal.Some(1.5))
	say("new", 8, 3, 4)
	say("old", 46, 33, 23)
	look(signal.Some(2.5))
	look(signal.Some(2.5)) // no pass since
}
