package elf

import (
	"debug/elf"
	"slices"

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

// EmulatedKeeping is Emulated for probes that read the first args integer arguments, or what
// lies on the stack: these are still where they are at the entry.
func (f *File) EmulatedKeeping(fn Func, args int) (offset uint64, ok bool) {
	at, ok := f.Emulated(fn)
	if !ok || at == fn.Offset {
		return at, ok
	}
	code, err := f.code(fn)
	if err != nil || !keepsX86(code[:at-fn.Offset], args) {
		return fn.Offset, false
	}
	return at, true
}

// Numbers of registers as instructions have them.
const rspX86 = 4

var argsX86 = [...]int{7, 6, 2, 1, 8, 9} // rdi, rsi, rdx, rcx, r8, r9

// keepsX86 reports whether instructions leave the first args arguments, the stack pointer
// and memory as they are. It knows those that compilers put there.
func keepsX86(code []byte, args int) bool {
	kept := argsX86[:min(args, len(argsX86))]
	for at := 0; at < len(code); {
		inst, err := decodeX86(code[at:])
		if err != nil {
			return false
		}
		at += inst.Len
		switch inst.Op {
		case x86asm.CMP, x86asm.TEST, x86asm.NOP:
			continue
		case x86asm.MOV, x86asm.MOVZX, x86asm.MOVSX, x86asm.MOVSXD, x86asm.LEA, x86asm.XOR, x86asm.AND, x86asm.OR, x86asm.ADD, x86asm.SUB:
		default:
			return false
		}
		reg, ok := inst.Args[0].(x86asm.Reg)
		n := registerX86(reg)
		if !ok || n < 0 || n == rspX86 || slices.Contains(kept, n) {
			return false
		}
	}
	return true
}

// registerX86 returns the number of the register that r is, or is a part of; -1 if it is
// no general one.
func registerX86(r x86asm.Reg) int {
	for _, x := range [...]struct {
		first, last x86asm.Reg
		number      int // of first
	}{
		{x86asm.RAX, x86asm.R15, 0}, {x86asm.EAX, x86asm.R15L, 0}, {x86asm.AX, x86asm.R15W, 0}, {x86asm.AL, x86asm.BL, 0},
		{x86asm.AH, x86asm.BH, 0}, {x86asm.SPB, x86asm.DIB, 4}, {x86asm.R8B, x86asm.R15B, 8},
	} {
		if x.first <= r && r <= x.last {
			return x.number + int(r-x.first)
		}
	}
	return -1
}

// emulatedX86 is Emulated for the bytes of a function.
func emulatedX86(code []byte) int {
	found := -1
	for at := 0; at < len(code) && at <= maxPrologue; {
		if emulates(code[at:]) {
			found = at
			break
		}
		inst, err := decodeX86(code[at:])
		if err != nil || leavesX86(inst.Op) || isJumpX86(inst.Op) {
			return 0
		}
		at += inst.Len
	}
	if found <= 0 {
		return 0
	}
	// A loop could come by more than once: no jump may lead to what is passed.
	for at := 0; at < len(code); {
		inst, err := decodeX86(code[at:])
		if err != nil {
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
