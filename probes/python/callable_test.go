package python

import (
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"inferspan/probes/procfs"
	"inferspan/tests/child"
)

// callables prints the address of C functions as the interpreter's own API gives it,
// and runs functions that are found by their code objects. Each line of input
// replaces something.
const callables = `
import collections, ctypes, functools, sys, time, types
api = ctypes.pythonapi.PyCFunction_GetFunction
api.restype, api.argtypes = ctypes.c_void_p, [ctypes.py_object]
items = []
bound_append = items.append
sleep = time.sleep
print("time.monotonic", api(time.monotonic))
print("time.sleep", api(time.sleep))
print("__main__.sleep", api(time.sleep))
print("__main__.bound_append", api(items.append))
print("builtins.list.append", api(items.append))
print("builtins.str.join", api("".join))
print("builtins.dict.fromkeys", api({}.fromkeys))
print("collections.deque.popleft", api(collections.deque().popleft))
class Wrap:
    smooth = staticmethod(time.monotonic)
print("__main__.Wrap.smooth", api(time.monotonic))

def deco(f):
    @functools.wraps(f)
    def wrapper(*a, **k):
        return f(*a, **k)
    return wrapper

def plain(a, b=1, *rest, key=None, **more):
    local = a
    def inner():
        return local, b
    return inner
first_line = plain.__code__.co_firstlineno

class Engine:
    def step(self, batch):
        total = len(batch)
        return total
    @classmethod
    def make(cls): return cls()
    @staticmethod
    def help(x): return x
    @property
    def size(self): return 1
    @deco
    @deco
    def decorated(self, y): return y
    @functools.lru_cache(maxsize=None)
    def cached(self, z): return z
    async def coro(self): pass
    def gen(self): yield 1
    def start(self):
        loop = self
        async def run():
            async def deep(): return loop
            return await deep()
        if loop:
            def twice(): return 1
        else:
            def twice(): return 2
        return run, twice
engine = Engine()
bound = engine.step
partial = functools.partial(engine.step, [1])
for path, f in [("plain", plain), ("Engine.step", Engine.step), ("Engine.make", Engine.make.__func__), ("Engine.help", Engine.help),
        ("Engine.size", Engine.size.fget), ("Engine.decorated", Engine.decorated.__wrapped__.__wrapped__), ("Engine.cached", Engine.cached.__wrapped__),
        ("Engine.coro", Engine.coro), ("Engine.gen", Engine.gen), ("bound", engine.step), ("Engine.start.<locals>.run", engine.start()[0]),
        ("Engine.start.<locals>.run.<locals>.deep", next(c for c in engine.start()[0].__code__.co_consts if hasattr(c, "co_name")))]:
    c = getattr(f, "__code__", f)
    print("code", path, id(c), c.co_firstlineno, c.co_argcount, c.co_flags, c.co_name, getattr(c, "co_qualname", c.co_name))
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
`

func TestLiveCallables(t *testing.T) {
	eachPython(t, func(t *testing.T, python string) {
		p := child.Start(t, exec.Command(python, "-c", callables))
		pid := p.PID()
		var lines [][]string
		for l := p.Line(); l != "ready"; l = p.Line() {
			lines = append(lines, strings.Fields(l))
		}
		in := open(t, pid)
		maps, err := procfs.FS{}.Maps(pid)
		if err != nil {
			t.Fatal(err)
		}
		codes := 0
		for _, w := range lines {
			if w[0] == "code" {
				codes++
				checkCode(t, in, w[1:])
				continue
			}
			path := strings.Split(w[0], ".")
			c, err := in.Callable(path[0], path[1:]...)
			if err != nil {
				t.Errorf("%s: %v", w[0], err)
				continue
			}
			if got := fmt.Sprint(c.Addr); got != w[1] {
				t.Errorf("%s is at %s, want %s", w[0], got, w[1])
			}
			m, off, err := c.File(maps)
			if err != nil || m.Start+off-m.Offset != c.Addr {
				t.Errorf("%s: offset %#x in %s, %v", w[0], off, m.Path, err)
			}
		}
		if codes != 12 {
			t.Errorf("%d code objects, want 12", codes)
		}
		for _, path := range []string{"Engine.start.<locals>.twice", "Engine.start.<locals>.absent", "Engine.start.<locals>", "Engine.start.<locals>.run.deep"} {
			if c, err := in.Code("__main__", strings.Split(path, ".")...); !errors.Is(err, ErrNotFound) {
				t.Errorf("code of %s: %+v, %v; want %v", path, c, err, ErrNotFound)
			}
		}
		for path, want := range map[string]CallableKind{
			"time.monotonic": Builtin, "builtins.dict.fromkeys": ClassMethod, "builtins.list.append": Method,
			"builtins.int.__add__": Slot, "__main__.items.__len__": Slot, "__main__.partial": Vectorcall,
		} {
			p := strings.Split(path, ".")
			c, err := in.Callable(p[0], p[1:]...)
			if err != nil || c.Kind != want {
				t.Errorf("%s is of kind %q, %v; want %q", path, c.Kind, err, want)
				continue
			}
			if c.Name != p[len(p)-1] && want != Vectorcall {
				t.Errorf("%s has the name %q", path, c.Name)
			}
			if err := c.Check(); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if _, _, err := c.File(maps); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		for path, want := range map[string]error{
			"__main__.plain": ErrType, "__main__.Engine": ErrType, "__main__.engine": ErrType, "__main__.engine.step": ErrType,
			"__main__.absent": ErrNotFound, "__main__.items": ErrType,
		} {
			p := strings.Split(path, ".")
			if c, err := in.Callable(p[0], p[1:]...); !errors.Is(err, want) {
				t.Errorf("%s = %+v, %v; want %v", path, c, err, want)
			}
		}
		checkPlain(t, in)
		checkReplaced(t, in, func(line string) {
			if said := p.Do("%s", line); said != "done" {
				t.Fatalf("after %q: %q", line, said)
			}
		})
	})
}

// checkCode compares with what the interpreter says: path, id, first line, number of
// parameters, flags, name and qualified name.
func checkCode(t *testing.T, in *Interp, want []string) {
	t.Helper()
	c, err := in.Code("__main__", strings.Split(want[0], ".")...)
	if err != nil {
		t.Errorf("%s: %v", want[0], err)
		return
	}
	got := []string{strconv.FormatUint(c.Addr(), 10), strconv.Itoa(c.FirstLine), strconv.Itoa(c.Args), strconv.Itoa(c.Flags), c.Name, c.Qualname}
	if !slices.Equal(got, want[1:]) {
		t.Errorf("code of %s: %v, want %v", want[0], got, want[1:])
	}
	if c.File != "<string>" {
		t.Errorf("code of %s is in the file %q", want[0], c.File)
	}
	if err := c.Check(); err != nil {
		t.Errorf("code of %s: %v", want[0], err)
	}
}

func checkPlain(t *testing.T, in *Interp) {
	t.Helper()
	c, err := in.Code("__main__", "plain")
	if err != nil {
		t.Error(err)
		return
	}
	var names []string
	for _, l := range c.Locals {
		names = append(names, fmt.Sprintf("%s:%t", l.Name, l.Cell))
	}
	want := []string{"a:false", "b:true", "key:false", "rest:false", "more:false", "inner:false", "local:true"}
	at := 1
	if in.layout.CodeLocalKinds < 0 { // cells have places of their own, also those of parameters
		want = []string{"a:false", "b:false", "key:false", "rest:false", "more:false", "inner:false", "b:true", "local:true"}
		at = 6
	}
	if !reflect.DeepEqual(names, want) {
		t.Errorf("locals of plain: %v, want %v", names, want)
	}
	if i := c.Local("b"); i != at {
		t.Errorf("b is local %d, want %d", i, at)
	}
	if i := c.Local("absent"); i != -1 {
		t.Errorf("absent is local %d", i)
	}
	inner, err := in.Path("__main__", "Engine", "cached")
	if err != nil {
		t.Error(err)
		return
	}
	if _, err := inner.Code(); !errors.Is(err, ErrType) {
		t.Errorf("code of a C wrapper: %v, want %v", err, ErrType)
	}
}

// checkReplaced has functions replaced and asks whether the code is still in use.
func checkReplaced(t *testing.T, in *Interp, run func(string)) {
	t.Helper()
	c, err := in.Code("__main__", "Engine", "step")
	if err != nil {
		t.Error(err)
		return
	}
	for _, step := range []struct {
		line string
		want error
	}{
		{"pass", nil},
		{"for i in range(500): setattr(Engine, 'm%d' % i, i)", nil}, // rebuilds the class's dict
		{"for i in range(500): globals()['g%d' % i] = i", nil},
		{"old = Engine.step; Engine.step = lambda self: 1", ErrReplaced},
		{"Engine.step = old", nil},
		{"old.__code__ = plain.__code__.replace()", ErrReplaced},
		{"del Engine.step", ErrReplaced},
		{"Engine.step = 5", ErrReplaced},
		{"del Engine", ErrReplaced},
	} {
		run(step.line)
		if err := c.Check(); !errors.Is(err, step.want) {
			t.Errorf("after %q: %v, want %v", step.line, err, step.want)
		}
	}
}
