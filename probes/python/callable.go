package python

import (
	"bytes"
	"fmt"

	"inferspan/probes/procfs"
)

// CallableKind says by what kind of object Python reaches a C function.
type CallableKind string

// Kinds of callables.
const (
	Builtin     CallableKind = "builtin function"  // PyCFunction: a function of a module, a bound method of C code
	Method      CallableKind = "method descriptor" // method of a class made in C, C++, Rust
	ClassMethod CallableKind = "class method descriptor"
	Cython      CallableKind = "Cython function"
	Slot        CallableKind = "slot wrapper" // a special method that is a slot of the type: the C function of the slot
	Vectorcall  CallableKind = "vectorcall"   // an object that can be called: one C function for all objects of its type
)

// Callable is a C function that Python calls.
//
// Code generators may let several Python-callables share one C function: pybind11
// and nanobind have one for a module, and linkers fold equal ones. A probe there
// counts all of them.
type Callable struct {
	Name  string // as the C code names it ("monotonic"), "" for Vectorcall
	Kind  CallableKind
	Addr  uint64 // of the first instruction, in the process
	Flags int    // calling convention: METH_ flags of PyMethodDef, 0 where there is none
	obj   Value
	def   []byte // the words that named the function, as they were read
	at    uint64 // their address
}

// maxWraps bounds how many objects stand between a name and the function behind it.
const maxWraps = 16

// Private structs of CPython, the same in 3.10 to 3.14: what a classmethod or
// staticmethod object, a method-wrapper and a property refer to first
// (Objects/funcobject.c, Objects/descrobject.c).
const offWrapped = 16

// Callable resolves a path and returns the C function that a call of what it leads
// to runs. Errors: as of Attr and Value.Callable.
func (in *Interp) Callable(module string, attrs ...string) (Callable, error) {
	v, err := in.Path(module, attrs...)
	if err != nil {
		return Callable{}, err
	}
	return v.Callable()
}

// Callable returns the C function that a call of the object runs. Bound methods and
// class and static methods are looked through. A Python function, a class or an
// object of another kind gives ErrType.
func (v Value) Callable() (Callable, error) {
	return attempt(v, v.callable)
}

func (v Value) callable() (Callable, error) {
	for range maxWraps {
		if v.in == nil {
			break
		}
		l := &v.in.layout
		switch {
		case v.builtin("builtin_function_or_method"), v.builtin("builtin_method"):
			return v.methodDef(Builtin, l.CFuncDef)
		case v.builtin("method_descriptor"):
			return v.methodDef(Method, l.DescrMethod)
		case v.builtin("classmethod_descriptor"):
			return v.methodDef(ClassMethod, l.DescrMethod)
		case v.TypeName() == "cython_function_or_method" && v.typ.basicSize > int64(l.CFuncSelf)+8:
			// Begins as a PyCFunctionObject does (Cython/Utility/CythonFunction.c).
			return v.methodDef(Cython, l.CFuncDef)
		case v.builtin("wrapper_descriptor"):
			return v.slotWrapper()
		case v.builtin("method"):
			var err error
			if v, err = v.in.follow(v.addr+uint64(l.MethodFunc), v.from); err != nil {
				return Callable{}, err
			}
		case v.builtin("method-wrapper"), v.builtin("classmethod"), v.builtin("staticmethod"):
			var err error
			if v, err = v.in.follow(v.addr+offWrapped, v.from); err != nil {
				return Callable{}, err
			}
		case v.typ.flags&flagVectorcall != 0 && !v.builtin("function") && !v.isType():
			return v.vectorcall()
		default:
			return Callable{}, v.wrongType("C function")
		}
	}
	return Callable{}, v.wrongType("C function")
}

// methodDef reads the PyMethodDef that the object refers to.
func (v Value) methodDef(kind CallableKind, off int) (Callable, error) {
	l := &v.in.layout
	b, err := v.object(off + 8)
	if err != nil {
		return Callable{}, err
	}
	at := u64at(b, off)
	v.from = v.from.add(v.addr+uint64(off), at)
	def := make([]byte, l.DefFlags+4)
	if err := v.in.read(at, def); err != nil {
		return Callable{}, err
	}
	name, err := v.in.cString(u64at(def, l.DefName))
	if err != nil {
		return Callable{}, err
	}
	return v.checkCallable(Callable{
		Name: name, Kind: kind, Addr: u64at(def, l.DefFunc), Flags: int(le.Uint32(def[l.DefFlags:])),
		obj: v, def: def, at: at,
	})
}

// slotWrapper reads what a wrapper_descriptor calls.
func (v Value) slotWrapper() (Callable, error) {
	l := &v.in.layout
	b, err := v.object(l.DescrWrapped + 8)
	if err != nil {
		return Callable{}, err
	}
	base, err := v.in.u64(u64at(b, l.DescrBase)) // struct wrapperbase begins with the name
	if err != nil {
		return Callable{}, err
	}
	name, err := v.in.cString(base)
	if err != nil {
		return Callable{}, err
	}
	return v.checkCallable(Callable{
		Name: name, Kind: Slot, Addr: u64at(b, l.DescrWrapped),
		obj: v, def: b[l.DescrBase:], at: v.addr + uint64(l.DescrBase),
	})
}

// vectorcall reads the function in an object that has one of its own.
func (v Value) vectorcall() (Callable, error) {
	off := v.typ.vectorcall
	if off < objSize || off%8 != 0 || off+8 > v.typ.basicSize {
		return Callable{}, corrupt(v.typ.addr, "place of the vectorcall function")
	}
	b, err := v.object(int(off) + 8)
	if err != nil {
		return Callable{}, err
	}
	if u64at(b, int(off)) == 0 { // called by the type's tp_call instead
		return Callable{}, v.wrongType("C function")
	}
	return v.checkCallable(Callable{
		Kind: Vectorcall, Addr: u64at(b, int(off)),
		obj: v, def: b[off:], at: v.addr + uint64(off),
	})
}

// checkCallable looks a second time.
func (v Value) checkCallable(c Callable) (Callable, error) {
	if c.Addr < 4096 || c.Name == "" && c.Kind != Vectorcall {
		return Callable{}, corrupt(v.addr, "C function without name or address")
	}
	return c, c.Check()
}

// Check reports whether the object still calls the same function: nil if so.
func (c Callable) Check() error {
	if c.obj.in == nil {
		return fmt.Errorf("checking no callable: %w", ErrNotFound)
	}
	again := make([]byte, len(c.def))
	if err := c.obj.in.read(c.at, again); err != nil {
		return err
	}
	if !bytes.Equal(again, c.def) {
		return fmt.Errorf("function of the object at %#x: %w", c.obj.addr, ErrUnstable)
	}
	return c.obj.still()
}

// File returns the mapping that holds the function's code and its offset in the
// mapped file, in bytes, which is what a uprobe attaches to. maps are the mappings
// of the process. ErrUnsupported if the code is not that of a file, as code made at
// run time is.
func (c Callable) File(maps []procfs.Mapping) (procfs.Mapping, uint64, error) {
	for _, m := range maps {
		if c.Addr < m.Start || c.Addr >= m.End {
			continue
		}
		if !m.Exec() {
			return procfs.Mapping{}, 0, fmt.Errorf("function %s of C code at %#x: not in executable memory: %w", c.Name, c.Addr, ErrCorrupt)
		}
		if m.Ino == 0 {
			return procfs.Mapping{}, 0, fmt.Errorf("function %s of C code at %#x: its code is in no file: %w", c.Name, c.Addr, ErrUnsupported)
		}
		return m, c.Addr - m.Start + m.Offset, nil
	}
	return procfs.Mapping{}, 0, fmt.Errorf("function %s of C code at %#x: %w", c.Name, c.Addr, ErrUnmapped)
}
