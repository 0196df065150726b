package python

import (
	"bytes"
	"fmt"
)

// Item is an entry of a dict or an attribute of an object.
type Item struct{ Key, Value Value }

// Len returns the number of elements of a list, tuple, dict, set or deque, of code
// points of a str, or of bytes.
func (v Value) Len() (int, error) {
	if v.in == nil {
		return 0, v.wrongType("container")
	}
	l := &v.in.layout
	var off int
	switch v.Kind() {
	case List, Tuple, Bytes, Deque:
		off = l.VarSize
	case Str:
		off = l.StrLength
	case Dict:
		off = l.DictUsed
	case Set:
		off = l.SetUsed
	default:
		return 0, v.wrongType("container")
	}
	b, err := v.object(off + 8)
	if err != nil {
		return 0, err
	}
	n := int64(u64at(b, off))
	if n < 0 || n > 1<<48 {
		return settle(v, 0, corrupt(v.addr, "size of a container"))
	}
	return int(n), v.still()
}

// sequence says where the references of a list or tuple are.
func (v Value) sequence() (items uint64, n int, err error) {
	l := &v.in.layout
	switch {
	case v.in == nil:
	case v.typ.flags&flagTuple != 0:
		b, err := v.object(l.VarSize + 8)
		if err != nil {
			return 0, 0, err
		}
		items, n = v.addr+uint64(l.TupleItems), int(u64at(b, l.VarSize))
	case v.typ.flags&flagList != 0:
		b, err := v.object(l.ListItems + 8)
		if err != nil {
			return 0, 0, err
		}
		items, n = u64at(b, l.ListItems), int(u64at(b, l.VarSize))
	}
	if items == 0 && n == 0 && v.typ.flags&(flagTuple|flagList) == 0 {
		return 0, 0, v.wrongType("list or tuple")
	}
	if n < 0 {
		return 0, 0, corrupt(v.addr, "size of a sequence")
	}
	return items, n, nil
}

// Index returns element i of a list, tuple or deque, counted from 0.
func (v Value) Index(i int) (Value, error) {
	if v.in == nil {
		return Value{}, v.wrongType("list or tuple")
	}
	if v.isDeque() {
		elems, err := v.dequeElements(maxItems)
		if err != nil {
			return Value{}, err
		}
		if i < 0 || i >= len(elems) {
			return Value{}, fmt.Errorf("index %d of %d elements: %w", i, len(elems), ErrNotFound)
		}
		return elems[i], nil
	}
	return attempt(v, func() (Value, error) {
		items, n, err := v.sequence()
		if err != nil {
			return Value{}, err
		}
		if i < 0 || i >= n {
			return Value{}, fmt.Errorf("index %d of %d elements: %w", i, n, ErrNotFound)
		}
		e, err := v.in.follow(items+8*uint64(i), v.elements(items, i))
		if err != nil {
			return Value{}, err
		}
		if v.typ.flags&flagTuple == 0 {
			if err := v.in.settled(); err != nil {
				return Value{}, err
			}
			if err := e.still(); err != nil {
				return Value{}, err
			}
		}
		if items2, n2, err := v.sequence(); err != nil || items2 != items || i >= n2 {
			return Value{}, fmt.Errorf("sequence at %#x: %w", v.addr, ErrUnstable)
		}
		return e, nil
	})
}

// elements is how element i of a sequence is reached. A list that becomes shorter
// leaves the references that were behind its new end where they are.
func (v Value) elements(items uint64, i int) *chain {
	if v.typ.flags&flagList != 0 {
		l := &v.in.layout
		return v.from.addLeast(v.addr+uint64(l.VarSize), uint64(i)+1).add(v.addr+uint64(l.ListItems), items)
	}
	return v.from
}

// Strings returns the elements of what List takes, each of which must be a str.
func (v Value) Strings(limit int) ([]string, error) {
	list, err := v.List(limit)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(list))
	for i, e := range list {
		if out[i], err = e.Str(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// List returns the elements of a list, tuple, set or deque; more than limit gives
// ErrLimit.
func (v Value) List(limit int) ([]Value, error) {
	switch v.Kind() {
	case Set:
		return v.set(limit)
	case Deque:
		return v.dequeElements(limit)
	}
	if v.in == nil {
		return nil, v.wrongType("list or tuple")
	}
	return attempt(v, func() ([]Value, error) {
		items, n, err := v.sequence()
		if err != nil {
			return nil, err
		}
		if n > min(limit, maxItems) {
			return nil, fmt.Errorf("sequence of %d elements: %w", n, ErrLimit)
		}
		refs, err := v.in.words(items, n)
		if err != nil {
			return nil, err
		}
		addrs := make([]uint64, n)
		for i := range addrs {
			addrs[i] = u64at(refs, 8*i)
		}
		out, _, err := v.in.objects(addrs, objSize)
		if err != nil {
			return nil, err
		}
		for i := range out {
			out[i].from = v.elements(items, i).add(items+8*uint64(i), addrs[i])
		}
		if v.typ.flags&flagTuple == 0 { // a tuple does not change
			if err := v.in.settled(); err != nil {
				return nil, err
			}
		}
		items2, n2, err := v.sequence()
		if err != nil {
			return nil, err
		}
		again, err := v.in.words(items, n)
		if err != nil {
			return nil, err
		}
		if items2 != items || n2 != n || !bytes.Equal(refs, again) {
			return nil, fmt.Errorf("sequence at %#x: %w", v.addr, ErrUnstable)
		}
		return out, v.still()
	})
}

// words reads n words.
func (in *Interp) words(addr uint64, n int) ([]byte, error) {
	b := make([]byte, 8*n)
	if n == 0 {
		return b, nil
	}
	return b, in.read(addr, b)
}

// set returns the elements of a set in the order of its table.
func (v Value) set(limit int) ([]Value, error) {
	l := &v.in.layout
	return attempt(v, func() ([]Value, error) {
		head, err := v.object(l.SetTable + 8)
		if err != nil {
			return nil, err
		}
		used, mask, table := u64at(head, l.SetUsed), u64at(head, l.SetMask), u64at(head, l.SetTable)
		if mask&(mask+1) != 0 || used > mask {
			return nil, corrupt(v.addr, "size of a set")
		}
		if used > uint64(min(limit, maxItems)) || mask >= maxItems*8 {
			return nil, fmt.Errorf("set of %d elements: %w", used, ErrLimit)
		}
		// Entries are {key, hash}; a deleted one has the hash -1, which no object has.
		n := int(mask) + 1
		entries, err := v.in.words(table, 2*n)
		if err != nil {
			return nil, err
		}
		var addrs []uint64
		var idx []int
		for i := range n {
			key, hash := u64at(entries, 16*i), u64at(entries, 16*i+8)
			if key == 0 || int64(hash) == -1 {
				continue
			}
			addrs, idx = append(addrs, key), append(idx, i)
		}
		out, _, err := v.in.objects(addrs, objSize)
		if err != nil {
			return nil, err
		}
		for at, i := range idx {
			slot := table + 16*uint64(i)
			out[at].from = v.from.add(v.addr+uint64(l.SetTable), table).add(slot, addrs[at]).add(slot+8, u64at(entries, 16*i+8))
		}
		if err := v.in.settled(); err != nil {
			return nil, err
		}
		again, err := v.in.words(table, 2*n)
		if err != nil {
			return nil, err
		}
		head2, err := v.object(l.SetTable + 8)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(head[objSize:], head2[objSize:]) || !bytes.Equal(entries, again) || uint64(len(out)) != used {
			return nil, fmt.Errorf("set at %#x: %w", v.addr, ErrUnstable)
		}
		return out, v.still()
	})
}
