package python

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Objects of the module collections that are made in C. Their structs are private to
// Modules/_collectionsmodule.c and Objects/odictobject.c and have no offsets in the
// headers; these members are the same in 3.10 to 3.14.
const (
	dequeLeft  = 24 // first block
	dequeIndex = 40 // of the first element in it
	dequeState = 56 // changes with every change of the deque's length
	dequeHead  = 72

	blockLen   = 64 // elements of a block: {previous, elements, next}
	blockFirst = 8
	blockNext  = 8 + 8*blockLen
	blockSize  = 16 + 8*blockLen

	odictFirst = 48 // first node, behind the dict
	nodeKey    = 0  // {key, hash, next, previous}
	nodeNext   = 16
	nodeSize   = 32
)

// collection returns the address of a class of the module _collections, 0 if the
// program did not import it, which means that there are no instances.
func (in *Interp) collection(i int) (uint64, error) {
	if a := in.collections[i].Load(); a != 0 {
		return a, nil
	}
	v, err := in.Path("_collections", [...]string{"deque", "OrderedDict"}[i])
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if !v.isType() {
		return 0, v.wrongType("type")
	}
	in.collections[i].Store(v.addr)
	return v.addr, nil
}

// Positions in Interp.collections.
const (
	dequeType = iota
	odictType
)

// isDeque reports whether v is a collections.deque or an instance of a subclass.
func (v Value) isDeque() bool {
	// Anything but an instance of a class of this size is none.
	if v.in == nil || v.typ.basicSize < dequeHead {
		return false
	}
	t, err := v.in.collection(dequeType)
	return err == nil && t != 0 && v.in.subclass(v.typ, t)
}

// dequeElements returns the elements of a deque; more than limit gives ErrLimit.
func (v Value) dequeElements(limit int) ([]Value, error) {
	return attempt(v, func() ([]Value, error) {
		head, slots, refs, err := v.dequeRefs(limit)
		if err != nil {
			return nil, err
		}
		out, _, err := v.in.objects(refs, objSize)
		if err != nil {
			return nil, err
		}
		if err := v.in.settled(); err != nil {
			return nil, err
		}
		head2, slots2, refs2, err := v.dequeRefs(limit)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(head, head2) || !slices.Equal(slots, slots2) || !slices.Equal(refs, refs2) {
			return nil, fmt.Errorf("deque at %#x: %w", v.addr, ErrUnstable)
		}
		from := v.from.add(v.addr+dequeState, u64at(head, dequeState))
		for i := range out {
			out[i].from = from.add(slots[i], refs[i])
		}
		return out, v.still()
	})
}

// dequeRefs reads the references to the elements and where they are. The head is
// without the reference count.
func (v Value) dequeRefs(limit int) (head []byte, slots, refs []uint64, err error) {
	if head, err = v.object(dequeHead); err != nil {
		return nil, nil, nil, err
	}
	clear(head[:objType])
	n, at := int64(u64at(head, v.in.layout.VarSize)), int64(u64at(head, dequeIndex))
	switch {
	case n < 0 || at < 0 || at > blockLen:
		return nil, nil, nil, corrupt(v.addr, "size of a deque")
	case n > int64(min(limit, maxItems)):
		return nil, nil, nil, fmt.Errorf("deque of %d elements: %w", n, ErrLimit)
	}
	b := make([]byte, blockSize)
	for block := u64at(head, dequeLeft); n > 0; block, at = u64at(b, blockNext), 0 {
		if err := v.in.read(block, b); err != nil {
			return nil, nil, nil, err
		}
		for ; at < blockLen && n > 0; at, n = at+1, n-1 {
			off := blockFirst + 8*int(at)
			slots, refs = append(slots, block+uint64(off)), append(refs, u64at(b, off))
		}
	}
	return head, slots, refs, nil
}

// odictOrder puts the entries of a dict that may be an OrderedDict into its order,
// which move_to_end changes without touching the dict below.
func (v Value) odictOrder(items []Item) error {
	if v.typ.addr == v.in.dictType || len(items) < 2 {
		return nil
	}
	t, err := v.in.collection(odictType)
	if err != nil || t == 0 || !v.in.subclass(v.typ, t) {
		return err
	}
	at, err := v.odictKeys(len(items))
	if err != nil {
		return err
	}
	if err := v.in.settled(); err != nil {
		return err
	}
	again, err := v.odictKeys(len(items))
	if err != nil {
		return err
	}
	for _, it := range items {
		if _, ok := at[it.Key.addr]; !ok || !maps.Equal(at, again) {
			return fmt.Errorf("order of the OrderedDict at %#x: %w", v.addr, ErrUnstable)
		}
	}
	slices.SortFunc(items, func(a, b Item) int { return at[a.Key.addr] - at[b.Key.addr] })
	return nil
}

// odictKeys returns the positions of an OrderedDict's keys, of which there must be n.
func (v Value) odictKeys(n int) (map[uint64]int, error) {
	at := make(map[uint64]int, n)
	node, err := v.in.u64(v.addr + odictFirst)
	if err != nil {
		return nil, err
	}
	b := make([]byte, nodeSize)
	for i := range n {
		if err := v.in.read(node, b); err != nil {
			return nil, err
		}
		at[u64at(b, nodeKey)] = i
		node = u64at(b, nodeNext)
	}
	if node != 0 || len(at) != n {
		return nil, fmt.Errorf("order of the OrderedDict at %#x: %w", v.addr, ErrUnstable)
	}
	return at, nil
}
