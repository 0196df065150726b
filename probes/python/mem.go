package python

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var le = binary.LittleEndian

// u64at reads the word at a member's offset in a buffer.
func u64at(b []byte, off int) uint64 { return le.Uint64(b[off:]) }

func (in *Interp) read(addr uint64, buf []byte) error {
	if addr < 4096 || addr+uint64(len(buf)) < addr {
		return fmt.Errorf("reading at %#x: %w", addr, ErrUnmapped)
	}
	return in.mem.ReadAt(addr, buf)
}

func (in *Interp) u64(addr uint64) (uint64, error) {
	var b [8]byte
	if err := in.read(addr, b[:]); err != nil {
		return 0, err
	}
	return le.Uint64(b[:]), nil
}

// batch reads size bytes at each address. The part of an address that cannot be
// read is all zero, which no object is.
func (in *Interp) batch(addrs []uint64, size int) ([]byte, error) {
	buf := make([]byte, len(addrs)*size)
	for i := 0; i < len(addrs); {
		if bm, ok := in.mem.(batchMemory); ok {
			n, err := bm.ReadBatch(addrs[i:], size, buf[i*size:])
			if err != nil {
				return nil, err
			}
			if i += n; i == len(addrs) {
				break
			}
		}
		// One at a time: the part may end behind the last mapped page although
		// the object does not.
		part := buf[i*size : (i+1)*size]
		for n := size; ; n /= 2 {
			err := in.read(addrs[i], part[:n])
			if err == nil {
				break
			}
			clear(part)
			if !errors.Is(err, ErrUnmapped) {
				return nil, err
			}
			if n/2 < objSize {
				break
			}
		}
		i++
	}
	return buf, nil
}

// retry runs f until it gives something else than a sign that memory changed.
func retry[T any](f func() (T, error)) (T, error) {
	var v T
	var err error
	for range tries {
		v, err = f()
		if err == nil || !changed(err) || errors.Is(err, errStuck) {
			return v, err
		}
	}
	return v, err
}

// attempt is retry for reading v. It stops when v is no longer where it was found,
// which no further try changes, and says so instead of what was read from there.
func attempt[T any](v Value, f func() (T, error)) (T, error) {
	var t T
	var err error
	for range tries {
		t, err = f()
		if err == nil || v.in == nil || errors.Is(err, ErrGone) || errors.Is(err, errStuck) {
			return t, err
		}
		if serr := v.still(); serr != nil {
			return t, serr
		}
		if !changed(err) {
			return t, err
		}
	}
	return t, err
}

func changed(err error) bool {
	return errors.Is(err, ErrUnstable) || errors.Is(err, ErrUnmapped) || errors.Is(err, ErrCorrupt)
}

func corrupt(addr uint64, what string) error {
	return fmt.Errorf("object at %#x: %s: %w", addr, what, ErrCorrupt)
}
