package python

import (
	"errors"
	"fmt"
	"strings"
)

// Member types of a PyMemberDef that hold a reference (Include/structmember.h).
const (
	memberObject   = 6  // T_OBJECT: NULL reads as None
	memberObjectEx = 16 // T_OBJECT_EX: NULL reads as no attribute
)

// Module returns the module with this name in sys.modules.
func (in *Interp) Module(name string) (Value, error) {
	v, err := in.modules.Key(name)
	if errors.Is(err, ErrNotFound) {
		return Value{}, fmt.Errorf("module %s is not imported: %w", name, ErrNotFound)
	}
	if err != nil {
		return Value{}, fmt.Errorf("module %s: %w", name, err)
	}
	return v, nil
}

// Modules returns the number of entries in sys.modules.
func (in *Interp) Modules() (int, error) { return in.modules.Len() }

// Path follows attributes from a module: in.Path("vllm.v1.engine", "FinishReason").
func (in *Interp) Path(module string, attrs ...string) (Value, error) {
	v, err := in.Module(module)
	if err != nil {
		return Value{}, err
	}
	return v.Path(attrs...)
}

// Path follows attributes.
func (v Value) Path(attrs ...string) (Value, error) {
	for i, a := range attrs {
		next, err := v.Attr(a)
		if err != nil {
			if i > 0 {
				err = fmt.Errorf("%s: %w", strings.Join(attrs[:i], "."), err)
			}
			return Value{}, err
		}
		v = next
	}
	return v, nil
}

// Attr returns an attribute as Python's getattr would find it, without running
// any code: a slot or other member of the object, an entry of its __dict__
// wherever that is stored, or an attribute of its class (not bound: a function,
// not a method). A property or another descriptor that would compute the value
// gives ErrComputed. What the class has by __getattr__ is not found.
func (v Value) Attr(name string) (Value, error) {
	if v.in == nil {
		return Value{}, fmt.Errorf("attribute %s of no object: %w", name, ErrNotFound)
	}
	a, err := attempt(v, func() (Value, error) { return v.attr(name) })
	if err != nil {
		return Value{}, fmt.Errorf("attribute %s of %s: %w", name, v.TypeName(), err)
	}
	return a, nil
}

func (v Value) attr(name string) (Value, error) {
	inClass, err := v.in.classAttr(v.typ, name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Value{}, err
	}
	found := err == nil
	if found {
		if inClass.TypeName() == "member_descriptor" && inClass.typ.flags&flagHeapType == 0 {
			return v.member(inClass)
		}
		if inClass.typ.descrSet != 0 {
			return Value{}, ErrComputed
		}
	}
	var own Value
	if v.isType() {
		t, terr := v.in.typeInfo(v.addr)
		if terr != nil {
			return Value{}, terr
		}
		own, err = v.in.classAttr(t, name)
	} else {
		own, err = v.instanceAttr(name)
	}
	switch {
	case err == nil:
		return own, nil
	case !errors.Is(err, ErrNotFound):
		return Value{}, err
	case found:
		return inClass, nil
	}
	return Value{}, ErrNotFound
}

// moduleVar is Attr of a module before the built-in types are known.
func (v Value) moduleVar(name string) (Value, error) { return v.instanceAttr(name) }

// classAttr looks a name up in the dicts of a class and its bases.
func (in *Interp) classAttr(t typeInfo, name string) (Value, error) {
	mro, err := in.mro(t)
	if err != nil {
		return Value{}, err
	}
	for _, addr := range mro {
		base := t
		if addr != t.addr {
			if base, err = in.typeInfo(addr); err != nil {
				return Value{}, err
			}
		}
		d, err := in.typeDict(base, nil)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return Value{}, err
		}
		v, err := d.Key(name)
		if err == nil {
			return v, nil
		}
		if !errors.Is(err, ErrNotFound) {
			return Value{}, err
		}
	}
	return Value{}, ErrNotFound
}

// typeDict returns the dict of a class, ErrNotFound if it has none yet. up is how the
// class was reached.
func (in *Interp) typeDict(t typeInfo, up *chain) (Value, error) {
	l := &in.layout
	slot := t.addr + uint64(l.TypeDict)
	if t.dict == 0 {
		if t.flags&flagStatic == 0 || l.InterpStaticTypes < 0 {
			return Value{}, ErrNotFound
		}
		// A type of the interpreter has its dict in the interpreter's state since 3.12,
		// at a number that it keeps in the place of its subclasses, counted from 1.
		var err error
		if slot, err = in.staticState(t); err != nil {
			return Value{}, err
		}
		slot += uint64(l.StaticDict)
	}
	d, err := in.follow(slot, up)
	if err != nil {
		return Value{}, err
	}
	if d.typ.flags&flagDict == 0 {
		return Value{}, corrupt(t.addr, "dict of a type")
	}
	return d, nil
}

// staticState returns the address of what the interpreter keeps for a static type.
func (in *Interp) staticState(t typeInfo) (uint64, error) {
	l := &in.layout
	for _, a := range []struct{ off, n int }{
		{l.InterpStaticTypes, l.InterpStaticCount}, {l.InterpExtTypes, l.InterpExtCount},
	} {
		if a.off < 0 || t.subclasses == 0 || t.subclasses > uint64(a.n) {
			continue
		}
		at := in.addr + uint64(a.off) + (t.subclasses-1)*uint64(l.StaticSize)
		typ, err := in.u64(at + uint64(l.StaticType))
		if err != nil {
			return 0, err
		}
		if typ == t.addr {
			return at, nil
		}
	}
	return 0, ErrNotFound
}

// mro returns the addresses of the class and its bases in lookup order.
func (in *Interp) mro(t typeInfo) ([]uint64, error) {
	l := &in.layout
	if t.mro == 0 {
		return []uint64{t.addr}, nil // a type that is being made
	}
	var head [3]uint64
	var b [24]byte
	if err := in.read(t.mro, b[:]); err != nil {
		return nil, err
	}
	for i := range head {
		head[i] = u64at(b[:], 8*i)
	}
	n := u64at(b[:], l.VarSize)
	if in.tupleType != 0 && head[1] != in.tupleType || n == 0 || n > maxMRO {
		return nil, corrupt(t.addr, "method resolution order of a type")
	}
	refs, err := in.words(t.mro+uint64(l.TupleItems), int(n))
	if err != nil {
		return nil, err
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = u64at(refs, 8*i)
	}
	if out[0] != t.addr {
		return nil, corrupt(t.addr, "method resolution order of a type")
	}
	return out, nil
}

// subclass reports whether a type is another or derives from it; false if that
// cannot be read.
func (in *Interp) subclass(t typeInfo, of uint64) bool {
	if t.addr == of {
		return true
	}
	mro, err := in.mro(t)
	if err != nil {
		return false
	}
	for _, a := range mro {
		if a == of {
			return true
		}
	}
	return false
}

// IsInstance reports whether v is an instance of a class or of one derived from it.
func (v Value) IsInstance(class Value) bool {
	return v.in != nil && v.in == class.in && v.in.subclass(v.typ, class.addr)
}

// member reads the reference at the place that a member descriptor names.
func (v Value) member(descr Value) (Value, error) {
	l := &v.in.layout
	b, err := descr.object(l.MemberDef + 8)
	if err != nil {
		return Value{}, err
	}
	def := make([]byte, l.MemberOffset+8)
	if err := v.in.read(u64at(b, l.MemberDef), def); err != nil {
		return Value{}, err
	}
	off := int64(u64at(def, l.MemberOffset))
	if off < objSize || off > 1<<24 {
		return Value{}, corrupt(descr.addr, "offset of a member")
	}
	kind := le.Uint32(def[l.MemberType:])
	if kind != memberObject && kind != memberObjectEx {
		return Value{}, fmt.Errorf("member of C type %d: %w", kind, ErrComputed)
	}
	m, err := v.in.follow(v.addr+uint64(off), v.from)
	if errors.Is(err, ErrNotFound) && kind == memberObject {
		return v.in.value(v.in.none, nil)
	}
	return m, err
}

// instanceAttr looks a name up among the attributes of the instance itself.
func (v Value) instanceAttr(name string) (Value, error) {
	s, from, err := v.instanceStorage()
	if err != nil {
		return Value{}, err
	}
	return v.in.lookup(s, from, name)
}

// Vars returns the attributes that the instance itself has in its __dict__ or
// what stands for it; more than limit gives ErrLimit.
func (v Value) Vars(limit int) ([]Item, error) {
	if v.in == nil {
		return nil, v.wrongType("any")
	}
	return attempt(v, func() ([]Item, error) {
		if v.isType() {
			t, err := v.in.typeInfo(v.addr)
			if err != nil {
				return nil, err
			}
			d, err := v.in.typeDict(t, v.from)
			if errors.Is(err, ErrNotFound) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			return d.Items(limit)
		}
		s, from, err := v.instanceStorage()
		if errors.Is(err, ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		items, err := v.in.items(s, from, limit)
		if err != nil {
			return nil, err
		}
		return items, v.in.still(from)
	})
}

// instanceStorage finds where the instance has its attributes, and how they are
// reached from it; ErrNotFound if it has none. The same class has instances with
// different forms of storage.
func (v Value) instanceStorage() (storage, *chain, error) {
	in, t := v.in, v.typ
	if _, err := v.object(objSize); err != nil {
		return storage{}, nil, err
	}
	if t.flags&flagManagedDict == 0 || in.layout.KeysSize >= 0 { // 3.10 has no such flag
		return v.dictAtOffset()
	}
	switch {
	case in.layout.ValuesValid >= 0: // 3.13
		if t.flags&flagInlineValues != 0 {
			vals := v.addr + uint64(t.basicSize)
			head, err := in.u64(vals)
			if err != nil {
				return storage{}, nil, err
			}
			if head>>(8*in.layout.ValuesValid)&0xff == 1 {
				return v.cachedKeys(vals, v.from)
			}
		}
		return v.dictAt(v.addr - 24)
	case in.layout.LongTag >= 0: // 3.12: a pointer to the values is tagged
		p, err := in.u64(v.addr - 24)
		if err != nil {
			return storage{}, nil, err
		}
		if p&1 != 0 {
			return v.cachedKeys(p+1, v.from.add(v.addr-24, p))
		}
		return v.dictAt(v.addr - 24)
	}
	vals, err := in.u64(v.addr - 32)
	if err != nil {
		return storage{}, nil, err
	}
	if vals != 0 {
		return v.cachedKeys(vals, v.from.add(v.addr-32, vals))
	}
	return v.dictAt(v.addr - 24)
}

// cachedKeys is the storage of values whose keys are those of the class.
func (v Value) cachedKeys(vals uint64, from *chain) (storage, *chain, error) {
	if v.typ.flags&flagHeapType == 0 || vals == 0 || vals%8 != 0 {
		return storage{}, nil, corrupt(v.addr, "attributes of an instance")
	}
	slot := v.typ.addr + uint64(v.in.layout.HeapTypeKeys)
	keys, err := v.in.u64(slot)
	if err != nil {
		return storage{}, nil, err
	}
	if keys == 0 {
		return storage{}, nil, corrupt(v.typ.addr, "shared keys of a type")
	}
	s, err := v.in.splitStorage(keys, vals)
	return s, from.add(slot, keys), err
}

// dictAt is the storage of the dict that the pointer at slot refers to.
func (v Value) dictAt(slot uint64) (storage, *chain, error) {
	d, err := v.in.follow(slot, v.from)
	if err != nil {
		return storage{}, nil, err
	}
	if d.typ.flags&flagDict == 0 {
		return storage{}, nil, corrupt(v.addr, "__dict__ of an instance")
	}
	return d.dictStorage()
}

// dictAtOffset is the storage of an instance whose class says where its dict is.
func (v Value) dictAtOffset() (storage, *chain, error) {
	off := v.typ.dictOffset
	if off == 0 {
		return storage{}, nil, ErrNotFound
	}
	if off < 0 {
		// Counted from the end of an instance of variable size.
		b, err := v.object(objSize + 8)
		if err != nil {
			return storage{}, nil, err
		}
		n := int64(u64at(b, v.in.layout.VarSize))
		if v.typ.flags&flagLong != 0 && v.in.layout.LongTag >= 0 {
			n >>= 3 // a tag, not a size
		}
		if n < 0 {
			n = -n
		}
		if n < 0 || n > maxItems {
			return storage{}, nil, fmt.Errorf("instance of %d elements: %w", n, ErrLimit)
		}
		off += (v.typ.basicSize + n*v.typ.itemSize + 7) &^ 7
	}
	if off < objSize || off%8 != 0 || off > 1<<40 {
		return storage{}, nil, corrupt(v.addr, "place of the __dict__")
	}
	return v.dictAt(v.addr + uint64(off))
}
