package elf

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
)

// X86 tells whether the file is for x86-64.
func (f *File) X86() bool { return f.elf.Machine == elf.EM_X86_64 }

// Read reads what the file has for addresses from addr on. The error wraps ErrFormat if it
// has not all of that.
func (f *File) Read(addr uint64, b []byte) error {
	for _, p := range f.elf.Progs {
		if p.Type != elf.PT_LOAD || addr < p.Vaddr || addr-p.Vaddr >= p.Filesz {
			continue
		}
		if n, err := p.ReadAt(b, int64(addr-p.Vaddr)); n < len(b) {
			return fmt.Errorf("%w: reading %d bytes at %#x: %w", ErrFormat, len(b), addr, err)
		}
		return nil
	}
	return fmt.Errorf("%w: address %#x is not in the file", ErrFormat, addr)
}

// String reads a string that ends with a zero, of at most limit bytes.
func (f *File) String(addr uint64, limit int) (string, error) {
	var b []byte
	for len(b) < limit {
		piece := make([]byte, min(256, limit-len(b)))
		if err := f.Read(addr+uint64(len(b)), piece); err != nil {
			// Near the end of a segment.
			piece = piece[:1]
			if err := f.Read(addr+uint64(len(b)), piece); err != nil {
				return "", err
			}
		}
		if n := bytes.IndexByte(piece, 0); n >= 0 {
			return string(append(b, piece[:n]...)), nil
		}
		b = append(b, piece...)
	}
	return "", fmt.Errorf("%w: a string at %#x of more than %d bytes", ErrFormat, addr, limit)
}

// Code calls look with the machine code of the file, a piece at a time, that begins at
// addr. The first overlap bytes of a piece are the last ones of the piece before, if there
// is one.
func (f *File) Code(overlap int, look func(addr uint64, code []byte)) error {
	buf := make([]byte, 1<<20+overlap)
	for _, p := range f.elf.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_X == 0 {
			continue
		}
		for at := uint64(0); at < p.Filesz; at += 1 << 20 {
			n, err := p.ReadAt(buf[:min(uint64(len(buf)), p.Filesz-at)], int64(at))
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: reading code: %w", ErrFormat, err)
			}
			if n == 0 {
				break
			}
			look(p.Vaddr+at, buf[:n])
		}
	}
	return nil
}
