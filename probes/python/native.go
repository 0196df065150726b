package python

import "fmt"

// An mmap.mmap object: {head, data, size, ...} (Modules/mmapmodule.c), the same in 3.10
// to 3.14.
const (
	mmapData = 16
	mmapSize = 24
	mmapHead = 32
)

// Mapped returns a copy of n bytes at an offset of the memory that an mmap.mmap object
// maps. The program may be writing them: what they hold must say whether it is whole.
func (v Value) Mapped(off, n int) ([]byte, error) {
	if err := v.exactly("mmap", "mmap"); err != nil {
		return nil, err
	}
	b, err := v.object(mmapHead)
	if err != nil {
		return nil, err
	}
	data, size := u64at(b, mmapData), u64at(b, mmapSize)
	if data == 0 || off < 0 || n < 0 || n > maxStr || uint64(off)+uint64(n) > size {
		return nil, fmt.Errorf("%d bytes at %d of a map of %d: %w", n, off, size, ErrLimit)
	}
	out := make([]byte, n)
	return out, v.in.readSome(data+uint64(off), out)
}

// ArrayLen returns the number of elements of an array.array object, whose head is that of
// all objects of variable size.
func (v Value) ArrayLen() (int, error) {
	if err := v.exactly("array", "array"); err != nil {
		return 0, err
	}
	off := v.in.layout.VarSize
	b, err := v.object(off + 8)
	if err != nil {
		return 0, err
	}
	n := int64(u64at(b, off))
	if n < 0 || n > 1<<48 {
		return 0, corrupt(v.addr, "size of an array")
	}
	return int(n), v.still()
}

// exactly fails unless v is an instance of that class, and of no other.
func (v Value) exactly(module, name string) error {
	if v.in == nil {
		return v.wrongType(module + "." + name)
	}
	class, err := v.in.Path(module, name)
	if err != nil {
		return err
	}
	if !class.isType() || v.typ.addr != class.addr {
		return v.wrongType(module + "." + name)
	}
	return nil
}
