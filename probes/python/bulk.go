package python

import (
	"fmt"
	"math"
)

// bulkSize is how much of each object bulk reads, in bytes: all of an int, a float and
// a short ASCII str.
const bulkSize = 64

// bulk reads the values of many small objects in few calls; done says which. What it
// leaves out is read one by one. It takes two looks at each object, as whole does, and
// checks then that all are still where they were found: ErrUnstable if not.
func (in *Interp) bulk(vals []Value) (out []any, done []bool, err error) {
	out, done = make([]any, len(vals)), make([]bool, len(vals))
	var idx []int
	var addrs []uint64
	for i, v := range vals {
		switch {
		case v.addr == in.none:
			done[i] = true
		case v.addr == in.true_, v.addr == in.false_:
			out[i], done[i] = v.addr == in.true_, true
		case v.typ.flags&(flagLong|flagUnicode) != 0, v.typ.addr == in.floatType:
			idx, addrs = append(idx, i), append(addrs, v.addr)
		}
	}
	if len(vals) == 0 {
		return out, done, nil
	}
	look, err := in.batch(addrs, bulkSize)
	if err != nil {
		return nil, nil, err
	}
	again, err := in.batch(addrs, bulkSize)
	if err != nil {
		return nil, nil, err
	}
	if err := in.allStill(vals); err != nil {
		return nil, nil, err
	}
	for at, i := range idx {
		a, b := look[at*bulkSize:(at+1)*bulkSize], again[at*bulkSize:(at+1)*bulkSize]
		v := vals[i]
		if u64at(a, objType) != v.typ.addr || u64at(b, objType) != v.typ.addr {
			continue // cannot be read at once, or became another
		}
		if x, ok := v.small(a, b); ok {
			out[i], done[i] = x, true
		}
	}
	return out, done, nil
}

// small returns the value of an object of which there are two looks at the first
// bulkSize bytes; false if it is larger, changed or is not valid.
func (v Value) small(a, b []byte) (any, bool) {
	l := &v.in.layout
	var size int
	var h strHead
	var err error
	switch {
	case v.typ.flags&flagLong != 0:
		size, err = v.intSize(b)
	case v.typ.flags&flagUnicode != 0:
		if h, err = v.in.strHead(v.addr, b); err != nil || !h.compact {
			return nil, false
		}
		size = h.dataOffset(l) + h.length*h.kind
	default:
		size = l.FloatValue + 8
	}
	if err != nil || size > bulkSize || !v.equal(a[:size], b[:size]) {
		return nil, false
	}
	var x any
	switch {
	case v.typ.flags&flagLong != 0:
		x, err = anyOf(v.intValue(b))
	case v.typ.flags&flagUnicode != 0:
		x, err = anyOf(decode(b[h.dataOffset(l):size], h, v.addr))
	default:
		x = math.Float64frombits(u64at(b, l.FloatValue))
	}
	return x, err == nil
}

// allStill checks that objects are still where they were found. What they have in
// common on the way is looked at once.
func (in *Interp) allStill(vals []Value) error {
	seen := make(map[*chain]bool)
	var links []*chain
	var addrs []uint64
	for _, v := range vals {
		for c, n := v.from, 0; c != nil && n < maxChain && !seen[c]; c, n = c.up, n+1 {
			seen[c] = true
			links, addrs = append(links, c), append(addrs, c.addr)
		}
	}
	buf, err := in.batch(addrs, 8)
	if err != nil {
		return err
	}
	for i, c := range links {
		if !c.holds(u64at(buf, 8*i)) {
			return fmt.Errorf("reference at %#x: %w", c.addr, ErrUnstable)
		}
	}
	return nil
}
