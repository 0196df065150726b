package cuda

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"inferspan/probes/elf"
	"inferspan/probes/procfs"
)

// has tells whether a library may have some of the handles: as the value of a variable, or
// as an address in its code.
func (s *stubs) has(m procfs.Mapping, pid int, wanted map[uint64]bool) bool {
	for h := range wanted {
		if h >= m.Start && h < m.End {
			return true
		}
	}
	found := false
	s.values(pid, func(_, value uint64) { found = found || wanted[value] })
	return found
}

// find puts the names of those handles that a library has.
func (s *stubs) find(e *elf.File, pid int, wanted map[uint64]bool, names map[uint64]string) error {
	vars := make(map[uint64]uint64) // value by address
	s.values(pid, func(at, value uint64) {
		if wanted[value] {
			vars[at] = value
		}
	})
	ambiguous := make(map[uint64]bool)
	put := func(handle uint64, name string) {
		if old, ok := names[handle]; ok && old != name {
			ambiguous[handle] = true
		}
		names[handle] = name
	}
	err := e.Symbols(
		func(y elf.Symbol) bool {
			at := s.base + y.Addr
			_, holds := vars[at]
			return !y.Func && holds || y.Func && wanted[at]
		},
		func(y elf.Symbol) {
			kernel, handle, ok := kernelOf(y.Name)
			switch at := s.base + y.Addr; {
			case y.Func && ok && !handle:
				put(at, kernel)
			case y.Func && !ok:
				// Older stubs of templates have the name of the kernel itself.
				put(at, y.Name)
			case !y.Func && handle:
				put(vars[at], kernel)
			}
		})
	for h := range ambiguous {
		names[h] = "" // functions that the linker made one
	}
	return err
}

// values calls f with the address and the value of each variable.
func (s *stubs) values(pid int, f func(at, value uint64)) {
	slices.Sort(s.vars)
	s.vars = slices.Compact(s.vars)
	const most, gap = 64 << 10, 1 << 10 // variables that are near are read at once
	buf := make([]byte, most)
	for from := 0; from < len(s.vars); {
		to := from + 1
		for to < len(s.vars) && s.vars[to]-s.vars[to-1] < gap && s.vars[to]+8-s.vars[from] <= most {
			to++
		}
		start, size := s.vars[from], int(s.vars[to-1]+8-s.vars[from])
		if readMemory(pid, start, buf[:size]) {
			for _, at := range s.vars[from:to] {
				if v := binary.LittleEndian.Uint64(buf[at-start:]); v != 0 {
					f(at, v)
				}
			}
		}
		from = to
	}
}

// readMemory reads from a process without stopping it, and reports whether all could be
// read.
func readMemory(pid int, at uint64, buf []byte) bool {
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(buf)}}, 0)
	return err == nil && n == len(buf)
}
