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

// points is where a function is probed, by offsets in its file.
type points struct {
	entries []uint64 // a call comes by one of them, of which there mostly is one
	stepped bool     // the kernel executes the instructions there and traps again
	returns []uint64
}

// points finds where to probe the function at an offset in a file: near its entry or, where
// another probe is at that, there or behind its work, and at its returns if these are asked
// for. The error says why there are none of these.
func (spec *PythonProbe) points(f *os.File, off uint64) (at points, err error) {
	at = points{entries: []uint64{off}, stepped: true}
	e, err := elf.New(f)
	if err != nil {
		return at, err
	}
	fn, err := e.FuncAt(off)
	if err != nil {
		return at, err
	}
	entry, emulated := e.Emulated(fn)
	at.stepped = !emulated
	if spec.ZMQ == "" {
		at.entries = []uint64{entry}
	} else if spec.Behind {
		if behind, ok := e.Behind(fn); ok {
			at.entries, at.stepped = behind, false
		}
	}
	if !spec.Returns && !spec.Timed {
		return at, nil
	}
	x, err := e.Exits(fn)
	if err == nil && !x.Complete() {
		err = fmt.Errorf("the ends of the function are unclear: %d returns, %d jumps out of it, %d computed jumps", len(x.Returns), x.Outside, x.Indirect)
	}
	if err == nil {
		at.returns = x.Returns
	}
	return at, err
}
