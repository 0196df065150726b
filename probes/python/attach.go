package python

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// debugTable says where _Py_DebugOffsets of one minor version has what: how the
// interpreter itself describes its layout, so that patch releases and vendors may
// differ from the headers.
type debugTable struct {
	Words                 int // size
	Version, FreeThreaded int
	Fields                []debugField
}

// debugField is the word that stands for a member of layout.
type debugField struct {
	Name string
	Word int
}

// own are the first parts of names of members of the interpreter's own structs, which
// patch releases may change. Objects do not change within a minor version.
var own = []string{"Runtime", "Interp", "Thread", "Frame", "Code"}

// attach reads an interpreter of which the image is known, and checks it.
func attach(mem Memory, img image) (*Interp, error) {
	versions, err := versionsOf(mem, img)
	if err != nil {
		return nil, err
	}
	var first error
	for _, v := range versions {
		in, err := attachVersion(mem, img, v)
		if err == nil || errors.Is(err, ErrGone) {
			return in, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

func attachVersion(mem Memory, img image, v minor) (*Interp, error) {
	lay, ok := layouts[v]
	if !ok {
		return nil, fmt.Errorf("%w %v", ErrUnsupported, v)
	}
	in := &Interp{Info: img.info, mem: mem, layout: lay, img: img, pause: time.Sleep}
	in.Offsets = "from the headers"
	if table, ok := debugTables[v]; ok {
		if err := in.readDebugOffsets(img.runtime, v, &table); err != nil {
			return nil, err
		}
	}
	_, err := retry(func() (struct{}, error) { return struct{}{}, in.validate(img.runtime, v) })
	if err != nil {
		if errors.Is(err, ErrGone) || !changed(err) && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrType) {
			return nil, err
		}
		return nil, fmt.Errorf("%w %v: its memory does not look as expected (still starting, or a modified build): %w", ErrUnsupported, v, err)
	}
	return in, nil
}

const debugCookie = "xdebugpy"

// versionsOf finds the minor version: by Py_Version (3.11+), by what the runtime says
// itself (3.13+), else by the name of the file. Where nothing tells, validation decides
// between several.
func versionsOf(mem Memory, img image) ([]minor, error) {
	ofHex := func(hex uint64) []minor { // 0x030C01F0
		return []minor{{int(hex >> 24 & 0xff), int(hex >> 16 & 0xff)}}
	}
	if img.version != 0 {
		var b [8]byte
		if err := mem.ReadAt(img.version, b[:]); err != nil {
			return nil, err
		}
		return ofHex(le.Uint64(b[:])), nil
	}
	var b [16]byte
	if err := mem.ReadAt(img.runtime, b[:]); err != nil {
		return nil, err
	}
	switch {
	case string(b[:8]) == debugCookie:
		return ofHex(le.Uint64(b[8:])), nil
	case img.name != (minor{}):
		return []minor{img.name}, nil
	case img.nameless:
		return []minor{{3, 12}, {3, 11}}, nil
	}
	return []minor{{3, 10}}, nil
}

// readDebugOffsets replaces what is in the table of layouts by what the interpreter
// says, and refuses one whose objects differ from that table: the reader relies on
// more of them than the interpreter describes.
func (in *Interp) readDebugOffsets(runtime uint64, v minor, table *debugTable) error {
	b := make([]byte, table.Words*8)
	if err := in.read(runtime, b); err != nil {
		return err
	}
	word := func(i int) uint64 { return u64at(b, i*8) }
	if string(b[:8]) != debugCookie {
		return fmt.Errorf("%w %v: no debug offsets in _PyRuntime", ErrUnsupported, v)
	}
	if hex := word(table.Version); hex>>16 != uint64(v[0])<<8|uint64(v[1]) {
		return fmt.Errorf("%w: debug offsets of version %#x in Python %v", ErrUnsupported, hex, v)
	}
	if word(table.FreeThreaded) != 0 {
		return fmt.Errorf("%w %v: built without the global lock (free-threaded)", ErrUnsupported, v)
	}
	lay := reflect.ValueOf(&in.layout).Elem()
	differ := 0
	for _, f := range table.Fields {
		w := word(f.Word)
		if w > 1<<20 {
			return fmt.Errorf("%w %v: debug offset of %s is %#x", ErrUnsupported, v, f.Name, w)
		}
		if f.Name == "ObjectType" {
			if w != objType {
				return fmt.Errorf("%w %v: the type of an object is at %d, not %d (a modified build)", ErrUnsupported, v, w, objType)
			}
			continue
		}
		m := lay.FieldByName(f.Name)
		if uint64(m.Int()) == w {
			continue
		}
		if !slices.ContainsFunc(own, func(p string) bool { return strings.HasPrefix(f.Name, p) }) {
			return fmt.Errorf("%w %v: %s is at %d, not %d as in the headers (a modified build)", ErrUnsupported, v, f.Name, w, m.Int())
		}
		m.SetInt(int64(w))
		differ++
	}
	in.published = true
	in.Offsets = "published by the interpreter, as in the headers"
	if differ > 0 {
		in.Offsets = fmt.Sprintf("published by the interpreter, %d not as in the headers", differ)
	}
	return nil
}

// mainInterp returns the address of the main interpreter's state.
func (in *Interp) mainInterp(runtime uint64) (uint64, error) {
	l := &in.layout
	if !in.published {
		return in.u64(runtime + uint64(l.RuntimeMain))
	}
	// The list has the newest first; the main interpreter has the id 0.
	addr, err := in.u64(runtime + uint64(l.RuntimeHead))
	for range 1024 {
		if err != nil || addr == 0 {
			break
		}
		var id uint64
		if id, err = in.u64(addr + uint64(l.InterpID)); err != nil || id == 0 {
			return addr, err
		}
		addr, err = in.u64(addr + uint64(l.InterpNext))
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
	in.addr, in.types = addr, nil
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
		return fmt.Errorf("%w %v: built without the global lock (free-threaded)", ErrUnsupported, got)
	}
	in.Version = fmt.Sprintf("%v.%d", got, hex>>8&0xff)
	if err := in.keepTypes(); err != nil {
		return err
	}
	return in.findGIL(runtime)
}

// keepTypes remembers the built-in types: they are read for almost every object.
func (in *Interp) keepTypes() error {
	types := make(map[uint64]typeInfo)
	for _, addr := range []uint64{
		in.typeType, in.strType, in.intType, in.floatType, in.boolType, in.bytesType,
		in.listType, in.tupleType, in.dictType, in.setType, in.frozensetType,
	} {
		t, err := in.typeInfo(addr)
		if err != nil {
			return err
		}
		if t.flags&flagHeapType != 0 {
			return corrupt(addr, "built-in type")
		}
		if _, err := in.typeDict(t, nil); errors.Is(err, ErrNotFound) {
			// In the part of the interpreter's state that it does not publish.
			return fmt.Errorf("%w %s: attributes of built-in types are not where the headers say (a debug build)", ErrUnsupported, in.Version)
		} else if err != nil {
			return err
		}
		types[addr] = t
	}
	in.types = types
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
