package python

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"inferspan/tests/child"
	"inferspan/tests/pythons"
)

// zoo runs zoo.py under a name without the path of this checkout, which would get
// into the recorded images.
const zoo = `exec(compile(open("testdata/zoo.py").read(), "zoo.py", "exec"))`

// start runs the zoo. Arguments with a dash are for the interpreter. With the argument
// "move" a line of input starts the changes.
func start(t *testing.T, python string, args ...string) *child.Process {
	t.Helper()
	i := slices.IndexFunc(args, func(a string) bool { return !strings.HasPrefix(a, "-") })
	if i < 0 {
		i = len(args)
	}
	p := child.Start(t, exec.Command(python, slices.Insert(args, i, "-c", zoo)...))
	p.Expect("ready")
	return p
}

// startScript runs a script that says when it is ready.
func startScript(t *testing.T, python, script string) *child.Process {
	t.Helper()
	p := child.Start(t, exec.Command(python, "-c", script))
	p.Expect("ready")
	return p
}

// eachPython runs f with each supported version, as a subtest.
func eachPython(t *testing.T, f func(t *testing.T, python string)) {
	pythons.Each(t, func(t *testing.T, paths []string) {
		for _, p := range paths {
			f(t, p)
		}
	})
}

func open(t *testing.T, pid int) *Interp {
	t.Helper()
	in, err := Open(pid)
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("not allowed to read the memory of a child: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestLiveValues(t *testing.T) {
	eachPython(t, func(t *testing.T, python string) {
		in := open(t, start(t, python).PID())
		t.Logf("%+v", in.Info)
		checkZoo(t, in)
	})
}

// TestLiveMoving reads objects while another thread replaces and grows them: what is
// returned must be a state that was there.
func TestLiveMoving(t *testing.T) {
	eachPython(t, func(t *testing.T, python string) {
		program := start(t, python, "move")
		in := open(t, program.PID())
		moving, err := in.Path("__main__", "moving")
		if err != nil {
			t.Fatal(err)
		}
		if said := program.Do(""); said != "moving" {
			t.Fatalf("zoo does not move: %q", said)
		}
		rounds := 150
		if testing.Short() {
			rounds = 40
		}
		var good, unstable int
		note := func(what string, err error) bool {
			switch {
			case err == nil:
				good++
				return true
			case changed(err), errors.Is(err, ErrType), errors.Is(err, ErrLimit):
				unstable++
			default:
				t.Errorf("%s: %v", what, err)
			}
			return false
		}
		for range rounds {
			if v, err := moving.Attr("text"); note("text", err) {
				s, err := v.Str()
				if note("text", err) && s != "" && strings.Trim(s, s[:1]) != "" {
					t.Fatalf("text is mixed: %q", s)
				}
			}
			if v, err := moving.Attr("numbers"); note("numbers", err) {
				p, err := v.Plain(1000)
				if note("numbers", err) {
					for i, n := range p.([]any) {
						if n != int64(i) {
							t.Fatalf("numbers[%d] = %v", i, n)
						}
					}
				}
			}
			if v, err := moving.Attr("table"); note("table", err) {
				p, err := v.Plain(1000)
				if note("table", err) {
					for k, n := range p.(map[string]any) {
						if k != fmt.Sprintf("k%v", n) {
							t.Fatalf("table[%s] = %v", k, n)
						}
					}
				}
			}
		}
		t.Logf("%d reads gave a value, %d gave up", good, unstable)
		// How many depends on what else the machine does.
		if good*20 < unstable {
			t.Errorf("only %d of %d reads gave a value", good, good+unstable)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	have := pythons.Find()
	for _, v := range []string{"3.9"} {
		t.Run(v, func(t *testing.T) {
			if len(have[v]) == 0 {
				t.Skipf("no Python %s on this machine", v)
			}
			p := startScript(t, have[v][0], "import sys; print('ready', flush=True); sys.stdin.readline()")
			_, err := Open(p.PID())
			if want := "unsupported Python " + v; !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), want) {
				t.Errorf("Open = %v, want %q", err, want)
			}
		})
	}
	t.Run("not Python", func(t *testing.T) {
		if _, err := Open(os.Getpid()); !errors.Is(err, ErrNotPython) {
			t.Errorf("Open of this process = %v, want %v", err, ErrNotPython)
		}
	})
	t.Run("gone", func(t *testing.T) {
		cmd := exec.Command("true")
		if err := cmd.Run(); err != nil {
			t.Skip(err)
		}
		if _, err := Open(cmd.Process.Pid); !errors.Is(err, ErrGone) {
			t.Errorf("Open of an ended process = %v, want %v", err, ErrGone)
		}
	})
}

// TestHeld reads containers of a process that holds the global lock for good: in a call
// that sleeps, and in one that works.
func TestHeld(t *testing.T) {
	for _, c := range []struct {
		call  string
		sleep bool
	}{{"__import__('ctypes').PyDLL(None).pause()", true}, {"sum(range(1 << 60))", false}} {
		t.Run(c.call, func(t *testing.T) {
			eachPython(t, func(t *testing.T, python string) {
				in := open(t, startScript(t, python, "import sys\nlst = [1, 'two']\nprint('ready', flush=True)\n"+c.call).PID())
				for range 500 { // until it is in the call
					if p, err := in.pulse(); err == nil && !p.free {
						time.Sleep(20 * time.Millisecond)
						if q, err := in.pulse(); err == nil && p == q {
							break
						}
					}
					time.Sleep(10 * time.Millisecond)
				}
				frames, err := in.MainFrames()
				if err != nil || len(frames) == 0 {
					t.Fatalf("frames: %v, %v", frames, err)
				}
				v, err := in.Path("sys", "orig_argv")
				var args []Value
				if err == nil {
					args, err = v.List(10)
				}
				known := c.sleep && in.layout.ThreadNativeID >= 0
				if known && (err != nil || len(args) != 3) {
					t.Errorf("%d arguments, %v", len(args), err)
				}
				if !known && !errors.Is(err, ErrUnstable) {
					t.Errorf("%d arguments, %v; want %v", len(args), err, ErrUnstable)
				}
			})
		})
	}
}
