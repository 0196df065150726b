package python

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"inferspan/tests/pythons"
)

// counting is a process's memory that counts the calls of the kernel.
type counting struct {
	Process
	n int
}

func (c *counting) ReadAt(addr uint64, buf []byte) error {
	c.n++
	return c.Process.ReadAt(addr, buf)
}

func (c *counting) ReadBatch(addrs []uint64, size int, buf []byte) (int, error) {
	c.n++
	return c.Process.ReadBatch(addrs, size, buf)
}

// maxChaosReads bounds the calls for one value, of which the largest here has some
// hundreds of objects: the reader must not go round in circles.
const maxChaosReads = 100_000

// chaos is a reading of one attribute of testdata/chaos.py. It returns an error if
// there was no value, and calls wrong for a value that never was.
type chaos struct {
	name string
	read func(v Value, wrong func(format string, args ...any)) error
}

// plainAs converts a value and checks it.
func plainAs[T any](check func(p T, wrong func(string, ...any))) func(Value, func(string, ...any)) error {
	return func(v Value, wrong func(string, ...any)) error {
		p, err := v.Plain(5000)
		if err != nil {
			return err
		}
		t, ok := p.(T)
		if !ok {
			wrong("it is %T", p)
			return nil
		}
		check(t, wrong)
		return nil
	}
}

// consecutive checks that each number is its neighbour's plus 1.
func consecutive(p []any, wrong func(string, ...any)) {
	for i, x := range p {
		n, ok := x.(int64)
		if !ok || i > 0 && n != p[i-1].(int64)+1 {
			wrong("element %d of %v", i, p)
			return
		}
	}
}

func number(key, prefix string) int64 {
	n, err := strconv.ParseInt(strings.TrimPrefix(key, prefix), 10, 64)
	if err != nil || !strings.HasPrefix(key, prefix) {
		return math.MinInt64
	}
	return n
}

// instance reads a, b and a again: as no two instances have the same a, b must go with
// it if it did not change.
func instance(v Value, wrong func(string, ...any)) error {
	a, err := attrAs(v, "a", Value.Int)
	if err != nil {
		return err
	}
	name, err := attrAs(v, "name", Value.Str)
	if err != nil {
		return err
	}
	b, err := attrAs(v, "b", Value.Int)
	if err != nil {
		return err
	}
	again, err := attrAs(v, "a", Value.Int)
	if err != nil {
		return err
	}
	if a == again && (b != 3*a+1 || name != fmt.Sprintf("n%d", a)) {
		wrong("%s has a=%d, b=%d, name=%q", v.TypeName(), a, b, name)
	}
	if b%3 != 1 || number(name, "n") < 0 {
		wrong("%s has b=%d, name=%q", v.TypeName(), b, name)
	}
	return nil
}

var chaosReads = []chaos{
	{"table", plainAs(func(p map[string]any, wrong func(string, ...any)) {
		for k, v := range p {
			if i := max(number(k, "k"), number(k, "late")); v != i*7919+1000 {
				wrong("[%q] is %v", k, v)
			}
		}
	})},
	{"same", plainAs(func(p map[string]any, wrong func(string, ...any)) {
		for k, v := range p {
			if v != number(k, "s")*31+500 {
				wrong("[%q] is %v", k, v)
			}
		}
	})},
	{"same", func(v Value, wrong func(string, ...any)) error { // one key
		items, err := v.Items(5000)
		if err != nil {
			return err
		}
		if len(items) == 0 {
			return nil
		}
		k, err := items[len(items)/2].Key.Str()
		if err != nil {
			return err
		}
		e, err := v.Key(k)
		if err != nil {
			return err
		}
		n, err := e.Int()
		if err == nil && n != number(k, "s")*31+500 {
			wrong("[%q] is %d", k, n)
		}
		return err
	}},
	{"general", func(v Value, wrong func(string, ...any)) error {
		p, err := v.Plain(5000)
		if err != nil {
			return err
		}
		entries, ok := p.([]Entry)
		if m, isMap := p.(map[string]any); !ok && (!isMap || len(m) > 0) {
			wrong("it is %T", p)
		}
		for _, e := range entries {
			switch k := e.Key.(type) {
			case int64:
				ok = e.Value == fmt.Sprintf("v%d", k)
			case []any:
				ok = len(k) == 2 && e.Value == k[0].(int64)+k[1].(int64)
			default:
				ok = false
			}
			if !ok {
				wrong("[%v] is %v", e.Key, e.Value)
			}
		}
		return nil
	}},
	{"ordered", plainAs(func(p map[string]any, wrong func(string, ...any)) {
		for k, v := range p {
			if v != number(k, "o")*3 {
				wrong("[%q] is %v", k, v)
			}
		}
	})},
	{"nested", plainAs(func(p map[string]any, wrong func(string, ...any)) {
		for k, v := range p {
			i := number(k, "n")
			want := []any{i, map[string]any{"sq": i*i + 300}, []any{fmt.Sprintf("t%d", i)}}
			if !same(v, want) {
				wrong("[%q] is %v", k, v)
			}
		}
	})},
	{"numbers", plainAs(consecutive)}, {"queue", plainAs(consecutive)}, {"deque", plainAs(consecutive)}, {"ring", plainAs(consecutive)},
	{"flip", plainAs(func(p []any, wrong func(string, ...any)) {
		for _, x := range p {
			if len(p) != 64 || x != p[0] {
				wrong("it is %v", p)
				return
			}
		}
	})},
	{"ints", plainAs(func(p []any, wrong func(string, ...any)) {
		seen := make(map[any]bool)
		for _, x := range p {
			if n, ok := x.(int64); !ok || n%97 != 5 || seen[x] {
				wrong("it has %v", x)
			}
			seen[x] = true
		}
	})},
	{"text", plainAs(func(p string, wrong func(string, ...any)) {
		head, tail, _ := strings.Cut(p, ":")
		if n, err := strconv.Atoi(head); err != nil || len(tail) != n || n > 0 && strings.Trim(tail, tail[:1]) != "" {
			wrong("it is %q", p)
		}
	})},
	{"wide_text", plainAs(func(p string, wrong func(string, ...any)) {
		r := []rune(p)
		if len(r) > 0 && (strings.Trim(p, string(r[0])) != "" || !slices.Contains([]rune{0xe9, 0x43f, 0x1f600}, r[0])) {
			wrong("it is %q", p)
		}
	})},
	{"number", plainAs(func(n int64, wrong func(string, ...any)) {
		for range 2 {
			if n%1000003 != 7 && n&0xff == 0 {
				n >>= 8
			}
		}
		if n%1000003 != 7 {
			wrong("it is %d", n)
		}
	})},
	{"ratio", plainAs(func(f float64, wrong func(string, ...any)) {
		if _, frac := math.Modf(f); frac != 0.5 {
			wrong("it is %v", f)
		}
	})},
	{"data", plainAs(func(b []byte, wrong func(string, ...any)) {
		for _, x := range b {
			if x != b[0] {
				wrong("it is %x", b)
				return
			}
		}
	})},
	{"colour", func(v Value, wrong func(string, ...any)) error {
		name, value, err := v.Enum()
		if err != nil {
			return err
		}
		n, err := value.Int()
		if err == nil && (name != "RED" || n != 1001) && (name != "GREEN" || n != 2002) {
			wrong("%s is %d", name, n)
		}
		return err
	}},
	{"instance", instance},
	{"instance", func(v Value, wrong func(string, ...any)) error {
		items, err := v.Attrs(100)
		if err != nil {
			return err
		}
		for _, it := range items {
			k, err := it.Key.Str()
			if err != nil {
				return err
			}
			p, err := it.Value.Plain(10)
			if err != nil {
				return err
			}
			n, _ := p.(int64)
			if s, _ := p.(string); k == "name" && number(s, "n") < 0 || k == "b" && n%3 != 1 || k[0] == 'x' && n != number(k, "x") {
				wrong("%s of %s is %v", k, v.TypeName(), p)
			}
		}
		return nil
	}},
	{"many", func(v Value, wrong func(string, ...any)) error {
		elems, err := v.List(100)
		if err != nil {
			return err
		}
		for _, e := range elems {
			if err := instance(e, wrong); err != nil {
				return err
			}
		}
		return nil
	}},
}

// TestChaos reads objects while the process changes, makes and frees them all the
// time. Reads may give up, but never return what was not there. INFERSPAN_CHAOS says
// how long all versions together are read ("10m"); by default each is read for 10 s.
func TestChaos(t *testing.T) {
	span := 10 * time.Second
	if testing.Short() {
		span = time.Second
	}
	have := pythons.Find()
	if s := os.Getenv("INFERSPAN_CHAOS"); s != "" {
		all, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, v := range pythons.Supported {
			n += min(len(have[v]), 1)
		}
		span = all / time.Duration(max(n, 1))
	}
	for _, v := range pythons.Supported {
		if len(have[v]) == 0 {
			t.Run(v, func(t *testing.T) { t.Skipf("no Python %s on this machine", v) })
			continue
		}
		t.Run(v, func(t *testing.T) { runChaos(t, have[v][0], span) })
	}
}

func runChaos(t *testing.T, python string, span time.Duration) {
	script, err := os.ReadFile("testdata/chaos.py")
	if err != nil {
		t.Fatal(err)
	}
	pid := startScript(t, python, string(script)).PID()
	in := open(t, pid)
	mem := &counting{Process: Process{PID: pid}}
	in.mem = mem
	c, err := in.Path("__main__", "c")
	if err != nil {
		t.Fatal(err)
	}
	type tally struct{ good, unstable, wrong int }
	counts := make(map[string]*tally)
	most, slowest := 0, time.Duration(0)
	var total tally
	for end := time.Now().Add(span); time.Now().Before(end); {
		for _, r := range chaosReads {
			n := counts[r.name]
			if n == nil {
				n = &tally{}
				counts[r.name] = n
			}
			mem.n = 0
			begin := time.Now()
			bad := false
			v, err := c.Attr(r.name)
			if err == nil {
				err = r.read(v, func(format string, args ...any) {
					bad = true
					if total.wrong < 10 {
						t.Errorf("%s: %s", r.name, fmt.Sprintf(format, args...))
					}
				})
			}
			slowest = max(slowest, time.Since(begin))
			if most = max(most, mem.n); mem.n > maxChaosReads {
				t.Fatalf("%s: %d calls for one value", r.name, mem.n)
			}
			switch {
			case bad:
				n.wrong++
				total.wrong++
			case err == nil:
				n.good++
				total.good++
			case changed(err), errors.Is(err, ErrType), errors.Is(err, ErrLimit), errors.Is(err, ErrNotFound), errors.Is(err, ErrComputed):
				n.unstable++
				total.unstable++
			default:
				t.Fatalf("%s: %v", r.name, err)
			}
		}
	}
	t.Logf("Python %s, %v: %d values, %d given up, %d wrong; at most %d calls and %v for one", in.Version, span, total.good, total.unstable, total.wrong, most, slowest)
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		n := counts[name]
		t.Logf("  %-10s %7d values, %7d given up, %d wrong", name, n.good, n.unstable, n.wrong)
		if n.good == 0 {
			t.Errorf("%s: no value in %d reads", name, n.unstable)
		}
	}
}
