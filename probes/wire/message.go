// Package wire joins the frame records of the ring into whole ZeroMQ messages.
// It knows nothing of what the messages say.
package wire

import (
	"encoding/binary"

	"inferspan/bpf/event"
)

// KeyTail is how many of the last bytes of a frame take part in its Key, and
// the most bytes that a receipt holds.
const KeyTail = 128

// Part is one frame of a message.
type Part struct {
	Size uint32 // size of the whole frame
	Head []byte // bytes from the start of the frame
	Tail []byte // last bytes of the frame, if bytes between Head and Tail are missing
}

// Whole tells whether all bytes of the frame are in Head.
func (p *Part) Whole() bool { return uint32(len(p.Head)) == p.Size }

// End returns the last n bytes of the frame, or all of a shorter frame; nil if
// they are not all there.
func (p *Part) End(n int) []byte {
	n = min(n, int(p.Size))
	switch {
	case p.Whole():
		return p.Head[len(p.Head)-n:]
	case len(p.Tail) >= n:
		return p.Tail[len(p.Tail)-n:]
	}
	return nil
}

// Message is one ZeroMQ message as one process sent or received it. It and all
// bytes in it are valid only during the call that hands it over.
type Message struct {
	Begin uint64 // time of the first record, CLOCK_MONOTONIC ns
	End   uint64 // time of the last record, CLOCK_MONOTONIC ns
	PID   uint32
	TID   uint32
	Sock  uint64
	Dir   uint8 // event.FrameSend or event.FrameRecv
	// Receipt is set for a frame of which only the last bytes were copied.
	// Parts then holds that one frame, with Tail only, First is its position
	// in its message, and More tells whether another frame follows.
	Receipt bool
	More    bool
	First   int
	Parts   []Part
	// Records are the records that made the message; their Data and Parts share
	// the same bytes. Only if the Assembler keeps records.
	Records []event.Record
}

// Key recognises the message in another process: see the function Key. It is 0
// if the bytes it is made from are missing.
func (m *Message) Key() uint64 {
	if len(m.Parts) == 0 || m.First != 0 {
		return 0
	}
	p := &m.Parts[0]
	if m.Receipt {
		if len(p.Tail) < min(int(p.Size), KeyTail) {
			return 0
		}
		return Key(p.Size, p.Tail)
	}
	tail := p.End(KeyTail)
	if tail == nil && p.Size > 0 {
		return 0
	}
	return Key(p.Size, tail)
}

// Parameters of 64-bit FNV-1a.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// Key is the 64-bit FNV-1a hash over the size of a frame (4 bytes, little
// endian) and its last bytes, at most KeyTail of them. It is never 0. The
// sender's and the receiver's copy of a frame have the same key.
func Key(size uint32, tail []byte) uint64 {
	if len(tail) > KeyTail {
		tail = tail[len(tail)-KeyTail:]
	}
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], size)
	h := uint64(fnvOffset)
	for _, c := range b {
		h = (h ^ uint64(c)) * fnvPrime
	}
	for _, c := range tail {
		h = (h ^ uint64(c)) * fnvPrime
	}
	if h == 0 {
		h = 1
	}
	return h
}
