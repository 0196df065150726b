package python

import (
	"bytes"
	"errors"
	"fmt"
)

// A dict is a table of keys, in order of insertion, with the values beside the
// keys (combined) or in an array of their own (split: the keys are then shared
// by the instances of a class).

// keyTable is a PyDictKeysObject.
type keyTable struct {
	addr     uint64
	entries  uint64 // address of the first entry
	n        int    // entries used, deleted ones too
	size     int    // bytes of an entry
	keyAt    int
	valueAt  int
	capacity int
}

func (in *Interp) keyTable(addr uint64) (keyTable, error) {
	l := &in.layout
	if addr == 0 || addr%8 != 0 {
		return keyTable{}, corrupt(addr, "bad address of dict keys")
	}
	b := make([]byte, l.KeysIndices)
	if err := in.read(addr, b); err != nil {
		return keyTable{}, err
	}
	// Entries are {hash, key, value}, or {key, value} where all keys are str (3.11+).
	t := keyTable{addr: addr, size: 24, keyAt: 8, valueAt: 16}
	var indexBytes uint64
	if l.KeysSize >= 0 {
		size := u64at(b, l.KeysSize)
		switch {
		case size == 0 || size&(size-1) != 0 || size > maxItems*4:
			return keyTable{}, corrupt(addr, "size of dict keys")
		case size <= 0xff:
			indexBytes = size
		case size <= 0xffff:
			indexBytes = size * 2
		default:
			indexBytes = size * 4
		}
		t.capacity = int(size)
	} else {
		log2, log2bytes, kind := b[l.KeysLog2Size], b[l.KeysLog2IndexBytes], b[l.KeysKind]
		// The keys of an empty dict have a table of one byte; others have at least 8.
		if log2 > 22 || log2bytes > max(log2, 3)+3 || log2 > 0 && log2bytes < log2 || kind > 2 {
			return keyTable{}, corrupt(addr, "size of dict keys")
		}
		if kind != 0 {
			t.size, t.keyAt, t.valueAt = 16, 0, 8
		}
		indexBytes = 1 << log2bytes
		t.capacity = 1 << log2
	}
	n := int64(u64at(b, l.KeysEntries))
	if n < 0 || n > int64(t.capacity) {
		return keyTable{}, corrupt(addr, "number of dict entries")
	}
	t.n = int(n)
	t.entries = addr + uint64(l.KeysIndices) + indexBytes
	return t, nil
}

// storage is where the values of a dict or of an instance are.
type storage struct {
	keys   uint64 // PyDictKeysObject
	values uint64 // address of the first value of a split table, 0 if combined
	limit  int    // values that fit there
	order  uint64 // address of the indices, one byte each, in order of insertion; 0: that of the keys
	used   int    // its length
	down   bool   // it grows towards lower addresses
}

// dictStorage also returns how the entries are reached.
func (v Value) dictStorage() (storage, *chain, error) {
	l := &v.in.layout
	b, err := v.object(l.DictValues + 8)
	if err != nil {
		return storage{}, nil, err
	}
	keys, vals := u64at(b, l.DictKeys), u64at(b, l.DictValues)
	from := v.from.add(v.addr+uint64(l.DictKeys), keys).add(v.addr+uint64(l.DictValues), vals)
	s := storage{keys: keys}
	if vals != 0 {
		s, err = v.in.splitStorage(keys, vals)
	}
	return s, from, err
}

// splitStorage is the storage with values in the PyDictValues at addr.
func (in *Interp) splitStorage(keys, addr uint64) (storage, error) {
	l := &in.layout
	s := storage{keys: keys, values: addr + uint64(l.ValuesStart), limit: maxItems}
	switch {
	case l.ValuesCapacity >= 0: // 3.13: the order is behind the values
		b := make([]byte, l.ValuesStart)
		if err := in.read(addr, b); err != nil {
			return storage{}, err
		}
		s.limit, s.used = int(b[l.ValuesCapacity]), int(b[l.ValuesSize])
		s.order = s.values + 8*uint64(s.limit)
	case l.KeysLog2Size >= 0: // 3.11, 3.12: before the values, after its length
		var b [8]byte
		if err := in.read(addr-8, b[:]); err != nil {
			return storage{}, err
		}
		s.used, s.order, s.down = int(b[6]), addr-3, true
	}
	return s, nil
}

// inOrder reads which entries of a split table have values, in order of insertion.
func (in *Interp) inOrder(s storage, t keyTable) ([]int, error) {
	b := make([]byte, s.used)
	at := s.order
	if s.down {
		at -= uint64(max(s.used-1, 0))
	}
	if err := in.readSome(at, b); err != nil {
		return nil, err
	}
	out := make([]int, len(b))
	seen := make(map[byte]bool, len(b))
	for i, x := range b {
		if int(x) >= t.n || seen[x] {
			return nil, corrupt(s.order, "order of attributes")
		}
		seen[x] = true
		if s.down {
			i = len(b) - 1 - i
		}
		out[i] = int(x)
	}
	return out, nil
}

func (s storage) slot(t keyTable, i int) uint64 {
	if s.values != 0 {
		return s.values + 8*uint64(i)
	}
	return t.entries + uint64(t.size*i+t.valueAt)
}

// entry is one of a storage.
type entry struct {
	slot    uint64 // address of the reference to the value
	keySlot uint64 // address of the reference to the key
	key     uint64 // the key, a str
	hash    uint64 // of the key
}

// pin adds the entry's key to the way to the value: its hash tells it from another
// str that is made at its place later.
func (e entry) pin(from *chain, l *layout) *chain {
	return from.add(e.keySlot, e.key).add(e.key+uint64(l.StrHash), e.hash)
}

// find looks a name up in a storage. ok is false if there is no such key. The caller
// checks that the storage is still in use.
func (in *Interp) find(s storage, name string) (e entry, ok bool, err error) {
	t, err := in.keyTable(s.keys)
	if err != nil {
		return entry{}, false, err
	}
	entries := make([]byte, t.n*t.size)
	if err := in.readSome(t.entries, entries); err != nil {
		return entry{}, false, err
	}
	idx := make([]int, 0, t.n)
	keys := make([]uint64, 0, t.n)
	for i := range t.n {
		if k := u64at(entries, t.size*i+t.keyAt); k != 0 {
			idx, keys = append(idx, i), append(keys, k)
		}
	}
	at, hash, err := in.matchKey(keys, name)
	if err != nil {
		return entry{}, false, err
	}
	if at < 0 {
		// Absent only if the table holds still.
		again := make([]byte, len(entries))
		t2, err := in.keyTable(s.keys)
		if err != nil {
			return entry{}, false, err
		}
		if err := in.readSome(t.entries, again); err != nil {
			return entry{}, false, err
		}
		if t2 != t || !sameKeys(entries, again, t) {
			return entry{}, false, fmt.Errorf("dict keys at %#x: %w", s.keys, ErrUnstable)
		}
		return entry{}, false, nil
	}
	i := idx[at]
	if s.values != 0 && i >= s.limit {
		return entry{}, false, nil
	}
	return entry{s.slot(t, i), t.entries + uint64(t.size*i+t.keyAt), keys[at], hash}, true, nil
}

func (in *Interp) readSome(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return in.read(addr, b)
}

func sameKeys(a, b []byte, t keyTable) bool {
	for i := range t.n {
		if u64at(a, t.size*i+t.keyAt) != u64at(b, t.size*i+t.keyAt) {
			return false
		}
	}
	return true
}

// matchKey returns the position and the hash of the key that is the str name, -1 if
// none is.
func (in *Interp) matchKey(keys []uint64, name string) (int, uint64, error) {
	l := &in.layout
	for i := range len(name) {
		if name[i] >= 0x80 {
			return -1, 0, fmt.Errorf("looking up %q: names must be ASCII: %w", name, ErrType)
		}
	}
	size := (l.StrASCIISize + len(name) + 7) &^ 7
	const chunk = 1024
	for from := 0; from < len(keys); from += chunk {
		part := keys[from:min(len(keys), from+chunk)]
		buf, err := in.batch(part, size)
		if err != nil {
			return -1, 0, err
		}
		for i := range part {
			b := buf[i*size : (i+1)*size]
			typ := u64at(b, objType)
			if typ == 0 || in.strType != 0 && typ != in.strType || u64at(b, l.StrLength) != uint64(len(name)) {
				continue
			}
			h, err := in.strHead(part[i], b)
			if err != nil || !h.compact || !h.ascii {
				continue
			}
			if string(b[l.StrASCIISize:][:len(name)]) == name {
				return from + i, u64at(b, l.StrHash), nil
			}
		}
	}
	return -1, 0, nil
}

// Key returns the value of a dict under a str key. A missing key gives
// ErrNotFound. The key must be ASCII.
func (v Value) Key(name string) (Value, error) {
	if err := v.need(flagDict, "dict"); err != nil {
		return Value{}, err
	}
	e, err := attempt(v, func() (Value, error) {
		s, from, err := v.dictStorage()
		if err != nil {
			return Value{}, err
		}
		return v.in.lookup(s, from, name)
	})
	if err != nil {
		return Value{}, fmt.Errorf("key %q: %w", name, err)
	}
	return e, nil
}

// lookup returns the value under a name in a storage that was reached by a chain,
// or ErrNotFound.
func (in *Interp) lookup(s storage, from *chain, name string) (Value, error) {
	e, ok, err := in.find(s, name)
	if err != nil {
		return Value{}, firstErr(in.still(from), err)
	}
	if !ok {
		return Value{}, firstErr(in.still(from), ErrNotFound)
	}
	return in.follow(e.slot, e.pin(from, &in.layout))
}

// IntKey returns the value of a dict under an int key. A missing key gives
// ErrNotFound.
func (v Value) IntKey(key int64) (Value, error) {
	if err := v.need(flagDict, "dict"); err != nil {
		return Value{}, err
	}
	e, err := attempt(v, func() (Value, error) {
		items, err := v.Items(maxItems)
		if err != nil {
			return Value{}, err
		}
		for _, it := range items {
			if it.Key.typ.flags&flagLong == 0 {
				continue
			}
			n, err := it.Key.Int()
			if err != nil && !errors.Is(err, ErrLimit) {
				return Value{}, err
			}
			if err == nil && n == key {
				return it.Value, it.Value.still()
			}
		}
		return Value{}, ErrNotFound
	})
	if err != nil {
		return Value{}, fmt.Errorf("key %d: %w", key, err)
	}
	return e, nil
}

// Items returns the entries of a dict in their order; more than limit gives ErrLimit.
func (v Value) Items(limit int) ([]Item, error) {
	if err := v.need(flagDict, "dict"); err != nil {
		return nil, err
	}
	l := &v.in.layout
	return attempt(v, func() ([]Item, error) {
		s, from, err := v.dictStorage()
		if err != nil {
			return nil, err
		}
		items, err := v.in.items(s, from, limit)
		if err != nil {
			return nil, err
		}
		b, err := v.object(l.DictUsed + 8)
		if err != nil {
			return nil, err
		}
		if u64at(b, l.DictUsed) != uint64(len(items)) {
			return nil, fmt.Errorf("dict at %#x: %w", v.addr, ErrUnstable)
		}
		if err := v.odictOrder(items); err != nil {
			return nil, err
		}
		return items, v.in.still(from)
	})
}

// items reads all entries of a storage twice and returns them if they are equal.
func (in *Interp) items(s storage, from *chain, limit int) ([]Item, error) {
	look := func() (keyTable, []byte, []byte, error) {
		t, err := in.keyTable(s.keys)
		if err != nil {
			return t, nil, nil, err
		}
		// Deleted entries count here: a dict that had many is refused, too.
		if t.n > max(limit*4, 64) {
			return t, nil, nil, fmt.Errorf("dict of %d entries: %w", t.n, ErrLimit)
		}
		entries := make([]byte, t.n*t.size)
		if err := in.readSome(t.entries, entries); err != nil {
			return t, nil, nil, err
		}
		var values []byte
		if s.values != 0 {
			values = make([]byte, 8*min(t.n, s.limit))
			if err := in.readSome(s.values, values); err != nil {
				return t, nil, nil, err
			}
		}
		return t, entries, values, nil
	}
	t, entries, values, err := look()
	if err != nil {
		return nil, err
	}
	var order []int
	if s.order != 0 {
		if order, err = in.inOrder(s, t); err != nil {
			return nil, err
		}
	} else {
		order = make([]int, t.n)
		for i := range order {
			order[i] = i
		}
	}
	var idx []int
	var keys, vals []uint64
	for _, i := range order {
		key := u64at(entries, t.size*i+t.keyAt)
		val := u64at(entries, t.size*i+t.valueAt)
		if s.values != 0 {
			if val = 0; 8*i < len(values) {
				val = u64at(values, 8*i)
			}
		}
		if key == 0 || val == 0 {
			if s.order != 0 {
				return nil, fmt.Errorf("attributes at %#x: %w", s.values, ErrUnstable)
			}
			continue
		}
		if len(idx) == limit {
			return nil, fmt.Errorf("dict of more than %d entries: %w", limit, ErrLimit)
		}
		idx, keys, vals = append(idx, i), append(keys, key), append(vals, val)
	}
	head := in.layout.StrHash + 8
	kobjs, heads, err := in.objects(keys, head)
	if err != nil {
		return nil, err
	}
	vobjs, _, err := in.objects(vals, objSize)
	if err != nil {
		return nil, err
	}
	out := make([]Item, len(idx))
	for at, i := range idx {
		k, v := kobjs[at], vobjs[at]
		up := from.add(t.entries+uint64(t.size*i+t.keyAt), k.addr)
		// What tells the key from another that is made at its place later: its hash,
		// which an entry has where not all keys are str, and a str has itself.
		if t.keyAt != 0 {
			up = up.add(t.entries+uint64(t.size*i), u64at(entries, t.size*i))
		} else {
			up = up.add(k.addr+uint64(in.layout.StrHash), u64at(heads, head*at+in.layout.StrHash))
		}
		k.from = up
		v.from = up.add(s.slot(t, i), v.addr)
		out[at] = Item{k, v}
	}
	if err := in.settled(); err != nil {
		return nil, err
	}
	t2, entries2, values2, err := look()
	if err != nil {
		return nil, err
	}
	if t2 != t || !bytes.Equal(entries, entries2) || !bytes.Equal(values, values2) {
		return nil, fmt.Errorf("dict keys at %#x: %w", s.keys, ErrUnstable)
	}
	return out, nil
}
