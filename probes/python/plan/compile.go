package plan

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"inferspan/bpf/event/capture"
	"inferspan/probes/python"
)

// ErrFunction is wrapped when the function that a plan is for cannot be found.
var ErrFunction = errors.New("no such function")

// Program is a plan compiled for one process.
type Program struct {
	Name  string
	Slots []string // by their numbers in captures
	// Dropped has, by slot, why a part was left out. Captures do not have it.
	Dropped map[string]string
	Plan    capture.Plan
	codes   []code
	names   []string
}

// code is a function of which the plan has the code object.
type code struct {
	fn   Function
	code *python.Code
}

// compiler has the state of a compilation.
type compiler struct {
	in   *python.Interp
	p    *Plan
	out  *Program
	cell bool         // the kernel knows the type of cells
	regs map[*Ref]int // of parts that conditions are about
	pins []*Ref       // these, the last ones registers in this order
	uses uses
	err  error
}

// Compile resolves a plan in a live interpreter. A part that cannot be resolved is
// left out with the reason; when that is the plan's function, or no part is left,
// the error wraps ErrFunction or says so. Errors of the plan itself are found first.
func (p *Plan) Compile(in *python.Interp) (*Program, error) {
	if p.err != nil {
		return nil, p.err
	}
	layout, err := in.CaptureLayout()
	if err != nil {
		return nil, err
	}
	c := &compiler{in: in, p: p, cell: layout.CellType != 0, regs: map[*Ref]int{}, uses: usesOf(p), out: &Program{Name: p.Name, Slots: p.Slots(), Dropped: map[string]string{}}}
	root, err := c.function(p.root.fn)
	if err != nil {
		if errors.Is(err, python.ErrGone) {
			return nil, err
		}
		return nil, fmt.Errorf("plan %s: %w: %w", p.Name, ErrFunction, err)
	}
	c.out.Plan.Depth = uint32(p.root.depth)
	c.visit(p.root, 0, 0, root)
	switch {
	case c.err != nil:
		return nil, fmt.Errorf("plan %s: %w", p.Name, c.err)
	case len(c.out.Dropped) == len(p.slots):
		return nil, fmt.Errorf("plan %s: nothing of it can be read: %s", p.Name, c.out.reasons())
	}
	return c.out, nil
}

func (p *Program) reasons() string {
	var all []string
	for slot, why := range p.Dropped {
		all = append(all, slot+": "+why)
	}
	sort.Strings(all)
	return strings.Join(all, "; ")
}

// fail remembers the first error that concerns the whole plan.
func (c *compiler) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// function returns the index of a function's code among those of the plan.
func (c *compiler) function(fn Function) (int, error) {
	for i, k := range c.out.codes {
		if k.fn.String() == fn.String() {
			return i, nil
		}
	}
	if len(c.out.codes) == capture.MaxCodes {
		return 0, fmt.Errorf("more than %d functions", capture.MaxCodes)
	}
	k, err := c.in.Code(fn.Module, fn.Path...)
	if err != nil {
		return 0, err
	}
	id, err := k.CaptureCode()
	if err != nil {
		return 0, err
	}
	i := len(c.out.codes)
	c.out.Plan.Codes[i] = id
	c.out.codes = append(c.out.codes, code{fn, k})
	return i, nil
}

// visit compiles what hangs off a part that is in a register. top is the last of the
// registers from the first on that are in use; the last ones are those of parts that
// conditions are about. fn is the index of the function that a frame is of.
func (c *compiler) visit(r *Ref, reg, top, fn int) {
	for _, l := range r.leaves {
		op := capture.Op{Code: l.op, Src: uint8(reg), Slot: uint8(l.slot), A: uint32(l.max), B: uint32(l.strBytes)}
		if l.body != nil {
			c.items(l, op, top)
			continue
		}
		if l.op == capture.OpItems {
			op.C = l.items | capture.NoName<<8 | capture.NoName<<16
			for i, a := range l.attrs {
				at := c.name(a, l.class)
				op.C = op.C&^(0xff<<(8+8*i)) | uint32(at)<<(8+8*i)
			}
		}
		c.emit(op)
	}
	for _, k := range r.kids {
		c.release(k)
		skips, why := c.when(k)
		if why != "" {
			c.drop(k, why)
			continue
		}
		to, last := top+1, top+1
		if k.pinned {
			c.pins = append(c.pins, k)
			to, last = capture.MaxRegs-len(c.pins), top
		}
		if last >= capture.MaxRegs-len(c.pins) {
			c.fail("%s: more than %d references in a row", k, capture.MaxRegs-1)
			return
		}
		op := capture.Op{Code: k.op, Dst: uint8(to), Src: uint8(reg)}
		next := fn
		switch k.op {
		case capture.OpFrame:
			i, err := c.function(k.fn)
			if err != nil {
				c.drop(k, err.Error())
				c.land(skips...)
				continue
			}
			op.A, op.B, next = uint32(i), uint32(k.depth), i
		case capture.OpLocal:
			of := c.out.codes[fn].code
			i := of.Local(k.name)
			if i < 0 {
				c.drop(k, fmt.Sprintf("%s has no local variable %s", of.Qualname, k.name))
				c.land(skips...)
				continue
			}
			op.A = uint32(i)
			if of.Locals[i].Cell {
				if !c.cell {
					c.drop(k, fmt.Sprintf("%s of %s is in a cell, and the type of cells is not known", k.name, of.Qualname))
					c.land(skips...)
					continue
				}
				op.B = 1
			}
		case capture.OpAttr, capture.OpKey:
			op.A = uint32(c.name(k.name, k.class))
		case capture.OpIndex:
			op.A = uint32(k.index)
		}
		if k.op != capture.OpPutOff { // which is a leaf
			c.emit(op)
		}
		if k.pinned {
			c.regs[k] = to
		}
		c.visit(k, to, last, next)
		c.land(skips...)
	}
}

// uses has the numbers of parts in the order in which they are compiled.
type uses struct {
	of   map[*Ref]int
	last map[*Ref]int // the last part for which one stays: with a condition about it, or below it
}

func usesOf(p *Plan) uses {
	u := uses{map[*Ref]int{}, map[*Ref]int{}}
	var walk func(r *Ref)
	walk = func(r *Ref) {
		for _, k := range r.kids {
			u.of[k] = len(u.of)
			for _, w := range k.when {
				u.last[w.of], u.last[w.other] = u.of[k], u.of[k]
			}
			walk(k)
			u.last[k] = max(u.last[k], len(u.of)-1)
		}
	}
	walk(p.root)
	return u
}

// release gives back registers of parts that no condition is about from a part on.
func (c *compiler) release(from *Ref) {
	for n := len(c.pins); n > 0 && c.uses.last[c.pins[n-1]] < c.uses.of[from]; n-- {
		c.pins = c.pins[:n-1]
	}
}

// emit adds an op and returns its index, -1 if there is no room.
func (c *compiler) emit(op capture.Op) int {
	n := c.out.Plan.OpCount
	if n == capture.MaxOps {
		c.fail("more than %d ops", capture.MaxOps)
		return -1
	}
	c.out.Plan.Ops[n] = op
	c.out.Plan.OpCount++
	return int(n)
}

// drop leaves out all that hangs off a part.
func (c *compiler) drop(r *Ref, why string) {
	for _, l := range r.leaves {
		c.out.Dropped[c.p.slots[l.slot]] = why
	}
	for _, k := range r.kids {
		c.drop(k, why)
	}
}

// name returns the index of a name among those of the plan.
func (c *compiler) name(text string, class Function) int {
	hash, err := c.in.StrHash(text)
	if err != nil {
		c.fail("%w", err)
		return 0
	}
	n := capture.Name{Hash: hash, Len: uint32(len(text))}
	if class.Module != "" {
		// Not found: the version may have it in the __dict__.
		if v, err := c.in.Path(class.Module, class.Path...); err == nil {
			if off, cname, err := v.Slot(text); err == nil {
				n.SlotClass, n.SlotName, n.Slot = v.Addr(), cname, uint32(off)
			}
		}
	}
	for i, other := range c.out.names {
		if other == text && c.out.Plan.Names[i] == n {
			return i
		}
	}
	i := len(c.out.names)
	if i == capture.MaxNames {
		c.fail("more than %d names", capture.MaxNames)
		return 0
	}
	c.out.names = append(c.out.names, text)
	c.out.Plan.Names[i] = n
	return i
}

// Stale returns the functions that no longer run the code that the plan was compiled
// for, with the reason: the plan does not see them and is to be compiled again. Looks
// at the process; ErrGone if it has ended.
func (p *Program) Stale() (map[string]string, error) {
	stale := map[string]string{}
	for _, c := range p.codes {
		err := c.code.Check()
		if errors.Is(err, python.ErrGone) {
			return nil, err
		}
		if err != nil {
			stale[c.fn.String()] = err.Error()
		}
	}
	return stale, nil
}
