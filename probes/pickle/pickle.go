package pickle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Why a stream could not be read, in an Error.
var (
	// ErrTruncated: bytes are missing. What was complete before them is in the value
	// that comes with the error.
	ErrTruncated = errors.New("stream ends early")
	ErrOpcode    = errors.New("unknown opcode")
	ErrMalformed = errors.New("malformed stream")
	ErrTrailing  = errors.New("bytes after the end")
	ErrSize      = errors.New("stream too large")
)

// Error says where in a stream reading it failed. It wraps one of the above.
type Error struct {
	Offset int // of the opcode or object
	Op     byte
	Err    error
	rest   int // offset of the first byte that was not read as more than data
}

func (e *Error) Error() string {
	return fmt.Sprintf("reading a value at byte %d (0x%02x): %v", e.Offset, e.Op, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// maxSize bounds streams, whose offsets are kept in 32 bits.
const maxSize = math.MaxInt32

// machine runs the opcodes of one stream.
type machine struct {
	*Decoder
	b     []byte // segment: head or tail
	i     int    // position in it
	base  uint32 // offset of the segment
	size  uint32 // of the whole stream
	more  bool   // the tail comes after this segment
	at    uint32 // offset of the current opcode
	op    byte
	lost  bool // the stream's beginning is missing, and with it stack and memo
	start int  // lowest stack position the current mark lets one reach
}

// Decode reads a pickle. tail holds its last bytes if those between head and tail
// are missing, size is the length of the whole: what lies in the gap is stepped
// over if it is within one str, bytes or bytearray. Otherwise the error is
// ErrTruncated and the value has what was read before it; what may not be
// complete is marked so. In that value a call or list is put together as far as
// its parts had come.
func (d *Decoder) Decode(head, tail []byte, size int) (Value, error) {
	m, err := d.machine(head, tail, size, false)
	if err != nil {
		return Value{}, err
	}
	for {
		if stop, err := m.step(); err != nil {
			e := m.fail(err)
			if err == ErrTruncated {
				return d.value(d.unwind()), e
			}
			return Value{}, e
		} else if stop {
			break
		}
	}
	root, ok := m.pop()
	if !ok || len(d.stack) > 0 || len(d.marks) > 0 {
		return Value{}, m.fail(ErrMalformed)
	}
	if m.pos() != m.size {
		return d.value(root), m.fail(ErrTrailing)
	}
	return d.value(root), nil
}

// DecodeTail reads the end of a pickle whose beginning is missing, from between
// two opcodes on. It returns the values that the stream goes on with as items of
// a dict; there may be nothing but that dict around them. It fails unless b does
// end like a pickle of that form. Values that refer back to what is missing are
// Opaque. base is the offset of b.
func (d *Decoder) DecodeTail(b []byte, base int) (Value, error) {
	size := base + len(b)
	m, err := d.machine(nil, b, size, false)
	if err != nil {
		return Value{}, err
	}
	m.b, m.base, m.more, m.lost = b, d.tailAt, false, true
	root := refInvalid
	for {
		stop, err := m.step()
		if err != nil {
			return Value{}, m.fail(err)
		}
		if stop {
			break
		}
		if len(d.stack) == 1 && root == refInvalid && (m.op == opSetItems || m.op == opSetItem) {
			root = d.stack[0]
		}
	}
	if root == refInvalid || len(d.marks) > 0 || m.pos() != m.size {
		return Value{}, m.fail(ErrMalformed)
	}
	return d.value(root), nil
}

func (d *Decoder) machine(head, tail []byte, size int, msgpack bool) (*machine, error) {
	if len(tail) > 0 && len(head)+len(tail) > size || len(tail) == 0 && len(head) > size {
		size = len(head) + len(tail)
	}
	if size > maxSize {
		return nil, &Error{Err: ErrSize}
	}
	d.reset(head, tail, size, msgpack)
	return &machine{Decoder: d, b: head, size: uint32(size), more: len(tail) > 0}, nil
}

func (m *machine) fail(err error) *Error {
	return &Error{Offset: int(m.at), Op: m.op, Err: err, rest: int(max(m.at+1, m.pos()))}
}

func (m *machine) pos() uint32 { return m.base + uint32(m.i) }

// advance goes n bytes on, over the gap if need be; the bytes may be missing.
func (m *machine) advance(n uint64) error {
	if n <= uint64(len(m.b)-m.i) {
		m.i += int(n)
		return nil
	}
	end := uint64(m.pos()) + n
	switch {
	case end > uint64(m.size):
		if m.base+uint32(len(m.b)) < m.size {
			return ErrMalformed
		}
		return ErrTruncated
	case m.more && end >= uint64(m.tailAt):
		m.b, m.base, m.more = m.tail, m.tailAt, false
		m.i = int(end - uint64(m.base))
		return nil
	}
	return ErrTruncated
}

// take returns the next n bytes, which must be in this segment.
func (m *machine) take(n int) []byte {
	if n > len(m.b)-m.i {
		return nil
	}
	m.i += n
	return m.b[m.i-n : m.i]
}

func (m *machine) push(r ref) { m.stack = append(m.stack, r) }

func (m *machine) pop() (ref, bool) {
	n := len(m.stack)
	if n == m.start {
		if m.lost && n == 0 {
			return refOpaque, true
		}
		return 0, false
	}
	r := m.stack[n-1]
	m.stack = m.stack[:n-1]
	return r, true
}

// popMark gives the values above the mark; they stay valid until the next push.
func (m *machine) popMark() ([]ref, bool) {
	n := len(m.marks)
	if n == 0 {
		return nil, false
	}
	from := int(m.marks[n-1])
	m.marks = m.marks[:n-1]
	m.start = 0
	if n > 1 {
		m.start = int(m.marks[n-2])
	}
	out := m.stack[from:]
	m.stack = m.stack[:from]
	return out, true
}

// top is the value that an opcode works on and leaves.
func (m *machine) top() (ref, bool) {
	if n := len(m.stack); n > m.start {
		return m.stack[n-1], true
	}
	if m.lost && len(m.stack) == 0 {
		return refOpaque, true
	}
	return 0, false
}

// step runs one opcode.
func (m *machine) step() (stop bool, err error) {
	m.at = m.pos()
	if m.i >= len(m.b) {
		m.op = 0
		return false, ErrTruncated
	}
	m.op = m.b[m.i]
	n := sizes[m.op]
	if n == noOp {
		return false, ErrOpcode
	}
	m.i++
	arg := m.take(int(n))
	if arg == nil && n > 0 {
		m.i--
		return false, ErrTruncated
	}
	ok := true
	switch m.op {
	case opStop:
		return true, nil
	case opProto:
		ok = arg[0] >= 2 && arg[0] <= 5
	case opFrame:
	case opMark:
		ok = m.mark()
	case opPop:
		if len(m.marks) > 0 && len(m.stack) == m.start {
			_, ok = m.popMark()
		} else {
			_, ok = m.pop()
		}
	case opPopMark:
		_, ok = m.popMark()
	case opDup:
		var r ref
		if r, ok = m.top(); ok {
			m.push(r)
		}
	case opNone:
		m.push(refNone)
	case opNewTrue:
		m.push(refTrue)
	case opNewFalse:
		m.push(refFalse)
	case opBinInt1, opBinInt2, opBinInt:
		m.push(m.add(node{kind: Int, op: m.op, off: m.at + 1, n: uint32(n)}))
	case opBinFloat:
		m.push(m.add(node{kind: Float, op: m.op, off: m.at + 1, n: 8}))
	case opLong1, opShortBinString, opShortBinBytes, opShortBinUnicode:
		return false, m.payload(uint64(arg[0]))
	case opLong4, opBinString, opBinBytes, opBinUnicode:
		return false, m.payload(uint64(binary.LittleEndian.Uint32(arg)))
	case opBinBytes8, opBinUnicode8, opByteArray8:
		return false, m.payload(binary.LittleEndian.Uint64(arg))
	case opBinGet:
		ok = m.get(uint32(arg[0]))
	case opLongBinGet:
		ok = m.get(binary.LittleEndian.Uint32(arg))
	case opBinPut:
		ok = m.put(uint32(arg[0]))
	case opLongBinPut:
		ok = m.put(binary.LittleEndian.Uint32(arg))
	case opMemoize:
		ok = m.put(uint32(len(m.memo)))
	case opExt1, opExt2, opExt4, opNextBuffer:
		m.push(refOpaque)
	case opReadOnlyBuffer:
		_, ok = m.top()
	case opBinPersID:
		if _, ok = m.pop(); ok {
			m.push(refOpaque)
		}
	case opGlobal:
		return false, m.global()
	default:
		ok = m.build()
	}
	if !ok {
		return false, ErrMalformed
	}
	return false, nil
}

// payload makes a value of the next n bytes.
func (m *machine) payload(n uint64) error {
	kind := String
	switch m.op {
	case opLong1, opLong4:
		kind = Int
	case opShortBinString, opBinString, opShortBinBytes, opBinBytes, opBinBytes8:
		kind = Bytes
	case opByteArray8:
		kind = ByteArray
	}
	off := m.pos()
	err := m.advance(n)
	if err == nil || err == ErrTruncated && uint64(off)+n <= uint64(m.size) {
		m.push(m.add(node{kind: kind, op: m.op, off: off, n: uint32(n)}))
	}
	return err
}

// mark sets a mark, or steps over a list or tuple of scalars.
func (m *machine) mark() bool {
	if end, n := scalars(m.b[m.i:], &pickleScalars, math.MaxInt); n > 0 && m.i+end < len(m.b) {
		from, to := m.pos(), m.pos()+uint32(end)
		switch m.b[m.i+end] {
		case opAppends:
			if r, ok := m.top(); ok && m.nodes[r].kind == List {
				m.appendRaw(r, from, to, uint32(n))
				m.i += end + 1
				return true
			}
		case opTuple:
			r := m.add(node{kind: Tuple})
			m.appendRaw(r, from, to, uint32(n))
			m.push(r)
			m.i += end + 1
			return true
		}
	}
	m.marks = append(m.marks, uint32(len(m.stack)))
	m.start = len(m.stack)
	return true
}

func (m *machine) get(i uint32) bool {
	r := refOpaque
	if !m.lost {
		if uint64(i) >= uint64(len(m.memo)) || m.memo[i] == refInvalid {
			return false
		}
		r = m.memo[i]
	}
	m.push(r)
	return true
}

func (m *machine) put(i uint32) bool {
	r, ok := m.top()
	if !ok || i > m.size { // a pickler numbers its at most size values from 0
		return false
	}
	if m.lost {
		return true
	}
	for uint64(len(m.memo)) <= uint64(i) {
		m.memo = append(m.memo, refInvalid)
	}
	m.memo[i] = r
	return true
}

// global reads the two lines of GLOBAL.
func (m *machine) global() error {
	var names [2]ref
	for k := range names {
		n := bytes.IndexByte(m.b[m.i:], '\n')
		if n < 0 {
			m.i = int(m.at - m.base)
			return ErrTruncated
		}
		names[k] = m.add(node{kind: String, op: m.op, off: m.pos(), n: uint32(n)})
		m.i += n + 1
	}
	m.push(m.add(node{kind: Global, a: uint32(names[0]), b: uint32(names[1])}))
	return nil
}
