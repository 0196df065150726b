package governor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// rungs is a ladder of which each level costs so much of a second.
type rungs struct {
	costs  []time.Duration
	level  int
	most   int
	spent  time.Duration
	window time.Duration // at level 2
	why    []string
	err    error
}

func (r *rungs) Level() (now, most int)        { return r.level, r.most }
func (r *rungs) Spent() (time.Duration, error) { return r.spent, r.err }
func (r *rungs) Step(to int, reason string) error {
	r.level = to
	r.why = append(r.why, reason)
	return nil
}
func (r *rungs) Window() time.Duration {
	if r.level == 2 {
		return r.window
	}
	return 0
}

// climbing makes ticks a second apart and returns the level after each.
func climbing(t *testing.T, g *Governor, r *rungs, at *int64, n int) (levels []int) {
	t.Helper()
	for range n {
		*at += second
		r.spent += r.costs[r.level]
		if _, _, err := g.Tick(*at); err != nil {
			t.Fatal(err)
		}
		levels = append(levels, r.level)
	}
	return levels
}

func TestLadder(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		costs []time.Duration // of 1 s; the budget is 10 ms
		most  int
		want  int // level it comes to within 5 s
		says  string
	}{
		{"within", []time.Duration{0, ms, ms, 9 * ms}, 3, 3, ""},
		{"one down", []time.Duration{0, ms, 8 * ms, 20 * ms}, 3, 2, "cost 2.0 % of a core, the budget is 1.0 %"},
		{"less was asked for", []time.Duration{0, ms, 8 * ms, 20 * ms}, 1, 1, ""},
		{"two down", []time.Duration{0, ms, 11 * ms, 20 * ms}, 3, 1, "cost 1.1 %"},
		{"to nothing", []time.Duration{0, 50 * ms, 60 * ms, 70 * ms}, 1, 0, "cost 5.0 %"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := second
			r := &rungs{costs: c.costs, level: c.most, most: c.most}
			g := New(nil, DefaultBudget, Costs{}, nil)
			g.Watch(r)
			climbing(t, g, r, &at, 12)
			if r.level != c.want || (c.says == "") != (len(r.why) == 0) || c.says != "" && !strings.HasPrefix(r.why[len(r.why)-1], c.says) {
				t.Errorf("level %d, want %d; reasons %q", r.level, c.want, r.why)
			}
		})
	}
}

// A level that costs now and then is judged by its mean.
func TestLadderWindow(t *testing.T) {
	for _, c := range []struct {
		cost time.Duration // once in 10 s
		want int
	}{{90 * time.Millisecond, 2}, {110 * time.Millisecond, 1}} {
		at := second
		r := &rungs{costs: make([]time.Duration, 3), level: 2, most: 2, window: 10 * time.Second}
		g := New(nil, DefaultBudget, Costs{}, nil)
		g.Watch(r)
		for range 4 {
			climbing(t, g, r, &at, 9)
			if r.level == 2 {
				r.spent += c.cost
			}
			climbing(t, g, r, &at, 1)
		}
		if r.level != c.want {
			t.Errorf("%v in 10 s: level %d, want %d; %q", c.cost, r.level, c.want, r.why)
		}
	}
}

// After a pause it is tried again, level by level, and with less load it stays.
func TestLadderUp(t *testing.T) {
	const ms = time.Millisecond
	at := second
	r := &rungs{costs: []time.Duration{0, 20 * ms, 20 * ms, 20 * ms}, level: 3, most: 3}
	g := New(nil, DefaultBudget, Costs{}, nil)
	g.Watch(r)
	climbing(t, g, r, &at, 12)
	if r.level != 0 {
		t.Fatalf("level %d, want 0", r.level)
	}
	levels := climbing(t, g, r, &at, 1000)
	if !slices.Contains(levels, 1) {
		t.Errorf("it was not tried again: %v", levels)
	}
	r.costs = []time.Duration{0, ms, ms, ms}
	if climbing(t, g, r, &at, 4*600+10); r.level != 3 {
		t.Errorf("level %d of 3 with little load", r.level)
	}
	if last := r.why[len(r.why)-1]; last != "" {
		t.Errorf("reason %q on the way up", last)
	}
}

// A ladder shares the budget with probes: it steps down where that is enough, and else what
// costs most goes.
func TestLadderAndProbes(t *testing.T) {
	for _, c := range []struct {
		calls   uint64 // of the probe, at 2 us each
		ladder  time.Duration
		probe   bool // stays
		climbed bool // down
	}{
		{4500, 8 * time.Millisecond, true, true},
		{3500, 8 * time.Millisecond, true, true},
		{3500, 2 * time.Millisecond, true, false},
		{5500, 8 * time.Millisecond, false, false},
		{5500, 12 * time.Millisecond, false, true},
	} {
		f, at := newFake(), second
		g := New(f, DefaultBudget, Costs{Emulated: 2 * time.Microsecond}, waits, Probe{Number: 9, Detail: "steps"})
		r := &rungs{costs: []time.Duration{0, c.ladder}, level: 1, most: 1}
		g.Watch(r)
		for range 6 {
			r.spent += r.costs[r.level]
			run(t, g, f, &at, 1, 1, c.calls)
		}
		if f.attached[0] != c.probe || (r.level == 0) != c.climbed {
			t.Errorf("%d calls and %v: the probe is in: %v, the ladder at %d", c.calls, c.ladder, f.attached[0], r.level)
		}
		if within := c.ladder <= 10*time.Millisecond; c.climbed && strings.Contains(r.why[0], "of other probes") != within {
			t.Errorf("%d calls and %v: reason %q", c.calls, c.ladder, r.why[0])
		}
	}
}

func TestLadderError(t *testing.T) {
	g := New(nil, DefaultBudget, Costs{}, nil)
	r := &rungs{costs: []time.Duration{0}, err: errors.New("map is gone")}
	g.Watch(r)
	if _, _, err := g.Tick(second); !errors.Is(err, r.err) {
		t.Errorf("error %v, want the ladder's", err)
	}
}
