package python

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"inferspan/probes/procfs"
)

// Info describes an interpreter.
type Info struct {
	Version  string // "3.12.1"
	Shared   bool   // in a libpython rather than in the executable
	Stripped bool   // has no symbol table besides the dynamic one
	Path     string // file that holds the interpreter, as the process sees it
	Offsets  string // where struct offsets are from, in words
}

// Interp is the main interpreter of a process.
type Interp struct {
	Info
	mem    Memory
	layout layout
	img    image
	addr   uint64 // PyInterpreterState

	published bool // offsets of the interpreter's own structs are as it says itself (3.13+)

	modules   Value
	hash      atomic.Pointer[hasher] // of str, once it was checked
	nativePID int                    // id of the main thread in its own PID namespace, 0 if not known

	// Built-in types and singletons.
	typeType, strType, intType, floatType, boolType uint64
	bytesType, listType, tupleType, dictType        uint64
	setType, frozensetType                          uint64
	none, true_, false_                             uint64
	types                                           map[uint64]typeInfo // of the built-in types, which stay as they are

	gil   uint64              // the global lock
	pause func(time.Duration) // time.Sleep; tests on images do not wait
	// asleep reports whether a thread sleeps in the kernel, by its id in its own PID
	// namespace, and how often it had begun to. nil: not known.
	asleep func(id int) (times uint64, ok bool)
	rest   atomic.Pointer[rest] // the last one that lasted

	collections [2]atomic.Uint64 // found when first needed
}

// image is the file that holds an interpreter and where it is mapped.
type image struct {
	info    Info
	runtime uint64 // address of _PyRuntime
	version uint64 // address of Py_Version, 0 if there is none
	secret  uint64 // address of _Py_HashSecret, 0 if not known
	data    []span // the interpreter's variables
	name    minor  // by the file's name, zero if it does not say

	nameless bool // _PyRuntime was found without a symbol
}

// Open finds the interpreter of a process. Errors: ErrNotPython, ErrGone,
// ErrUnsupported with the reason, os.ErrPermission.
func Open(pid int) (*Interp, error) {
	fs := procfs.FS{}
	maps, err := fs.Maps(pid)
	if err != nil {
		return nil, err
	}
	return NewOpener(fs).Open(pid, maps)
}

// Open finds the interpreter of a process with these mappings. Errors as of the
// function Open.
func (o *Opener) Open(pid int, maps []procfs.Mapping) (*Interp, error) {
	img, err := o.findImage(pid, maps)
	if err != nil {
		return nil, err
	}
	in, err := attach(Process{PID: pid}, img)
	if err != nil {
		return nil, fmt.Errorf("reading the interpreter of process %d: %w", pid, err)
	}
	if st, err := o.fs.Status(pid); err == nil {
		in.nativePID = st.NSPID
	}
	in.asleep = func(id int) (uint64, bool) { return o.fs.Asleep(pid, id) }
	return in, nil
}

var (
	libName = regexp.MustCompile(`^libpython(\d+)\.(\d+)[a-z]*\.so`)
	binName = regexp.MustCompile(`^python(\d+)?(?:\.(\d+))?`)
)

// candidates returns the mappings that may hold an interpreter: one for each
// file, a libpython first, then the executable.
func candidates(fs procfs.FS, pid int, maps []procfs.Mapping) []procfs.Mapping {
	var libs, bins []procfs.Mapping
	seen := make(map[[2]uint64]bool)
	exe, _ := os.Readlink(fs.Path(pid, "exe"))
	exe = strings.TrimSuffix(exe, " (deleted)")
	for _, m := range maps {
		id := [2]uint64{m.Dev, m.Ino}
		if m.Ino == 0 || seen[id] {
			continue
		}
		base := path.Base(m.Path)
		switch {
		case libName.MatchString(base):
			libs = append(libs, m)
		case m.Path == exe, binName.MatchString(base) && m.Exec():
			bins = append(bins, m)
		default:
			continue
		}
		seen[id] = true
	}
	return append(libs, bins...)
}

func (o *Opener) findImage(pid int, maps []procfs.Mapping) (image, error) {
	var firstErr error
	for _, m := range candidates(o.fs, pid, maps) {
		img, err := o.imageOf(pid, m, maps)
		if err == nil {
			return img, nil
		}
		if firstErr == nil && !errors.Is(err, ErrNotPython) {
			firstErr = err
		}
	}
	if firstErr != nil {
		return image{}, fmt.Errorf("finding the interpreter of process %d: %w", pid, firstErr)
	}
	return image{}, fmt.Errorf("process %d: %w", pid, ErrNotPython)
}

func (o *Opener) imageOf(pid int, m procfs.Mapping, maps []procfs.Mapping) (image, error) {
	syms, err := o.symbols(pid, m)
	if err != nil {
		return image{}, fmt.Errorf("%s: %w", m.Path, err)
	}
	bias, err := syms.bias(m, maps)
	if err != nil {
		return image{}, fmt.Errorf("%s: %w", m.Path, err)
	}
	img := image{
		info:    Info{Stripped: syms.stripped, Path: m.Path},
		runtime: bias + syms.runtime,
	}
	img.nameless = syms.nameless
	if syms.version != 0 {
		img.version = bias + syms.version
	}
	if syms.secret != 0 {
		img.secret = bias + syms.secret
	}
	img.data = variables(m, maps)
	base := path.Base(m.Path)
	w := libName.FindStringSubmatch(base)
	if w != nil {
		img.info.Shared = true
	} else {
		w = binName.FindStringSubmatch(base)
	}
	if w != nil && w[1] != "" && w[2] != "" {
		img.name[0], _ = strconv.Atoi(w[1])
		img.name[1], _ = strconv.Atoi(w[2])
	}
	return img, nil
}

// span is a part of the address space.
type span struct{ start, end uint64 }

// variables returns where the variables of a file are: its writable segment, and
// behind that what the file has no bytes for.
func variables(of procfs.Mapping, maps []procfs.Mapping) []span {
	var out []span
	for _, m := range maps {
		if !strings.HasPrefix(m.Perm, "rw") {
			continue
		}
		switch {
		case m.Ino == of.Ino && m.Dev == of.Dev:
			out = append(out, span{m.Start, m.End})
		case len(out) > 0 && m.Ino == 0 && m.Path == "" && m.Start == out[len(out)-1].end:
			out = append(out, span{m.Start, min(m.End, m.Start+maxTable)})
		}
	}
	return out
}

type symbols struct {
	runtime, version uint64
	secret           uint64
	stripped         bool
	nameless         bool // found without a symbol
	loads            []elf.ProgHeader
}

// maxTable bounds a symbol table; those of CPython have some 2,000 dynamic and
// 20,000 other entries of 24 bytes.
const maxTable = 64 << 20

func readSymbols(r io.ReaderAt) (symbols, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return symbols{}, fmt.Errorf("%w: %w", ErrNotPython, err)
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return symbols{}, fmt.Errorf("%w: %v, %v", ErrUnsupported, f.Class, f.Data)
	}
	s := symbols{stripped: true}
	for _, sec := range f.Sections {
		if sec.Type == elf.SHT_SYMTAB {
			s.stripped = false
		}
		if (sec.Type == elf.SHT_SYMTAB || sec.Type == elf.SHT_DYNSYM || sec.Type == elf.SHT_STRTAB) && sec.FileSize > maxTable {
			return symbols{}, fmt.Errorf("%s of %d bytes: %w", sec.Name, sec.FileSize, ErrLimit)
		}
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			s.loads = append(s.loads, p.ProgHeader)
		}
	}
	s.pick(f.DynamicSymbols())
	if s.runtime == 0 && !s.stripped {
		s.pick(f.Symbols())
	}
	if s.runtime == 0 {
		// Without symbols, the section that holds nothing else tells (3.11+,
		// Python/pylifecycle.c).
		if sec := f.Section(".PyRuntime"); sec != nil && sec.Addr != 0 {
			s.runtime, s.nameless = sec.Addr, true
		}
	}
	if s.runtime == 0 {
		return symbols{}, fmt.Errorf("no _PyRuntime: %w", ErrNotPython)
	}
	return s, nil
}

func (s *symbols) pick(syms []elf.Symbol, err error) {
	if err != nil {
		return
	}
	for _, y := range syms {
		if y.Section == elf.SHN_UNDEF {
			continue
		}
		switch y.Name {
		case "_PyRuntime":
			s.runtime = y.Value
		case "Py_Version":
			s.version = y.Value
		case "_Py_HashSecret":
			s.secret = y.Value
		}
	}
}

// bias returns what to add to an address in the file: where its first segment
// lies minus where the file says it lies.
func (s *symbols) bias(of procfs.Mapping, maps []procfs.Mapping) (uint64, error) {
	page := uint64(os.Getpagesize())
	for _, m := range maps {
		if m.Dev != of.Dev || m.Ino != of.Ino {
			continue
		}
		for _, l := range s.loads {
			if l.Off&^(page-1) == m.Offset {
				return m.Start - l.Vaddr&^(page-1), nil
			}
		}
	}
	return 0, errors.New("no segment of the file is mapped")
}

// Opener opens the interpreters of many processes and reads the symbols of each
// file once. It is not safe for concurrent use.
type Opener struct {
	fs    procfs.FS
	files map[[2]uint64]fileSymbols
}

// symbols reads those of a mapped file, or remembers them.
func (o *Opener) symbols(pid int, m procfs.Mapping) (symbols, error) {
	file, _, err := o.fs.OpenMapped(pid, m)
	if err != nil {
		return symbols{}, err
	}
	defer file.Close()
	var id [2]uint64
	if st, err := file.Stat(); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			id = [2]uint64{uint64(sys.Dev), sys.Ino}
		}
	}
	if f, ok := o.files[id]; ok && id[1] != 0 {
		return f.syms, f.err
	}
	syms, err := readSymbols(file)
	o.files[id] = fileSymbols{syms, err}
	return syms, err
}

type fileSymbols struct {
	syms symbols
	err  error
}

// NewOpener returns an Opener for processes below a proc mount.
func NewOpener(fs procfs.FS) *Opener {
	return &Opener{fs: fs, files: make(map[[2]uint64]fileSymbols)}
}
