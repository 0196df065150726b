package python

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Flags of a code object (Include/cpython/code.h).
const (
	CodeGenerator      = 0x20
	CodeCoroutine      = 0x80
	CodeAsyncGenerator = 0x200
)

// Code is a code object: what a function runs. Calls are told apart by its address.
type Code struct {
	Name      string  // "schedule"
	Qualname  string  // "Scheduler.schedule"; before 3.11 the plain name, there is no other
	File      string  // co_filename
	FirstLine int     // co_firstlineno
	Args      int     // positional parameters, which are the first locals
	Flags     int     // co_flags
	Locals    []Local // in the order of their places in a frame

	obj    Value
	module string // how it was found, for Check
	attrs  []string
}

// Local is a variable that a frame of a code object has a place for.
type Local struct {
	Name string
	// Cell: the place holds a cell object that refers to the value, once the function
	// has begun: an inner function shares the variable.
	Cell bool
	// Free: the cell is that of an outer function.
	Free bool
}

// Kinds of locals in co_localspluskinds (Include/internal/pycore_code.h).
const (
	localCell = 0x40
	localFree = 0x80
)

const (
	maxLocals = 4096
	maxConsts = 1 << 16
)

// locals stands for a function's inside in qualified names.
const locals = "<locals>"

// Addr returns the address of the code object, which frames refer to.
func (c *Code) Addr() uint64 { return c.obj.addr }

// Value returns the code object.
func (c *Code) Value() Value { return c.obj }

// Local returns the place of a variable among the locals of a frame, -1 if there is
// none of this name. A parameter that is also a cell has two places before 3.11; the
// cell, which has the value, counts.
func (c *Code) Local(name string) int {
	at := -1
	for i, l := range c.Locals {
		if l.Name == name && (at < 0 || l.Cell) {
			at = i
		}
	}
	return at
}

// Code finds the code object of the function that a path leads to. Bound, class and
// static methods, properties and decorators that keep the function as __wrapped__
// (functools.wraps does) are looked through: it is the code of the innermost
// function. A path goes on into a function as its qualified name does: "f", "<locals>",
// "g" is the code of the function g that f defines; that code exists before f runs.
// Errors: as of Attr; ErrType if it is not a Python function.
func (in *Interp) Code(module string, attrs ...string) (*Code, error) {
	c, err := retry(func() (*Code, error) {
		outer := attrs
		if i := slices.Index(attrs, locals); i >= 0 {
			outer = attrs[:i]
		}
		v, err := in.Path(module, outer...)
		if err != nil {
			return nil, err
		}
		if v, err = v.Unwrap(); err != nil {
			return nil, err
		}
		c, err := v.Code()
		for rest := attrs[len(outer):]; err == nil && len(rest) > 0; rest = rest[2:] {
			if len(rest) < 2 || rest[0] != locals {
				return nil, fmt.Errorf("%s in a function, not %s: %w", rest[0], locals, ErrNotFound)
			}
			c, err = c.inner(rest[1])
		}
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("code of %s.%s: %w", module, strings.Join(attrs, "."), err)
	}
	c.module, c.attrs = module, slices.Clone(attrs)
	return c, nil
}

// inner finds the code of the function of a name that c defines. ErrNotFound if there
// is none, or more than one.
func (c *Code) inner(name string) (*Code, error) {
	t, err := c.obj.in.follow(c.obj.addr+uint64(c.obj.in.layout.CodeConsts), c.obj.from)
	if err != nil {
		return nil, err
	}
	consts, err := t.List(maxConsts)
	if err != nil {
		return nil, err
	}
	var found *Code
	for _, v := range consts {
		if !v.builtin("code") {
			continue
		}
		k, err := v.Code()
		if err != nil {
			return nil, err
		}
		if k.Name != name {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%s defines %s more than once: %w", c.Qualname, name, ErrNotFound)
		}
		found = k
	}
	if found == nil {
		return nil, fmt.Errorf("%s defines no %s: %w", c.Qualname, name, ErrNotFound)
	}
	return found, nil
}

// Unwrap returns the innermost function: behind bound, class and static methods,
// properties and decorators that keep the function as __wrapped__.
func (v Value) Unwrap() (Value, error) {
	for range maxWraps {
		w, err := v.wrapped()
		if errors.Is(err, ErrNotFound) {
			return v, nil
		}
		if err != nil {
			return Value{}, err
		}
		v = w
	}
	return Value{}, fmt.Errorf("more than %d wrappers: %w", maxWraps, ErrLimit)
}

// wrapped returns what stands behind the object, ErrNotFound if nothing does.
func (v Value) wrapped() (Value, error) {
	if v.in == nil {
		return Value{}, v.wrongType("function")
	}
	switch {
	case v.builtin("method"):
		return v.in.follow(v.addr+uint64(v.in.layout.MethodFunc), v.from)
	case v.builtin("classmethod"), v.builtin("staticmethod"), v.builtin("property"):
		return v.in.follow(v.addr+offWrapped, v.from)
	case v.isType(), v.builtin("module"), v.builtin("code"):
		return Value{}, ErrNotFound
	}
	return attempt(v, func() (Value, error) { return v.instanceAttr("__wrapped__") })
}

// Code returns the code object of a Python function or of a bound method of one, or
// describes a code object. Other objects give ErrType.
func (v Value) Code() (*Code, error) {
	for range maxWraps {
		if v.in == nil {
			break
		}
		l := &v.in.layout
		off := 0
		switch {
		case v.builtin("code"):
			return attempt(v, v.code)
		case v.builtin("function"):
			off = l.FuncCode
		case v.builtin("method"):
			off = l.MethodFunc
		default:
			return nil, v.wrongType("Python function")
		}
		next, err := v.in.follow(v.addr+uint64(off), v.from)
		if next, err = settle(v, next, err); err != nil {
			return nil, err
		}
		v = next
	}
	return nil, v.wrongType("Python function")
}

// code reads a code object. Its members do not change while it lives.
func (v Value) code() (*Code, error) {
	l := &v.in.layout
	n := max(l.CodeFlags, l.CodeArgCount, l.CodeFirstLine) + 4
	b, err := v.whole(n, func([]byte) (int, error) { return n, nil })
	if err != nil {
		return nil, err
	}
	num := func(off int) int { return int(int32(le.Uint32(b[off:]))) }
	c := &Code{obj: v, Flags: num(l.CodeFlags), Args: num(l.CodeArgCount), FirstLine: num(l.CodeFirstLine)}
	for _, s := range []struct {
		to  *string
		off int
	}{{&c.Name, l.CodeName}, {&c.Qualname, l.CodeQualname}, {&c.File, l.CodeFilename}} {
		if s.off < 0 {
			continue
		}
		m, err := v.in.follow(v.addr+uint64(s.off), v.from)
		if err != nil {
			return nil, err
		}
		if *s.to, err = m.Str(); err != nil {
			return nil, err
		}
	}
	if l.CodeQualname < 0 {
		c.Qualname = c.Name
	}
	if c.Locals, err = v.codeLocals(); err != nil {
		return nil, err
	}
	if c.Args < 0 || c.Args > len(c.Locals) {
		return nil, corrupt(v.addr, "number of parameters")
	}
	return c, v.still()
}

func (v Value) codeLocals() ([]Local, error) {
	l := &v.in.layout
	if l.CodeLocalKinds < 0 {
		// 3.10: local variables, then cells, then free variables (PyFrameObject).
		var out []Local
		for _, part := range []struct {
			off  int
			kind Local
		}{{l.CodeLocalNames, Local{}}, {l.CodeCellVars, Local{Cell: true}}, {l.CodeFreeVars, Local{Cell: true, Free: true}}} {
			names, err := v.names(part.off)
			if err != nil {
				return nil, err
			}
			for _, n := range names {
				part.kind.Name = n
				out = append(out, part.kind)
			}
		}
		return out, nil
	}
	names, err := v.names(l.CodeLocalNames)
	if err != nil {
		return nil, err
	}
	k, err := v.in.follow(v.addr+uint64(l.CodeLocalKinds), v.from)
	if err != nil {
		return nil, err
	}
	kinds, err := k.Bytes()
	if err != nil {
		return nil, err
	}
	if len(kinds) != len(names) {
		return nil, corrupt(v.addr, "names and kinds of locals")
	}
	out := make([]Local, len(names))
	for i, n := range names {
		out[i] = Local{Name: n, Cell: kinds[i]&(localCell|localFree) != 0, Free: kinds[i]&localFree != 0}
	}
	return out, nil
}

// names reads the tuple of str that the member at off refers to.
func (v Value) names(off int) ([]string, error) {
	t, err := v.in.follow(v.addr+uint64(off), v.from)
	if err != nil {
		return nil, err
	}
	return t.Strings(maxLocals)
}

// Check looks whether this is still the code that the function runs: nil if so, and
// ErrReplaced if it runs other code, was replaced or is gone. Another error says that
// it could not be told. What was not found by Interp.Code can be told only as long as
// the references that led to it stay; when they do not, the error is ErrUnstable.
func (c *Code) Check() error {
	if c.obj.in == nil {
		return fmt.Errorf("checking no code: %w", ErrNotFound)
	}
	err := c.obj.still()
	if err == nil || errors.Is(err, ErrGone) || c.module == "" {
		return err
	}
	// A dict on the way was rebuilt, or the code was replaced.
	now, err := c.obj.in.Code(c.module, c.attrs...)
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrType), errors.Is(err, ErrComputed):
		return fmt.Errorf("%w: %w", ErrReplaced, err)
	case err != nil:
		return err
	case !c.same(now):
		return fmt.Errorf("code of %s.%s: %w", c.module, strings.Join(c.attrs, "."), ErrReplaced)
	}
	return nil
}

// same compares addresses, and what is there, which may be another code object.
func (c *Code) same(d *Code) bool {
	return c.obj.addr == d.obj.addr && c.Qualname == d.Qualname && c.File == d.File && c.FirstLine == d.FirstLine &&
		c.Flags == d.Flags && slices.Equal(c.Locals, d.Locals)
}

// Code returns the code object of the frame.
func (f Frame) Code() (*Code, error) { return f.code.Code() }
