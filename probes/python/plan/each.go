package plan

import (
	"fmt"
	"strings"

	"inferspan/bpf/event/capture"
)

// body is what is sent of each item of a container.
type body struct {
	attr  string   // that decides which items are left out, "" if none
	skip  uint8    // how: enum py_skip
	is    Function // what it must be, for SkipIsNot
	paths []path
}

// path leads from an item to a value.
type path struct {
	attrs []string
	len   bool // its length is sent
	addr  bool // the address of the item is
}

func (p path) String() string {
	text := strings.Join(p.attrs, ".")
	if p.addr {
		text = itemAddr
	}
	if p.len {
		text = "len(" + text + ")"
	}
	return text
}

func (b *body) String() string {
	var all []string
	for _, p := range b.paths {
		all = append(all, p.String())
	}
	switch {
	case b.attr == "":
		return strings.Join(all, ", ")
	case b.skip == capture.SkipIsNot:
		return strings.Join(all, ", ") + " by " + b.attr + " is " + b.is.String()
	case b.skip == capture.SkipSet:
		return strings.Join(all, ", ") + " without " + b.attr
	}
	return strings.Join(all, ", ") + " by " + b.attr
}

// itemAddr is the path to the address of an item.
const itemAddr = "id()"

// EachPath sends, of each of at most max elements of a list, tuple or set, or values
// of a dict, what paths lead to: attributes of it, or of its attributes and so on, as
// "time_stats.created_time"; with ".len()" at the end the length of that. "id()" is the
// address of the item. strs are as by Str.
//
// It costs the process some 0.1 us for each attribute on the way, which paths that
// follow each other share, and 0.1 us for each value.
func (r *Ref) EachPath(slot string, max, strBytes int, paths ...string) *Ref {
	return r.eachPath(slot, max, strBytes, body{}, paths)
}

// EachPathIf is EachPath for those items only of which an attribute is there and not
// None. The others count as if the container did not have them.
func (r *Ref) EachPathIf(slot string, max, strBytes int, attr string, paths ...string) *Ref {
	r.checkName(attr)
	return r.eachPath(slot, max, strBytes, body{attr: attr, skip: capture.SkipNone}, paths)
}

// EachPathUnless is EachPath for the items that EachPathIf leaves out.
func (r *Ref) EachPathUnless(slot string, max, strBytes int, attr string, paths ...string) *Ref {
	r.checkName(attr)
	return r.eachPath(slot, max, strBytes, body{attr: attr, skip: capture.SkipSet}, paths)
}

// EachPathIs is EachPathIf for those items of which an attribute is the object that a path
// leads to when the plan is compiled.
func (r *Ref) EachPathIs(slot string, max, strBytes int, attr string, object Function, paths ...string) *Ref {
	r.checkName(attr)
	return r.eachPath(slot, max, strBytes, body{attr: attr, skip: capture.SkipIsNot, is: object}, paths)
}

func (r *Ref) eachPath(slot string, max, strBytes int, b body, paths []string) *Ref {
	r.plan.check(len(paths) >= 1 && len(paths) <= capture.MaxPer, "%d values of each item, want 1 to %d", len(paths), capture.MaxPer)
	for _, text := range paths {
		p := path{addr: text == itemAddr}
		if p.addr {
			b.paths = append(b.paths, p)
			continue
		}
		text, p.len = strings.CutSuffix(text, ".len()")
		p.attrs = strings.Split(text, ".")
		for _, a := range p.attrs {
			r.checkName(a)
		}
		b.paths = append(b.paths, p)
	}
	return r.items(leaf{max: max, strBytes: strBytes, items: capture.ItemBody, body: &b}, slot)
}

// items compiles EachPath of the container that op has as its source. Registers above
// top are free.
func (c *compiler) items(l leaf, op capture.Op, top int) {
	other := capture.Op{Code: capture.OpSkip, Src: uint8(top + 1), Slot: l.body.skip}
	if l.body.skip == capture.SkipIsNot {
		v, err := c.in.Path(l.body.is.Module, l.body.is.Path...)
		if err != nil {
			c.out.Dropped[c.p.slots[l.slot]] = fmt.Sprintf("which items, %s says: %v", l.body.is, err)
			return
		}
		other.B, other.C = uint32(v.Addr()), uint32(v.Addr()>>32)
	}
	head := c.out.Plan.OpCount
	c.emit(op)
	skip := -1
	if l.body.attr != "" {
		c.emit(capture.Op{Code: capture.OpAttr, Dst: uint8(top + 1), Src: capture.MaxRegs, A: uint32(c.name(l.body.attr, Function{}))})
		skip = c.emit(other)
	}
	var way []string // attributes whose objects are in registers
	for _, p := range l.body.paths {
		if p.addr {
			c.emit(capture.Op{Code: capture.OpAddr, Src: capture.MaxRegs, Slot: op.Slot})
			continue
		}
		at := 0
		for at < len(way) && at < len(p.attrs)-1 && way[at] == p.attrs[at] {
			at++
		}
		way = way[:at]
		for ; at < len(p.attrs); at++ {
			src, dst := top+at, top+at+1
			if at == 0 {
				src = capture.MaxRegs
			}
			if dst >= capture.MaxRegs-len(c.pins) {
				c.fail("%s: more than %d references in a row", c.p.slots[l.slot], capture.MaxRegs-1)
				return
			}
			c.emit(capture.Op{Code: capture.OpAttr, Dst: uint8(dst), Src: uint8(src), A: uint32(c.name(p.attrs[at], Function{}))})
			way = append(way, p.attrs[at])
		}
		value := capture.Op{Code: capture.OpValue, Src: uint8(top + len(way)), Slot: op.Slot, A: op.B}
		if p.len {
			value.Code, value.A = capture.OpLen, 0
		}
		c.emit(value)
	}
	c.land(skip)
	n := c.out.Plan.OpCount - head - 1
	if n > capture.MaxBody {
		c.fail("%s: more than %d ops for each item", c.p.slots[l.slot], capture.MaxBody)
		return
	}
	c.out.Plan.Ops[head].C = capture.ItemBody | n<<8 | uint32(len(l.body.paths))<<16
}

// Cond is a condition on parts of a plan.
type Cond struct {
	of     *Ref
	how    uint8 // when it does not hold
	other  *Ref
	object Function
}

// Is holds if the part is the object that a path leads to when the plan is compiled: a
// member of an enum, say.
func (r *Ref) Is(object Function) Cond {
	r.pinned = true
	return Cond{of: r, how: capture.SkipIsNot, object: object}
}

// IsNot holds if Is does not.
func (r *Ref) IsNot(object Function) Cond {
	r.pinned = true
	return Cond{of: r, how: capture.SkipIs, object: object}
}

// Differs holds if the part is another object than other is.
func (r *Ref) Differs(other *Ref) Cond {
	r.pinned, other.pinned = true, true
	return Cond{of: r, how: capture.SkipSame, other: other}
}

// Absent holds if the part is not there, or None.
func (r *Ref) Absent() Cond {
	r.pinned = true
	return Cond{of: r, how: capture.SkipSet}
}

// PutOff ends captures here where all of the conditions hold: they have slot, an int, and
// what was added before. What is missing of them can be read later, by WhenDue.
func (p *Plan) PutOff(slot string, conds ...Cond) {
	r := p.root.add(&Ref{op: capture.OpPutOff})
	r.leaf(leaf{op: capture.OpPutOff}, slot)
	for _, cond := range conds {
		r.need(cond)
	}
}

// WhenDue has a part, and what hangs off it, read only by the first capture that gets here
// behind one that PutOff has ended.
func (r *Ref) WhenDue() *Ref { return r.When(Cond{how: capture.SkipDone}) }

// When has a part, and what hangs off it, read only if a condition holds, which is
// about parts that were added before, and are read whenever this one may be. Captures have
// none of its slots otherwise.
func (r *Ref) When(cond Cond) *Ref {
	r.plan.check(r.when == nil, "%s has two conditions", r)
	r.need(cond)
	return r
}

// need adds a condition to a part.
func (r *Ref) need(cond Cond) {
	for _, on := range []*Ref{cond.of, cond.other} {
		for up := on; up != nil; up = up.parent {
			r.plan.check(up.when == nil || r.below(up), "the condition of %s is about %s, which is not always read", r, on)
			r.plan.check(up != r, "the condition of %s is about itself", r)
		}
	}
	r.when = append(r.when, cond)
}

// below tells whether a part hangs off another one.
func (r *Ref) below(other *Ref) bool {
	for up := r.parent; up != nil; up = up.parent {
		if up == other {
			return true
		}
	}
	return false
}

// when emits the conditions of a part and returns where they are. why says why the part is
// to be left out; what was emitted then passes over nothing.
func (c *compiler) when(r *Ref) (skips []int, why string) {
	for i := range r.when {
		at, why := c.unless(&r.when[i])
		if why != "" {
			return nil, why
		}
		skips = append(skips, at)
	}
	return skips, ""
}

// unless emits an op that passes over others where a condition does not hold.
func (c *compiler) unless(w *Cond) (at int, why string) {
	op := capture.Op{Code: capture.OpSkip, Slot: w.how}
	for _, on := range []*Ref{w.of, w.other} {
		if on == nil {
			continue
		}
		reg, ok := c.regs[on]
		if !ok {
			return -1, fmt.Sprintf("its condition is about %s, which is not read", on)
		}
		if on == w.of {
			op.Src = uint8(reg)
		} else {
			op.Dst = uint8(reg)
		}
	}
	if w.object.Module != "" {
		v, err := c.in.Path(w.object.Module, w.object.Path...)
		if err != nil {
			return -1, fmt.Sprintf("its condition is about %s: %v", w.object, err)
		}
		op.B, op.C = uint32(v.Addr()), uint32(v.Addr()>>32)
	}
	return c.emit(op), ""
}

// land has conditions that were emitted pass over the ops since then.
func (c *compiler) land(skips ...int) {
	for _, at := range skips {
		if at >= 0 {
			c.out.Plan.Ops[at].A = c.out.Plan.OpCount - uint32(at) - 1
		}
	}
}
