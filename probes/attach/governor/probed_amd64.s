#include "textflag.h"

// func probed()
// It begins with a push, which the kernel emulates at a breakpoint: like the
// instruction that attach looks for in the functions of a target.
TEXT ·probed(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ AX
	POPQ  AX
	RET

// The address of the instructions above: a function value in Go leads to a wrapper.
DATA ·probedAddr+0(SB)/8, $·probed(SB)
GLOBL ·probedAddr(SB), RODATA, $8
