package elf

import (
	"bytes"
	"debug/elf"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestSymbols compares with debug/elf.
func TestSymbols(t *testing.T) {
	b, err := os.ReadFile(compile(t))
	if err != nil {
		t.Fatal(err)
	}
	e, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	static, err := e.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	dynamic, err := e.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var want []Symbol
	zeroed := 0
	for _, s := range append(static, dynamic...) {
		if k := elf.ST_TYPE(s.Info); s.Section != elf.SHN_UNDEF && (k == elf.STT_FUNC || k == elf.STT_OBJECT) {
			want = append(want, Symbol{Addr: s.Value, Size: s.Size, Func: k == elf.STT_FUNC, Name: s.Name})
		}
	}
	var got []Symbol
	f := open(t, compile(t))
	if err := f.Symbols(func(s Symbol) bool { return true }, func(s Symbol) { got = append(got, s) }); err != nil {
		t.Fatal(err)
	}
	order := func(a, b Symbol) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	if !slices.Equal(got, want) || len(got) < 5 {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	bss := f.elf.Section(".bss")
	for _, s := range got {
		in := s.Addr >= bss.Addr && s.Addr < bss.Addr+bss.Size
		if f.Zeroed(s.Addr) != in {
			t.Errorf("%+v: zeroed %v, in .bss %v", s, f.Zeroed(s.Addr), in)
		}
		if in {
			zeroed++
		}
	}
	if zeroed == 0 {
		t.Error("nothing is in .bss")
	}
	got = nil
	if err := f.Symbols(func(s Symbol) bool { return s.Func }, func(s Symbol) { got = append(got, s) }); err != nil || slices.ContainsFunc(got, func(s Symbol) bool { return !s.Func }) {
		t.Errorf("functions only: %+v, %v", got, err)
	}
	if !f.HasSection(".bss") || f.HasSection(".nv_fatbin") {
		t.Error("sections are not those of the file")
	}
}
