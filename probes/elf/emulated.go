package elf

import (
	"bytes"
	"debug/elf"

	"golang.org/x/arch/x86/x86asm"
)

// maxPrologue bounds how far behind the entry Emulated looks: what it finds is reached
// within nanoseconds.
const maxPrologue = 128

// Emulated returns where a probe on the entry of a function costs least: the offset in
// the file of the first instruction that the kernel emulates. Others it executes in a
// place of their own and then traps a second time, which takes some ten microseconds
// under a hypervisor that intercepts that. Each call of the function comes by there
// once, soon after its entry, with its frame perhaps made. Without such an instruction,
// or where that is not certain, ok is false and the entry the place.
func (f *File) Emulated(fn Func) (offset uint64, ok bool) {
	if f.elf.Machine != elf.EM_X86_64 {
		return fn.Offset, false
	}
	code, err := f.code(fn)
	if err != nil || len(code) == 0 {
		return fn.Offset, false
	}
	at := emulatedX86(code)
	return fn.Offset + uint64(at), at > 0 || emulates(code)
}

// emulatedX86 is Emulated for the bytes of a function.
func emulatedX86(code []byte) int {
	found := -1
	for at := 0; at < len(code) && at <= maxPrologue; {
		if bytes.HasPrefix(code[at:], endbr64) {
			at += len(endbr64)
			continue
		}
		if emulates(code[at:]) {
			found = at
			break
		}
		inst, ok := decodeX86(code[at:])
		if !ok || leavesX86(inst.Op) || isJumpX86(inst.Op) {
			return 0
		}
		at += inst.Len
	}
	if found <= 0 {
		return 0
	}
	// A loop could come by more than once: no jump may lead to what is passed.
	for at := 0; at < len(code); {
		if bytes.HasPrefix(code[at:], endbr64) {
			at += len(endbr64)
			continue
		}
		inst, ok := decodeX86(code[at:])
		if !ok {
			return 0
		}
		next := at + inst.Len
		if isJumpX86(inst.Op) {
			rel, direct := inst.Args[0].(x86asm.Rel)
			to := next + int(rel)
			inside := to >= 0 && to < len(code)
			switch {
			case !direct, // may lead anywhere
				inside && to <= found,
				!inside && inst.Op != x86asm.JMP: // a part of the function elsewhere, which may lead back
				return 0
			}
		}
		at = next
	}
	return found
}

// decodeX86 is x86asm.Decode without the instructions whose length it may get wrong.
func decodeX86(code []byte) (x86asm.Inst, bool) {
	if b := code[0]; b == 0xc4 || b == 0xc5 || b == 0x62 {
		return x86asm.Inst{}, false
	}
	inst, err := x86asm.Decode(code, 64)
	return inst, err == nil && inst.Len > 0 && inst.Op != 0
}

// leavesX86 reports whether an instruction goes elsewhere other than by a jump.
func leavesX86(op x86asm.Op) bool {
	switch op {
	case x86asm.CALL, x86asm.LCALL, x86asm.RET, x86asm.LRET, x86asm.IRET, x86asm.IRETD, x86asm.IRETQ, x86asm.SYSCALL, x86asm.SYSENTER,
		x86asm.SYSRET, x86asm.SYSEXIT, x86asm.INT, x86asm.INTO, x86asm.HLT, x86asm.UD1, x86asm.UD2:
		return true
	}
	return false
}

// emulates reports whether the kernel emulates the instruction at the start of code:
// calls and jumps with a relative address, conditional ones too, pushes of registers
// and the shortest nop (arch/x86/kernel/uprobes.c, branch_setup_xol_ops and
// push_setup_xol_ops, since 4.20).
func emulates(code []byte) bool {
	switch b := code[0]; {
	case b == 0xe8, b == 0xe9:
		return len(code) >= 5
	case b == 0xeb, b >= 0x70 && b <= 0x7f:
		return len(code) >= 2
	case b == 0x0f:
		return len(code) >= 6 && code[1] >= 0x80 && code[1] <= 0x8f
	case b >= 0x50 && b <= 0x57, b == 0x90:
		return true
	case b == 0x41:
		return len(code) >= 2 && code[1] >= 0x50 && code[1] <= 0x57
	}
	return false
}
