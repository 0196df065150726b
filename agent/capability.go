package agent

import (
	"strconv"
	"strings"

	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/probes/host"
	"inferspan/probes/target"
)

// taps are those that a kind of detail stands for.
var taps = map[string]target.Tap{
	signal.DetailSteps: target.TapSteps, signal.DetailPeeks: target.TapPeeks,
	signal.DetailStamps: target.TapFront, signal.DetailTokenize: target.TapTokenize, signal.DetailDetokenize: target.TapDetokenize,
}

// probeStates are the states of taps in processes, as they were last.
type probeStates []target.ProbeState

// put takes in a state, and reports whether it is news.
func (s *probeStates) put(p target.ProbeState) bool {
	for i := range *s {
		if old := &(*s)[i]; old.PID == p.PID && old.Tap == p.Tap {
			news := *old != p
			*old = p
			return news
		}
	}
	*s = append(*s, p)
	return true
}

// stateOf is what a change of the probes for a kind of detail says of a tap. ok is
// false if the detail has none.
func stateOf(pid uint32, detail string, active bool, reason string, less []string, why string) (p target.ProbeState, ok bool) {
	tap, ok := taps[detail]
	p = target.ProbeState{PID: int(pid), Tap: tap, Attached: active}
	if !active {
		p.Reason = reason
	} else if len(less) > 0 {
		p.Less, p.Why = strings.Join(less, "\n"), why
	}
	return p, ok
}

// capabilityReport is the report for one engine, kept up to date.
type capabilityReport struct {
	engine *target.Engine
	host   host.Report
	probes probeStates
}

// change follows the probes.
func (r *capabilityReport) change(s *signal.ProbeChange) (changed bool) {
	if r.engine == nil || r.engine.ID != s.Engine {
		return false
	}
	p, ok := stateOf(s.PID, s.Probe, s.Active, s.Reason, s.Less, s.Why)
	return ok && r.probes.put(p)
}

func (r *capabilityReport) families() []metric.Family {
	return capabilityFamilies(r.engine, target.Capabilities(r.engine, r.host, r.probes))
}

// capabilityFamilies shows a capability report as metrics: how many documented
// items are exact, derived and unavailable, and each one that is not exact with
// its reason, so that a dashboard can say why a panel is empty.
func capabilityFamilies(e *target.Engine, caps []target.Capability) []metric.Family {
	if len(caps) == 0 {
		return nil
	}
	label := func(name, value string) metric.Label { return metric.Label{Name: name, Value: value} }
	id := label("engine", strconv.FormatUint(uint64(e.ID), 10))
	count := metric.Family{Name: "inferspan_capabilities", Help: "Documented items by how they can be had.", Unit: "{item}", Type: metric.Gauge}
	for _, state := range []target.CapabilityState{target.Exact, target.Derived, target.Unavailable} {
		n := 0
		for i := range caps {
			if caps[i].State == state {
				n++
			}
		}
		count.Points = append(count.Points, metric.Point{Labels: []metric.Label{id, label("state", string(state))}, Value: float64(n)})
	}
	each := metric.Family{Name: "inferspan_capability_limited", Help: "Documented items that are not exact, always 1.", Unit: "1", Type: metric.Gauge}
	for i := range caps {
		c := &caps[i]
		if c.State == target.Exact {
			continue
		}
		each.Points = append(each.Points, metric.Point{Value: 1, Labels: []metric.Label{
			id, label("item", c.Item), label("kind", string(c.Kind)), label("of", c.Of), label("reason", c.Reason), label("state", string(c.State)),
		}})
	}
	return []metric.Family{count, each}
}
