package python

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Attrs returns the attributes that the instance itself has, wherever they are: in
// __slots__ or as fields of a msgspec.Struct, in its __dict__ or what stands for it.
// Those that a dataclass or a Struct declares come first, in that order. What is not
// set is left out, and so are members that are no objects but C numbers. More than
// limit gives ErrLimit.
func (v Value) Attrs(limit int) ([]Item, error) {
	if v.in == nil {
		return nil, v.wrongType("any")
	}
	if v.isType() {
		return v.Vars(limit)
	}
	return attempt(v, func() ([]Item, error) {
		items, err := v.slots(limit)
		if err != nil {
			return nil, err
		}
		vars, err := v.Vars(limit)
		if err != nil {
			return nil, err
		}
		if items = append(items, vars...); len(items) > limit {
			return nil, fmt.Errorf("object of more than %d attributes: %w", limit, ErrLimit)
		}
		return v.declared(items)
	})
}

// slots returns what the member descriptors of the classes lead to, base classes
// first.
func (v Value) slots(limit int) ([]Item, error) {
	mro, err := v.in.mro(v.typ)
	if err != nil {
		return nil, err
	}
	slices.Reverse(mro)
	var out []Item
	for _, addr := range mro {
		t := v.typ
		if addr != t.addr {
			if t, err = v.in.typeInfo(addr); err != nil {
				return nil, err
			}
		}
		if t.flags&flagHeapType == 0 {
			continue
		}
		d, err := v.in.typeDict(t, nil)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		class, err := d.Items(maxAttrs)
		if err != nil {
			return nil, err
		}
		for _, it := range class {
			if !it.Value.builtin("member_descriptor") || it.Key.Kind() != Str {
				continue
			}
			m, err := v.member(it.Value)
			if errors.Is(err, ErrNotFound) || errors.Is(err, ErrComputed) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if len(out) == limit {
				return nil, fmt.Errorf("object of more than %d attributes: %w", limit, ErrLimit)
			}
			out = append(out, Item{it.Key, m})
		}
	}
	return out, nil
}

// maxAttrs bounds the entries of a class's dict.
const maxAttrs = 1 << 14

// declared puts the fields of a dataclass or a msgspec.Struct first.
func (v Value) declared(items []Item) ([]Item, error) {
	var keys []Value
	if f, err := v.in.classAttr(v.typ, "__dataclass_fields__"); err == nil && f.Kind() == Dict {
		fields, err := f.Items(maxAttrs)
		if err != nil {
			return nil, err
		}
		for _, it := range fields {
			keys = append(keys, it.Key)
		}
	} else if f, err := v.in.classAttr(v.typ, "__struct_fields__"); err == nil && f.Kind() == Tuple {
		if keys, err = f.List(maxAttrs); err != nil {
			return nil, err
		}
	}
	rank := make(map[string]int, len(keys))
	for i, k := range keys {
		name, err := k.Str()
		if err != nil {
			return nil, err
		}
		rank[name] = i + 1
	}
	at := make([]int, len(items))
	for i, it := range items {
		name, err := it.Key.Str()
		if err != nil && !errors.Is(err, ErrType) {
			return nil, err
		}
		if at[i] = rank[name]; at[i] == 0 {
			at[i] = len(keys) + 1
		}
	}
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return at[a] - at[b] })
	out := make([]Item, len(items))
	for i, j := range order {
		out[i] = items[j]
	}
	return out, nil
}

// Enum returns name and value of a member of an Enum. A combination of flags that
// has no name of its own has the name "". Another object gives ErrType.
func (v Value) Enum() (name string, value Value, err error) {
	if v.in == nil || v.isType() {
		return "", Value{}, v.wrongType("member of an Enum")
	}
	if _, err := v.in.classAttr(v.typ, "_member_map_"); err != nil {
		if errors.Is(err, ErrNotFound) {
			err = v.wrongType("member of an Enum")
		}
		return "", Value{}, err
	}
	n, err := v.Attr("_name_")
	if err != nil {
		return "", Value{}, err
	}
	if !n.IsNone() {
		if name, err = n.Str(); err != nil {
			return "", Value{}, err
		}
	}
	value, err = v.Attr("_value_")
	return name, value, err
}

// Method returns the function and the object of a bound method. Another object, a
// method of a C class as well, gives ErrType.
func (v Value) Method() (fn, self Value, err error) {
	if !v.builtin("method") {
		return Value{}, Value{}, v.wrongType("method")
	}
	l := &v.in.layout
	if fn, err = v.in.follow(v.addr+uint64(l.MethodFunc), v.from); err == nil {
		self, err = v.in.follow(v.addr+uint64(l.MethodSelf), v.from)
	}
	if _, err = settle(v, 0, err); err != nil {
		return Value{}, Value{}, err
	}
	return fn, self, nil
}

// EnumMembers returns the members of an Enum class by name, with their values;
// more than limit gives ErrLimit.
func (v Value) EnumMembers(limit int) ([]Item, error) {
	if err := v.need(flagType, "Enum class"); err != nil {
		return nil, err
	}
	m, err := v.Attr("_member_map_")
	if err != nil {
		return nil, err
	}
	items, err := m.Items(limit)
	if err != nil {
		return nil, fmt.Errorf("members of an Enum: %w", err)
	}
	for i := range items {
		if items[i].Value, err = items[i].Value.Attr("_value_"); err != nil {
			return nil, fmt.Errorf("members of an Enum: %w", err)
		}
	}
	return items, nil
}

// ClassModule returns the name of the module of the class that v refers to, "" if the
// class does not tell.
func (v Value) ClassModule() (string, error) {
	if err := v.need(flagType, "type"); err != nil {
		return "", err
	}
	return attempt(v, func() (string, error) {
		t, err := v.in.typeInfo(v.addr)
		if err != nil {
			return "", err
		}
		if t.flags&flagHeapType == 0 {
			name, err := v.in.cString(t.name)
			if err != nil {
				return "", err
			}
			if i := strings.LastIndexByte(name, '.'); i >= 0 {
				return name[:i], nil
			}
			return "builtins", nil
		}
		d, err := v.in.typeDict(t, v.from)
		if err != nil {
			return "", err
		}
		m, err := d.Key("__module__")
		if errors.Is(err, ErrNotFound) || err == nil && m.Kind() != Str {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return m.Str()
	})
}

// maxFields bounds the fields of a dataclass.
const maxFields = 256

// DataclassFields gives the names of the fields of the dataclass at a path of a module,
// in their order. The error is that of Path, or of reading them.
func (in *Interp) DataclassFields(module string, path ...string) ([]string, error) {
	v, err := in.Path(module, append(slices.Clone(path), "__dataclass_fields__")...)
	if err != nil {
		return nil, err
	}
	items, err := v.Items(maxFields)
	if err != nil {
		return nil, fmt.Errorf("reading the fields of %s: %w", strings.Join(path, "."), err)
	}
	var out []string
	for _, it := range items {
		name, err := it.Key.Str()
		if err != nil {
			return nil, fmt.Errorf("reading the fields of %s: %w", strings.Join(path, "."), err)
		}
		out = append(out, name)
	}
	return out, nil
}
