package pickle

import (
	"encoding/binary"
	"math"
)

// First bytes of MessagePack objects.
const (
	mpFixMap   = 0x80
	mpFixArray = 0x90
	mpFixStr   = 0xa0
	mpNil      = 0xc0
	mpFalse    = 0xc2
	mpTrue     = 0xc3
	mpBin8     = 0xc4
	mpExt8     = 0xc7
	mpFloat32  = 0xca
	mpFloat64  = 0xcb
	mpUint8    = 0xcc
	mpUint64   = 0xcf
	mpInt8     = 0xd0
	mpInt64    = 0xd3
	mpFixExt1  = 0xd4
	mpStr8     = 0xd9
	mpArray16  = 0xdc
	mpMap16    = 0xde
)

// maxDepth is how deep objects of MessagePack may be nested; msgspec itself
// refuses more than some hundreds.
const maxDepth = 512

// frame is a container that is being read.
type frame struct {
	to   ref
	due  uint32 // objects to come
	from int    // of its items on the stack
}

// DecodeMsgpack reads one object of MessagePack like Decode reads a pickle: an
// array is a List, a map a Dict, bin Bytes. Extensions are Opaque, but those whose
// code buffers names: they hold the length of some MessagePack in 4 bytes, most
// significant first, then that and raw bytes, and become a Tuple of the two.
func (d *Decoder) DecodeMsgpack(head, tail []byte, size int, buffers func(code int8) bool) (Value, error) {
	m, err := d.machine(head, tail, size, true)
	if err != nil {
		return Value{}, err
	}
	root, err := m.objects(buffers)
	if err == nil && m.pos() != m.size {
		err = ErrTrailing
	}
	if err == nil {
		return d.value(root), nil
	}
	if err == ErrTruncated || err == ErrTrailing {
		return d.value(root), m.fail(err)
	}
	return Value{}, m.fail(err)
}

// objects reads one object with all that is in it. On ErrTruncated it returns what there is.
func (m *machine) objects(buffers func(int8) bool) (ref, error) {
	var frames []frame
	for {
		r, due, err := m.msgpackObject(buffers)
		if err == nil && due > 0 {
			if len(frames) == maxDepth {
				return 0, ErrMalformed
			}
			if n := m.numbers(due); n {
				m.appendRaw(r, m.at, m.pos(), due)
			} else {
				frames = append(frames, frame{to: r, due: due, from: len(m.stack)})
				continue
			}
		}
		if r != refInvalid {
			m.push(r)
		}
		for len(frames) > 0 {
			f := &frames[len(frames)-1]
			if err == nil {
				f.due--
				if f.due > 0 {
					break
				}
			} else {
				m.nodes[f.to].open = true
			}
			items := m.stack[f.from:]
			if m.nodes[f.to].kind == Dict {
				items = items[:len(items)&^1]
			}
			m.append(f.to, items)
			m.stack = append(m.stack[:f.from], f.to)
			frames = frames[:len(frames)-1]
		}
		if len(frames) == 0 {
			if len(m.stack) == 0 {
				return refInvalid, err
			}
			return m.stack[0], err
		}
	}
}

// numbers steps over n scalars; false if it is not only those that follow. Then
// nothing is stepped over.
func (m *machine) numbers(n uint32) bool {
	end, have := scalars(m.b[m.i:], &mpScalars, int(n))
	if have != int(n) {
		return false
	}
	m.at = m.pos()
	m.i += end
	return true
}

// msgpackObject reads one object without those in it, of which there are due.
func (m *machine) msgpackObject(buffers func(int8) bool) (r ref, due uint32, err error) {
	m.at = m.pos()
	if m.i >= len(m.b) {
		m.op = 0
		return 0, 0, ErrTruncated
	}
	c := m.b[m.i]
	m.op = c
	m.i++
	if k, n := m.scalar(c); k != Invalid {
		if m.take(n) == nil && n > 0 {
			m.i--
			return 0, 0, ErrTruncated
		}
		switch c {
		case mpNil:
			return refNone, 0, nil
		case mpFalse:
			return refFalse, 0, nil
		case mpTrue:
			return refTrue, 0, nil
		}
		return m.add(node{kind: k, op: c, off: m.at + 1, n: uint32(n)}), 0, nil
	}
	switch {
	case c < mpFixArray:
		return m.add(node{kind: Dict}), 2 * uint32(c&0x0f), nil
	case c < mpFixStr:
		return m.add(node{kind: List}), uint32(c & 0x0f), nil
	case c < mpNil:
		return m.msgpackPayload(String, uint32(c&0x1f))
	case c >= mpFixExt1 && c < mpStr8:
		return m.extension(1<<(c-mpFixExt1), buffers)
	}
	width := 0
	switch c {
	case mpBin8, mpExt8, mpStr8:
		width = 1
	case mpBin8 + 1, mpExt8 + 1, mpStr8 + 1, mpArray16, mpMap16:
		width = 2
	case mpBin8 + 2, mpExt8 + 2, mpStr8 + 2, mpArray16 + 1, mpMap16 + 1:
		width = 4
	default:
		return 0, 0, ErrOpcode
	}
	b := m.take(width)
	if b == nil {
		m.i--
		return 0, 0, ErrTruncated
	}
	n := uint32(0)
	for _, x := range b {
		n = n<<8 | uint32(x)
	}
	switch c {
	case mpArray16, mpArray16 + 1, mpMap16, mpMap16 + 1:
		if n > maxSize/2 || n > m.size-m.pos() { // each has a byte or more
			return 0, 0, ErrMalformed
		}
		if c >= mpMap16 {
			return m.add(node{kind: Dict}), 2 * n, nil
		}
		return m.add(node{kind: List}), n, nil
	case mpStr8, mpStr8 + 1, mpStr8 + 2:
		return m.msgpackPayload(String, n)
	case mpBin8, mpBin8 + 1, mpBin8 + 2:
		return m.msgpackPayload(Bytes, n)
	}
	return m.extension(n, buffers)
}

func (m *machine) msgpackPayload(kind Kind, n uint32) (ref, uint32, error) {
	off := m.pos()
	err := m.advance(uint64(n))
	if err == nil || err == ErrTruncated && uint64(off)+uint64(n) <= uint64(m.size) {
		return m.add(node{kind: kind, op: m.op, off: off, n: n}), 0, err
	}
	return 0, 0, err
}

// extension reads the code and n bytes of data.
func (m *machine) extension(n uint32, buffers func(int8) bool) (ref, uint32, error) {
	code := m.take(1)
	if code == nil {
		return 0, 0, ErrTruncated
	}
	if buffers == nil || !buffers(int8(code[0])) {
		return m.msgpackPayload(Opaque, n)
	}
	end := uint64(m.pos()) + uint64(n)
	head := m.take(4)
	if head == nil {
		return 0, 0, ErrTruncated
	}
	meta := uint64(binary.BigEndian.Uint32(head))
	if meta+4 > uint64(n) || meta > uint64(len(m.b)-m.i) {
		return 0, 0, ErrMalformed
	}
	// The description is one flat object, read as one of its own.
	sub := *m
	sub.b = m.b[:m.i+int(meta)]
	from := len(m.stack)
	r, due, err := sub.msgpackObject(nil)
	for ; err == nil && due > 0; due-- {
		var item ref
		var nested uint32
		if item, nested, err = sub.msgpackObject(nil); nested > 0 {
			err = ErrMalformed
		}
		m.push(item)
	}
	items := m.stack[from:]
	m.stack = m.stack[:from]
	if err != nil || sub.i != len(sub.b) || m.nodes[r].kind == Dict {
		return 0, 0, ErrMalformed
	}
	m.append(r, items)
	m.i = sub.i
	raw, _, err := m.msgpackPayload(Bytes, uint32(end-uint64(m.pos())))
	if raw == refInvalid {
		return 0, 0, err
	}
	out := m.add(node{kind: Tuple})
	m.append(out, []ref{r, raw})
	return out, 0, err
}

// mpInt is the value of an int; ok is false if it does not fit.
func mpInt(op byte, b []byte) (i int64, ok bool) {
	if op < 0x80 || op >= 0xe0 {
		return int64(int8(op)), true
	}
	u := uint64(0)
	for _, c := range b {
		u = u<<8 | uint64(c)
	}
	if op >= mpInt8 {
		shift := 64 - 8*len(b)
		return int64(u<<shift) >> shift, true
	}
	return int64(u), u <= math.MaxInt64
}
