package elf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/arch/x86/x86asm"
)

// Exits is where a function is left.
type Exits struct {
	// Returns are the offsets in the file of the return instructions.
	Returns []uint64
	// Outside counts jumps out of the function's bytes: to a part of it that the
	// compiler placed elsewhere, or to another function that returns in its place.
	Outside int
	// Indirect counts jumps to a computed address: through the table of a switch,
	// or to another function.
	Indirect int
}

// Complete reports whether the function is left through Returns only.
func (e Exits) Complete() bool { return len(e.Returns) > 0 && e.Outside == 0 && e.Indirect == 0 }

// Exits decodes the function. The error wraps ErrFormat, or ErrDecode if an
// instruction is not understood: what follows it cannot be trusted then.
func (f *File) Exits(fn Func) (Exits, error) {
	code, err := f.code(fn)
	if err != nil {
		return Exits{}, fmt.Errorf("finding the returns of %s: %w", fn.Name, err)
	}
	var e Exits
	if f.elf.Machine == elf.EM_AARCH64 {
		e, err = exitsARM64(code, fn.Offset)
	} else {
		e, err = exitsX86(code, fn.Offset)
	}
	if err != nil {
		return Exits{}, fmt.Errorf("finding the returns of %s: %w", fn.Name, err)
	}
	return e, nil
}

// endbr64 begins functions built with control-flow protection; x86asm does not know it.
var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// decodeX86 decodes the instruction at the start of code, but for those whose length
// x86asm may get wrong. endbr64 is a nop.
func decodeX86(code []byte) (x86asm.Inst, error) {
	if bytes.HasPrefix(code, endbr64) {
		return x86asm.Inst{Op: x86asm.NOP, Len: len(endbr64)}, nil
	}
	// VEX, EVEX: x86asm knows some. A wrong length would make a breakpoint of a byte in
	// the middle of an instruction, so none is accepted.
	if b := code[0]; b == 0xc4 || b == 0xc5 || b == 0x62 {
		return x86asm.Inst{}, errors.New("vector instruction")
	}
	inst, err := x86asm.Decode(code, 64)
	// Op 0 is a prefix without an instruction that x86asm knows.
	if err == nil && (inst.Len <= 0 || inst.Op == 0) {
		err = errors.New("unknown instruction")
	}
	return inst, err
}

func exitsX86(code []byte, base uint64) (Exits, error) {
	var e Exits
	for at := 0; at < len(code); {
		inst, err := decodeX86(code[at:])
		if err != nil {
			return Exits{}, fmt.Errorf("%w: offset %#x of the function: % x: %v", ErrDecode, at, code[at:min(at+8, len(code))], err)
		}
		next := at + inst.Len
		switch {
		case inst.Op == x86asm.RET:
			e.Returns = append(e.Returns, base+uint64(at))
		case inst.Op == x86asm.LRET || inst.Op == x86asm.IRET || inst.Op == x86asm.IRETD || inst.Op == x86asm.IRETQ:
			return Exits{}, fmt.Errorf("%w: far return", ErrDecode)
		case isJumpX86(inst.Op):
			if rel, ok := inst.Args[0].(x86asm.Rel); ok {
				if to := next + int(rel); to < 0 || to >= len(code) {
					e.Outside++
				}
			} else {
				e.Indirect++
			}
		}
		at = next
	}
	return e, nil
}

func isJumpX86(op x86asm.Op) bool {
	switch op {
	case x86asm.JMP, x86asm.LJMP, x86asm.JA, x86asm.JAE, x86asm.JB, x86asm.JBE, x86asm.JCXZ, x86asm.JE, x86asm.JECXZ,
		x86asm.JG, x86asm.JGE, x86asm.JL, x86asm.JLE, x86asm.JNE, x86asm.JNO, x86asm.JNP, x86asm.JNS, x86asm.JO,
		x86asm.JP, x86asm.JRCXZ, x86asm.JS, x86asm.LOOP, x86asm.LOOPE, x86asm.LOOPNE:
		return true
	}
	return false
}

// exitsARM64 looks at the branch encodings of the Arm Architecture Reference
// Manual (C4.1, "Branches, exception generating and system instructions") alone:
// instructions have one size, so all others can be skipped without being known.
func exitsARM64(code []byte, base uint64) (Exits, error) {
	var e Exits
	if len(code)%4 != 0 {
		return Exits{}, fmt.Errorf("%w: %d bytes are not a whole number of instructions", ErrDecode, len(code))
	}
	for at := 0; at < len(code); at += 4 {
		w := binary.LittleEndian.Uint32(code[at:])
		switch {
		case w&^(0x1f<<5) == 0xd65f0000, w == 0xd65f0bff, w == 0xd65f0fff: // RET Xn, RETAA, RETAB
			e.Returns = append(e.Returns, base+uint64(at))
		case w&^(0x1f<<5) == 0xd61f0000, w&^(1<<24|1<<10|0x3ff) == 0xd61f0800: // BR Xn, BRAA, BRAB and their Z forms
			e.Indirect++
		case w>>26 == 0x05: // B
			e.outsideARM64(code, at, signed(w, 26))
		case w&0xff000000 == 0x54000000, w&0x7e000000 == 0x34000000: // B.cond, BC.cond, CBZ, CBNZ
			e.outsideARM64(code, at, signed(w>>5, 19))
		case w&0x7e000000 == 0x36000000: // TBZ, TBNZ
			e.outsideARM64(code, at, signed(w>>5, 14))
		}
	}
	return e, nil
}

// signed takes the low n bits of w as a signed number.
func signed(w uint32, n uint) int64 {
	return int64(int32(w<<(32-n)) >> (32 - n))
}

func (e *Exits) outsideARM64(code []byte, at int, words int64) {
	if to := int64(at) + 4*words; to < 0 || to >= int64(len(code)) {
		e.Outside++
	}
}
