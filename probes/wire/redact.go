package wire

import "inferspan/bpf/event"

// maxRedacted is how many sent messages are remembered to recognise their
// receipts. Receipts come within milliseconds.
const maxRedacted = 4096

// Redactor blanks the messages in frame records. The records of a message are
// held back until it is complete, those of a message that never is are left out.
// Receipts get the bytes that the redacted message has, so that the two still
// recognise each other.
//
// It is deterministic if blank is, and must be used by one goroutine at a time.
type Redactor struct {
	asm    *Assembler
	blank  func(m *Message) (received bool)
	emit   func(*event.Record)
	handle func(*Message)
	// sent has the redacted last bytes of the latest messages, by their key before
	// redaction.
	sent  map[uint64]sentTail
	order [maxRedacted]uint64
	next  int
	buf   [KeyTail]byte
}

type sentTail struct {
	n    int
	tail [KeyTail]byte
}

// NewRedactor makes a Redactor. blank overwrites what must go in a message, in
// place and without changing lengths, and says whether receipts of it are recorded.
func NewRedactor(blank func(m *Message) (received bool)) *Redactor {
	r := &Redactor{asm: NewAssembler(Limits{}, true), blank: blank, sent: map[uint64]sentTail{}}
	r.handle = r.message
	return r
}

// Put takes a record and emits redacted copies, valid only during the call.
// Records other than frames pass unchanged. The record given is not changed.
func (r *Redactor) Put(rec *event.Record, emit func(*event.Record)) {
	r.emit = emit
	if rec.Kind == event.KindFrame || rec.Kind == event.KindExit {
		r.asm.Put(rec, r.handle)
	}
	if rec.Kind != event.KindFrame {
		emit(rec)
	}
}

// Dropped returns how many messages were left out because they were incomplete, by reason.
func (r *Redactor) Dropped() [Drops]uint64 { return r.asm.Stats().Dropped }

func (r *Redactor) message(m *Message) {
	if m.Receipt {
		r.receipt(m)
	} else {
		key := m.Key()
		if r.blank(m) && key != 0 {
			r.remember(key, m.Parts[0].End(KeyTail))
		}
	}
	for i := range m.Records {
		r.emit(&m.Records[i])
	}
}

// remember keeps the redacted last bytes of a sent message.
func (r *Redactor) remember(key uint64, tail []byte) {
	delete(r.sent, r.order[r.next])
	r.order[r.next] = key
	r.next = (r.next + 1) % maxRedacted
	s := sentTail{n: len(tail)}
	copy(s.tail[:], tail)
	r.sent[key] = s
}

func (r *Redactor) receipt(m *Message) {
	rec := &m.Records[0]
	data := r.buf[:min(len(rec.Data), len(r.buf))]
	clear(data)
	if s, ok := r.sent[m.Key()]; ok && m.First == 0 && s.n == len(data) {
		copy(data, s.tail[:s.n])
	}
	rec.Data = data
}
