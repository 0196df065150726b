package python

import (
	"errors"
	"fmt"
	"math/bits"
)

// StrHash returns the hash that the process computes for an ASCII str: by it a str
// is found in a dict without a look at all the keys. The interpreter must have the
// hash function that CPython is built with by default; ErrUnsupported otherwise.
func (in *Interp) StrHash(s string) (uint64, error) {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return 0, fmt.Errorf("hashing %q: not ASCII: %w", s, ErrType)
		}
	}
	if h := in.hash.Load(); h != nil {
		return h.hash(s), nil
	}
	h, err := in.hasher()
	if err != nil {
		return 0, err
	}
	in.hash.Store(&h)
	return h.hash(s), nil
}

type hasher struct {
	k0, k1        uint64
	block, finish int // rounds
}

// known is a str that has its hash with it.
type known struct {
	text string
	hash uint64
}

// hasher finds the secret of the process and checks it against strings that have
// their hash with them.
func (in *Interp) hasher() (hasher, error) {
	strs, err := in.hashed()
	if err != nil {
		return hasher{}, err
	}
	if len(strs) == 0 {
		return hasher{}, fmt.Errorf("no str to check the hash function with: %w", ErrUnsupported)
	}
	if in.img.secret == 0 {
		return in.searchSecret(strs)
	}
	var b [16]byte
	if err := in.read(in.img.secret, b[:]); err != nil {
		return hasher{}, err
	}
	h := in.hasherOf(b[:])
	for _, k := range strs {
		if got := h.hash(k.text); got != k.hash {
			return hasher{}, fmt.Errorf("hash of the str %q is %#x, not the SipHash %#x: %w", k.text, k.hash, got, ErrUnsupported)
		}
	}
	return h, nil
}

// hasherOf makes a hasher of the words of _Py_HashSecret.
func (in *Interp) hasherOf(b []byte) hasher {
	// Python/pyhash.c: SipHash-1-3 since 3.11, 2-4 before.
	h := hasher{k0: u64at(b, 0), k1: u64at(b, 8), block: 1, finish: 3}
	if in.layout.KeysSize >= 0 {
		h.block, h.finish = 2, 4
	}
	return h
}

// searchSecret looks for the secret of an interpreter without a symbol for it among
// its variables: it is where the hashes of known strings come out.
func (in *Interp) searchSecret(strs []known) (hasher, error) {
	buf := make([]byte, 64<<10)
	for _, s := range in.img.data {
		for at := s.start; at+16 <= s.end; {
			b := buf[:min(uint64(len(buf)), s.end-at)]
			if err := in.read(at, b); errors.Is(err, ErrGone) {
				return hasher{}, err
			} else if err == nil {
				for i := 0; i+16 <= len(b); i += 8 {
					h := in.hasherOf(b[i:])
					ok := true
					for _, k := range strs {
						if ok = h.hash(k.text) == k.hash; !ok {
							break
						}
					}
					if ok {
						return h, nil
					}
				}
			}
			at += max(uint64(len(b))-8, 8) // a secret can lie across the end of b
		}
	}
	return hasher{}, fmt.Errorf("no symbol _Py_HashSecret in the interpreter, and no such variable: %w", ErrUnsupported)
}

// hashed returns some names of modules with their hashes.
func (in *Interp) hashed() ([]known, error) {
	st, _, err := in.modules.dictStorage()
	if err != nil {
		return nil, err
	}
	t, err := in.keyTable(st.keys)
	if err != nil {
		return nil, err
	}
	var out []known
	for i := range min(t.n, 64) {
		addr, err := in.u64(t.entries + uint64(t.size*i+t.keyAt))
		if err != nil || addr == 0 {
			continue
		}
		key, err := in.value(addr, nil)
		if err != nil {
			continue
		}
		name, err := key.Str()
		if errors.Is(err, ErrGone) {
			return nil, err
		}
		if err != nil || name == "" {
			continue
		}
		hash, err := in.u64(addr + uint64(in.layout.StrLength) + 8)
		if err != nil || int64(hash) == -1 { // not computed yet
			continue
		}
		if out = append(out, known{name, hash}); len(out) == 8 {
			break
		}
	}
	return out, nil
}

// hash is _Py_HashBytes (Python/pyhash.c).
func (h hasher) hash(s string) uint64 {
	if s == "" {
		return 0
	}
	v0, v1 := h.k0^0x736f6d6570736575, h.k1^0x646f72616e646f6d
	v2, v3 := h.k0^0x6c7967656e657261, h.k1^0x7465646279746573
	round := func(n int) {
		for range n {
			v0 += v1
			v2 += v3
			v1 = bits.RotateLeft64(v1, 13) ^ v0
			v3 = bits.RotateLeft64(v3, 16) ^ v2
			v0 = bits.RotateLeft64(v0, 32)
			v2 += v1
			v0 += v3
			v1 = bits.RotateLeft64(v1, 17) ^ v2
			v3 = bits.RotateLeft64(v3, 21) ^ v0
			v2 = bits.RotateLeft64(v2, 32)
		}
	}
	b := append([]byte(s), 0, 0, 0, 0, 0, 0, 0)
	b = b[:len(b)&^7]
	if len(s)%8 == 0 {
		b = append(b[:len(s)], make([]byte, 8)...)
	}
	b[len(b)-1] = byte(len(s))
	for i := 0; i < len(b); i += 8 {
		m := u64at(b, i)
		v3 ^= m
		round(h.block)
		v0 ^= m
	}
	v2 ^= 0xff
	round(h.finish)
	u := v0 ^ v1 ^ v2 ^ v3
	if int64(u) == -1 {
		u--
	}
	return u
}
