package python

import (
	"errors"
	"testing"
)

// TestNative reads objects of the modules mmap and array, and refuses others.
func TestNative(t *testing.T) {
	const script = `import sys, mmap, array
m = mmap.mmap(-1, 100); m[10:15] = b"hello"
gone = mmap.mmap(-1, 100); gone.close()
a = array.array("q", range(1000)); none = array.array("d")
class Sub(array.array): pass
sub = Sub("q", [1])
print("ready", flush=True); sys.stdin.readline()`
	eachPython(t, func(t *testing.T, python string) {
		in := open(t, startScript(t, python, script).PID())
		get := func(name string) Value {
			v, err := in.Path("__main__", name)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		m := get("m")
		if b, err := m.Mapped(10, 5); err != nil || string(b) != "hello" {
			t.Errorf("Mapped = %q, %v", b, err)
		}
		if b, err := m.Mapped(98, 2); err != nil || len(b) != 2 {
			t.Errorf("Mapped at the end = %q, %v", b, err)
		}
		for _, x := range []struct{ off, n int }{{96, 5}, {-1, 2}, {0, -1}, {101, 0}, {0, 1 << 40}} {
			if _, err := m.Mapped(x.off, x.n); !errors.Is(err, ErrLimit) {
				t.Errorf("Mapped(%d, %d): %v", x.off, x.n, err)
			}
		}
		if _, err := get("gone").Mapped(0, 1); err == nil {
			t.Error("a closed map was read")
		}
		for name, want := range map[string]int{"a": 1000, "none": 0} {
			if n, err := get(name).ArrayLen(); err != nil || n != want {
				t.Errorf("ArrayLen of %s = %d, %v", name, n, err)
			}
		}
		for _, name := range []string{"m", "sub", "sys"} {
			if _, err := get(name).ArrayLen(); !errors.Is(err, ErrType) {
				t.Errorf("ArrayLen of %s: %v", name, err)
			}
		}
		if _, err := get("a").Mapped(0, 1); !errors.Is(err, ErrType) {
			t.Errorf("Mapped of an array: %v", err)
		}
		var zero Value
		if _, err := zero.ArrayLen(); !errors.Is(err, ErrNotFound) {
			t.Errorf("ArrayLen of nothing: %v", err)
		}
	})
}
