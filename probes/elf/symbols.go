package elf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Symbol is a defined symbol of a file.
type Symbol struct {
	Addr uint64 // virtual address in the file's own terms
	Size uint64
	Func bool // a function, else data
	Name string
}

// maxSymbolName bounds names. The longest in libtorch_cuda has 4,600 bytes.
const maxSymbolName = 16 << 10

// HasSection tells whether the file has a section of that name.
func (f *File) HasSection(name string) bool { return f.elf.Section(name) != nil }

// Symbols calls take for the functions and data that the symbol tables define, if want
// says so of what is known without the name. Names longer than 16 KiB are left out. A
// file without symbol tables has none. The error wraps ErrFormat.
func (f *File) Symbols(want func(Symbol) bool, take func(Symbol)) error {
	for _, s := range f.elf.Sections {
		if s.Type != elf.SHT_DYNSYM && s.Type != elf.SHT_SYMTAB {
			continue
		}
		if err := f.symbols(s, want, take); err != nil {
			return fmt.Errorf("reading symbols: %w", err)
		}
	}
	return nil
}

func (f *File) symbols(s *elf.Section, want func(Symbol) bool, take func(Symbol)) error {
	if s.Link == 0 || int(s.Link) >= len(f.elf.Sections) {
		return fmt.Errorf("%w: symbol table without names", ErrFormat)
	}
	table, err := sectionBytes(s, maxSymbolBytes)
	if err != nil {
		return err
	}
	type wanted struct {
		Symbol
		name uint32
	}
	var all []wanted
	for ; len(table) >= symbolSize; table = table[symbolSize:] {
		kind, shndx := elf.ST_TYPE(table[4]), elf.SectionIndex(binary.LittleEndian.Uint16(table[6:]))
		if shndx == elf.SHN_UNDEF || kind != elf.STT_FUNC && kind != elf.STT_OBJECT {
			continue
		}
		one := Symbol{Addr: binary.LittleEndian.Uint64(table[8:]), Size: binary.LittleEndian.Uint64(table[16:]), Func: kind == elf.STT_FUNC}
		if want(one) {
			all = append(all, wanted{one, binary.LittleEndian.Uint32(table)})
		}
	}
	// Names in the order of the file, a piece at a time: those of libtorch_cuda are 60 MiB.
	slices.SortFunc(all, func(a, b wanted) int { return int(int64(a.name) - int64(b.name)) })
	names := f.elf.Sections[s.Link]
	if names.Type == elf.SHT_NOBITS || names.Flags&elf.SHF_COMPRESSED != 0 {
		return fmt.Errorf("%w: names in section %s", ErrFormat, names.Name)
	}
	buf := make([]byte, 1<<20)
	var from, to uint64 // of the names, what buf holds
	for _, w := range all {
		at := uint64(w.name)
		if at >= names.FileSize {
			return fmt.Errorf("%w: a name beyond section %s", ErrFormat, names.Name)
		}
		if to == 0 || at+maxSymbolName > to && to < names.FileSize {
			n, err := names.ReadAt(buf, int64(at))
			if err != nil && err != io.EOF {
				return fmt.Errorf("%w: reading section %s: %w", ErrFormat, names.Name, err)
			}
			from, to = at, at+uint64(n)
		}
		text := buf[at-from : to-from]
		if n := bytes.IndexByte(text[:min(len(text), maxSymbolName)], 0); n >= 0 {
			w.Name = string(text[:n])
			take(w.Symbol)
		}
	}
	return nil
}

// Base returns the address at which the file's address 0 is in a process that maps the
// executable part from a file offset on to an address. The error wraps ErrFormat.
func (f *File) Base(start, offset uint64) (uint64, error) {
	const page = 4096 // at least; segments are mapped in whole pages
	for _, p := range f.elf.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && offset+page > p.Off && offset < p.Off+p.Filesz {
			return start - (p.Vaddr - p.Off + offset), nil
		}
	}
	return 0, fmt.Errorf("%w: no executable segment at offset %#x", ErrFormat, offset)
}

// Zeroed tells whether an address is that of data which is not in the file but begins as
// zeros (.bss).
func (f *File) Zeroed(addr uint64) bool {
	for _, p := range f.elf.Progs {
		if p.Type == elf.PT_LOAD && addr >= p.Vaddr && addr-p.Vaddr < p.Memsz {
			return addr-p.Vaddr >= p.Filesz
		}
	}
	return false
}
