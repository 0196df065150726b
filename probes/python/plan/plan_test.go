package plan

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"inferspan/bpf/event/capture"
	"inferspan/probes/python"
	"inferspan/tests/child"
)

const program = `
import sys, types
class Slots:
    __slots__ = ("a", "b")
class Derived(Slots):
    pass
class Engine:
    def step(self, out, *rest):
        total = len(out)
        shared = total
        def inner():
            return shared
        return inner
    @staticmethod
    def helper(): pass
    @property
    def computed(self): return 1
def wrap(f):
    import functools
    @functools.wraps(f)
    def outer(*a): return f(*a)
    return outer
@wrap
def wrapped(argument): pass
print("ready", flush=True)
for line in sys.stdin:
    Engine.step = lambda self, out: 1
    print("done", flush=True)
`

// start runs the program and returns its interpreter, and what has it replace the method.
func start(t *testing.T) (in *python.Interp, replace func()) {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in the path")
	}
	p := child.Start(t, exec.Command(path, "-c", program))
	p.Expect("ready")
	in, err = python.Open(p.PID())
	if errors.Is(err, os.ErrPermission) || errors.Is(err, python.ErrUnsupported) {
		t.Skipf("cannot read %s: %v", path, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return in, func() { p.Do("") }
}

func step() *Plan { return New("step", Func("__main__", "Engine.step"), 3) }

func TestCompile(t *testing.T) {
	in, _ := start(t)
	p := step()
	self := p.Local("self")
	self.Attr("counter").Value("counter")
	self.Attr("queue").Len("queue")
	out := p.Local("out").Addr("out")
	out.Attr("tokens").Items("tokens", 100, 40)
	out.AttrOf(Func("__main__", "Slots"), "b").Value("slot")
	out.AttrOf(Func("__main__", "Engine"), "c").Value("no slot")
	out.EachOf(Func("__main__", "Derived"), "each", 5, 8, "a", "tokens")
	out.Key("key").Index(3).Str("str", 256)
	p.Local("shared").Value("shared")
	p.Local("nothing").Attr("a").Value("gone")
	p.Frame(Func("__main__", "wrapped"), 2).Local("argument").Value("argument")
	p.Frame(Func("__main__", "absent"), 2).Local("x").Value("absent")
	prog, err := p.Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	if len(prog.Dropped) != 2 || !strings.Contains(prog.Dropped["gone"], "nothing") || !strings.Contains(prog.Dropped["absent"], "absent") {
		t.Errorf("dropped: %v", prog.Dropped)
	}
	if want := p.Slots(); !reflect.DeepEqual(prog.Slots, want) || want[2] != "out" {
		t.Errorf("slots %v, want %v", prog.Slots, want)
	}
	pl := prog.Plan
	code, err := in.Code("__main__", "Engine", "step")
	if err != nil {
		t.Fatal(err)
	}
	if pl.Codes[0].Addr != code.Addr() || pl.Codes[0].Identity[0] == 0 || pl.Codes[1].Addr == 0 || pl.Codes[2].Addr != 0 || pl.Depth != 3 {
		t.Errorf("codes %+v at depth %d", pl.Codes, pl.Depth)
	}
	var ops []capture.OpCode
	for _, op := range pl.Ops[:pl.OpCount] {
		ops = append(ops, op.Code)
		// Whatever is read must have been set before, on this path.
		if op.Src >= capture.MaxRegs || op.Dst >= capture.MaxRegs {
			t.Errorf("op %+v", op)
		}
	}
	want := []capture.OpCode{capture.OpLocal, capture.OpAttr, capture.OpValue, capture.OpAttr, capture.OpLen, // self
		capture.OpLocal, capture.OpAddr, capture.OpItems, capture.OpAttr, capture.OpItems, capture.OpAttr, capture.OpValue, capture.OpAttr, capture.OpValue,
		capture.OpKey, capture.OpIndex, capture.OpValue, capture.OpLocal, capture.OpValue, capture.OpFrame, capture.OpLocal, capture.OpValue}
	if !reflect.DeepEqual(ops, want) {
		t.Errorf("ops %v, want %v", ops, want)
	}
	names := map[string]capture.Name{}
	for i, text := range prog.names {
		n := pl.Names[i]
		if int(n.Len) != len(text) {
			t.Errorf("name %s of %d bytes", text, n.Len)
		}
		if _, twice := names[text]; twice && n.SlotClass == 0 && names[text].SlotClass == 0 {
			t.Errorf("name %s twice", text)
		}
		names[text] = n
		if hash, err := in.StrHash(text); err != nil || n.Hash != hash {
			t.Errorf("hash of %s: %#x, %#x, %v", text, n.Hash, hash, err)
		}
	}
	slots, err := in.Path("__main__", "Slots")
	if err != nil {
		t.Fatal(err)
	}
	if b := names["b"]; b.SlotClass != slots.Addr() || b.Slot < 16 || b.SlotName == 0 {
		t.Errorf("slot: %+v", b)
	}
	if c := names["c"]; c.SlotClass != 0 {
		t.Errorf("an attribute that is not a slot: %+v", c)
	}
	if stale, err := prog.Stale(); err != nil || len(stale) != 0 {
		t.Errorf("stale: %v, %v", stale, err)
	}
}

// TestCompileNested checks conditions within conditions, and those about items.
func TestCompileNested(t *testing.T) {
	in, _ := start(t)
	p := step()
	self := p.Local("self")
	at := p.Local("out").When(self.IsNot(Func("__main__", "Engine")))
	list := at.Attr("list")
	at.Attr("list").When(list.Differs(self)).EachPathIs("each", 9, 32, "flag", Func("builtins", "False"), "id")
	at.Attr("list").EachPathIs("gone", 9, 32, "flag", Func("__main__", "absent"), "id")
	prog, err := p.Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	if len(prog.Dropped) != 1 || !strings.Contains(prog.Dropped["gone"], "absent") {
		t.Errorf("dropped: %v", prog.Dropped)
	}
	no, err := in.Path("builtins", "False")
	if err != nil {
		t.Fatal(err)
	}
	var skips []capture.Op
	for n, op := range prog.Plan.Ops[:prog.Plan.OpCount] {
		if op.Code == capture.OpSkip {
			skips = append(skips, op)
			if uint32(n)+op.A >= prog.Plan.OpCount {
				t.Errorf("op %d passes over %d of %d", n, op.A, prog.Plan.OpCount)
			}
		}
	}
	if len(skips) != 3 || skips[0].Slot != capture.SkipIs || skips[1].Slot != capture.SkipSame || skips[2].Slot != capture.SkipIsNot ||
		skips[2].B != uint32(no.Addr()) || skips[2].C != uint32(no.Addr()>>32) {
		t.Errorf("conditions %+v", skips)
	}
	p = step()
	self = p.Local("self")
	list = p.Local("out").When(self.IsNot(Func("__main__", "Engine"))).Attr("list")
	p.Local("out").When(list.Differs(self)).Attr("x").Value("x")
	if _, err := p.Compile(in); err == nil || !strings.Contains(err.Error(), "not always read") {
		t.Errorf("a condition about what is read by another one: %v", err)
	}
}

// TestCompileRegisters: what a condition is about keeps its register as long as one is, and as
// long as something hangs off it.
func TestCompileRegisters(t *testing.T) {
	in, _ := start(t)
	p := step()
	kept := p.Local("self")
	for n := range 20 {
		out := p.Local("out")
		out.Attr("list").When(out.IsNot(Func("__main__", "Engine"))).Attr("x").Value(fmt.Sprint("x", n))
	}
	p.Local("out").When(kept.IsNot(Func("__main__", "Engine"))).Value("last")
	prog, err := p.Compile(in)
	if err != nil || len(prog.Dropped) > 0 {
		t.Fatal(err, prog)
	}
	// Each round: the part, the condition, the list, an attribute of it and that sent.
	const first = capture.MaxRegs - 1
	regs := map[capture.OpCode][]uint8{}
	for _, op := range prog.Plan.Ops[:prog.Plan.OpCount] {
		switch op.Code {
		case capture.OpLocal:
			regs[op.Code] = append(regs[op.Code], op.Dst)
		case capture.OpSkip:
			regs[op.Code] = append(regs[op.Code], op.Src)
		}
	}
	for n := range 20 {
		if local, cond := regs[capture.OpLocal][n+1], regs[capture.OpSkip][n]; local != first-1 || cond != local {
			t.Errorf("part %d is in register %d, its condition about %d", n, local, cond)
		}
	}
	if got := regs[capture.OpSkip][20]; got != first || regs[capture.OpLocal][0] != first {
		t.Errorf("the last condition is about register %d", got)
	}
}

// TestCompileEach checks the ops of paths: what they share is read once, conditions
// pass over what they are about, and registers in use are left alone.
func TestCompileEach(t *testing.T) {
	in, _ := start(t)
	p := step()
	self := p.Local("self")
	out := p.Local("out")
	out.Attr("list").EachPathIf("each", 9, 32, "reason", "id", "stats.a", "stats.b", "stats.c.len()", "id")
	p.Local("self").When(self.IsNot(Func("__main__", "Engine"))).Attr("x").Value("x")
	p.Local("out").When(self.Differs(out)).Value("other")
	p.Local("out").When(self.Is(Func("__main__", "absent"))).Value("gone")
	prog, err := p.Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	if len(prog.Dropped) != 1 || !strings.Contains(prog.Dropped["gone"], "absent") {
		t.Errorf("dropped: %v", prog.Dropped)
	}
	engine, err := in.Path("__main__", "Engine")
	if err != nil {
		t.Fatal(err)
	}
	addr := engine.Addr()
	const self_, out_, item = 14, 13, capture.MaxRegs
	name := func(n uint32) string { return prog.names[n] }
	var names []string
	var ops []capture.Op
	for _, op := range prog.Plan.Ops[:prog.Plan.OpCount] {
		if op.Code == capture.OpAttr {
			names, op.A = append(names, name(op.A)), 0
		}
		if op.Code == capture.OpLocal {
			op.A, op.B = 0, 0
		}
		ops = append(ops, op)
	}
	want := []capture.Op{
		{Code: capture.OpLocal, Dst: self_},
		{Code: capture.OpLocal, Dst: out_},
		{Code: capture.OpAttr, Dst: 1, Src: out_},
		{Code: capture.OpItems, Src: 1, Slot: 0, A: 9, B: 32, C: capture.ItemBody | 13<<8 | 5<<16},
		{Code: capture.OpAttr, Dst: 2, Src: item},
		{Code: capture.OpSkip, Src: 2, Slot: capture.SkipNone, A: 11},
		{Code: capture.OpAttr, Dst: 2, Src: item},
		{Code: capture.OpValue, Src: 2, A: 32},
		{Code: capture.OpAttr, Dst: 2, Src: item},
		{Code: capture.OpAttr, Dst: 3, Src: 2},
		{Code: capture.OpValue, Src: 3, A: 32},
		{Code: capture.OpAttr, Dst: 3, Src: 2},
		{Code: capture.OpValue, Src: 3, A: 32},
		{Code: capture.OpAttr, Dst: 3, Src: 2},
		{Code: capture.OpLen, Src: 3},
		{Code: capture.OpAttr, Dst: 2, Src: item},
		{Code: capture.OpValue, Src: 2, A: 32},
		{Code: capture.OpSkip, Src: self_, Slot: capture.SkipIs, A: 3, B: uint32(addr), C: uint32(addr >> 32)},
		{Code: capture.OpLocal, Dst: 1},
		{Code: capture.OpAttr, Dst: 2, Src: 1},
		{Code: capture.OpValue, Src: 2, Slot: 1, A: 64},
		{Code: capture.OpSkip, Src: self_, Dst: out_, Slot: capture.SkipSame, A: 2},
		{Code: capture.OpLocal, Dst: 1},
		{Code: capture.OpValue, Src: 1, Slot: 2, A: 64},
	}
	if !reflect.DeepEqual(ops, want) {
		t.Errorf("ops\n%v\nwant\n%v", ops, want)
	}
	if want := []string{"list", "reason", "id", "stats", "a", "b", "c", "id", "x"}; !reflect.DeepEqual(names, want) {
		t.Errorf("names %v, want %v", names, want)
	}
}

func TestCompileErrors(t *testing.T) {
	in, replace := start(t)
	gone := New("gone", Func("__main__", "Engine.gone"), 1)
	gone.Local("x").Value("x")
	if _, err := gone.Compile(in); !errors.Is(err, ErrFunction) {
		t.Errorf("a function that does not exist: %v", err)
	}
	class := New("class", Func("__main__", "Engine"), 1)
	class.Local("x").Value("x")
	if _, err := class.Compile(in); !errors.Is(err, ErrFunction) {
		t.Errorf("a class: %v", err)
	}
	nothing := step()
	nothing.Local("nothing").Value("x")
	if _, err := nothing.Compile(in); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("nothing to read: %v", err)
	}
	deep := step()
	r := deep.Local("self")
	for range capture.MaxRegs {
		r = r.Attr("a")
	}
	r.Value("x")
	if _, err := deep.Compile(in); err == nil {
		t.Error("too many references in a row were taken")
	}
	long := step()
	for range capture.MaxOps {
		long.Local("self")
	}
	long.Local("self").Value("x")
	if _, err := long.Compile(in); err == nil || !strings.Contains(err.Error(), "ops") {
		t.Errorf("too many ops: %v", err)
	}
	names := step()
	self := names.Local("self").Addr("x")
	for i := range capture.MaxNames + 1 {
		self.Attr(strings.Repeat("n", i+1))
	}
	if _, err := names.Compile(in); err == nil || !strings.Contains(err.Error(), "names") {
		t.Errorf("too many names: %v", err)
	}

	p := step()
	p.Local("self").Value("self")
	prog, err := p.Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	replace()
	if stale, err := prog.Stale(); err != nil || stale["__main__.Engine.step"] == "" {
		t.Errorf("stale after the method was replaced: %v, %v", stale, err)
	}
}

// TestMistakes checks that a plan that makes no sense is refused, whatever the process.
func TestMistakes(t *testing.T) {
	for name, f := range map[string]func(*Plan){
		"slot twice":           func(p *Plan) { p.Local("a").Value("x").Value("x") },
		"value of a frame":     func(p *Plan) { p.Frame(Func("m", "f"), 1).Value("x") },
		"attribute of a frame": func(p *Plan) { p.Frame(Func("m", "f"), 1).Attr("x") },
		"local of an object":   func(p *Plan) { p.Local("a").Local("b") },
		"no name":              func(p *Plan) { p.Local("a").Attr("") },
		"name not ASCII":       func(p *Plan) { p.Local("a").Attr("caf\u00e9") },
		"long name":            func(p *Plan) { p.Local("a").Key(strings.Repeat("x", 65)) },
		"index":                func(p *Plan) { p.Local("a").Index(-1) },
		"long str":             func(p *Plan) { p.Local("a").Str("x", 257) },
		"no items":             func(p *Plan) { p.Local("a").Items("x", 0, 8) },
		"no attributes":        func(p *Plan) { p.Local("a").Each("x", 1, 8) },
		"three attributes":     func(p *Plan) { p.Local("a").Each("x", 1, 8, "a", "b", "c") },
		"no paths":             func(p *Plan) { p.Local("a").EachPath("x", 1, 8) },
		"empty part of a path": func(p *Plan) { p.Local("a").EachPath("x", 1, 8, "a..b") },
		"many paths":           func(p *Plan) { p.Local("a").EachPath("x", 1, 8, make([]string, capture.MaxPer+1)...) },
		"two conditions": func(p *Plan) {
			a := p.Local("a")
			p.Local("b").When(a.Is(Func("m", "f"))).When(a.Is(Func("m", "f")))
		},
		"condition about itself": func(p *Plan) { a := p.Local("a"); a.When(a.Is(Func("m", "f"))) },
		"condition about a part with one": func(p *Plan) {
			a := p.Local("a")
			b := p.Local("b").When(a.Is(Func("m", "f"))).Attr("c")
			p.Local("d").When(b.Is(Func("m", "f")))
		},
		"depth of a frame": func(p *Plan) { p.Frame(Func("m", "f"), 17) },
	} {
		p := step()
		f(p)
		if _, err := p.Compile(nil); err == nil || !strings.Contains(err.Error(), "plan step") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New("p", Func("m", "f"), 0).Compile(nil); err == nil {
		t.Error("depth 0 was taken")
	}
}

func TestString(t *testing.T) {
	p := step()
	self := p.Local("self").Addr("self")
	self.Attr("queue").Key("k").Index(2).Len("n")
	p.Local("out").Each("ids", 5, 8, "id")
	p.Local("out").Items("all", 6, 8)
	p.Local("out").EachPathIf("ends", 7, 8, "why", "id", "a.b.len()")
	p.Local("out").EachPathUnless("goes_on", 7, 8, "why", "id()", "a")
	p.Frame(Func("m", "outer"), 4).Local("x").Value("x")
	const want = `step: __main__.Engine.step, within 3 frames
  self = id(self)
  n = len(self.queue["k"][2])
  ids = 5 id of out
  all = 6 items of out
  ends = 7 id, len(a.b) by why of out
  goes_on = 7 id(), a without why of out
  x = x
`
	if got := p.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
