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
