package python

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
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
	up    *chain
	addr  uint64
	want  uint64
	least bool // the word may grow, too: the size of a list whose element is in use
}

// maxChain is how far back a chain is checked. What is farther up was reached
// through modules and classes, which stay.
const maxChain = 64

func (c *chain) add(addr, want uint64) *chain { return &chain{c, addr, want, false} }

func (c *chain) addLeast(addr, want uint64) *chain { return &chain{c, addr, want, true} }

// holds reports whether a word is as it was.
func (c *chain) holds(word uint64) bool { return word == c.want || c.least && word > c.want }

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
	vectorcall int64  // offset in instances, if they have one
	subclasses uint64 // 3.12+, built-in types: their number
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
	Deque // collections.deque
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

// objects makes Values of many objects, without a way to them, and returns the first
// size bytes of each.
func (in *Interp) objects(addrs []uint64, size int) ([]Value, []byte, error) {
	heads, err := in.batch(addrs, size)
	if err != nil {
		return nil, nil, err
	}
	types := make(map[uint64]typeInfo)
	out := make([]Value, len(addrs))
	for i, addr := range addrs {
		if addr == 0 || addr%8 != 0 {
			return nil, nil, corrupt(addr, "bad address")
		}
		typ := u64at(heads, size*i+objType)
		ti, ok := types[typ]
		if !ok {
			if ti, err = in.typeInfo(typ); err != nil {
				return nil, nil, err
			}
			types[typ] = ti
		}
		out[i] = Value{in: in, addr: addr, typ: ti}
	}
	if len(types) < len(addrs) {
		// A type that was read for one object must still be it for the last.
		for typ, ti := range types {
			if again, err := in.typeInfo(typ); err != nil || again != ti {
				return nil, nil, fmt.Errorf("type at %#x: %w", typ, ErrUnstable)
			}
		}
	}
	return out, heads, nil
}

// follow makes a Value of the object that the pointer at slot refers to. An empty
// slot gives ErrNotFound. up is how the slot was reached.
func (in *Interp) follow(slot uint64, up *chain) (Value, error) {
	return attempt(Value{in: in, from: up}, func() (Value, error) {
		addr, err := in.u64(slot)
		if err != nil {
			return Value{}, err
		}
		if addr == 0 {
			return Value{}, firstErr(in.still(up), ErrNotFound)
		}
		from := up.add(slot, addr)
		v, err := in.value(addr, from)
		if err != nil {
			return Value{}, err
		}
		return v, in.still(from)
	})
}

// firstErr returns the first error that is not nil.
func firstErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// followFrame is follow for a reference in a frame, which may have tags.
func (in *Interp) followFrame(slot uint64, up *chain) (Value, error) {
	if in.layout.FrameTags == 0 {
		return in.follow(slot, up)
	}
	return attempt(Value{in: in, from: up}, func() (Value, error) {
		word, err := in.u64(slot)
		if err != nil {
			return Value{}, err
		}
		if word&frameTags == frameTags {
			return Value{}, corrupt(slot, "tagged number")
		}
		addr := word &^ frameTags
		if addr == 0 {
			return Value{}, cmp.Or(in.still(up), ErrNotFound)
		}
		from := up.add(slot, word)
		v, err := in.value(addr, from)
		if err != nil {
			return Value{}, err
		}
		return v, in.still(from)
	})
}

// still checks that a chain is as it was.
func (in *Interp) still(c *chain) error {
	var addrs [maxChain]uint64
	var links [maxChain]*chain
	n := 0
	for ; c != nil && n < maxChain; c = c.up {
		addrs[n], links[n] = c.addr, c
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
		if !links[i].holds(u64at(buf, 8*i)) {
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
	if t, ok := in.types[addr]; ok {
		return t, nil
	}
	if addr == 0 || addr%8 != 0 {
		return typeInfo{}, corrupt(addr, "bad address of a type")
	}
	buf := make([]byte, l.TypeSubclasses+8)
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
		vectorcall: int64(u64at(buf, l.TypeVectorcall)),
		subclasses: u64at(buf, l.TypeSubclasses),
	}
	// The type of a type is a subclass of type. (type is its own type.)
	if t.meta != in.typeType || in.types == nil {
		meta, err := in.u64(t.meta + uint64(l.TypeFlags))
		if err != nil {
			return typeInfo{}, err
		}
		if meta&flagType == 0 {
			return typeInfo{}, corrupt(addr, "not a type")
		}
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

// ClassAddr returns the address of the object's class.
func (v Value) ClassAddr() uint64 { return v.typ.addr }

// Is reports whether both refer to the same object.
func (v Value) Is(w Value) bool { return v.in == w.in && v.addr == w.addr }

// IsNone reports whether v refers to None.
func (v Value) IsNone() bool { return v.in != nil && v.addr == v.in.none }

// builtin reports whether the object is of exactly this type of the interpreter
// itself: one of another name or made by a class statement is not.
func (v Value) builtin(name string) bool {
	if v.in == nil || v.typ.flags&flagHeapType != 0 {
		return false
	}
	s, err := v.in.cString(v.typ.name)
	return err == nil && s == name
}

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
	case v.typ.basicSize <= objSize: // none of the types below is as small
		return Other
	}
	mro, err := v.in.mro(v.typ)
	if err != nil {
		return Other
	}
	for _, t := range mro {
		switch t {
		case v.in.floatType:
			return Float
		case v.in.setType, v.in.frozensetType:
			return Set
		}
	}
	if v.isDeque() {
		return Deque
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
