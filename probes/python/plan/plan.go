// Package plan describes what to read from the Python objects of a running function,
// compiles the description for the kernel, and decodes what the kernel read.
//
// A plan begins at the frame of a function, whose local variables it follows:
//
//	p := plan.New("step", plan.Func("vllm.v1.core.sched.scheduler", "Scheduler.schedule"), 2)
//	self := p.Local("self")
//	self.Attr("current_step").Value("step")
//	self.Attr("running").Len("running")
//	p.Local("token_budget").Value("budget")
//
// Each part that is read has a name, its slot. What cannot be read is missing from
// the capture with the reason: at compile time if the function has no such variable
// (Program.Dropped), else in each capture.
//
// A Plan is not safe for concurrent use while it is built; a Program is not changed.
package plan

import (
	"fmt"
	"strings"

	"inferspan/bpf/event/capture"
)

// Function is a Python function by the path that leads to it.
type Function struct {
	Module string
	Path   []string // attributes from the module on
}

// Func returns the function with a dotted path in a module: Func("threading",
// "Thread.run").
func Func(module, path string) Function {
	return Function{module, strings.Split(path, ".")}
}

func (f Function) String() string { return f.Module + "." + strings.Join(f.Path, ".") }

// Plan is a description of what to read. New makes one.
type Plan struct {
	Name  string
	root  *Ref
	slots []string
	err   error
}

// Ref is a frame or an object of a plan, or a place where one may be. It is the start
// of further parts: they are read in the order in which they were added.
type Ref struct {
	plan   *Plan
	parent *Ref
	op     capture.OpCode
	name   string // of the local, attribute or key
	class  Function
	index  int
	fn     Function // of a frame
	depth  int
	leaves []leaf
	kids   []*Ref
	when   []Cond // all must hold for it to be read
	pinned bool   // a condition is about it
}

// leaf is what is sent of an object.
type leaf struct {
	op       capture.OpCode
	slot     int
	max      int
	strBytes int
	items    uint32
	attrs    []string
	class    Function // that has them as slots
	body     *body    // EachPath
}

// New returns an empty plan for the frame of a function among the depth innermost
// ones; frames of C code do not count. Depth 1 is the caller of the probed function.
func New(name string, fn Function, depth int) *Plan {
	p := &Plan{Name: name}
	p.root = &Ref{plan: p, op: capture.OpFrame, fn: fn, depth: depth}
	p.check(depth >= 1 && depth <= capture.MaxFrames, "depth %d, want 1 to %d", depth, capture.MaxFrames)
	return p
}

func (p *Plan) check(ok bool, format string, args ...any) {
	if !ok && p.err == nil {
		p.err = fmt.Errorf("plan %s: %s", p.Name, fmt.Sprintf(format, args...))
	}
}

// Function returns the function that the plan is for.
func (p *Plan) Function() Function { return p.root.fn }

// Slots returns the names of all parts in the order in which they were added.
func (p *Plan) Slots() []string { return append([]string(nil), p.slots...) }

// Local is a local variable of the plan's function, also one that it shares with an
// inner or outer function.
func (p *Plan) Local(name string) *Ref { return p.root.Local(name) }

// Frame is the frame of another function among the depth innermost.
func (p *Plan) Frame(fn Function, depth int) *Ref {
	p.check(depth >= 1 && depth <= capture.MaxFrames, "depth %d, want 1 to %d", depth, capture.MaxFrames)
	return p.root.add(&Ref{op: capture.OpFrame, fn: fn, depth: depth})
}

func (r *Ref) add(kid *Ref) *Ref {
	kid.plan, kid.parent = r.plan, r
	r.kids = append(r.kids, kid)
	return kid
}

// Local is a local variable of a frame.
func (r *Ref) Local(name string) *Ref {
	r.plan.check(r.op == capture.OpFrame, "local %s of %s, which is no frame", name, r)
	return r.add(&Ref{op: capture.OpLocal, name: name})
}

// Attr is an attribute that an object has itself: in its __dict__ or what stands for
// that. It does not find what only the class has, nor properties.
func (r *Ref) Attr(name string) *Ref { return r.AttrOf(Function{}, name) }

// AttrOf is as Attr, for classes with __slots__ and others that keep attributes at
// fixed places: class is the path of the class that has the slot. Instances of
// classes that do not derive from it are looked up as by Attr.
func (r *Ref) AttrOf(class Function, name string) *Ref {
	r.plan.check(r.op != capture.OpFrame, "attribute %s of a frame", name)
	r.checkName(name)
	return r.add(&Ref{op: capture.OpAttr, name: name, class: class})
}

// Key is the value of a dict under a key.
func (r *Ref) Key(name string) *Ref {
	r.plan.check(r.op != capture.OpFrame, "key %s of a frame", name)
	r.checkName(name)
	return r.add(&Ref{op: capture.OpKey, name: name})
}

// Index is an element of a list, tuple or deque; of a deque one of the first, of which there
// are up to 64.
func (r *Ref) Index(i int) *Ref {
	r.plan.check(r.op != capture.OpFrame, "element %d of a frame", i)
	r.plan.check(i >= 0 && i < 1<<31, "index %d", i)
	return r.add(&Ref{op: capture.OpIndex, index: i})
}

func (r *Ref) checkName(name string) {
	ok := name != "" && len(name) <= capture.MaxName
	for i := range len(name) {
		ok = ok && name[i] < 0x80 && name[i] != 0
	}
	r.plan.check(ok, "name %q, want ASCII of 1 to %d bytes", name, capture.MaxName)
}

// Value sends an int of at most 64 bits, a float, a bool, None, or a str of at most
// 64 bytes. An object of another kind is missing.
func (r *Ref) Value(slot string) *Ref { return r.Str(slot, 64) }

// Str is Value with another bound on a str, in bytes of its form in memory: one per
// code point in ASCII and Latin-1, else two or four. A longer one is missing.
func (r *Ref) Str(slot string, bytes int) *Ref {
	r.plan.check(bytes >= 0 && bytes <= capture.MaxStr, "str of %d bytes, at most %d", bytes, capture.MaxStr)
	return r.leaf(leaf{op: capture.OpValue, max: bytes}, slot)
}

// Len sends the length of a list, tuple, dict, set, deque, str or bytes.
func (r *Ref) Len(slot string) *Ref { return r.leaf(leaf{op: capture.OpLen}, slot) }

// Addr sends the address of the object.
func (r *Ref) Addr(slot string) *Ref { return r.leaf(leaf{op: capture.OpAddr}, slot) }

// Items sends at most max entries of a dict in their order, keys and values as by
// Str. A record holds some 500 of them.
func (r *Ref) Items(slot string, max, strBytes int) *Ref {
	return r.items(leaf{max: max, strBytes: strBytes, items: capture.ItemKey | capture.ItemValue}, slot)
}

// Keys sends at most max keys of a dict.
func (r *Ref) Keys(slot string, max, strBytes int) *Ref {
	return r.items(leaf{max: max, strBytes: strBytes, items: capture.ItemKey}, slot)
}

// Elements sends at most max elements of a list, tuple or set, or values of a dict.
// Those of a set have no order.
func (r *Ref) Elements(slot string, max, strBytes int) *Ref {
	return r.items(leaf{max: max, strBytes: strBytes, items: capture.ItemValue}, slot)
}

// Each sends one or two attributes of each of at most max elements of a list, tuple
// or set, or values of a dict.
func (r *Ref) Each(slot string, max, strBytes int, attrs ...string) *Ref {
	return r.EachOf(Function{}, slot, max, strBytes, attrs...)
}

// EachOf is Each for attributes that class has as slots, as AttrOf.
func (r *Ref) EachOf(class Function, slot string, max, strBytes int, attrs ...string) *Ref {
	r.plan.check(len(attrs) == 1 || len(attrs) == 2, "%d attributes of each item, want 1 or 2", len(attrs))
	for _, a := range attrs {
		r.checkName(a)
	}
	return r.items(leaf{max: max, strBytes: strBytes, items: capture.ItemAttrs, attrs: attrs, class: class}, slot)
}

// EachLenOf sends an attribute of each element, and the length of another one. class
// is as in EachOf.
func (r *Ref) EachLenOf(class Function, slot string, max, strBytes int, attr, of string) *Ref {
	r.checkName(attr)
	r.checkName(of)
	return r.items(leaf{max: max, strBytes: strBytes, items: capture.ItemAttrs | capture.ItemLen, attrs: []string{attr, of}, class: class}, slot)
}

func (r *Ref) items(l leaf, slot string) *Ref {
	r.plan.check(l.max >= 1 && l.max <= 1<<16, "at most %d items", l.max)
	r.plan.check(l.strBytes >= 0 && l.strBytes <= capture.MaxStr, "str of %d bytes, at most %d", l.strBytes, capture.MaxStr)
	l.op = capture.OpItems
	return r.leaf(l, slot)
}

func (r *Ref) leaf(l leaf, slot string) *Ref {
	r.plan.check(r.op != capture.OpFrame, "slot %s is a frame", slot)
	r.plan.check(len(r.plan.slots) < 255, "more than 255 slots")
	for _, s := range r.plan.slots {
		r.plan.check(s != slot, "slot %s twice", slot)
	}
	l.slot = len(r.plan.slots)
	r.plan.slots = append(r.plan.slots, slot)
	r.leaves = append(r.leaves, l)
	return r
}

// String gives the path of a part as Python would write it.
func (r *Ref) String() string {
	up := ""
	if r.parent != nil && r.parent.op != capture.OpFrame {
		up = r.parent.String()
	}
	switch r.op {
	case capture.OpFrame:
		return r.fn.String()
	case capture.OpLocal:
		return r.name
	case capture.OpAttr:
		return up + "." + r.name
	case capture.OpKey:
		return fmt.Sprintf("%s[%q]", up, r.name)
	}
	return fmt.Sprintf("%s[%d]", up, r.index)
}

// String describes the plan, a line for each slot.
func (p *Plan) String() string {
	lines := make([]string, len(p.slots))
	var walk func(r *Ref)
	walk = func(r *Ref) {
		for _, l := range r.leaves {
			what := r.String()
			switch l.op {
			case capture.OpLen:
				what = "len(" + what + ")"
			case capture.OpAddr:
				what = "id(" + what + ")"
			case capture.OpPutOff:
				what = "the rest is put off"
			case capture.OpItems:
				of := map[uint32]string{capture.ItemKey: "keys", capture.ItemValue: "elements", capture.ItemKey | capture.ItemValue: "items",
					capture.ItemAttrs: strings.Join(l.attrs, ", "), capture.ItemAttrs | capture.ItemLen: strings.Join(l.attrs, ", length of ")}[l.items]
				if l.body != nil {
					of = l.body.String()
				}
				what = fmt.Sprintf("%d %s of %s", l.max, of, what)
			}
			lines[l.slot] = fmt.Sprintf("  %s = %s\n", p.slots[l.slot], what)
		}
		for _, k := range r.kids {
			walk(k)
		}
	}
	walk(p.root)
	return fmt.Sprintf("%s: %s, within %d frames\n%s", p.Name, p.root.fn, p.root.depth, strings.Join(lines, ""))
}
