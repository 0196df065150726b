package elf

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"testing"
)

func TestRead(t *testing.T) {
	path := compile(t)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	if f.X86() != (f.elf.Machine == elf.EM_X86_64) {
		t.Error("the machine is another")
	}
	text := f.elf.Section(".text")
	code := make([]byte, text.Size)
	if err := f.Read(text.Addr, code); err != nil || !bytes.Equal(code, b[text.Offset:][:text.Size]) {
		t.Errorf("the code is another: %v", err)
	}
	if err := f.Read(text.Addr, make([]byte, len(b))); !errors.Is(err, ErrFormat) {
		t.Errorf("beyond the segment: %v", err)
	}
	if err := f.Read(1<<40, code); !errors.Is(err, ErrFormat) {
		t.Errorf("beyond all: %v", err)
	}
	// The names of the dynamic symbols begin with an empty one; the next is a string.
	names := f.elf.Section(".dynstr")
	all, err := names.Data()
	if err != nil {
		t.Fatal(err)
	}
	want := string(all[1:][:bytes.IndexByte(all[1:], 0)])
	if got, err := f.String(names.Addr+1, 4096); err != nil || got != want || want == "" {
		t.Errorf("string %q, %v; want %q", got, err, want)
	}
	if got, err := f.String(names.Addr+1, len(want)); !errors.Is(err, ErrFormat) {
		t.Errorf("a string of more than is allowed: %q, %v", got, err)
	}
	if got, err := f.String(names.Addr, 10); err != nil || got != "" {
		t.Errorf("an empty string: %q, %v", got, err)
	}
	found := false
	err = f.Code(8, func(addr uint64, code []byte) {
		if addr <= text.Addr && text.Addr+text.Size <= addr+uint64(len(code)) {
			found = bytes.Equal(code[text.Addr-addr:][:text.Size], b[text.Offset:][:text.Size])
		}
	})
	if err != nil || !found {
		t.Errorf("the code is not among the code: %v", err)
	}
}
