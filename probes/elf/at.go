package elf

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// FuncAt finds the function that begins at an offset in the file: in the symbol
// tables, else, for the functions that a stripped file does not name, in the unwind
// information (.eh_frame), which tells their sizes. The error wraps ErrNoSymbol or
// ErrFormat.
func (f *File) FuncAt(offset uint64) (Func, error) {
	fail := func(err error) (Func, error) {
		return Func{}, fmt.Errorf("finding the function at offset %#x: %w", offset, err)
	}
	addr, err := f.addr(offset)
	if err != nil {
		return fail(err)
	}
	fn := Func{Addr: addr, Offset: offset}
	for _, kind := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		for _, s := range f.elf.Sections {
			if s.Type != kind {
				continue
			}
			table, err := sectionBytes(s, maxSymbolBytes)
			if err != nil {
				return fail(err)
			}
			for ; len(table) >= symbolSize; table = table[symbolSize:] {
				size := binary.LittleEndian.Uint64(table[16:])
				if elf.ST_TYPE(table[4]) != elf.STT_FUNC || binary.LittleEndian.Uint64(table[8:]) != addr || size == 0 {
					continue
				}
				fn.Size = size
				return fn, nil
			}
		}
	}
	s := f.elf.Section(".eh_frame")
	if s == nil {
		return fail(ErrNoSymbol)
	}
	b, err := sectionBytes(s, maxSymbolBytes)
	if err != nil {
		return fail(err)
	}
	if fn.Size, err = unwindSize(b, s.Addr, addr); err != nil {
		return fail(err)
	}
	return fn, nil
}

// addr converts an offset in the file to a virtual address.
func (f *File) addr(offset uint64) (uint64, error) {
	for _, p := range f.elf.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && offset >= p.Off && offset-p.Off < p.Filesz {
			return offset - p.Off + p.Vaddr, nil
		}
	}
	return 0, fmt.Errorf("%w: it is in no executable segment", ErrFormat)
}

// Encodings of pointers (DWARF exception header encoding, Linux Standard Base Core
// 5.0, 10.5.1).
const (
	ehAbsptr  = 0x00
	ehUdata4  = 0x03
	ehUdata8  = 0x04
	ehSdata4  = 0x0b
	ehSdata8  = 0x0c
	ehFormat  = 0x0f
	ehPCRel   = 0x10
	ehRelated = 0x70
)

// unwindSize returns the size of the function that begins at addr by the entries of
// .eh_frame, whose first byte is at base.
func unwindSize(b []byte, base, addr uint64) (uint64, error) {
	le := binary.LittleEndian
	encodings := map[int]byte{} // by the place of the common entry
	for at := 0; len(b)-at >= 8; {
		size := uint64(le.Uint32(b[at:]))
		if size == 0 {
			break
		}
		// The form for 4 GiB and more is not met.
		if size < 4 || size > uint64(len(b)-at-4) {
			return 0, fmt.Errorf("%w: unwind entry of %d bytes", ErrFormat, size)
		}
		entry := b[at+4 : at+4+int(size)]
		id := le.Uint32(entry)
		if id == 0 {
			if enc, ok := pointerEncoding(entry[4:]); ok {
				encodings[at] = enc
			}
		} else if enc, ok := encodings[at+4-int(id)]; ok {
			start, n, ok := unwindRange(entry[4:], enc, base+uint64(at)+8)
			if ok && start == addr && n > 0 {
				return n, nil
			}
		}
		at += 4 + int(size)
	}
	return 0, ErrNoSymbol
}

// pointerEncoding reads how the entries that refer to a common one write addresses.
func pointerEncoding(b []byte) (byte, bool) {
	if len(b) < 2 || b[0] != 1 { // version
		return 0, false
	}
	b = b[1:]
	end := 0
	for end < len(b) && b[end] != 0 {
		end++
	}
	if end >= len(b) || end > 8 {
		return 0, false
	}
	augmentation := string(b[:end])
	b = b[end+1:]
	skip := func() bool { // a LEB128
		for i := range b {
			if b[i]&0x80 == 0 {
				b = b[i+1:]
				return true
			}
		}
		return false
	}
	if augmentation == "" {
		return ehAbsptr, true
	}
	// Code and data alignment, return register (a byte in version 1), size of what follows.
	if augmentation[0] != 'z' || !skip() || !skip() || len(b) < 1 {
		return 0, false
	}
	if b = b[1:]; !skip() {
		return 0, false
	}
	for _, c := range augmentation[1:] {
		if len(b) < 1 {
			return 0, false
		}
		switch c {
		case 'R':
			return b[0], true
		case 'L':
			b = b[1:]
		case 'P':
			n, ok := pointerSize(b[0])
			if !ok || len(b) < 1+n {
				return 0, false
			}
			b = b[1+n:]
		case 'S', 'B':
		default:
			return 0, false
		}
	}
	return ehAbsptr, true
}

func pointerSize(enc byte) (int, bool) {
	switch enc & ehFormat {
	case ehAbsptr, ehUdata8, ehSdata8:
		return 8, true
	case ehUdata4, ehSdata4:
		return 4, true
	}
	return 0, false
}

// unwindRange reads the address and size that an entry is for. at is where b is.
func unwindRange(b []byte, enc byte, at uint64) (start, n uint64, ok bool) {
	size, ok := pointerSize(enc)
	if rel := enc & ehRelated; !ok || enc&0x80 != 0 || (rel != 0 && rel != ehPCRel) || len(b) < 2*size {
		return 0, 0, false
	}
	if size == 8 {
		start, n = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	} else {
		lo := binary.LittleEndian.Uint32(b)
		start, n = uint64(lo), uint64(binary.LittleEndian.Uint32(b[4:]))
		if enc&ehFormat == ehSdata4 {
			start = uint64(int64(int32(lo)))
		}
	}
	if enc&ehRelated == ehPCRel {
		start += at
	}
	return start, n, true
}

// maxShort bounds the functions that FirstReturn is for.
const maxShort = 64

// FirstReturn finds the first return instruction behind the beginning of a short
// function without branches, of which the file need not say anything. Both are offsets
// in the file. The error wraps ErrNoSymbol or ErrFormat.
func (f *File) FirstReturn(offset uint64) (uint64, error) {
	addr, err := f.addr(offset)
	if err != nil {
		return 0, fmt.Errorf("finding the return of the function at offset %#x: %w", offset, err)
	}
	// What is behind the function may be anything: try with as little as will do.
	for size := uint64(1); size <= maxShort; size++ {
		e, err := f.Exits(Func{Addr: addr, Offset: offset, Size: size})
		if err == nil && len(e.Returns) > 0 {
			return e.Returns[0], nil
		}
	}
	return 0, fmt.Errorf("finding the return of the function at offset %#x: none within %d bytes: %w", offset, maxShort, ErrNoSymbol)
}
