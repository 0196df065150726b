package wire

import (
	"fmt"
	"math"

	"inferspan/bpf/event"
)

// Drop says why a message could not be put together.
type Drop int

// Reasons.
const (
	DropChunk  Drop = iota // a chunk of a frame is missing
	DropPart               // a frame of the message is missing
	DropStart              // the message began before its first record
	DropMemory             // it was the oldest unfinished one when memory ran out
	DropExit               // its process ended
	DropBad                // records contradict each other
	Drops                  // number of reasons
)

var dropNames = [Drops]string{"missing_chunk", "missing_part", "missing_start", "memory", "exit", "malformed"}

func (d Drop) String() string {
	if d >= 0 && d < Drops {
		return dropNames[d]
	}
	return fmt.Sprintf("drop(%d)", int(d))
}

// Stats are totals of an Assembler.
type Stats struct {
	Records  uint64 // frame records taken
	Messages uint64 // messages handed over, receipts not included
	Receipts uint64
	Dropped  [Drops]uint64 // messages, by reason
}

// Limits bounds the memory of an Assembler. A zero field means its default.
type Limits struct {
	Streams int // unfinished messages at one time; default 1024
	Bytes   int // bytes of unfinished messages; default 32 MiB
	Parts   int // frames of one message that are kept, the others are only counted in; default 256
}

func (l Limits) withDefaults() Limits {
	if l.Streams <= 0 {
		l.Streams = 1024
	}
	if l.Bytes <= 0 {
		l.Bytes = 32 << 20
	}
	if l.Parts <= 0 {
		l.Parts = 256
	}
	return l
}

// maxSpare bounds the bytes of finished messages' buffers that are kept for reuse.
const maxSpare = 4 << 20

// auxPart is the first position of a frame in its message of which the kernel
// side copies only the first bytes: frames from there on are tensors.
const auxPart = 2

// Assembler joins frame records into messages. It needs the records of one
// socket and direction in order; those of different sockets may interleave. It
// is deterministic and must be used by one goroutine at a time.
//
// Records carry no number of their message. Where the end of one message and the
// beginning of the next on the same socket are both lost, the two halves can look
// like one message; its frames are real, but belong to two.
type Assembler struct {
	limits    Limits
	keep      bool
	stats     Stats
	streams   map[streamKey]*stream
	oldest    *stream // unfinished messages, in the order they began
	newest    *stream
	free      *stream
	bytes     int     // of unfinished messages
	spare     int     // capacity held by free streams
	msg       Message // reused for every message handed over
	single    [1]Part
	receipted [1]event.Record
}

type streamKey struct {
	pid  uint32
	dir  uint8
	sock uint64
}

// stream is one unfinished message.
type stream struct {
	key        streamKey
	prev, next *stream
	skip       bool // dropped: the rest of the message is only passed over
	begin, end uint64
	tid        uint32
	buf        []byte
	parts      []span
	count      int    // frames begun
	frame      uint64 // id of the frame in progress
	open       bool   // the frame in progress lacks bytes
	next32     uint32 // offset of the byte that is due
	records    []held
	outParts   []Part
	outRecords []event.Record
}

// span is a frame within buf: head from a to b, tail from b to c.
type span struct {
	size    uint32
	a, b, c int
}

// held is a record with its payload in buf.
type held struct {
	rec  event.Record
	a, b int
}

// NewAssembler makes an Assembler. With keepRecords each message also has
// copies of its records.
func NewAssembler(l Limits, keepRecords bool) *Assembler {
	l = l.withDefaults()
	if keepRecords {
		l.Parts = math.MaxInt // a message lacks no record
	}
	return &Assembler{limits: l, keep: keepRecords, streams: map[streamKey]*stream{}}
}

// Stats returns the totals so far.
func (a *Assembler) Stats() Stats { return a.stats }

// Pending returns the unfinished messages and their bytes.
func (a *Assembler) Pending() (messages, bytes int) { return len(a.streams), a.bytes }

// Put takes one record and calls emit if a message is complete with it. Frame
// and exit records matter, others are ignored. The record is not kept.
func (a *Assembler) Put(r *event.Record, emit func(*Message)) {
	switch r.Kind {
	case event.KindExit:
		a.exit(r.PID)
		return
	case event.KindFrame:
	default:
		return
	}
	a.stats.Records++
	f := &r.Frame
	if f.Flags&event.FrameReceipt != 0 {
		a.receipt(r, emit)
		return
	}
	end := uint64(f.Off) + uint64(len(r.Data))
	var s *stream
	if len(a.streams) > 0 {
		s = a.streams[streamKey{r.PID, f.Dir, f.Sock}]
	}
	if end > uint64(f.Size) {
		a.refuse(s, r, DropBad)
		return
	}
	if s == nil && !a.keep && f.Part == 0 && f.Off == 0 && f.Flags&event.FrameMore == 0 && end == uint64(f.Size) {
		// The usual case: one record is the whole message.
		a.single[0] = Part{Size: f.Size, Head: r.Data}
		a.msg = Message{Begin: r.Time, End: r.Time, PID: r.PID, TID: r.TID, Sock: f.Sock, Dir: f.Dir, Parts: a.single[:]}
		a.stats.Messages++
		emit(&a.msg)
		return
	}
	if f.Part == 0 && f.Off == 0 && (s == nil || s.skip || s.frame != f.ID || !s.open) {
		if s != nil { // the message before has no end
			if !s.skip {
				a.drop(s, s.missing())
			}
			a.remove(s)
		}
		s = a.begin(r)
	}
	if s == nil {
		a.refuse(nil, r, DropStart)
		return
	}
	if s.skip {
		if ends(r) {
			a.remove(s)
		}
		return
	}
	if !a.add(s, r) {
		return
	}
	if !s.open && f.Flags&event.FrameMore == 0 {
		a.finish(s, emit)
	}
}

// add appends the record's bytes to the message; false if that failed and the
// message was dropped.
func (a *Assembler) add(s *stream, r *event.Record) bool {
	f := &r.Frame
	cut := false
	switch {
	case s.open && f.ID == s.frame && int(f.Part) == s.count-1:
		// The next chunk. Bytes may be missing before the last one of a cut frame.
		cut = f.Off != s.next32
		last := uint64(f.Off)+uint64(len(r.Data)) == uint64(f.Size)
		if f.Off < s.next32 || cut && !(f.Flags&event.FrameCut != 0 && last) {
			a.refuse(s, r, DropChunk)
			return false
		}
	case s.open:
		a.refuse(s, r, DropChunk)
		return false
	case int(f.Part) == s.count && f.Off == 0:
		s.count++
		s.frame, s.next32 = f.ID, 0
		if len(s.parts) < a.limits.Parts {
			n := len(s.buf)
			s.parts = append(s.parts, span{f.Size, n, n, n})
		}
	case int(f.Part) > s.count:
		a.refuse(s, r, DropPart)
		return false
	case int(f.Part) == s.count: // its first chunk is missing
		a.refuse(s, r, DropChunk)
		return false
	default:
		a.refuse(s, r, DropBad)
		return false
	}
	if s.count-1 < len(s.parts) {
		p := &s.parts[s.count-1]
		if p.size != f.Size {
			a.refuse(s, r, DropBad)
			return false
		}
		if !a.room(s, len(r.Data)) {
			a.refuse(s, r, DropMemory)
			return false
		}
		n := len(s.buf)
		s.buf = append(s.buf, r.Data...)
		a.bytes += len(r.Data)
		p.c = len(s.buf)
		if !cut {
			p.b = p.c
		}
		if a.keep {
			h := held{*r, n, len(s.buf)}
			h.rec.Data = nil
			s.records = append(s.records, h)
		}
	}
	s.end = r.Time
	s.next32 = f.Off + uint32(len(r.Data))
	s.open = s.next32 != f.Size && f.Part < auxPart
	return true
}

// missing is the reason for a message whose end never came.
func (s *stream) missing() Drop {
	if s.open {
		return DropChunk
	}
	return DropPart
}

// ends tells whether r holds the last bytes of its message.
func ends(r *event.Record) bool {
	f := &r.Frame
	return f.Flags&event.FrameMore == 0 && (f.Part >= auxPart || uint64(f.Off)+uint64(len(r.Data)) >= uint64(f.Size))
}

// refuse drops the message that r belongs to. s is its stream, nil if none.
func (a *Assembler) refuse(s *stream, r *event.Record, why Drop) {
	if s == nil {
		if ends(r) {
			a.stats.Dropped[why]++
			return
		}
		s = a.begin(r)
	}
	if !s.skip {
		a.drop(s, why)
	}
	if ends(r) {
		a.remove(s)
	}
}

// drop counts the message and gives its bytes back; what follows of it is skipped.
func (a *Assembler) drop(s *stream, why Drop) {
	a.stats.Dropped[why]++
	a.bytes -= len(s.buf)
	s.buf = s.buf[:0]
	s.skip = true
}

func (a *Assembler) begin(r *event.Record) *stream {
	for len(a.streams) >= a.limits.Streams {
		a.evict(a.oldest)
	}
	s := a.free
	if s != nil {
		a.free = s.next
		a.spare -= cap(s.buf)
	} else {
		s = &stream{}
	}
	s.key = streamKey{r.PID, r.Frame.Dir, r.Frame.Sock}
	s.skip, s.open, s.count = false, false, 0
	s.begin, s.end, s.tid = r.Time, r.Time, r.TID
	s.buf, s.parts, s.records = s.buf[:0], s.parts[:0], s.records[:0]
	s.prev, s.next = a.newest, nil
	if a.newest != nil {
		a.newest.next = s
	} else {
		a.oldest = s
	}
	a.newest = s
	a.streams[s.key] = s
	return s
}

// remove forgets the stream and keeps its memory for the next one.
func (a *Assembler) remove(s *stream) {
	delete(a.streams, s.key)
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		a.oldest = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		a.newest = s.prev
	}
	a.bytes -= len(s.buf)
	s.buf = s.buf[:0]
	if a.spare+cap(s.buf) > maxSpare {
		s.buf = nil
	}
	a.spare += cap(s.buf)
	s.prev, s.next = nil, a.free
	a.free = s
}

func (a *Assembler) evict(s *stream) {
	if !s.skip {
		a.drop(s, DropMemory)
	}
	a.remove(s)
}

// room makes room for n bytes of s, at the cost of the oldest other messages.
func (a *Assembler) room(s *stream, n int) bool {
	for old := a.oldest; a.bytes+n > a.limits.Bytes && old != nil; {
		next := old.next
		if old != s && len(old.buf) > 0 {
			a.drop(old, DropMemory)
		}
		old = next
	}
	return a.bytes+n <= a.limits.Bytes
}

func (a *Assembler) exit(pid uint32) {
	for s := a.oldest; s != nil; {
		next := s.next
		if s.key.pid == pid {
			if !s.skip {
				a.drop(s, DropExit)
			}
			a.remove(s)
		}
		s = next
	}
}

func (a *Assembler) finish(s *stream, emit func(*Message)) {
	s.outParts = s.outParts[:0]
	for _, p := range s.parts {
		part := Part{Size: p.size, Head: s.buf[p.a:p.b:p.b]}
		if p.c > p.b {
			part.Tail = s.buf[p.b:p.c:p.c]
		}
		s.outParts = append(s.outParts, part)
	}
	a.msg = Message{Begin: s.begin, End: s.end, PID: s.key.pid, TID: s.tid, Sock: s.key.sock, Dir: s.key.dir, Parts: s.outParts}
	if a.keep {
		s.outRecords = s.outRecords[:0]
		for i := range s.records {
			h := &s.records[i]
			s.outRecords = append(s.outRecords, h.rec)
			s.outRecords[i].Data = s.buf[h.a:h.b:h.b]
		}
		a.msg.Records = s.outRecords
	}
	a.stats.Messages++
	emit(&a.msg)
	a.remove(s)
}

func (a *Assembler) receipt(r *event.Record, emit func(*Message)) {
	f := &r.Frame
	if uint64(len(r.Data)) > uint64(f.Size) {
		a.stats.Dropped[DropBad]++
		return
	}
	a.single[0] = Part{Size: f.Size, Tail: r.Data}
	a.msg = Message{Begin: r.Time, End: r.Time, PID: r.PID, TID: r.TID, Sock: f.Sock, Dir: f.Dir,
		Receipt: true, More: f.Flags&event.FrameMore != 0, First: int(f.Part), Parts: a.single[:]}
	if a.keep {
		a.receipted[0] = *r
		a.msg.Records = a.receipted[:]
	}
	a.stats.Receipts++
	emit(&a.msg)
}
