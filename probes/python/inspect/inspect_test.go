package inspect

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
	"inferspan/tests/child"
	"inferspan/tests/pythons"
)

func TestParsePath(t *testing.T) {
	for _, c := range []struct {
		path  string
		names int
		steps string // what follows the first bracket
		err   string
	}{
		{"sys", 1, "", ""},
		{"vllm.version.__version__", 3, "", ""},
		{"m.a[3].b['key'][-1]", 2, "[3].b['key'][-1]", ""},
		{`m["key"]`, 1, "['key']", ""},
		{"m['a.b[c]']", 1, "['a.b[c]']", ""},
		{"m['']", 1, "['']", ""},
		{"", 0, "", "want a name"},
		{".a", 0, "", "begins with a module's name"},
		{"[1]", 0, "", "begins with a module's name"},
		{"a.", 0, "", "at 1: want a name"},
		{"a..b", 0, "", "want a name"},
		{"a.1", 0, "", "want a name"},
		{"a[", 0, "", "want a number or a quoted key"},
		{"a[x]", 0, "", "want a number or a quoted key"},
		{"a[1", 0, "", "want a number or a quoted key"},
		{"a['x]", 0, "", "the key has no end"},
		{"a['x'", 0, "", "the key has no end"},
		{"a[1]b", 0, "", `want "." or "["`},
		{"a-b", 0, "", `at 1: want "." or "["`},
		{"a[99999999999999999999]", 0, "", "want a number"},
		{strings.Repeat("a", maxPath+1), 0, "", "longer than"},
	} {
		p, err := ParsePath(c.path)
		if c.err != "" {
			if !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: %v, want %q", c.path, err, c.err)
			}
			continue
		}
		steps := ""
		for _, s := range p.steps {
			steps += s.String()
		}
		if err != nil || len(p.names) != c.names || steps != c.steps {
			t.Errorf("%q: %+v, %v", c.path, p, err)
		}
	}
}

// FuzzParsePath: a path or an error, and a path reads as itself again.
func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"sys", "a.b[3]['k'].c[-1]", `a["x"]`, "a['", "[", "a.b.", "a[--1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePath(s)
		if err != nil {
			if !errors.Is(err, ErrPath) || len(p.names) > 0 {
				t.Fatalf("%q: %+v, %v", s, p, err)
			}
			return
		}
		if strings.Contains(s, `"`) { // written with the other quotes
			return
		}
		again, err := ParsePath(p.String())
		if err != nil || again.String() != p.String() || len(p.names) == 0 {
			t.Fatalf("%q: %q, %v", s, p, err)
		}
	})
}

const script = `
import collections, dataclasses, enum, sys, time
class Colour(enum.Enum):
    RED = 1
    SOFT = "s"
class Level(enum.IntEnum):
    LOW = 10
@dataclasses.dataclass(slots=True)
class Point:
    x: int
    tags: list
class Thing:
    def __init__(self):
        self.name = "thing"
        self.point = Point(1, ["a", None])
    def act(self, n): return n
    async def wait(self): pass
    @property
    def size(self): return 1
thing = Thing()
table = {"a": 1, 2: [True, 2.5], ("t", 1): b"\x00x"}
queue = collections.deque(range(10))
text = "it's \"quoted\"\n"
long = "x" * 50
big = 2**70
nan = float("nan")
deep = [[[[1]]]]
empty = []
sys.stdout.write("ready\n"); sys.stdout.flush()
sys.stdin.readline()
`

func TestInspect(t *testing.T) {
	pythons.Each(t, func(t *testing.T, paths []string) { testInspect(t, paths[0]) })
}

func testInspect(t *testing.T, exe string) {
	p := child.Start(t, exec.Command(exe, "-c", script))
	p.Expect("ready")
	in, err := python.Open(p.PID())
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("not allowed to read the memory of a child: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	maps, err := procfs.FS{}.Maps(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Depth: 1, Max: 4, Text: 20, Maps: maps}
	for _, c := range []struct{ path, want string }{
		{"__main__.thing.name", "str 'thing'"},
		{"__main__.table", "dict, 3 entries\n  'a': int 1\n  2: list, 2 elements\n  ('t', 1): bytes b\"\\x00x\""},
		{"__main__.table['a']", "int 1"},
		{"__main__.table[2]", "list, 2 elements\n  [0]: bool True\n  [1]: float 2.5"},
		{"__main__.table[2][-1]", "float 2.5"},
		{"__main__.queue", "collections.deque, 10 elements\n  [0]: int 0\n  [1]: int 1\n  [2]: int 2\n  [3]: int 3\n  ... 6 more"},
		{"__main__.text", `str 'it's "quoted"\n'`},
		{"__main__.long", "str 'xxxxxxxxxxxxxxxxxxxx'... (50 in all)"},
		{"__main__.big", "int, int of more than 64 bits"},
		{"__main__.nan", "float NaN"},
		{"__main__.deep", "list, 1 elements\n  [0]: list, 1 elements"},
		{"__main__.empty", "list, 0 elements"},
		{"__main__.Colour.RED", "__main__.Colour.RED = 1"},
		{"__main__.Colour.SOFT", "__main__.Colour.SOFT = s"},
		{"__main__.Level.LOW", "__main__.Level.LOW = 10"},
		{"__main__.thing.point", "__main__.Point at ADDR\n  x: int 1\n  tags: list, 2 elements"},
		{"__main__.thing", "__main__.Thing at ADDR\n  name: str 'thing'\n  point: __main__.Point at ADDR, 2 attributes"},
		{"__main__.thing.act", "function " + qual(in, "Thing.act") + "(self, n) at <string>:16, code ADDR"},
		{"__main__.Thing.wait", "coroutine function " + qual(in, "Thing.wait") + "(self) at <string>:17, code ADDR"},
		{"time.monotonic", "builtin function monotonic, code at ADDR, offset ADDR in FILE"},
		{"collections.deque.append", "method descriptor append, code at ADDR, offset ADDR in FILE"},
		{"__main__.thing.point.tags[1]", "None"},
	} {
		n, err := describe(in, c.path, o)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		var b strings.Builder
		if err := Print(&b, n); err != nil {
			t.Fatal(err)
		}
		got := regexp.MustCompile(`0x[0-9a-f]+`).ReplaceAllString(strings.TrimSuffix(b.String(), "\n"), "ADDR")
		got = regexp.MustCompile(`in /\S+$`).ReplaceAllString(got, "in FILE")
		if got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.path, got, c.want)
		}
		j, err := json.Marshal(n)
		if err != nil || !json.Valid(j) {
			t.Errorf("%s as JSON: %v", c.path, err)
		}
	}
	for path, want := range map[string]error{
		"absent": python.ErrNotFound, "__main__.absent": python.ErrNotFound, "__main__.table['z']": python.ErrNotFound,
		"__main__.table[99]": python.ErrNotFound, "__main__.queue[10]": python.ErrNotFound, "__main__.queue[-11]": python.ErrNotFound,
		"__main__.thing.size": python.ErrComputed, "__main__.text[0]": python.ErrType, "__main__.queue['a']": python.ErrType,
	} {
		if n, err := describe(in, path, o); !errors.Is(err, want) {
			t.Errorf("%s = %+v, %v; want %v", path, n, err, want)
		}
	}
	n, err := describe(in, "__main__.deep", Options{Depth: 10, Max: 4, Text: 20})
	var b strings.Builder
	if err == nil {
		err = Print(&b, n)
	}
	if want := "list, 1 elements\n  [0]: list, 1 elements\n    [0]: list, 1 elements\n      [0]: list, 1 elements\n        [0]: int 1\n"; b.String() != want || err != nil {
		t.Errorf("deep:\n%s%v", b.String(), err)
	}
}

// qual is a qualified name as the version has it: before 3.11 code objects have the
// plain one only.
func qual(in *python.Interp, name string) string {
	if strings.HasPrefix(in.Version, "3.10.") {
		return name[strings.LastIndexByte(name, '.')+1:]
	}
	return name
}

func describe(in *python.Interp, path string, o Options) (*Node, error) {
	p, err := ParsePath(path)
	if err != nil {
		return nil, err
	}
	v, err := p.Resolve(in)
	if err != nil {
		return nil, err
	}
	n := Describe(v, o)
	return &n, nil
}
