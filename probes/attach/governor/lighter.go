package governor

import "fmt"

// lighter is how far a probe is from looking at all that it has to look at.
type lighter struct {
	level int
	// ratio is how many times as much as at each level the one before it cost, in the
	// windows before and after it was left; 0: not known.
	ratio []float64
	left  float64 // share when the level before was left, until the ratio is known
	tryBy int64   // when the level before is tried whatever it cost
}

// learn takes the share of a window.
func (s *lighter) learn(share float64) {
	if s.left > 0 && share > 0 {
		s.ratio[s.level-1], s.left = s.left/share, 0
	}
}

// less has a probe look at less, where it has a level for that and its captures are what
// costs too much, or else takes it out. late: what a loop that waits loses by its hits is
// too much, which no level changes.
func (g *Governor) less(s *state, w *Window, reason string, late bool) (Change, error) {
	if !late && s.level < s.Levels && w.Share-w.Looking <= g.budget.Work {
		err := g.prober.Lighten(s.N, s.level+1, reason)
		if err == nil {
			s.level++
			s.left = w.Share
			if len(s.ratio) < s.level {
				s.ratio = append(s.ratio, 0)
			}
			s.ratio[s.level-1] = 0
			return Change{Probe: s.Probe, Attached: true, Moved: true, Level: s.level, Reason: reason}, nil
		}
		reason += fmt.Sprintf("; it cannot look at less: %v", err)
	}
	if err := g.prober.Detach(s.N, reason); err != nil {
		return Change{}, fmt.Errorf("taking the probe for %s out: %w", s.Detail, err)
	}
	s.attached, s.left = false, 0
	return Change{Probe: s.Probe, Reason: reason}, nil
}

// more has probes look at more whose pause is over, one level at a time: where there is
// room for what that cost when it was left, or after a long time, since the engine may do
// other things by then.
func (g *Governor) more(at int64, windows []Window) (changes []Change, err error) {
	total := 0.0
	for _, c := range g.ladders {
		total += c.share
	}
	for i := range windows {
		total += windows[i].Share
	}
	for i := range windows {
		s := g.state(windows[i].Probe.N)
		if !s.attached || s.level == 0 || at < s.retryAt {
			continue
		}
		then := windows[i].Share * s.ratio[s.level-1]
		if total-windows[i].Share+then > g.budget.Work && at < s.tryBy {
			continue
		}
		if err := g.prober.Lighten(s.N, s.level-1, ""); err != nil {
			s.retryAt = at + int64(s.pause)
			return changes, fmt.Errorf("having the probe for %s look at more: %w", s.Detail, err)
		}
		s.level--
		s.left, s.strikes = 0, 0
		s.retryAt, s.tryBy = never, never
		if s.level > 0 {
			s.retryAt, s.tryBy = at+int64(s.pause), at+int64(maxRetry)
		}
		total += then - windows[i].Share
		changes = append(changes, Change{Probe: s.Probe, Attached: true, Moved: true, Level: s.level})
	}
	return changes, nil
}
