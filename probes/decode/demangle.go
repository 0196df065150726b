package decode

import "github.com/ianlancetaylor/demangle"

// nameLimit bounds a demangled name, as a power of two of bytes. Kernels of torch have up
// to 4 KB.
const nameLimit = 14

// demangled is the name of a function as its source has it, without its parameters. What
// is not mangled, or not understood, stays.
func demangled(symbol string) string {
	return demangle.Filter(symbol, demangle.NoParams, demangle.NoClones, demangle.MaxLength(nameLimit))
}
