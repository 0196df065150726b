package agent

import (
	"slices"
	"testing"

	"inferspan/bpf/event"
	"inferspan/probes/note"
)

// TestStatesInOrder: the state of a core does not overtake what the kernel saw before.
func TestStatesInOrder(t *testing.T) {
	p := &inside{notes: make(chan *event.Record, maxNotes)}
	for _, x := range []struct {
		at   uint64
		kind note.Kind
		v    any
	}{{90, note.KindState, note.State{}}, {100, note.KindState, note.State{}}, {110, note.KindConfig, note.Config{}}, {120, note.KindState, note.State{}}} {
		r, err := note.Put(x.kind, 7, x.at, x.v)
		if err != nil {
			t.Fatal(err)
		}
		p.notes <- r
	}
	for _, c := range []struct {
		seen uint64
		want []uint64
	}{{95, []uint64{90, 110}}, {99, nil}, {100, []uint64{100}}, {1000, []uint64{120}}, {2000, nil}} {
		var got []uint64
		if err := p.take(func(r *event.Record) error { got = append(got, r.Time); return nil }, c.seen); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("with records up to %d: notes of %v, want %v", c.seen, got, c.want)
		}
	}
}

// TestAwaited: that a core is going to be looked into is told before anything of the kernel.
func TestAwaited(t *testing.T) {
	look, err := note.Put(note.KindLook, 7, 100, note.Look{})
	if err != nil {
		t.Fatal(err)
	}
	p := &inside{notes: make(chan *event.Record, maxNotes), awaited: []*event.Record{look}}
	for _, want := range []int{1, 0} {
		n := 0
		if err := p.take(func(*event.Record) error { n++; return nil }, 50); err != nil {
			t.Fatal(err)
		}
		if n != want {
			t.Errorf("%d notes, want %d", n, want)
		}
	}
}
