package governor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A probe with lighter things to look at goes down to them one at a time while its captures
// are over the budget, and is taken out only where nothing is light enough, or where not the
// captures cost too much; it says why each time.
func TestLighter(t *testing.T) {
	for _, c := range []struct {
		name    string
		cost    [3]time.Duration // of captures in a second, by level
		hits    uint64           // at 2 us each
		levels  int
		heavier bool
		want    []string // of the first 20 s
		says    string
	}{
		{"enough room", [3]time.Duration{9 * time.Millisecond}, 100, 2, false, nil, ""},
		{"the first is light enough", [3]time.Duration{30 * time.Millisecond, 8 * time.Millisecond}, 100, 2, false, []string{"3s level 1"}, "cost 3.0 % of a core, the budget is 1.0 %"},
		{"the second is", [3]time.Duration{30 * time.Millisecond, 20 * time.Millisecond, 5 * time.Millisecond}, 100, 2, false, []string{"3s level 1", "5s level 2"}, "cost 3.0 %"},
		{"none is", [3]time.Duration{30 * time.Millisecond, 20 * time.Millisecond, 15 * time.Millisecond}, 100, 2, false, []string{"3s level 1", "5s level 2", "7s out"}, "cost 3.0 %"},
		{"there is none", [3]time.Duration{30 * time.Millisecond}, 100, 0, false, []string{"3s out"}, "cost 3.0 %"},
		{"hits cost too much", [3]time.Duration{30 * time.Millisecond, time.Millisecond}, 6000, 2, false, []string{"3s out"}, "cost 4.2 %"},
		{"it cannot", [3]time.Duration{30 * time.Millisecond, time.Millisecond}, 100, 1, true, []string{"3s out"}, "it cannot look at less: no room"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, at := newFake(), second
			f.heavier = c.heavier
			g := New(f, DefaultBudget, Costs{Emulated: 2 * time.Microsecond}, waits, Probe{Number: 9, Detail: "steps", Levels: c.levels})
			got, why := lighterRun(t, g, f, &at, 20, c.hits, c.cost)
			if !slices.Equal(got, c.want) {
				t.Errorf("changes %q, want %q", got, c.want)
			}
			if !strings.Contains(why, c.says) {
				t.Errorf("reason %q, want it to say %q", why, c.says)
			}
		})
	}
}

// lighterRun makes n ticks a second apart, with captures that cost so much by level. It
// returns what changed and the first reason.
func lighterRun(t *testing.T, g *Governor, f *fake, at *int64, n int, hits uint64, cost [3]time.Duration) (got []string, why string) {
	t.Helper()
	for range n {
		if f.attached[0] {
			f.captured += cost[f.level]
		}
		changes, _ := run(t, g, f, at, 1, 1, hits)
		for _, ch := range changes {
			if why == "" {
				why = ch.Reason
			}
			what := "back"
			switch {
			case !ch.Attached:
				what = "out"
			case ch.Moved:
				what = fmt.Sprint("level ", ch.Level)
				if ch.Level != f.level {
					t.Errorf("change %+v, the probe is at level %d", ch, f.level)
				}
			}
			if ch.Reason == "" && !ch.Attached {
				t.Errorf("no reason: %+v", ch)
			}
			got = append(got, fmt.Sprint(time.Duration(*at-second), " ", what))
		}
	}
	return got, why
}

// It looks at more again when there is room for what that cost, one level at a time, each
// after its pause; without room it tries after ten minutes only.
func TestLighterAndBack(t *testing.T) {
	f, at := newFake(), second
	g := New(f, DefaultBudget, Costs{Emulated: 2 * time.Microsecond}, waits, Probe{Number: 9, Detail: "steps", Levels: 2})
	busy := [3]time.Duration{40 * time.Millisecond, 20 * time.Millisecond, 8 * time.Millisecond}
	for _, c := range []struct {
		seconds int
		cost    [3]time.Duration
		want    []string
	}{
		{300, busy, []string{"3s level 1", "5s level 2"}}, // no room at any time
		// A tenth of the load: both had 2.5 and 2 times as much before.
		{200, [3]time.Duration{4 * time.Millisecond, 2 * time.Millisecond, 800 * time.Microsecond}, []string{"5m1s level 1", "7m1s level 0"}},
		{100, busy, []string{"8m22s level 1", "8m24s level 2"}},
		// It has other work now, in which all costs little more; but that is not known.
		{700, [3]time.Duration{9 * time.Millisecond, 8 * time.Millisecond, 7 * time.Millisecond}, []string{"18m24s level 1"}},
	} {
		got, _ := lighterRun(t, g, f, &at, c.seconds, 1, c.cost)
		if !slices.Equal(got, c.want) {
			t.Errorf("changes %q, want %q", got, c.want)
		}
	}
}

// One that is taken out at its lightest comes back as that.
func TestLighterComesBack(t *testing.T) {
	f, at := newFake(), second
	g := New(f, DefaultBudget, Costs{Emulated: 2 * time.Microsecond}, waits, Probe{Number: 9, Detail: "steps", Levels: 1})
	heavy := [3]time.Duration{40 * time.Millisecond, 20 * time.Millisecond}
	got, _ := lighterRun(t, g, f, &at, 10, 1, heavy)
	more, _ := lighterRun(t, g, f, &at, 400, 1, [3]time.Duration{time.Millisecond, 500 * time.Microsecond})
	if want := []string{"3s level 1", "5s out", "1m5s back", "3m5s level 0"}; !slices.Equal(append(got, more...), want) {
		t.Errorf("changes %q, want %q", append(got, more...), want)
	}
}
