package python

import "fmt"

// Object returns the object at an address that was learned elsewhere: from a capture,
// or from a Value whose way to it may not last. That it lives on is the caller's
// knowledge; reads of it find out only if it became an object of another type.
func (in *Interp) Object(addr uint64) (Value, error) {
	v, err := retry(func() (Value, error) { return in.value(addr, nil) })
	if err != nil {
		return Value{}, fmt.Errorf("object at %#x: %w", addr, err)
	}
	return v, nil
}

// Field returns the attribute at an offset that Slot told of the object's class, or of
// one that it derives from. ErrNotFound if it is not set.
func (v Value) Field(offset uint64) (Value, error) {
	if v.in == nil {
		return Value{}, v.wrongType("any")
	}
	if offset < objSize || offset >= uint64(v.typ.basicSize) || offset%8 != 0 {
		return Value{}, fmt.Errorf("field of %s at %d: %w", v.TypeName(), offset, ErrNotFound)
	}
	f, err := retry(func() (Value, error) {
		f, err := v.in.follow(v.addr+offset, v.from)
		if err != nil {
			return Value{}, err
		}
		_, err = v.object(objSize)
		return f, err
	})
	return settle(v, f, err)
}
