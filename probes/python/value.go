package python

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Value is a reference to an object in the process. It holds no copy of the
// object: each call reads what is there now. The zero Value refers to nothing,
// and all reads of it fail with ErrNotFound.
type Value struct {
	in   *Interp
	addr uint64
	typ  typeInfo
	from *chain // how it was reached; nil if by nothing that can be looked at again
}

// chain is a list of words in memory by which an object was reached: as long as
// they have not changed, the object is alive and what it was. The last is first.
type chain struct {
	up   *chain
	addr uint64
	want uint64
}

// maxChain is how far back a chain is checked. What is farther up was reached
// through modules and classes, which stay.
const maxChain = 48

func (c *chain) add(addr, want uint64) *chain { return &chain{c, addr, want} }

// typeInfo is what is needed of a PyTypeObject.
type typeInfo struct {
	addr       uint64
	meta       uint64 // its own type
	name       uint64 // C string
	basicSize  int64
	itemSize   int64
	flags      uint64
	dict       uint64
	mro        uint64
	dictOffset int64
	descrSet   uint64
}

// Kind is the kind of object that a Value refers to; a subclass has the kind of
// the built-in type it is made from.
type Kind uint8

// Kinds.
const (
	Other Kind = iota
	None
	Bool
	Int
	Float
	Str
	Bytes
	List
	Tuple
	Dict
	Set // set or frozenset
	Type
)

// value makes a Value of the object at addr, after checking that its type is one.
func (in *Interp) value(addr uint64, from *chain) (Value, error) {
	if addr == 0 || addr%8 != 0 {
		return Value{}, corrupt(addr, "bad address")
	}
	typ, err := in.u64(addr + objType)
	if err != nil {
		return Value{}, err
	}
	ti, err := in.typeInfo(typ)
	if err != nil {
		return Value{}, err
	}
	return Value{in: in, addr: addr, typ: ti, from: from}, nil
}

// follow makes a Value of the object that the pointer at slot refers to. An empty
// slot gives ErrNotFound. up is how the slot was reached.
func (in *Interp) follow(slot uint64, up *chain) (Value, error) {
	return retry(func() (Value, error) {
		addr, err := in.u64(slot)
		if err != nil {
			return Value{}, err
		}
		if addr == 0 {
			return Value{}, cmpErr(in.still(up), ErrNotFound)
		}
		from := up.add(slot, addr)
		v, err := in.value(addr, from)
		if err != nil {
			return Value{}, err
		}
		return v, in.still(from)
	})
}

// cmpErr returns the first error that is not nil.
func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// still checks that a chain is as it was.
func (in *Interp) still(c *chain) error {
	var addrs, want [maxChain]uint64
	n := 0
	for ; c != nil && n < maxChain; c = c.up {
		addrs[n], want[n] = c.addr, c.want
		n++
	}
	if n == 0 {
		return nil
	}
	buf, err := in.batch(addrs[:n], 8)
	if err != nil {
		return err
	}
	for i := range n {
		if u64at(buf, 8*i) != want[i] {
			return fmt.Errorf("reference at %#x: %w", addrs[i], ErrUnstable)
		}
	}
	return nil
}

// still checks that the object is still where it was found.
func (v Value) still() error { return v.in.still(v.from) }

// settle turns an error of reading v into ErrUnstable if it may come from memory
// that is no longer v.
func settle[T any](v Value, t T, err error) (T, error) {
	if err == nil || v.in == nil || errors.Is(err, ErrGone) || errors.Is(err, ErrUnstable) {
		return t, err
	}
	if serr := v.still(); serr != nil {
		return t, serr
	}
	return t, err
}

func (in *Interp) typeInfo(addr uint64) (typeInfo, error) {
	l := &in.layout
	if addr == 0 || addr%8 != 0 {
		return typeInfo{}, corrupt(addr, "bad address of a type")
	}
	buf := make([]byte, l.TypeMRO+8)
	if err := in.read(addr, buf); err != nil {
		return typeInfo{}, err
	}
	t := typeInfo{
		addr:       addr,
		meta:       u64at(buf, objType),
		name:       u64at(buf, l.TypeName),
		basicSize:  int64(u64at(buf, l.TypeBasicSize)),
		itemSize:   int64(u64at(buf, l.TypeItemSize)),
		flags:      u64at(buf, l.TypeFlags),
		dict:       u64at(buf, l.TypeDict),
		mro:        u64at(buf, l.TypeMRO),
		dictOffset: int64(u64at(buf, l.TypeDictOffset)),
		descrSet:   u64at(buf, l.TypeDescrSet),
	}
	// The type of a type is a subclass of type. (type is its own type.)
	meta, err := in.u64(t.meta + uint64(l.TypeFlags))
	if err != nil {
		return typeInfo{}, err
	}
	if meta&flagType == 0 {
		return typeInfo{}, corrupt(addr, "not a type")
	}
	if t.basicSize < 16 || t.basicSize > 1<<24 || t.itemSize < 0 || t.itemSize > 1<<20 {
		return typeInfo{}, corrupt(addr, "sizes of a type")
	}
	return t, nil
}

func (v Value) need(flag uint64, what string) error {
	if v.in == nil {
		return fmt.Errorf("reading no object: %w", ErrNotFound)
	}
	if v.typ.flags&flag == 0 {
		return v.wrongType(what)
	}
	return nil
}

func (v Value) wrongType(want string) error {
	if v.in == nil {
		return fmt.Errorf("reading no object: %w", ErrNotFound)
	}
	return fmt.Errorf("object of type %s, want %s: %w", v.TypeName(), want, ErrType)
}

// Addr returns the address of the object, 0 for the zero Value.
func (v Value) Addr() uint64 { return v.addr }

// Is reports whether both refer to the same object.
func (v Value) Is(w Value) bool { return v.in == w.in && v.addr == w.addr }

// IsNone reports whether v refers to None.
func (v Value) IsNone() bool { return v.in != nil && v.addr == v.in.none }

func (v Value) isType() bool { return v.typ.flags&flagType != 0 }

// Type returns the class of the object.
func (v Value) Type() (Value, error) {
	if v.in == nil {
		return Value{}, v.wrongType("any")
	}
	return v.in.value(v.typ.addr, v.from.add(v.addr+objType, v.typ.addr))
}

// Kind returns the kind of the object.
func (v Value) Kind() Kind {
	if v.in == nil {
		return Other
	}
	f := v.typ.flags
	switch {
	case v.addr == v.in.none:
		return None
	case v.typ.addr == v.in.boolType:
		return Bool
	case f&flagLong != 0:
		return Int
	case f&flagUnicode != 0:
		return Str
	case f&flagBytes != 0:
		return Bytes
	case f&flagList != 0:
		return List
	case f&flagTuple != 0:
		return Tuple
	case f&flagDict != 0:
		return Dict
	case f&flagType != 0:
		return Type
	case v.in.subclass(v.typ, v.in.floatType):
		return Float
	case v.in.subclass(v.typ, v.in.setType), v.in.subclass(v.typ, v.in.frozensetType):
		return Set
	}
	return Other
}

// TypeName returns the name of the object's class without its module; "" if it
// cannot be read.
func (v Value) TypeName() string {
	if v.in == nil {
		return ""
	}
	return v.in.typeName(v.typ)
}

// Name returns the name of the class that v refers to, without its module.
func (v Value) Name() (string, error) {
	if err := v.need(flagType, "type"); err != nil {
		return "", err
	}
	if n := v.typeNameOf(); n != "" {
		return n, nil
	}
	return "", corrupt(v.addr, "name of a type")
}

func (v Value) typeNameOf() string {
	t, err := v.in.typeInfo(v.addr)
	if err != nil {
		return ""
	}
	return v.in.typeName(t)
}

func (in *Interp) typeName(t typeInfo) string {
	s, err := in.cString(t.name)
	if err != nil {
		return ""
	}
	return s[strings.LastIndexByte(s, '.')+1:]
}

// cString reads a string of at most maxName bytes.
func (in *Interp) cString(addr uint64) (string, error) {
	var buf []byte
	for len(buf) < maxName {
		// Up to the next multiple of 32, so as not to cross into an unmapped page.
		chunk := make([]byte, 32-addr%32)
		if err := in.read(addr, chunk); err != nil {
			return "", err
		}
		for i, c := range chunk {
			if c == 0 {
				buf = append(buf, chunk[:i]...)
				if !utf8.Valid(buf) {
					return "", corrupt(addr, "name is not UTF-8")
				}
				return string(buf), nil
			}
		}
		buf = append(buf, chunk...)
		addr += uint64(len(chunk))
	}
	return "", fmt.Errorf("name at %#x: %w", addr, ErrLimit)
}

// object reads the first n bytes of the object and checks that it still has the
// type it had.
func (v Value) object(n int) ([]byte, error) {
	if v.in == nil {
		return nil, fmt.Errorf("reading no object: %w", ErrNotFound)
	}
	buf := make([]byte, n)
	if err := v.in.read(v.addr, buf); err != nil {
		return nil, err
	}
	if u64at(buf, objType) != v.typ.addr {
		return nil, fmt.Errorf("object at %#x became another: %w", v.addr, ErrUnstable)
	}
	return buf, nil
}

// whole reads an object whose size f finds in its first head bytes, and returns it
// when two looks show the same. Memory that was freed and used again may be half
// old and half new at one look, but hardly the same way at the next.
func (v Value) whole(head int, f func(b []byte) (int, error)) ([]byte, error) {
	look := func() ([]byte, error) {
		h, err := v.object(head)
		if err != nil {
			return nil, err
		}
		n, err := f(h)
		if err != nil {
			return nil, err
		}
		b, err := v.object(max(n, head))
		if err != nil {
			return nil, err
		}
		if n2, err := f(b); err != nil || n2 != n {
			return nil, fmt.Errorf("object at %#x: %w", v.addr, ErrUnstable)
		}
		return b, v.still()
	}
	b, err := retry(func() ([]byte, error) {
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
	return settle(v, b, err)
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
	l := &v.in.layout
	var neg bool
	var n uint64
	b, err := v.whole(l.LongDigits, func(b []byte) (int, error) {
		if l.LongTag >= 0 {
			tag := u64at(b, l.LongTag)
			if tag&3 == 3 {
				return 0, corrupt(v.addr, "sign of an int")
			}
			neg, n = tag&3 == 2, tag>>3
		} else {
			s := int64(u64at(b, l.VarSize))
			if neg = s < 0; neg {
				s = -s
			}
			n = uint64(s)
		}
		if n > 3 { // 3 digits of 30 bits hold 64 bits
			return 0, fmt.Errorf("int of %d digits: %w", n, ErrLimit)
		}
		return l.LongDigits + 4*int(n), nil
	})
	if err != nil {
		return 0, err
	}
	var u uint64
	for i := range int(n) {
		d := le.Uint32(b[l.LongDigits+4*i:])
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
	text, err := retry(func() (string, error) {
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
	return settle(v, text, err)
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
