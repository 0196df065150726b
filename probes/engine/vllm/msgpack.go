package vllm

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/tinylib/msgp/msgp"
)

// Why a message could not be read.
var (
	errShort = errors.New("message ends early")
	errType  = errors.New("unexpected type")
	errRange = errors.New("value out of range")
	errTrail = errors.New("bytes after the message")
	errField = errors.New("fields are not those of this version")
)

// First bytes of msgpack objects.
const (
	mpNil      = 0xc0
	mpFalse    = 0xc2
	mpTrue     = 0xc3
	mpFloat32  = 0xca
	mpFloat64  = 0xcb
	mpUint8    = 0xcc
	mpInt64    = 0xd3
	mpFixMap   = 0x80
	mpFixArray = 0x90
	mpFixStr   = 0xa0
)

// object describes the msgpack object at the start of b: head is the length of
// its type and length bytes, body that of the payload, more the objects nested
// directly in it. It fails if head or body are not all there.
func object(b []byte) (head, body, more int, err error) {
	if len(b) == 0 {
		return 0, 0, 0, errShort
	}
	c := b[0]
	n := 0 // bytes of the length
	switch {
	case c < 0x80 || c >= 0xe0 || c == mpNil || c == mpFalse || c == mpTrue:
		return 1, 0, 0, nil
	case c < 0x90:
		return 1, 0, 2 * int(c&0x0f), nil
	case c < 0xa0:
		return 1, 0, int(c & 0x0f), nil
	case c < 0xc0:
		head, body = 1, int(c&0x1f)
	default:
		switch c {
		case 0xc4, 0xc7, 0xd9:
			n = 1
		case 0xc5, 0xc8, 0xda, 0xdc, 0xde:
			n = 2
		case 0xc6, 0xc9, 0xdb, 0xdd, 0xdf:
			n = 4
		case 0xcc, 0xd0:
			body = 1
		case 0xcd, 0xd1:
			body = 2
		case 0xca, 0xce, 0xd2:
			body = 4
		case 0xcb, 0xcf, 0xd3:
			body = 8
		case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // ext of 1, 2, 4, 8, 16 bytes
			return fits(b, 2, 1<<(c-0xd4))
		default: // 0xc1 is never used
			return 0, 0, 0, errType
		}
		head = 1 + n
		if len(b) < head {
			return 0, 0, 0, errShort
		}
		size := uint64(0)
		switch n {
		case 0:
			return fits(b, head, body)
		case 1:
			size = uint64(b[1])
		case 2:
			size = uint64(binary.BigEndian.Uint16(b[1:]))
		case 4:
			size = uint64(binary.BigEndian.Uint32(b[1:]))
		}
		switch c {
		case 0xdc, 0xdd:
			return head, 0, int(size), nil
		case 0xde, 0xdf:
			return head, 0, 2 * int(size), nil
		case 0xc7, 0xc8, 0xc9:
			head++ // type of the extension
		}
		body = int(size)
	}
	return fits(b, head, body)
}

func fits(b []byte, head, body int) (int, int, int, error) {
	if len(b) < head+body {
		return 0, 0, 0, errShort
	}
	return head, body, 0, nil
}

// skipObject returns what follows the object at the start of b.
func skipObject(b []byte) ([]byte, error) {
	rest, _, err := skipObjects(b, math.MaxInt)
	return rest, err
}

// skipObjects is skipObject that gives up with errRange after budget nested
// objects, and returns what is left of the budget. It does not recurse, so
// nesting costs no stack.
func skipObjects(b []byte, budget int) ([]byte, int, error) {
	for due := 1; due > 0; due-- {
		if budget--; budget < 0 {
			return b, 0, errRange
		}
		head, body, more, err := object(b)
		if err != nil {
			return b, budget, err
		}
		b = b[head+body:]
		due += more
		if due-1 > len(b) { // every object has a byte or more
			return b, budget, errShort
		}
	}
	return b, budget, nil
}

// reader reads msgpack from the front of b. The first error sticks: later reads
// give zero values and leave b alone.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// took ends a read by msgp.
func (r *reader) took(rest []byte, err error) bool {
	if err == nil {
		r.b = rest
		return true
	}
	if err == msgp.ErrShortBytes {
		r.fail(errShort)
	} else {
		r.fail(errType)
	}
	return false
}

// peek is the first byte of the next object, 0xc1 (never used) after an error.
func (r *reader) peek() byte {
	if r.err != nil {
		return 0xc1
	}
	if len(r.b) == 0 {
		r.fail(errShort)
		return 0xc1
	}
	return r.b[0]
}

// null consumes a nil; false if the next object is not one.
func (r *reader) null() bool {
	if r.err == nil && len(r.b) > 0 && r.b[0] == mpNil {
		r.b = r.b[1:]
		return true
	}
	return false
}

func (r *reader) skip() {
	if r.err != nil {
		return
	}
	rest, err := skipObject(r.b)
	if err != nil {
		r.fail(err)
		return
	}
	r.b = rest
}

// array reads an array header. The count may be larger than what follows.
func (r *reader) array() int {
	c := r.peek()
	if c&0xf0 == mpFixArray {
		r.b = r.b[1:]
		return int(c & 0x0f)
	}
	if r.err != nil {
		return 0
	}
	if !isArray(c) {
		r.fail(errType)
		return 0
	}
	n, rest, err := msgp.ReadArrayHeaderBytes(r.b)
	if !r.took(rest, err) {
		return 0
	}
	return int(n)
}

func (r *reader) mapping() int {
	c := r.peek()
	if r.err != nil {
		return 0
	}
	if !isMap(c) {
		r.fail(errType)
		return 0
	}
	n, rest, err := msgp.ReadMapHeaderBytes(r.b)
	if !r.took(rest, err) {
		return 0
	}
	return int(n)
}

// str reads a string, which aliases the message.
func (r *reader) str() []byte {
	c := r.peek()
	if r.err != nil {
		return nil
	}
	if !isString(c) {
		r.fail(errType)
		return nil
	}
	s, rest, err := msgp.ReadStringZC(r.b)
	if !r.took(rest, err) {
		return nil
	}
	return s
}

func (r *reader) int() int64 {
	c := r.peek()
	if c < 0x80 {
		r.b = r.b[1:]
		return int64(c)
	}
	if r.err != nil {
		return 0
	}
	if !isInt(c) {
		r.fail(errType)
		return 0
	}
	v, rest, err := msgp.ReadInt64Bytes(r.b)
	if !r.took(rest, err) {
		return 0
	}
	return v
}

// float reads a number as a float.
func (r *reader) float() float64 {
	switch c := r.peek(); {
	case r.err != nil:
		return 0
	case c == mpFloat64:
		v, rest, err := msgp.ReadFloat64Bytes(r.b)
		r.took(rest, err)
		return v
	case c == mpFloat32:
		v, rest, err := msgp.ReadFloat32Bytes(r.b)
		r.took(rest, err)
		return float64(v)
	}
	return float64(r.int())
}

// ext reads an extension object, whose data aliases the message.
func (r *reader) ext() (kind int8, data []byte) {
	c := r.peek()
	if r.err != nil {
		return 0, nil
	}
	if !isExt(c) {
		r.fail(errType)
		return 0, nil
	}
	head, body, _, err := object(r.b)
	if err != nil {
		r.fail(err)
		return 0, nil
	}
	kind, data = int8(r.b[head-1]), r.b[head:head+body]
	r.b = r.b[head+body:]
	return kind, data
}

func isArray(c byte) bool  { return c&0xf0 == mpFixArray || c == 0xdc || c == 0xdd }
func isMap(c byte) bool    { return c&0xf0 == mpFixMap || c == 0xde || c == 0xdf }
func isString(c byte) bool { return c&0xe0 == mpFixStr || c >= 0xd9 && c <= 0xdb }
func isInt(c byte) bool    { return c < 0x80 || c >= 0xe0 || c >= mpUint8 && c <= mpInt64 }
func isFloat(c byte) bool  { return c == mpFloat32 || c == mpFloat64 }
func isExt(c byte) bool    { return c >= 0xc7 && c <= 0xc9 || c >= 0xd4 && c <= 0xd8 }
