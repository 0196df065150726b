package cuda

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

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

// find puts the names of those handles that a library has: as it registers them, and, where
// that cannot be told, as its symbols have them.
func (s *stubs) find(e *elf.File, pid int, wanted map[uint64]bool, names map[uint64]string) error {
	vars := make(map[uint64]uint64) // value by address in the file
	s.values(pid, func(at, value uint64) {
		if wanted[value] {
			vars[at-s.base] = value
		}
	})
	if s.registered == nil {
		var err error
		if s.registered, err = registrations(e); err != nil {
			return err
		}
	}
	kept, err := keepers(e, vars)
	if err != nil {
		return err
	}
	found := make(map[uint64]string)
	unclear := make(map[uint64]bool)
	put := func(handle uint64, name string) {
		if old, ok := found[handle]; ok && old != name {
			unclear[handle] = true // functions that the linker made one
		}
		found[handle] = name
	}
	register := func(handle, host uint64) {
		from, _ := slices.BinarySearchFunc(s.registered, host, func(r registration, host uint64) int { return cmp.Compare(r.host, host) })
		for _, r := range s.registered[from:] {
			if r.host != host {
				break
			}
			if name, err := e.String(r.name, maxKernelName); err == nil && name != "" {
				put(handle, name)
			}
		}
	}
	for v, host := range kept {
		register(vars[v], host)
	}
	for h := range wanted {
		register(h, h-s.base)
	}
	symbols := make(map[uint64]string)
	err = e.Symbols(
		func(y elf.Symbol) bool {
			_, holds := vars[y.Addr]
			return !y.Func && holds || y.Func && wanted[s.base+y.Addr]
		},
		func(y elf.Symbol) {
			kernel, handle, ok := kernelOf(y.Name)
			if !ok || handle == y.Func {
				return
			}
			h := vars[y.Addr]
			if y.Func {
				h = s.base + y.Addr
			}
			if old, ok := symbols[h]; ok && old != kernel || !asRegistered(kernel) {
				kernel = ""
			}
			symbols[h] = kernel
		})
	for h, name := range found {
		if !unclear[h] {
			names[h] = name
		}
	}
	for h, name := range symbols {
		if name != "" && names[h] == "" {
			names[h] = name
		}
	}
	return err
}

// asRegistered tells whether a stub spells the name of its kernel as the driver does. Names
// that lambdas for the device are part of it spells in a way of its own.
func asRegistered(kernel string) bool {
	return !slices.ContainsFunc([]string{"Unvdl", "Unvhdl", "Unvdt", "__nv_dl_", "__nv_hdl_"}, func(s string) bool { return strings.Contains(kernel, s) })
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
