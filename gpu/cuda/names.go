package cuda

import (
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"inferspan/bpf"
	"inferspan/probes/elf"
	"inferspan/probes/procfs"
)

// Ways to the name of a kernel.
const (
	ByRegistration = "registration" // the driver was seen giving the handle for the name
	BySymbols      = "symbols"      // of the library that launches it
	ByInterpreter  = "interpreter"  // the program that launches it has it, in Python
)

// namer finds the names of what a process launches. It is for one goroutine, but searches
// in another: on a busy host that may take seconds.
//
// A program that was compiled by nvcc has a stub on the host for each kernel. Since 12.8
// the stub keeps the runtime's handle of the kernel in a variable of its own, which the
// symbol tables name after the stub; before, the address of the stub is what is launched.
type namer struct {
	given map[uint64]bpf.CUDAName // by handle, as the driver gave them
	names map[uint64]string       // by handle or address of a stub; "" where there is none
	told  map[uint64]string       // by handle, as the interpreter had it

	search    searcher // of the search under way, if there is one
	searching bool
	found     chan findings // of a search
}

// findings are what a search has found.
type findings struct {
	names map[uint64]string // of all handles that were searched for; "" where there is none
	told  map[uint64]string
}

// searcher searches the libraries of a process. It is for one goroutine at a time.
type searcher struct {
	pid   int
	files map[fileID]*stubs // of libraries, each file once; nil of one without kernels
	names map[uint64]string // found in this search
}

type fileID struct{ dev, ino uint64 }

// stubs are those of a library in the process.
type stubs struct {
	mapping procfs.Mapping // executable, of which base was told
	base    uint64         // address of the file's address 0
	vars    []uint64       // addresses, in the process, of variables that may hold a handle
	// What it registers, once that was read; nil before.
	registered []registration
}

// maxKernelName bounds names, as CUDA_NAME of cuda.bpf.c does. The longest in libtorch_cuda
// has 2,300 bytes.
const maxKernelName = 4096

// usable tells whether a name can be passed on.
func usable(name string) bool {
	return len(name) <= maxKernelName && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

// maxVars bounds the variables of a library: libtorch_cuda has 54,000 of 8 bytes.
const maxVars = 1 << 20

func newNamer(pid int) *namer {
	return &namer{
		given: make(map[uint64]bpf.CUDAName), names: make(map[uint64]string), told: make(map[uint64]string),
		search: searcher{pid: pid, files: make(map[fileID]*stubs)}, found: make(chan findings, 1),
	}
}

// give takes names that the driver gave. It tells how many calls gave what was known: of
// functions by name, and of functions of kernels.
func (n *namer) give(names []bpf.CUDAName) (byName, byKernel int) {
	for _, g := range names {
		old, ok := n.given[g.Handle]
		again := int(g.Calls)
		if !ok || old.Kernel != g.Kernel || old.Name != g.Name {
			again--
		}
		if g.Kernel == 0 {
			byName += again
		} else {
			byKernel += again
		}
		n.given[g.Handle] = g
	}
	return byName, byKernel
}

// name returns the name of what was launched by a handle, and how it is known; "" if it
// is not, or not yet.
func (n *namer) name(handle uint64) (name, by string) {
	// A handle of the driver that was made of another.
	for range 4 {
		g, ok := n.given[handle]
		if !ok {
			break
		}
		if g.Kernel == 0 {
			if g.Name == "" {
				break // it was given, but not read
			}
			return g.Name, ByRegistration
		}
		handle = g.Kernel
	}
	if s := n.names[handle]; s != "" {
		return s, BySymbols
	}
	if s := n.told[handle]; s != "" {
		return s, ByInterpreter
	}
	return "", ""
}

// look takes what a search has found, and begins another if there are handles without a
// name. Those of the driver may be known to others.
func (n *namer) look(handles, driver []uint64, others Names) {
	if n.searching {
		select {
		case f := <-n.found:
			n.searching = false
			maps.Copy(n.names, f.names)
			maps.Copy(n.told, f.told)
		default:
			return
		}
	}
	wanted := make(map[uint64]bool)
	for _, h := range handles {
		h = n.origin(h)
		if _, ok := n.names[h]; !ok && h != 0 {
			wanted[h] = true
		}
	}
	var unknown []uint64
	for _, h := range driver {
		if name, _ := n.name(h); name == "" && others != nil {
			unknown = append(unknown, h)
		}
	}
	if len(wanted)+len(unknown) == 0 {
		return
	}
	n.searching = true
	go func() {
		var f findings
		if len(wanted) > 0 {
			f.names = n.search.all(wanted)
		}
		unknown = slices.DeleteFunc(unknown, func(h uint64) bool { return f.names[h] != "" })
		if len(unknown) > 0 {
			f.told = others(unknown)
		}
		n.found <- f
	}()
}

// searched tells whether the symbols were searched for a handle.
func (n *namer) searched(handle uint64) bool {
	_, ok := n.names[n.origin(handle)]
	return ok
}

// origin is the handle that a handle was made of.
func (n *namer) origin(handle uint64) uint64 {
	for range 4 {
		g, ok := n.given[handle]
		if !ok || g.Kernel == 0 {
			break
		}
		handle = g.Kernel
	}
	return handle
}

// all looks for handles in the symbols of the libraries of the process. What cannot be read
// has no names.
func (s *searcher) all(wanted map[uint64]bool) map[uint64]string {
	s.names = make(map[uint64]string)
	fs := procfs.FS{}
	mappings, _ := fs.Maps(s.pid)
	for _, m := range mappings {
		if m.Exec() && m.Ino != 0 {
			_ = s.file(fs, m, wanted)
		}
	}
	for h := range wanted {
		if _, ok := s.names[h]; !ok {
			s.names[h] = ""
		}
	}
	return s.names
}

// file looks for handles in one library.
func (s *searcher) file(fs procfs.FS, m procfs.Mapping, wanted map[uint64]bool) error {
	id := fileID{m.Dev, m.Ino}
	lib, known := s.files[id]
	if known && (lib == nil || lib.mapping.Start != m.Start || !lib.has(m, s.pid, wanted)) {
		return nil
	}
	f, _, err := fs.OpenMapped(s.pid, m)
	if err != nil {
		return err
	}
	defer f.Close()
	if !known {
		if lib, err = newStubs(f, m); err != nil {
			return err
		}
		s.files[id] = lib
		if lib == nil || !lib.has(m, s.pid, wanted) {
			return nil
		}
	}
	e, err := elf.New(f)
	if err != nil {
		return err
	}
	return lib.find(e, s.pid, wanted, s.names)
}

// newStubs reads where a library has handles of kernels; nil if it has no kernels, or if
// what it has is not named.
func newStubs(r io.ReaderAt, m procfs.Mapping) (*stubs, error) {
	e, err := elf.New(r)
	if err != nil {
		return nil, nil // not a library
	}
	// Programs for the GPU and where to register them, in what nvcc links.
	if !e.HasSection(".nv_fatbin") && !e.HasSection(".nvFatBinSegment") {
		return nil, nil
	}
	s := &stubs{mapping: m}
	if s.base, err = e.Base(m.Start, m.Offset); err != nil {
		return nil, err
	}
	err = e.Symbols(func(y elf.Symbol) bool {
		if !y.Func && y.Size == 8 && len(s.vars) < maxVars && e.Zeroed(y.Addr) {
			s.vars = append(s.vars, s.base+y.Addr)
		}
		return false
	}, nil)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// kernelOf takes the name of a kernel from that of what nvcc makes for it on the host: its
// stub, __device_stub_ and the kernel's name with an underscore before it if it has none,
// or the variable __handle in there.
func kernelOf(symbol string) (name string, handle, ok bool) {
	s := symbol
	if s, handle = strings.CutPrefix(s, "_ZZ"); !handle {
		if s, ok = strings.CutPrefix(s, "_Z"); !ok {
			return "", false, false
		}
	}
	s = strings.TrimPrefix(s, "L") // static
	digits := 0
	for digits < len(s) && '0' <= s[digits] && s[digits] <= '9' {
		digits++
	}
	size, err := strconv.Atoi(s[:digits])
	if err != nil || size > len(s)-digits {
		return "", false, false
	}
	id, rest := s[digits:digits+size], s[digits+size:]
	if handle && !strings.HasSuffix(rest, "E8__handle") {
		return "", false, false
	}
	id, ok = strings.CutPrefix(id, "__device_stub_")
	if !ok || len(id) < 2 || id[0] != '_' {
		return "", false, false
	}
	if !strings.HasPrefix(id, "_Z") {
		id = id[1:] // extern "C"
	}
	return id, handle, true
}
