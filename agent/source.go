package agent

import (
	"fmt"
	"slices"

	"inferspan/probes/attach"
	"inferspan/probes/attach/governor"
	"inferspan/probes/engine"
)

// Choices of LiveOptions.StepSource.
const (
	SourceAuto     = "auto"
	SourceClock    = engine.SourceClock
	SourceDispatch = engine.SourceDispatch
)

// sources are the probes of a process that give the same detail in different ways. One
// of them is in place at a time.
type sources struct {
	probes []engine.Probe
	order  []int          // those to be used, the best first
	now    int            // the one to be in place, -1: none
	why    map[int]string // why one that is better is not in place
	none   string         // why there is none at all
}

// attacher is what is needed of an attach.Interpreter.
type attacher interface {
	Report() []attach.PythonStatus
	Detach(n int, reason string) error
	Reattach(n int) error
}

// newSources chooses among the probes of an engine that have a source, which come in the
// order in which they are to be preferred. want is a source, or SourceAuto. A source
// that was asked for comes first; the other one stands in for it if it has no trap of
// its own. nil if there is nothing to choose.
func newSources(probes []engine.Probe, want string) *sources {
	s := &sources{probes: probes, now: -1, why: make(map[int]string)}
	some := false
	for n := range probes {
		some = some || probes[n].Source != ""
		if probes[n].Source != "" && (want != SourceDispatch || probes[n].Source == want) {
			s.order = append(s.order, n)
		}
	}
	if want != "" && want != SourceAuto {
		slices.SortStableFunc(s.order, func(a, b int) int {
			return asked(probes[a].Source == want) - asked(probes[b].Source == want)
		})
	}
	switch {
	case !some:
		return nil
	case len(s.order) > 0:
		s.now = s.order[0]
	default:
		s.none = "this engine does not show them by " + want
	}
	return s
}

func asked(yes bool) int {
	if yes {
		return 0
	}
	return 1
}

// off reports whether a probe is not to be put in place at first.
func (s *sources) off(n int) bool { return s != nil && s.probes[n].Source != "" && n != s.now }

// cheap reports whether a probe adds no trap.
func (s *sources) cheap(n int) bool { return s.probes[n].ZMQ != "" }

// begin sees to it that one is in place after attaching: the first that can be.
func (s *sources) begin(a attacher) {
	for i, n := range s.order {
		if why := useProbe(a, n, i == 0); why != "" {
			s.why[n] = why
			continue
		}
		s.now = n
		return
	}
	s.now = -1
}

// useProbe puts a probe in place, where it may be already, and takes it out again if it gives
// nothing: then it says why.
func useProbe(a attacher, n int, there bool) string {
	if !there {
		if err := a.Reattach(n); err != nil {
			return err.Error()
		}
	}
	why := unusable(a.Report()[n])
	if why != "" {
		_ = a.Detach(n, why)
	}
	return why
}

// unusable says why a probe gives nothing, "" if it does.
func unusable(s attach.PythonStatus) string {
	if !s.Attached {
		return s.Reason
	}
	for _, w := range s.Watches {
		if w.Code == 0 {
			return fmt.Sprintf("%s: %s", w.Caller, w.Reason)
		}
	}
	return ""
}

// change follows what the governor did: for a probe that costs too much one stands in
// that adds no trap, and goes when the better one is back.
func (s *sources) change(c governor.Change, a attacher, told func(n int, attached bool)) {
	n := c.Probe.N
	if s == nil || s.probes[n].Source == "" {
		return
	}
	if c.Attached {
		if s.now != n && s.now >= 0 {
			if err := a.Detach(s.now, "not in use"); err == nil {
				told(s.now, false)
			}
		}
		s.now = n
		clear(s.why)
		return
	}
	if n != s.now {
		return
	}
	s.why[n] = c.Reason
	for _, other := range s.order[slices.Index(s.order, n)+1:] {
		if !s.cheap(other) {
			continue
		}
		if why := useProbe(a, other, false); why != "" {
			s.why[other] = why
			continue
		}
		told(other, true)
		s.now = other
		return
	}
}

// state says which source is in place, what it lacks, and why no better one is.
func (s *sources) state() (source, lacks, why string) {
	if s.now >= 0 {
		source, lacks = s.probes[s.now].Source, s.probes[s.now].Lacks
	}
	why = s.none
	for _, n := range s.order {
		if n == s.now {
			break
		}
		if w := s.why[n]; w != "" {
			if why != "" {
				why += "; "
			}
			why += s.probes[n].Source + ": " + w
		}
	}
	return source, lacks, why
}
