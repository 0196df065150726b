package cuda

import (
	"bytes"
	"encoding/binary"
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"inferspan/probes/elf"
)

// A library that nvcc compiled tells the runtime of each of its kernels when it is loaded:
// the address of a function on the host, and the name that the driver knows. The code for
// that is made by a fixed pattern, one call of __cudaRegisterFunction after the other. From
// it a function's name is known exactly, which its own symbol may spell otherwise: kernels
// of lambdas are.

// registrars are the functions that nvcc makes for that.
var registrars = map[string]bool{
	"_ZL24__sti____cudaRegisterAllv":          true,
	"_ZL31__nv_cudaEntityRegisterCallbackPPv": true,
}

// registration is one kernel: addresses in the file's own terms.
type registration struct {
	host uint64 // function
	name uint64 // string
}

// Bounds of what is read: libtorch_cuda has 22,000 kernels in functions of up to 100 KB.
const (
	maxRegistrations = 1 << 18
	maxRegistrar     = 4 << 20
	maxRegistering   = 64 << 20 // in all
)

// registrations reads what a library registers, in the order of host; none of a machine
// whose code is not read (arm64).
func registrations(e *elf.File) ([]registration, error) {
	if !e.X86() {
		return nil, nil
	}
	var out []registration
	var size uint64
	err := e.Symbols(
		func(y elf.Symbol) bool { return y.Func && y.Size > 0 && y.Size <= maxRegistrar },
		func(y elf.Symbol) {
			if !registrars[y.Name] || len(out) > maxRegistrations || size > maxRegistering {
				return
			}
			size += y.Size
			code := make([]byte, y.Size)
			if e.Read(y.Addr, code) == nil {
				out = append(out, registered(code, y.Addr)...)
			}
		})
	slices.SortFunc(out, func(a, b registration) int {
		if a.host != b.host {
			return int(int64(a.host - b.host))
		}
		return int(int64(a.name - b.name))
	})
	return slices.Compact(out), err
}

// registered reads the calls in the code of a registrar: the second argument is the
// function on the host, the third the name.
func registered(code []byte, addr uint64) (out []registration) {
	var args struct{ rsi, rdx uint64 }
	for at := 0; at < len(code); {
		inst, err := x86asm.Decode(code[at:], 64)
		if err != nil || inst.Len == 0 {
			return out
		}
		at += inst.Len
		switch inst.Op {
		case x86asm.LEA:
			m, ok := inst.Args[1].(x86asm.Mem)
			if !ok || m.Base != x86asm.RIP {
				break
			}
			to := addr + uint64(at) + uint64(m.Disp)
			switch inst.Args[0] {
			case x86asm.RSI:
				args.rsi = to
			case x86asm.RDX:
				args.rdx = to
			}
		case x86asm.MOV, x86asm.XOR, x86asm.POP:
			// Another way to an argument, which is not followed.
			switch inst.Args[0] {
			case x86asm.RSI, x86asm.ESI:
				args.rsi = 0
			case x86asm.RDX, x86asm.EDX:
				args.rdx = 0
			}
		case x86asm.CALL:
			if args.rsi != 0 && args.rdx != 0 {
				out = append(out, registration{args.rsi, args.rdx})
			}
			args.rsi, args.rdx = 0, 0
		}
	}
	return out
}

// keepers finds, for variables that keep a handle, the function on the host that the handle
// is asked for: __cudaGetKernel(&variable, function) is called where both addresses are
// loaded, one next to the other. Addresses are in the file's own terms.
func keepers(e *elf.File, vars map[uint64]uint64) (map[uint64]uint64, error) {
	out := make(map[uint64]uint64)
	if !e.X86() || len(vars) == 0 {
		return out, nil
	}
	const size = 7 // of lea reg, [rip+disp32]
	var leaRDI, leaRSI = []byte{0x48, 0x8d, 0x3d}, []byte{0x48, 0x8d, 0x35}
	target := func(addr uint64, code []byte, at int) uint64 {
		return addr + uint64(at+size) + uint64(int64(int32(binary.LittleEndian.Uint32(code[at+3:]))))
	}
	err := e.Code(2*size, func(addr uint64, code []byte) {
		for at := 0; ; at++ {
			n := bytes.Index(code[at:], leaRDI)
			if n < 0 || at+n+size > len(code) {
				return
			}
			at += n
			v := target(addr, code, at)
			if _, ok := vars[v]; !ok {
				continue
			}
			for _, other := range []int{at - size, at + size} {
				if other >= 0 && other+size <= len(code) && bytes.HasPrefix(code[other:], leaRSI) {
					out[v] = target(addr, code, other)
				}
			}
		}
	})
	return out, err
}
