package elf

import (
	"errors"
	"testing"
)

// TestFuncAt compares what the symbols say with what is found without them. The
// stripped library is the same one but for its symbols.
func TestFuncAt(t *testing.T) {
	named, stripped := open(t, compile(t)), open(t, compile(t, "-s"))
	for _, name := range []string{"plain", "tail", "hidden"} {
		want, err := named.Func(name)
		if err != nil {
			t.Fatal(err)
		}
		for how, f := range map[string]*File{"symbols": named, "unwind information": stripped} {
			got, err := f.FuncAt(want.Offset)
			if err != nil || got.Addr != want.Addr || got.Size != want.Size || got.Offset != want.Offset {
				t.Errorf("%s by %s: %+v, %v, want %+v", name, how, got, err, want)
			}
			a, errA := f.Exits(got)
			b, errB := named.Exits(want)
			if errA != nil || errB != nil || len(a.Returns) != len(b.Returns) || a.Complete() != b.Complete() {
				t.Errorf("%s by %s: %+v, %v, want %+v, %v", name, how, a, errA, b, errB)
			}
			if got, err := f.FuncAt(want.Offset + 1); !errors.Is(err, ErrNoSymbol) {
				t.Errorf("within %s by %s: %+v, %v, want %v", name, how, got, err, ErrNoSymbol)
			}
		}
	}
	for _, off := range []uint64{0, 1 << 40} {
		if got, err := named.FuncAt(off); err == nil {
			t.Errorf("offset %#x: %+v", off, got)
		}
	}
}

// FuzzUnwind checks that any bytes give a size or an error, and that a size is that
// of an entry for the address: another address does not have it.
func FuzzUnwind(f *testing.F) {
	s := open(f, compile(f)).elf.Section(".eh_frame")
	b, err := s.Data()
	if err != nil {
		f.Fatal(err)
	}
	fn, err := open(f, compile(f)).Func("plain")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, s.Addr, fn.Addr)
	f.Add(b[:len(b)/2], s.Addr, fn.Addr)
	f.Fuzz(func(t *testing.T, b []byte, base, addr uint64) {
		n, err := unwindSize(b, base, addr)
		if (n == 0) == (err == nil) {
			t.Fatalf("size %d and %v", n, err)
		}
		if err != nil {
			return
		}
		// Moved with the section, the function has the same size at its new place, or,
		// if its address is written as it is, at the old one.
		if m, err := unwindSize(b, base+64, addr+64); err != nil || m == 0 {
			if m, err := unwindSize(b, base+64, addr); err != nil || m != n {
				t.Fatalf("size %d, and %d, %v when moved", n, m, err)
			}
		}
	})
}
