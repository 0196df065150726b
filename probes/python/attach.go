package python

import (
	"errors"
	"fmt"
	"slices"
)

// debugOffsets is the part of _Py_DebugOffsets (3.13) that is used: what the
// interpreter itself says about its layout, so that patch releases and vendors
// may differ from the headers.
type debugOffsets struct {
	interpretersHead uint64
	interpID         uint64
	interpNext       uint64
}

// debugWords is the size of _Py_DebugOffsets in 3.13, in words.
const debugWords = 73

// Positions in _Py_DebugOffsets of 3.13, in words from the start
// (Include/internal/pycore_runtime.h).
const (
	dbgCookie         = 0
	dbgVersion        = 1
	dbgFreeThreaded   = 2
	dbgInterpHead     = 5
	dbgInterpID       = 7
	dbgInterpNext     = 8
	dbgThreadsHead    = 9
	dbgModules        = 11
	dbgThreadNext     = 21
	dbgThreadFrame    = 23
	dbgThreadNative   = 25
	dbgFramePrevious  = 29
	dbgFrameCode      = 30
	dbgFrameLocals    = 32
	dbgCodeFilename   = 35
	dbgCodeName       = 36
	dbgCodeQualname   = 37
	dbgCodeLocalNames = 41
)

// attach reads an interpreter of which the image is known, and checks it.
func attach(mem Memory, img image) (*Interp, error) {
	v, err := versionOf(mem, img)
	if err != nil {
		return nil, err
	}
	lay, ok := layouts[v]
	if !ok {
		return nil, fmt.Errorf("%w %v", ErrUnsupported, v)
	}
	in := &Interp{Info: img.info, mem: mem, layout: lay}
	if v == (minor{3, 13}) {
		if err := in.readDebugOffsets(img.runtime); err != nil {
			return nil, err
		}
	}
	_, err = retry(func() (struct{}, error) { return struct{}{}, in.validate(img.runtime, v) })
	if err != nil {
		if errors.Is(err, ErrGone) || !changed(err) && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrType) {
			return nil, err
		}
		return nil, fmt.Errorf("%w %v: its memory does not look as expected (still starting, or a modified build): %w", ErrUnsupported, v, err)
	}
	return in, nil
}

// versionOf finds the minor version: by Py_Version (3.11+), else by the name of
// the file; a nameless interpreter without Py_Version is taken for the newest
// such version, and validation decides.
func versionOf(mem Memory, img image) (minor, error) {
	if img.version != 0 {
		var b [8]byte
		if err := mem.ReadAt(img.version, b[:]); err != nil {
			return minor{}, err
		}
		hex := le.Uint64(b[:]) // 0x030C01F0
		return minor{int(hex >> 24 & 0xff), int(hex >> 16 & 0xff)}, nil
	}
	if img.name != (minor{}) {
		return img.name, nil
	}
	return minor{3, 10}, nil
}

func (in *Interp) readDebugOffsets(runtime uint64) error {
	b := make([]byte, debugWords*8)
	if err := in.read(runtime, b); err != nil {
		return err
	}
	word := func(i int) uint64 { return u64at(b, i*8) }
	if string(b[:8]) != "xdebugpy" {
		return fmt.Errorf("%w 3.13: no debug offsets in _PyRuntime", ErrUnsupported)
	}
	if v := word(dbgVersion); v>>16 != 0x030d {
		return fmt.Errorf("%w: debug offsets of version %#x in Python 3.13", ErrUnsupported, v)
	}
	if word(dbgFreeThreaded) != 0 {
		return fmt.Errorf("%w 3.13: built without the global lock", ErrUnsupported)
	}
	for i := dbgFreeThreaded; i < debugWords; i++ {
		if word(i) > 1<<20 {
			return fmt.Errorf("%w 3.13: debug offset %d is %#x", ErrUnsupported, i, word(i))
		}
	}
	in.debug = &debugOffsets{word(dbgInterpHead), word(dbgInterpID), word(dbgInterpNext)}
	l := &in.layout
	for _, f := range []struct {
		to   *int
		word int
	}{
		{&l.InterpThreads, dbgThreadsHead}, {&l.InterpModules, dbgModules},
		{&l.ThreadNext, dbgThreadNext}, {&l.ThreadFrame, dbgThreadFrame}, {&l.ThreadNativeID, dbgThreadNative},
		{&l.FramePrevious, dbgFramePrevious}, {&l.FrameCode, dbgFrameCode}, {&l.FrameLocals, dbgFrameLocals},
		{&l.CodeFilename, dbgCodeFilename}, {&l.CodeName, dbgCodeName}, {&l.CodeQualname, dbgCodeQualname},
		{&l.CodeLocalNames, dbgCodeLocalNames},
	} {
		*f.to = int(word(f.word))
	}
	return nil
}

// mainInterp returns the address of the main interpreter's state.
func (in *Interp) mainInterp(runtime uint64) (uint64, error) {
	if in.debug == nil {
		return in.u64(runtime + uint64(in.layout.RuntimeMain))
	}
	// The list has the newest first; the main interpreter has the id 0.
	addr, err := in.u64(runtime + in.debug.interpretersHead)
	for range 1024 {
		if err != nil || addr == 0 {
			break
		}
		var id uint64
		if id, err = in.u64(addr + in.debug.interpID); err != nil || id == 0 {
			return addr, err
		}
		addr, err = in.u64(addr + in.debug.interpNext)
	}
	return 0, err
}

// validate walks from the runtime to known objects and compares them with what
// every CPython has, and remembers the built-in types.
func (in *Interp) validate(runtime uint64, want minor) error {
	addr, err := in.mainInterp(runtime)
	if err != nil {
		return fmt.Errorf("finding the main interpreter: %w", err)
	}
	if addr == 0 {
		return fmt.Errorf("finding the main interpreter: %w", ErrNotFound)
	}
	in.addr = addr
	slot := addr + uint64(in.layout.InterpModules)
	modules, err := in.follow(slot, nil)
	if err != nil {
		return fmt.Errorf("sys.modules: %w", err)
	}
	in.modules = modules
	// Before the built-in types are known, a dict is what says it is one.
	if name := modules.TypeName(); name != "dict" {
		return fmt.Errorf("sys.modules is a %q, not a dict: %w", name, ErrType)
	}
	in.dictType, in.strType = modules.typ.addr, 0
	builtins, err := in.Module("builtins")
	if err != nil {
		return err
	}
	for _, t := range []struct {
		name string
		to   *uint64
	}{
		{"type", &in.typeType}, {"str", &in.strType}, {"int", &in.intType}, {"float", &in.floatType},
		{"bool", &in.boolType}, {"bytes", &in.bytesType}, {"list", &in.listType}, {"tuple", &in.tupleType},
		{"dict", &in.dictType}, {"set", &in.setType}, {"frozenset", &in.frozensetType},
		{"None", &in.none}, {"True", &in.true_}, {"False", &in.false_},
	} {
		v, err := builtins.moduleVar(t.name)
		if err != nil {
			return fmt.Errorf("builtins.%s: %w", t.name, err)
		}
		*t.to = v.addr
		if name := v.typeNameOf(); v.isType() && name != t.name {
			return fmt.Errorf("builtins.%s is the type %q: %w", t.name, name, ErrType)
		}
	}
	if modules.typ.addr != in.dictType {
		return fmt.Errorf("type of sys.modules is not builtins.dict: %w", ErrType)
	}
	sys, err := in.Module("sys")
	if err != nil {
		return err
	}
	name, err := attrAs(sys, "__name__", Value.Str)
	if err != nil {
		return err
	}
	hex, err := attrAs(sys, "hexversion", Value.Int)
	if err != nil {
		return err
	}
	maxsize, err := attrAs(sys, "maxsize", Value.Int)
	if err != nil {
		return err
	}
	abi, err := attrAs(sys, "abiflags", Value.Str)
	if err != nil {
		return err
	}
	got := minor{int(hex >> 24 & 0xff), int(hex >> 16 & 0xff)}
	if name != "sys" || maxsize != 1<<63-1 {
		return fmt.Errorf("sys has the name %q and the maxsize %#x: %w", name, maxsize, ErrCorrupt)
	}
	if got != want {
		return fmt.Errorf("%w %v: looked like %v", ErrUnsupported, got, want)
	}
	if slices.Contains([]byte(abi), 't') {
		return fmt.Errorf("%w %v: built without the global lock", ErrUnsupported, got)
	}
	in.Version = fmt.Sprintf("%v.%d", got, hex>>8&0xff)
	return nil
}

func attrAs[T any](v Value, name string, f func(Value) (T, error)) (T, error) {
	a, err := v.Attr(name)
	if err != nil {
		var zero T
		return zero, err
	}
	return f(a)
}
