package python

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// ErrOpaque says that an object has no Go counterpart.
var ErrOpaque = errors.New("object has no plain value")

// Entry is an entry of a dict whose keys are not all str.
type Entry struct{ Key, Value any }

// Plain converts an object to Go: None to nil, bool, int to int64, float to float64,
// str to string, bytes to []byte, list, tuple, set and deque to []any, dict with str
// keys to map[string]any and another dict to []Entry. A member of an Enum becomes its
// value. Anything else gives ErrOpaque, more than limit objects or 32 levels ErrLimit.
//
// Plain is the way to read a container and its elements as of one moment: it
// converts until it has seen the same twice.
func (v Value) Plain(limit int) (any, error) {
	var last any
	seen := false
	p, err := attempt(v, func() (any, error) {
		n := limit
		p, err := v.plain(&n, 32)
		if err != nil {
			return nil, err
		}
		if n == limit-1 {
			return p, nil // one object, which has been read twice
		}
		if seen && same(last, p) {
			return p, nil
		}
		last, seen = p, true
		n = limit
		p, err = v.plain(&n, 32)
		if err != nil {
			return nil, err
		}
		if !same(last, p) {
			last = p
			return nil, fmt.Errorf("object at %#x: %w", v.addr, ErrUnstable)
		}
		return p, nil
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// same compares converted values. Unlike ==, it takes a NaN for the same as itself.
func same(a, b any) bool {
	switch a := a.(type) {
	case float64:
		b, ok := b.(float64)
		return ok && math.Float64bits(a) == math.Float64bits(b)
	case []byte:
		b, ok := b.([]byte)
		return ok && bytes.Equal(a, b)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, same)
	case []Entry:
		b, ok := b.([]Entry)
		return ok && slices.EqualFunc(a, b, func(a, b Entry) bool { return same(a.Key, b.Key) && same(a.Value, b.Value) })
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, same)
	}
	return a == b
}

func (v Value) plain(left *int, depth int) (any, error) {
	// A cycle runs into these.
	if *left--; *left < 0 || depth == 0 {
		return nil, fmt.Errorf("converting a nested object: %w", ErrLimit)
	}
	switch k := v.Kind(); k {
	case None:
		return nil, nil
	case Bool:
		return anyOf(v.Bool())
	case Int:
		return anyOf(v.Int())
	case Float:
		return anyOf(v.Float())
	case Str:
		return anyOf(v.Str())
	case Bytes:
		return anyOf(v.Bytes())
	case List, Tuple, Set, Deque:
		elems, err := v.List(*left)
		if err != nil {
			return nil, err
		}
		return v.in.plainAll(elems, left, depth-1)
	case Dict:
		items, err := v.Items(*left)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(items, func(it Item) bool { return it.Key.Kind() != Str }) {
			return v.entries(items, left, depth)
		}
		keys, vals := make([]Value, len(items)), make([]Value, len(items))
		for i, it := range items {
			keys[i], vals[i] = it.Key, it.Value
		}
		free := len(keys) // keys do not count
		k, err := v.in.plainAll(keys, &free, depth-1)
		if err != nil {
			return nil, err
		}
		x, err := v.in.plainAll(vals, left, depth-1)
		if err != nil {
			return nil, err
		}
		out := make(map[string]any, len(items))
		for i := range k {
			name, ok := k[i].(string)
			if !ok { // a member of an Enum of str
				if name, err = keys[i].Str(); err != nil {
					return nil, err
				}
			}
			out[name] = x[i]
		}
		return out, nil
	}
	if v.in != nil && v.typ.flags&flagType == 0 {
		if val, err := v.Attr("_value_"); err == nil {
			return val.plain(left, depth-1)
		}
	}
	return nil, fmt.Errorf("object of type %s: %w", v.TypeName(), ErrOpaque)
}

// entries converts a dict whose keys are not all str.
func (v Value) entries(items []Item, left *int, depth int) (any, error) {
	both := make([]Value, 0, 2*len(items))
	for _, it := range items {
		both = append(both, it.Key, it.Value)
	}
	p, err := v.in.plainAll(both, left, depth-1)
	if err != nil {
		return nil, err
	}
	out := make([]Entry, len(items))
	for i := range out {
		out[i] = Entry{p[2*i], p[2*i+1]}
	}
	return out, nil
}

// plainAll converts many objects.
func (in *Interp) plainAll(vals []Value, left *int, depth int) ([]any, error) {
	out, done, err := in.bulk(vals)
	if err != nil {
		return nil, err
	}
	for i, v := range vals {
		if done[i] {
			if *left--; *left < 0 || depth == 0 {
				return nil, fmt.Errorf("converting a nested object: %w", ErrLimit)
			}
			continue
		}
		if out[i], err = v.plain(left, depth); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func anyOf[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}
