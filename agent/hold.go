package agent

import (
	"slices"

	"inferspan/bpf/event"
	"inferspan/probes/note"
)

// maxHeld bounds the captures that are held.
const maxHeld = 4096

// holder holds captures until the note that says how to read them has been handed
// over: a probe fires before its note can be written.
type holder struct {
	known map[uint32]bool // plans
	held  []event.Record
}

// planOf is that of a capture, or of what the thread had its GPU do up to one.
func planOf(r *event.Record) uint32 {
	if r.Kind == event.KindGPU {
		return r.GPU.Plan
	}
	return r.Capture.Plan
}

// capture hands a capture over, or keeps a copy.
func (h *holder) capture(r *event.Record, put func(*event.Record) error) error {
	if h.known[planOf(r)] || len(h.held) == maxHeld {
		return put(r)
	}
	c := *r
	c.Data = slices.Clone(r.Data)
	h.held = append(h.held, c)
	return nil
}

// note looks at a note that has been handed over.
func (h *holder) note(r *event.Record, put func(*event.Record) error) error {
	if note.Kind(r.Note) != note.KindProbe {
		return nil
	}
	n, err := note.Get[note.Probe](r)
	if err != nil {
		return nil // not one of ours
	}
	if h.known == nil {
		h.known = make(map[uint32]bool)
	}
	for id := range n.Plans {
		h.known[id] = true
	}
	rest := h.held[:0]
	for i := range h.held {
		if c := &h.held[i]; h.known[planOf(c)] {
			if err := put(c); err != nil {
				return err
			}
		} else {
			rest = append(rest, *c)
		}
	}
	h.held = rest
	return nil
}
