// Package pickle reads messages of Python processes as plain data: pickles of
// protocols 2 to 5, and MessagePack, which engines mix with them in one message.
// It never imports, calls or builds anything that a stream names: classes and
// calls stay names with their arguments. Streams are untrusted: what a Decoder
// allocates is at most some 40 times the length of the stream, and no value is
// built by recursion.
//
// Lists of numbers are not built but counted, and read where they lie in the
// stream when a caller asks for them.
package pickle

import (
	"encoding/binary"
	"iter"
	"math"
)

// Kind is the type of a Value.
type Kind uint8

// Kinds of values.
const (
	Invalid   Kind = iota // no value
	None                  // None
	Bool                  // bool
	Int                   // int, of any size
	Float                 // float
	String                // str
	Bytes                 // bytes
	ByteArray             // bytearray
	List                  // list
	Tuple                 // tuple
	Dict                  // dict
	Set                   // set
	FrozenSet             // frozenset
	Global                // a class or function, by name
	Object                // the result of a call that was not made
	Opaque                // a persistent id, an out-of-band buffer, or lost with missing bytes
	mark                  // on the stack only
)

var kindNames = [...]string{"invalid", "None", "bool", "int", "float", "str", "bytes", "bytearray", "list", "tuple", "dict", "set",
	"frozenset", "global", "object", "opaque", "mark"}

func (k Kind) String() string { return kindNames[k] }

// ref is the index of a node.
type ref uint32

// Nodes that every Decoder has.
const (
	refInvalid ref = iota
	refNone
	refFalse
	refTrue
	refEmpty // ()
	refOpaque
	refFixed // first of the stream's own
)

// node is one value.
type node struct {
	kind Kind
	op   byte // opcode or first byte: how a scalar is encoded
	open bool // something of it may be missing
	off  uint32
	// n is the length of a payload, or the number of items.
	n uint32
	// a and b are the first and last chunk of items, or: of a global, the nodes of
	// module and name; of an object, its index in objs.
	a, b uint32
}

// chunk is a part of a container's items: nodes items[from:to], or, if raw, the
// scalars that are encoded at from..to of the stream. Index 0 ends a list.
type chunk struct {
	from, to, n, next uint32
	raw               bool
}

// object is a call or a class with a state.
type object struct {
	callee, args, kwargs, state ref
	items, pairs                ref // list and dict of items that were added to it
}

// Decoder reads streams. It keeps its memory for the next one. It must be used
// by one goroutine at a time.
type Decoder struct {
	head, tail []byte
	tailAt     uint32 // offset of tail in the stream
	msgpack    bool

	nodes  []node
	chunks []chunk
	items  []ref
	objs   []object
	memo   []ref
	stack  []ref
	marks  []uint32
	seen   []bool // marked by Keep
	work   []ref
}

func (d *Decoder) reset(head, tail []byte, size int, msgpack bool) {
	d.head, d.tail, d.msgpack = head, tail, msgpack
	d.tailAt = uint32(size - len(tail))
	d.nodes = append(d.nodes[:0],
		node{}, node{kind: None}, node{kind: Bool}, node{kind: Bool, n: 1}, node{kind: Tuple}, node{kind: Opaque})
	d.chunks = append(d.chunks[:0], chunk{})
	clear(d.seen)
	d.items, d.objs, d.memo, d.stack, d.marks = d.items[:0], d.objs[:0], d.memo[:0], d.stack[:0], d.marks[:0]
}

func (d *Decoder) add(n node) ref {
	d.nodes = append(d.nodes, n)
	return ref(len(d.nodes) - 1)
}

// append adds items to a container.
func (d *Decoder) append(to ref, items []ref) {
	if len(items) == 0 {
		return
	}
	n := &d.nodes[to]
	n.n += uint32(len(items))
	if c := &d.chunks[n.b]; n.b != 0 && !c.raw && int(c.to) == len(d.items) {
		d.items = append(d.items, items...)
		c.to = uint32(len(d.items))
		c.n += uint32(len(items))
		return
	}
	from := len(d.items)
	d.items = append(d.items, items...)
	d.link(n, chunk{from: uint32(from), to: uint32(len(d.items)), n: uint32(len(items))})
}

// appendRaw adds n scalars that lie at from..to of the stream.
func (d *Decoder) appendRaw(to ref, from, end, count uint32) {
	n := &d.nodes[to]
	n.n += count
	d.link(n, chunk{from: from, to: end, n: count, raw: true})
}

func (d *Decoder) link(n *node, c chunk) {
	d.chunks = append(d.chunks, c)
	i := uint32(len(d.chunks) - 1)
	if n.b != 0 {
		d.chunks[n.b].next = i
	} else {
		n.a = i
	}
	n.b = i
}

// bytes are n bytes of the stream at off; nil if some of them are missing.
func (d *Decoder) bytes(off, n uint32) []byte {
	end := uint64(off) + uint64(n)
	if end <= uint64(len(d.head)) {
		return d.head[off:end:end]
	}
	if off >= d.tailAt && end <= uint64(d.tailAt)+uint64(len(d.tail)) {
		return d.tail[off-d.tailAt : end-uint64(d.tailAt)]
	}
	return nil
}

// Value is one value of a stream. It and all bytes it gives are valid until the
// Decoder's next use; they alias the stream. A value may hold itself: consumers
// go by the names of fields. The zero Value is invalid.
type Value struct {
	d   *Decoder
	ref ref
	// off and op are those of a scalar in a raw chunk, which has no node.
	off uint32
	op  byte
	raw bool
}

func (d *Decoder) value(r ref) Value {
	if r == refInvalid {
		return Value{}
	}
	return Value{d: d, ref: r}
}

func (v Value) node() *node {
	if v.d == nil || v.raw {
		return &node{}
	}
	return &v.d.nodes[v.ref]
}

// Kind is the value's type.
func (v Value) Kind() Kind {
	if v.raw {
		k, _ := v.d.scalar(v.op)
		return k
	}
	if v.d == nil {
		return Invalid
	}
	return v.d.nodes[v.ref].kind
}

// Complete tells whether all of the value was there; for values of a stream of
// which bytes are missing. It says nothing of the values in it.
func (v Value) Complete() bool { return v.raw || v.d != nil && !v.d.nodes[v.ref].open }

// Bool returns a bool; ok is false for other values.
func (v Value) Bool() (b, ok bool) {
	if v.raw {
		if k, _ := v.d.scalar(v.op); k != Bool {
			return false, false
		}
		return v.op == opNewTrue || v.d.msgpack && v.op == mpTrue, true
	}
	n := v.node()
	return n.n == 1, n.kind == Bool
}

// payload is how and where a scalar is encoded.
func (v Value) payload() (kind Kind, op byte, b []byte) {
	if v.raw {
		k, n := v.d.scalar(v.op)
		return k, v.op, v.d.bytes(v.off, uint32(n))
	}
	n := v.node()
	if n.kind < Int || n.kind > ByteArray {
		return n.kind, 0, nil
	}
	return n.kind, n.op, v.d.bytes(n.off, n.n)
}

// Int returns an int that fits; ok is false for larger ones and other values.
func (v Value) Int() (i int64, ok bool) {
	kind, op, b := v.payload()
	if kind != Int || b == nil && !(v.d.msgpack && (op < 0x80 || op >= 0xe0)) {
		return 0, false
	}
	if v.d.msgpack {
		return mpInt(op, b)
	}
	switch op {
	case opBinInt1:
		return int64(b[0]), true
	case opBinInt2:
		return int64(binary.LittleEndian.Uint16(b)), true
	case opBinInt:
		return int64(int32(binary.LittleEndian.Uint32(b))), true
	}
	if len(b) > 8 {
		// Two's complement; more bytes than needed say nothing.
		sign := byte(0)
		if b[7] >= 0x80 {
			sign = 0xff
		}
		for _, c := range b[8:] {
			if c != sign {
				return 0, false
			}
		}
		b = b[:8]
	}
	for k := len(b) - 1; k >= 0; k-- {
		if k == len(b)-1 {
			i = int64(int8(b[k]))
			continue
		}
		i = i<<8 | int64(b[k])
	}
	return i, true
}

// Float returns a float, or an int as one; ok is false for other values.
func (v Value) Float() (f float64, ok bool) {
	kind, op, b := v.payload()
	switch {
	case kind == Int:
		i, ok := v.Int()
		return float64(i), ok
	case kind != Float || b == nil:
		return 0, false
	case op == mpFloat32 && v.d.msgpack:
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b))), true
	}
	return math.Float64frombits(binary.BigEndian.Uint64(b)), true
}

// Text returns the UTF-8 of a str; ok is false for other values and where bytes are missing.
func (v Value) Text() (s []byte, ok bool) {
	kind, _, b := v.payload()
	return b, kind == String && b != nil
}

// Is tells whether the value is the str s.
func (v Value) Is(s string) bool {
	t, ok := v.Text()
	return ok && string(t) == s
}

// Bytes returns what bytes and bytearray hold, and the digits of an int of a
// pickle in two's complement, lowest first; ok is false for other values and
// where bytes are missing.
func (v Value) Bytes() (b []byte, ok bool) {
	kind, _, b := v.payload()
	return b, b != nil && (kind == Bytes || kind == ByteArray || kind == Int && !v.d.msgpack)
}

// Len is the number of items of a container, of pairs of a dict, or of bytes of
// a str, bytes or bytearray, known even where the bytes are missing; else 0.
func (v Value) Len() int {
	n := v.node()
	switch n.kind {
	case Dict:
		return int(n.n / 2)
	case String, Bytes, ByteArray, List, Tuple, Set, FrozenSet:
		return int(n.n)
	}
	return 0
}

// Items are the items of a list, tuple, set or frozenset.
func (v Value) Items() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		n := v.node()
		if n.kind < List || n.kind > FrozenSet || n.kind == Dict {
			return
		}
		v.d.each(n.a, yield)
	}
}

// each visits the items of chunks.
func (d *Decoder) each(c uint32, yield func(Value) bool) {
	for ; c != 0; c = d.chunks[c].next {
		ch := d.chunks[c]
		if !ch.raw {
			for _, r := range d.items[ch.from:ch.to] {
				if !yield(d.value(r)) {
					return
				}
			}
			continue
		}
		b := d.bytes(ch.from, ch.to-ch.from)
		for i := 0; i < len(b); {
			op := b[i]
			_, size := d.scalar(op)
			if !yield(Value{d: d, op: op, off: ch.from + uint32(i) + 1, raw: true}) {
				return
			}
			i += 1 + size
		}
	}
}

// Index is item i of a list or tuple; invalid if there is none. It takes time in
// proportion to i where the list was not built.
func (v Value) Index(i int) (out Value) {
	n := v.node()
	if i < 0 || i >= int(n.n) || n.kind != List && n.kind != Tuple {
		return Value{}
	}
	for c := n.a; c != 0; c = v.d.chunks[c].next {
		ch := v.d.chunks[c]
		if i >= int(ch.n) {
			i -= int(ch.n)
			continue
		}
		if !ch.raw {
			return v.d.value(v.d.items[int(ch.from)+i])
		}
		v.d.each(c, func(x Value) bool {
			out = x
			i--
			return i >= 0
		})
		return out
	}
	return Value{}
}

// AppendInts appends the ints of a list or tuple to dst; ok is false if there is
// anything else in it.
func (v Value) AppendInts(dst []int64) (ints []int64, ok bool) {
	if k := v.Kind(); k != List && k != Tuple || !v.Complete() {
		return dst, false
	}
	ok = true
	for x := range v.Items() {
		i, is := x.Int()
		ok = ok && is
		dst = append(dst, i)
	}
	return dst, ok
}

// Pairs are the keys and values of a dict, in the order they were added.
func (v Value) Pairs() iter.Seq2[Value, Value] {
	return func(yield func(k, x Value) bool) {
		n := v.node()
		if n.kind != Dict {
			return
		}
		var key Value
		have := false
		v.d.each(n.a, func(x Value) bool {
			if have = !have; have {
				key = x
				return true
			}
			return yield(key, x)
		})
	}
}

// Get is the value of a dict at a str key, the last one if there are several;
// invalid if there is none.
func (v Value) Get(key string) (out Value) {
	for k, x := range v.Pairs() {
		if k.Is(key) {
			out = x
		}
	}
	return out
}

// Name is the module and the qualified name of a global, or of what an object
// calls; nil if it is neither.
func (v Value) Name() (module, name []byte) {
	n := v.node()
	if n.kind == Object {
		n = &v.d.nodes[v.d.objs[n.a].callee]
	}
	if n.kind != Global {
		return nil, nil
	}
	module, _ = v.d.value(ref(n.a)).Text()
	name, _ = v.d.value(ref(n.b)).Text()
	return module, name
}

// NameIs tells whether Name is this.
func (v Value) NameIs(module, name string) bool {
	m, n := v.Name()
	return string(n) == name && string(m) == module && v.Kind() >= Global
}

func (v Value) object() object {
	if n := v.node(); n.kind == Object {
		return v.d.objs[n.a]
	}
	return object{}
}

// Callee is what an object calls: a global, or another object.
func (v Value) Callee() Value { return v.part(v.object().callee) }

// Args are the arguments of an object's call: a tuple.
func (v Value) Args() Value { return v.part(v.object().args) }

// KwArgs are the keyword arguments of an object's call: a dict, mostly invalid.
func (v Value) KwArgs() Value { return v.part(v.object().kwargs) }

// State is what an object's __setstate__ would get; invalid if it has none.
func (v Value) State() Value { return v.part(v.object().state) }

// Added are the items appended to an object, and the items set in it: those of
// subclasses of list and dict. Invalid if there are none.
func (v Value) Added() (items, pairs Value) {
	o := v.object()
	return v.part(o.items), v.part(o.pairs)
}

func (v Value) part(r ref) Value {
	if v.d == nil {
		return Value{}
	}
	return v.d.value(r)
}
