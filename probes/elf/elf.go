// Package elf finds functions in ELF files and the places where they return. The
// files belong to observed processes: every size is bounded and nothing is
// believed without a check.
package elf

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Bounds of what is read. The largest library met in an engine (libtorch_cuda) has
// some 60 MiB of symbol names; a C function to probe has a few hundred bytes.
const (
	maxSymbolBytes = 256 << 20
	maxStringBytes = 512 << 20
	maxFuncBytes   = 1 << 20
	maxSections    = 1 << 16
)

// Errors that are wrapped.
var (
	// ErrNoSymbol: the file does not define the function.
	ErrNoSymbol = errors.New("no such function in the symbol tables")
	// ErrFormat: not an ELF file of a supported kind, or a damaged one.
	ErrFormat = errors.New("malformed ELF file")
	// ErrDecode: machine code that is not understood.
	ErrDecode = errors.New("machine code not understood")
)

// File is an open ELF file. Its methods may be called concurrently if the
// underlying reader allows that.
type File struct {
	elf *elf.File
}

// Func is a function of a file.
type Func struct {
	Name   string
	Addr   uint64 // virtual address in the file's own terms
	Offset uint64 // of the first instruction in the file, bytes
	Size   uint64 // bytes, 0 if the symbol table does not tell
}

// New reads the headers of an ELF file: 64 bit, little endian, x86-64 or arm64.
// The reader must stay usable for as long as the File is.
func New(r io.ReaderAt) (f *File, err error) {
	// debug/elf promises no panic for arbitrary bytes only by its fuzz tests.
	defer func() {
		if p := recover(); p != nil {
			f, err = nil, fmt.Errorf("reading ELF headers: %w: %v", ErrFormat, p)
		}
	}()
	e, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("reading ELF headers: %w: %w", ErrFormat, err)
	}
	if e.Class != elf.ELFCLASS64 || e.Data != elf.ELFDATA2LSB || (e.Machine != elf.EM_X86_64 && e.Machine != elf.EM_AARCH64) {
		return nil, fmt.Errorf("reading ELF headers: %w: %s %s %s is not supported", ErrFormat, e.Class, e.Data, e.Machine)
	}
	if len(e.Sections) > maxSections {
		return nil, fmt.Errorf("reading ELF headers: %w: %d sections", ErrFormat, len(e.Sections))
	}
	return &File{elf: e}, nil
}

// Func finds a defined function by name in the dynamic symbols, then in the full
// symbol table. The error wraps ErrNoSymbol or ErrFormat.
func (f *File) Func(name string) (Func, error) {
	for _, kind := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		for _, s := range f.elf.Sections {
			if s.Type != kind {
				continue
			}
			fn, ok, err := f.search(s, name)
			if err != nil {
				return Func{}, fmt.Errorf("finding %s: %w", name, err)
			}
			if ok {
				return fn, nil
			}
		}
	}
	return Func{}, fmt.Errorf("finding %s: %w", name, ErrNoSymbol)
}

const symbolSize = 24 // Elf64_Sym

func (f *File) search(symbols *elf.Section, name string) (Func, bool, error) {
	if symbols.Link == 0 || int(symbols.Link) >= len(f.elf.Sections) {
		return Func{}, false, fmt.Errorf("%w: symbol table without names", ErrFormat)
	}
	names := f.elf.Sections[symbols.Link]
	table, err := sectionBytes(symbols, maxSymbolBytes)
	if err != nil {
		return Func{}, false, err
	}
	text, err := sectionBytes(names, maxStringBytes)
	if err != nil {
		return Func{}, false, err
	}
	var found Func
	for ; len(table) >= symbolSize; table = table[symbolSize:] {
		at := binary.LittleEndian.Uint32(table)
		info, shndx := table[4], elf.SectionIndex(binary.LittleEndian.Uint16(table[6:]))
		if elf.ST_TYPE(info) != elf.STT_FUNC || shndx == elf.SHN_UNDEF || !hasName(text, at, name) {
			continue
		}
		fn := Func{Name: name, Addr: binary.LittleEndian.Uint64(table[8:]), Size: binary.LittleEndian.Uint64(table[16:])}
		off, err := f.offset(fn.Addr)
		if err != nil {
			return Func{}, false, err
		}
		fn.Offset = off
		if fn.Size > 0 {
			return fn, true, nil
		}
		found = fn
	}
	return found, found.Name != "", nil
}

func hasName(text []byte, at uint32, name string) bool {
	end := uint64(at) + uint64(len(name))
	return end < uint64(len(text)) && text[end] == 0 && string(text[at:end]) == name
}

func sectionBytes(s *elf.Section, limit uint64) ([]byte, error) {
	if s.Type == elf.SHT_NOBITS || s.Flags&elf.SHF_COMPRESSED != 0 || s.FileSize > limit {
		return nil, fmt.Errorf("%w: section %s of %d bytes, at most %d are read", ErrFormat, s.Name, s.FileSize, limit)
	}
	b, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("%w: reading section %s: %w", ErrFormat, s.Name, err)
	}
	return b, nil
}

// offset converts a virtual address to an offset in the file.
func (f *File) offset(addr uint64) (uint64, error) {
	for _, p := range f.elf.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && addr >= p.Vaddr && addr-p.Vaddr < p.Filesz {
			return addr - p.Vaddr + p.Off, nil
		}
	}
	return 0, fmt.Errorf("%w: address %#x is in no executable segment", ErrFormat, addr)
}

// code reads the function's instructions.
func (f *File) code(fn Func) ([]byte, error) {
	if fn.Size == 0 || fn.Size > maxFuncBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes by the symbol table", ErrFormat, fn.Name, fn.Size)
	}
	for _, p := range f.elf.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_X == 0 || fn.Addr < p.Vaddr || fn.Addr-p.Vaddr >= p.Filesz {
			continue
		}
		at := fn.Addr - p.Vaddr
		if fn.Size > p.Filesz-at {
			break
		}
		b := make([]byte, fn.Size)
		if _, err := p.ReadAt(b, int64(at)); err != nil {
			return nil, fmt.Errorf("%w: reading %s: %w", ErrFormat, fn.Name, err)
		}
		return b, nil
	}
	return nil, fmt.Errorf("%w: %s is not within one executable segment", ErrFormat, fn.Name)
}
