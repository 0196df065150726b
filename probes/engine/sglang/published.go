package sglang

import (
	"encoding/binary"

	"inferspan/probes/pickle"
	"inferspan/probes/python"
)

// A scheduler publishes its load in memory that it shares with the other processes
// (managers/load_snapshot.py): with each batch that is prefilled, every 15 others, and
// when it has nothing to do.
const (
	publishedMagic   = "SLNS"
	publishedVersion = 2
	publishedHead    = 12 // {magic, u16 version, u16 ranks, u32 size of a slot}
	maxPublished     = 1 << 16
)

// published reads how many tokens of the KV cache are in use, and the share of all that
// this is, as the scheduler last published it; ok is false if that cannot be read.
func (p *Peeker) published() (used int64, usage *float64, ok bool) {
	w, err := p.sched.Attr("load_snapshot_writer")
	if err != nil || w.IsNone() {
		return 0, nil, false
	}
	m, err := w.Attr("mmap")
	if err != nil {
		return 0, nil, false
	}
	rank := get(&lookup{}, "", python.Value.Int, w, "dp_rank")
	head, err := m.Mapped(0, publishedHead)
	if err != nil || rank == nil || string(head[:4]) != publishedMagic || binary.LittleEndian.Uint16(head[4:]) != publishedVersion {
		return 0, nil, false
	}
	size := int64(binary.LittleEndian.Uint32(head[8:]))
	if *rank < 0 || *rank >= int64(binary.LittleEndian.Uint16(head[6:])) || size < 4 || size > maxPublished {
		return 0, nil, false
	}
	for range publishedTries {
		// Its length is 0 while it is written.
		slot, err := m.Mapped(publishedHead+int(*rank*size), int(size))
		if err != nil {
			return 0, nil, false
		}
		n := int64(binary.LittleEndian.Uint32(slot))
		if n == 0 || n > size-4 {
			continue
		}
		again, err := m.Mapped(publishedHead+int(*rank*size), int(size))
		if err != nil || string(again) != string(slot) {
			continue
		}
		return snapshot(slot[4 : 4+n])
	}
	return 0, nil, false
}

const publishedTries = 5

// snapshot reads a LoadSnapshot. What equals its default, 0, is left out of it.
func snapshot(b []byte) (used int64, usage *float64, ok bool) {
	var d pickle.Decoder
	v, err := d.DecodeMsgpack(b, nil, len(b), nil)
	if err != nil || v.Kind() != pickle.Dict {
		return 0, nil, false
	}
	usage = ptr(0.0)
	if x := v.Get("num_used_tokens"); x.Kind() != pickle.Invalid {
		if used, ok = x.Int(); !ok || used < 0 {
			return 0, nil, false
		}
	}
	if x := v.Get("token_usage"); x.Kind() != pickle.Invalid {
		f, is := x.Float()
		if !is {
			return 0, nil, false
		}
		usage = &f
	}
	return used, usage, true
}
