package attach

import (
	"errors"
	"fmt"
	"os"

	"inferspan/probes/elf"
	"inferspan/probes/procfs"
)

// function is a function in the process.
type function struct {
	name string
	addr uint64
	file *os.File // that has it; to be closed
	path string
	off  uint64 // in file
}

// find finds the function of a probe.
func (i *Interpreter) find(spec *PythonProbe, maps []procfs.Mapping) (*function, error) {
	if spec.ZMQ != "" {
		return i.findZMQ(spec.ZMQ, maps)
	}
	c, err := i.in.Callable(spec.Callable.Module, spec.Callable.Path...)
	if err != nil {
		return nil, err
	}
	m, off, err := c.File(maps)
	if err != nil {
		return nil, err
	}
	f, _, err := procfs.FS{}.OpenMapped(i.pid, m)
	if err != nil {
		return nil, err
	}
	return &function{c.Name, c.Addr, f, m.Path, off}, nil
}

func (i *Interpreter) findZMQ(symbol string, maps []procfs.Mapping) (*function, error) {
	lib := i.target.ZMQ
	switch {
	case lib == nil:
		return nil, errors.New("the process does not map libzmq")
	case !i.native:
		return nil, errors.New("this Python does not say which thread is which (3.11 and later do)")
	}
	f, err := os.Open(lib.MapFile)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", lib.Path, err)
	}
	e, err := elf.New(f)
	var fn elf.Func
	if err == nil {
		fn, err = e.Func(symbol)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("reading %s: %w", lib.Path, err)
	}
	for _, m := range maps {
		if m.Dev == lib.Dev && m.Ino == lib.Ino && m.Exec() && m.Offset <= fn.Offset && fn.Offset-m.Offset < m.End-m.Start {
			return &function{symbol, m.Start + fn.Offset - m.Offset, f, lib.Path, fn.Offset}, nil
		}
	}
	f.Close()
	return nil, fmt.Errorf("%s is not mapped where it has %s", lib.Path, symbol)
}

// points returns the offsets in a file at which to probe the function at an offset:
// near its entry, with whether the kernel executes the instruction there and traps
// again, and its returns if these are asked for. The error says why there are none of
// these.
func points(f *os.File, off uint64, returns bool) (entry uint64, stepped bool, exits []uint64, err error) {
	e, err := elf.New(f)
	if err != nil {
		return off, true, nil, err
	}
	fn, err := e.FuncAt(off)
	if err != nil {
		return off, true, nil, err
	}
	entry, emulated := e.Emulated(fn)
	if !returns {
		return entry, !emulated, nil, nil
	}
	x, err := e.Exits(fn)
	if err == nil && !x.Complete() {
		err = fmt.Errorf("the ends of the function are unclear: %d returns, %d jumps out of it, %d computed jumps", len(x.Returns), x.Outside, x.Indirect)
	}
	if err != nil {
		return entry, !emulated, nil, err
	}
	return entry, !emulated, x.Returns, nil
}

// behind returns the offsets in a file at which the function at an offset has done its work,
// none if a probe there would not be cheap, or that cannot be told.
func behind(f *os.File, off uint64) []uint64 {
	e, err := elf.New(f)
	if err != nil {
		return nil
	}
	fn, err := e.FuncAt(off)
	if err != nil {
		return nil
	}
	at, _ := e.Behind(fn)
	return at
}
