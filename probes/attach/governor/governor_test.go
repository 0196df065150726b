package governor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"inferspan/probes/attach"
)

// fake is a process with one probe on a clock, hit by code objects 1 (works), 2 and
// 3 (wait) and 0 (not known).
type fake struct {
	hits     map[uint64]uint64
	attached map[int]bool
	returns  uint64
	captured time.Duration
	base     uint64 // hits when the probe was attached
	level    int
	heavier  bool // it cannot look at less
	err      error
}

func (f *fake) Hits() ([]attach.CodeHits, error) {
	var out []attach.CodeHits
	for code := uint64(0); code < 4; code++ {
		if n := f.hits[code]; n > 0 {
			out = append(out, attach.CodeHits{Probe: 9, Code: code, Count: n})
		}
	}
	return out, f.err
}

func (f *fake) total() uint64 { return f.hits[0] + f.hits[1] + f.hits[2] + f.hits[3] }

func (f *fake) Use(int) (attach.Use, error) {
	return attach.Use{Hits: f.total() - f.base, Returns: f.returns, Captured: f.captured}, nil
}
func (f *fake) Detach(n int, _ string) error { f.attached[n] = false; return nil }
func (f *fake) Reattach(n int) error {
	f.attached[n], f.base, f.captured = true, f.total(), 0
	return nil
}
func (f *fake) Lighten(_, level int, _ string) error {
	if f.heavier {
		return errors.New("no room")
	}
	f.level = level
	return nil
}
func (f *fake) CodeName(c uint64) (name, file string, err error) {
	switch c {
	case 1:
		return "Engine.step", "engine.py", nil
	case 2:
		return "SpinTimer.wait", "shm_broadcast.py", nil
	case 3:
		return "SpinTimer.left", "shm_broadcast.py", nil
	}
	return "", "", errors.New("gone")
}

func waits(name, file string) bool { return file == "shm_broadcast.py" }

const second = int64(time.Second)

// run makes n ticks a second apart in which code is called per seconds times.
func run(t *testing.T, g *Governor, f *fake, at *int64, n int, code, per uint64) (changes []Change, last []Window) {
	t.Helper()
	for range n {
		*at += second
		if f.attached[0] {
			f.hits[code] += per
		}
		w, c, err := g.Tick(*at)
		if err != nil {
			t.Fatal(err)
		}
		changes, last = append(changes, c...), w
	}
	return changes, last
}

func newFake() *fake {
	return &fake{hits: make(map[uint64]uint64), attached: map[int]bool{0: true}}
}

func TestWorkOverBudget(t *testing.T) {
	for _, c := range []struct {
		name string
		code uint64
		per  uint64
		out  bool
		says string
	}{
		// 2 us a hit: 5000 hits a second are 1 % of a core.
		{"within", 1, 4900, false, ""},
		{"over", 1, 6000, true, "Engine.step cost 1.2 % of a core, the budget is 1.0 %"},
		{"waiting does not count", 2, 400000, false, ""},
		{"unknown code counts as work", 0, 6000, true, "code that cannot be named"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, at := newFake(), second
			g := New(f, DefaultBudget, Costs{Emulated: 2 * time.Microsecond}, waits, Probe{Number: 9, Detail: "steps"})
			changes, windows := run(t, g, f, &at, 5, c.code, c.per)
			if (len(changes) > 0) != c.out {
				t.Fatalf("changes %+v, want one: %v; last window %+v", changes, c.out, windows)
			}
			if !c.out {
				if len(windows) != 1 || windows[0].Work+windows[0].Waiting != c.per {
					t.Errorf("window %+v, want %d calls", windows, c.per)
				}
				return
			}
			if ch := changes[0]; ch.Attached || ch.Probe.Detail != "steps" || !strings.Contains(ch.Reason, c.says) {
				t.Errorf("change %+v, want it to say %q", ch, c.says)
			}
			if f.attached[0] {
				t.Error("the probe is still there")
			}
		})
	}
}

// TestCapturesAreWork: what captures take counts by the clock, however few there are.
func TestCapturesAreWork(t *testing.T) {
	f, at := newFake(), second
	g := New(f, DefaultBudget, Costs{Emulated: time.Microsecond}, waits, Probe{Number: 9, Detail: "steps"})
	for _, c := range []struct {
		took time.Duration // in a second
		out  bool
	}{{9 * time.Millisecond, false}, {10 * time.Millisecond, true}} {
		var changes []Change
		for range 3 {
			f.captured += c.took
			got, _ := run(t, g, f, &at, 1, 1, 100)
			changes = append(changes, got...)
		}
		if (len(changes) > 0) != c.out {
			t.Errorf("captures of %v a second: changes %+v, want one: %v", c.took, changes, c.out)
		}
	}
}

func TestBurstKeepsTheProbe(t *testing.T) {
	f, at := newFake(), second
	g := New(f, DefaultBudget, Costs{Emulated: 2 * time.Microsecond}, waits, Probe{Number: 9})
	for range 5 {
		if c, _ := run(t, g, f, &at, 1, 1, 100000); len(c) > 0 {
			t.Fatalf("taken out after one window over the budget: %+v", c)
		}
		if c, _ := run(t, g, f, &at, 1, 1, 10); len(c) > 0 {
			t.Fatalf("taken out: %+v", c)
		}
	}
}

func TestWakeUpLatency(t *testing.T) {
	for _, c := range []struct {
		cost time.Duration
		both bool // each turn of the loop calls from two functions
		out  bool
	}{
		{19 * time.Microsecond, false, false},
		{21 * time.Microsecond, false, true},
		{9 * time.Microsecond, true, false},
		{11 * time.Microsecond, true, true},
	} {
		f, at := newFake(), second
		g := New(f, DefaultBudget, Costs{Emulated: c.cost}, waits, Probe{Number: 9, Detail: "steps"})
		var changes []Change
		for range 4 {
			if c.both && f.attached[0] {
				f.hits[3] += 1000
			}
			ch, _ := run(t, g, f, &at, 1, 2, 1000)
			changes = append(changes, ch...)
		}
		if (len(changes) == 1) != c.out {
			t.Errorf("%v a hit, both %v: changes %+v, want the probe out: %v", c.cost, c.both, changes, c.out)
		}
		if c.out && c.both && !strings.Contains(changes[0].Reason, "22µs late") {
			t.Errorf("reason %q, want 22 us", changes[0].Reason)
		}
	}
}

func TestRetry(t *testing.T) {
	f, at := newFake(), second
	g := New(f, DefaultBudget, Costs{Emulated: 2 * time.Microsecond}, waits, Probe{Number: 9, Detail: "steps"})
	var out []int64
	for range 2000 {
		c, _ := run(t, g, f, &at, 1, 1, 50000)
		for _, ch := range c {
			if !ch.Attached {
				out = append(out, at)
			}
		}
	}
	// Out, back after 30 s, out two windows later, back after 60 s and so on.
	if len(out) < 5 {
		t.Fatalf("taken out %d times in 2000 s", len(out))
	}
	for i, want := range []int64{32, 62, 122, 242} {
		if got := (out[i+1] - out[i]) / second; got != want {
			t.Errorf("pause %d: out again after %d s, want %d", i, got, want)
		}
	}
	// With less load the probe stays.
	c, _ := run(t, g, f, &at, 700, 1, 10)
	if len(c) > 1 || !f.attached[0] {
		t.Errorf("changes %+v, attached %v: want it back for good", c, f.attached[0])
	}
}

func TestHitsError(t *testing.T) {
	f := newFake()
	f.err = errors.New("map is gone")
	if _, _, err := New(f, DefaultBudget, Costs{Emulated: 0}, waits, Probe{}).Tick(second); !errors.Is(err, f.err) {
		t.Errorf("error %v, want the prober's", err)
	}
}

// Hits at returns cost what a second trap does, those beside another probe no trap.
func TestCosts(t *testing.T) {
	costs := Costs{Emulated: time.Microsecond, Stepped: 10 * time.Microsecond, Run: time.Microsecond}
	for _, c := range []struct {
		name    string
		probe   Probe
		returns uint64 // of 100 hits
		want    time.Duration
	}{
		{"entries", Probe{}, 0, 2 * time.Microsecond},
		{"stepped entries", Probe{Stepped: true}, 0, 11 * time.Microsecond},
		{"entries and returns", Probe{}, 50, 6500 * time.Nanosecond},
		{"stepped entries and returns", Probe{Stepped: true}, 50, 11 * time.Microsecond},
		{"no trap of its own", Probe{Shared: true}, 0, time.Microsecond},
	} {
		f, at := newFake(), second
		c.probe.Number = 9
		g := New(f, DefaultBudget, costs, waits, c.probe)
		if _, _, err := g.Tick(at); err != nil {
			t.Fatal(err)
		}
		f.returns = c.returns
		if _, w := run(t, g, f, &at, 1, 1, 100); len(w) != 1 || w[0].Cost != c.want {
			t.Errorf("%s: %+v, want %v for a hit", c.name, w, c.want)
		}
	}
}

// A probe that others put in and out is not tried again by the governor, and its
// counts begin anew.
func TestTold(t *testing.T) {
	f, at := newFake(), second
	f.attached[0] = false
	g := New(f, DefaultBudget, Costs{Emulated: 2 * time.Microsecond}, waits, Probe{Number: 9, Detail: "steps", Out: true})
	if changes, w := run(t, g, f, &at, 100, 1, 6000); len(changes) > 0 || len(w) > 0 {
		t.Fatalf("a probe that is out: changes %v, windows %v", changes, w)
	}
	_ = f.Reattach(0)
	g.Told(0, true)
	changes, _ := run(t, g, f, &at, 4, 1, 6000)
	if len(changes) != 1 || changes[0].Attached {
		t.Fatalf("changes %v, want it taken out", changes)
	}
	g.Told(0, false)
	if changes, _ := run(t, g, f, &at, 2000, 1, 0); len(changes) > 0 {
		t.Errorf("changes %v of a probe that others keep out", changes)
	}
}
