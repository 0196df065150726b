package agent

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"inferspan/bpf/event"
	"inferspan/probes/note"
)

// Captures come after the note that says how to read them, in their order, also when
// their buffer is used again meanwhile.
func TestHold(t *testing.T) {
	var h holder
	var got []string
	put := func(r *event.Record) error {
		got = append(got, fmt.Sprintf("%d %s", r.Capture.Plan, r.Data))
		return nil
	}
	buf := make([]byte, 1)
	capture := func(plan uint32, c byte) {
		buf[0] = c
		r := event.Record{Header: event.Header{Kind: event.KindCapture}, Capture: event.Capture{Plan: plan}, Data: buf}
		if err := h.capture(&r, put); err != nil {
			t.Fatal(err)
		}
	}
	announce := func(plans ...uint32) {
		n := note.Probe{Plans: map[uint32]note.Plan{}}
		for _, p := range plans {
			n.Plans[p] = note.Plan{}
		}
		r, err := note.Put(note.KindProbe, 1, 1, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.note(r, put); err != nil {
			t.Fatal(err)
		}
	}
	capture(1, 'a')
	capture(2, 'b')
	capture(1, 'c')
	if got != nil {
		t.Errorf("handed over before the note: %q", got)
	}
	announce(1)
	capture(1, 'd')
	capture(2, 'e')
	announce(2)
	if want := []string{"1 a", "1 c", "1 d", "2 b", "2 e"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for range maxHeld {
		capture(3, 'x')
	}
	got = nil
	capture(3, 'y') // no room: handed over as it is, to be counted
	if want := []string{"3 y"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	fail := errors.New("disk full")
	r, _ := note.Put(note.KindProbe, 1, 1, note.Probe{Plans: map[uint32]note.Plan{3: {}}})
	if err := h.note(r, func(*event.Record) error { return fail }); !errors.Is(err, fail) {
		t.Errorf("error %v, want the consumer's", err)
	}
}
