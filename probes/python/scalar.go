package python

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// whole reads an object whose size f finds in its first head bytes, and returns it
// when two looks show the same. Memory that was freed and used again may be half
// old and half new at one look, but hardly the same way at the next.
func (v Value) whole(head int, f func(b []byte) (int, error)) ([]byte, error) {
	// The first look learns the size, the others read that much at once.
	size := head
	look := func() ([]byte, error) {
		b, err := v.object(size)
		if err != nil {
			return nil, err
		}
		n, err := f(b)
		if err != nil {
			return nil, err
		}
		if n > size {
			size = n
			if b, err = v.object(size); err != nil {
				return nil, err
			}
			if n2, err := f(b); err != nil || n2 != n {
				return nil, fmt.Errorf("object at %#x: %w", v.addr, ErrUnstable)
			}
		}
		return b[:max(n, head)], v.still()
	}
	return attempt(v, func() ([]byte, error) {
		b, err := look()
		if err != nil {
			return nil, err
		}
		again, err := look()
		if err != nil {
			return nil, err
		}
		if !v.equal(b, again) {
			return nil, fmt.Errorf("object at %#x: %w", v.addr, ErrUnstable)
		}
		return again, nil
	})
}

// equal compares two looks at an object, leaving out what changes while the value
// does not: the reference count, and the hash of a str or bytes, which is filled
// in when it is first needed.
func (v Value) equal(a, b []byte) bool {
	if len(a) != len(b) || !bytes.Equal(a[objType:objSize+8], b[objType:objSize+8]) {
		return false
	}
	rest := objSize + 8
	if v.typ.flags&(flagUnicode|flagBytes) != 0 {
		rest += 8 // both have it after the size
	}
	if len(a) <= rest {
		return true
	}
	return bytes.Equal(a[rest:], b[rest:])
}

// Bool returns the value of a bool.
func (v Value) Bool() (bool, error) {
	switch {
	case v.in == nil || v.addr != v.in.true_ && v.addr != v.in.false_:
		return false, v.wrongType("bool")
	}
	return v.addr == v.in.true_, nil
}

// Int returns the value of an int, also of a bool or another subclass. One that
// does not fit gives ErrLimit.
func (v Value) Int() (int64, error) {
	if err := v.need(flagLong, "int"); err != nil {
		return 0, err
	}
	b, err := v.whole(v.in.layout.LongDigits, v.intSize)
	if err != nil {
		return 0, err
	}
	return v.intValue(b)
}

// intHead reads the number of digits and the sign of an int.
func (v Value) intHead(b []byte) (n int, neg bool, err error) {
	l := &v.in.layout
	digits := uint64(0)
	if l.LongTag >= 0 {
		tag := u64at(b, l.LongTag)
		if tag&3 == 3 {
			return 0, false, corrupt(v.addr, "sign of an int")
		}
		neg, digits = tag&3 == 2, tag>>3
	} else {
		s := int64(u64at(b, l.VarSize))
		if neg = s < 0; neg {
			s = -s
		}
		digits = uint64(s)
	}
	if digits > 3 { // 3 digits of 30 bits hold 64 bits
		return 0, false, fmt.Errorf("int of %d digits: %w", digits, ErrLimit)
	}
	return int(digits), neg, nil
}

// intSize returns the size of an int of which the head is known.
func (v Value) intSize(b []byte) (int, error) {
	n, _, err := v.intHead(b)
	return v.in.layout.LongDigits + 4*n, err
}

// intValue returns the value of an int that is all there.
func (v Value) intValue(b []byte) (int64, error) {
	n, neg, err := v.intHead(b)
	if err != nil {
		return 0, err
	}
	var u uint64
	for i := range n {
		d := le.Uint32(b[v.in.layout.LongDigits+4*i:])
		if d >= 1<<30 {
			return 0, corrupt(v.addr, "digit of an int")
		}
		if i == 2 && d >= 1<<4 {
			return 0, fmt.Errorf("int of more than 64 bits: %w", ErrLimit)
		}
		u |= uint64(d) << (30 * i)
	}
	switch {
	case !neg && u <= math.MaxInt64:
		return int64(u), nil
	case neg && u <= 1<<63:
		return int64(-u), nil
	}
	return 0, fmt.Errorf("int of 64 bits and a sign: %w", ErrLimit)
}

// Float returns the value of a float.
func (v Value) Float() (float64, error) {
	if v.in == nil || !v.in.subclass(v.typ, v.in.floatType) {
		return 0, v.wrongType("float")
	}
	off := v.in.layout.FloatValue
	b, err := v.whole(off+8, func([]byte) (int, error) { return off + 8, nil })
	if err != nil {
		return 0, err
	}
	return math.Float64frombits(u64at(b, off)), nil
}

// Number returns the value of a float or an int as a float64.
func (v Value) Number() (float64, error) {
	if v.in != nil && v.typ.flags&flagLong != 0 {
		n, err := v.Int()
		return float64(n), err
	}
	return v.Float()
}

// Bytes returns a copy of a bytes object.
func (v Value) Bytes() ([]byte, error) {
	if err := v.need(flagBytes, "bytes"); err != nil {
		return nil, err
	}
	l := &v.in.layout
	n := 0
	b, err := v.whole(l.BytesData, func(b []byte) (int, error) {
		size := int64(u64at(b, l.VarSize))
		if size < 0 {
			return 0, corrupt(v.addr, "size of a bytes object")
		}
		if size > maxStr {
			return 0, fmt.Errorf("bytes object of %d bytes: %w", size, ErrLimit)
		}
		n = int(size)
		return l.BytesData + n, nil
	})
	if err != nil {
		return nil, err
	}
	return b[l.BytesData : l.BytesData+n], nil
}

// strHead is the part of a str that says how the rest is to be read.
type strHead struct {
	length  int // code points
	kind    int // bytes per code point
	compact bool
	ascii   bool
}

func (in *Interp) strHead(addr uint64, b []byte) (strHead, error) {
	l := &in.layout
	n := int64(u64at(b, l.StrLength))
	state := le.Uint32(b[l.StrState:])
	bit := func(pos int) bool { return state>>pos&1 != 0 }
	h := strHead{
		kind:    int(state >> l.StrKindShift & 7),
		compact: bit(l.StrCompactBit),
		ascii:   bit(l.StrASCIIBit),
	}
	switch {
	case l.StrReadyBit >= 0 && !bit(l.StrReadyBit):
		return h, fmt.Errorf("str at %#x is in the legacy form: %w", addr, ErrUnsupported)
	case h.kind != 1 && h.kind != 2 && h.kind != 4, h.ascii && h.kind != 1, n < 0:
		return h, corrupt(addr, "state of a str")
	case n > maxStr/int64(h.kind):
		return h, fmt.Errorf("str of %d code points: %w", n, ErrLimit)
	}
	h.length = int(n)
	return h, nil
}

// dataOffset is where the text is in a compact str.
func (h strHead) dataOffset(l *layout) int {
	if h.ascii {
		return l.StrASCIISize
	}
	return l.StrCompactSize
}

// Str returns the text of a str. Lone surrogates become U+FFFD.
func (v Value) Str() (string, error) {
	if err := v.need(flagUnicode, "str"); err != nil {
		return "", err
	}
	l := &v.in.layout
	return attempt(v, func() (string, error) {
		var h strHead
		b, err := v.whole(l.StrASCIISize, func(b []byte) (int, error) {
			var err error
			if h, err = v.in.strHead(v.addr, b); err != nil {
				return 0, err
			}
			if h.compact {
				return h.dataOffset(l) + h.length*h.kind, nil
			}
			return l.StrData + 8, nil // an instance of a subclass: the text is elsewhere
		})
		if err != nil {
			return "", err
		}
		var data []byte
		if h.compact {
			data = b[h.dataOffset(l):][:h.length*h.kind]
		} else {
			data = make([]byte, h.length*h.kind)
			again := make([]byte, len(data))
			for _, to := range [][]byte{data, again} {
				if err := v.in.readSome(u64at(b, l.StrData), to); err != nil {
					return "", err
				}
			}
			if !bytes.Equal(data, again) {
				return "", fmt.Errorf("object at %#x: %w", v.addr, ErrUnstable)
			}
			if err := v.still(); err != nil {
				return "", err
			}
		}
		return decode(data, h, v.addr)
	})
}

func decode(data []byte, h strHead, addr uint64) (string, error) {
	switch h.kind {
	case 1:
		for _, c := range data {
			if c >= utf8.RuneSelf {
				if h.ascii {
					return "", corrupt(addr, "ASCII str with another byte")
				}
				r := make([]rune, len(data))
				for i, c := range data {
					r[i] = rune(c)
				}
				return string(r), nil
			}
		}
		return string(data), nil
	case 2:
		r := make([]rune, h.length)
		for i := range r {
			r[i] = rune(le.Uint16(data[2*i:]))
			if utf16.IsSurrogate(r[i]) {
				r[i] = utf8.RuneError
			}
		}
		return string(r), nil
	}
	r := make([]rune, h.length)
	for i := range r {
		c := le.Uint32(data[4*i:])
		if c > utf8.MaxRune {
			return "", corrupt(addr, "str with a code point out of range")
		}
		r[i] = rune(c) // string() replaces surrogates
	}
	return string(r), nil
}
