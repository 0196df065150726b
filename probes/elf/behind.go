package elf

import (
	"debug/elf"
	"slices"

	"golang.org/x/arch/x86/x86asm"
)

// Behind returns where probes see the end of what a function has others do, at the least
// cost: the offsets in the file of the instructions that the kernel emulates, see Emulated,
// which come first behind calls that no other call follows. Each run of the function that
// calls anything comes by one of them, mostly by one alone, and by none twice. ok is false
// where that is not certain, or such an instruction is missing.
func (f *File) Behind(fn Func) (offsets []uint64, ok bool) {
	if f.elf.Machine != elf.EM_X86_64 {
		return nil, false
	}
	code, err := f.code(fn)
	if err != nil {
		return nil, false
	}
	for _, at := range behindX86(code) {
		offsets = append(offsets, fn.Offset+uint64(at))
	}
	return offsets, len(offsets) > 0
}

// stepX86 is an instruction of a function.
type stepX86 struct {
	at    int
	calls bool
	next  []int // instructions that may follow, by their index
	busy  bool  // a call may be reached from here
}

// behindX86 is Behind for the bytes of a function.
func behindX86(code []byte) []int {
	steps := stepsX86(code)
	for changed := true; changed; {
		changed = false
		for i := len(steps) - 1; i >= 0; i-- {
			s := &steps[i]
			if !s.busy && (s.calls || slices.ContainsFunc(s.next, func(n int) bool { return steps[n].busy })) {
				s.busy, changed = true, true
			}
		}
	}
	var found []int
	for i := range steps {
		if !steps[i].calls || len(steps[i].next) == 0 {
			continue
		}
		n := steps[i].next[0]
		if steps[n].busy {
			continue
		}
		for !emulates(code[steps[n].at:]) {
			if len(steps[n].next) != 1 {
				return nil
			}
			n = steps[n].next[0]
		}
		if loopsX86(steps, n) {
			return nil
		}
		if !slices.Contains(found, steps[n].at) {
			found = append(found, steps[n].at)
		}
	}
	slices.Sort(found)
	return found
}

// stepsX86 decodes a function, nil if it is not known what follows each instruction.
func stepsX86(code []byte) []stepX86 {
	var steps []stepX86
	index := map[int]int{}
	to := map[int]int{} // of jumps
	for at := 0; at < len(code); {
		inst, err := decodeX86(code[at:])
		if err != nil {
			return nil
		}
		index[at] = len(steps)
		s := stepX86{at: at}
		next := at + inst.Len
		falls := next < len(code)
		switch {
		case inst.Op == x86asm.CALL:
			s.calls = true
		case inst.Op == x86asm.RET, inst.Op == x86asm.HLT, inst.Op == x86asm.UD2:
			falls = false
		case leavesX86(inst.Op):
			return nil
		case isJumpX86(inst.Op):
			rel, direct := inst.Args[0].(x86asm.Rel)
			if !direct {
				return nil
			}
			to[len(steps)] = next + int(rel)
			falls = falls && inst.Op != x86asm.JMP
		}
		if falls {
			s.next = append(s.next, len(steps)+1)
		}
		steps = append(steps, s)
		at = next
	}
	for i, at := range to {
		n, ok := index[at]
		if !ok {
			return nil // out of the function, or into an instruction
		}
		steps[i].next = append(steps[i].next, n)
	}
	return steps
}

// loopsX86 reports whether an instruction may be followed by itself.
func loopsX86(steps []stepX86, of int) bool {
	seen := make([]bool, len(steps))
	todo := slices.Clone(steps[of].next)
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if n == of {
			return true
		}
		if !seen[n] {
			seen[n] = true
			todo = append(todo, steps[n].next...)
		}
	}
	return false
}
