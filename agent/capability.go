package agent

import (
	"strconv"

	"inferspan/correlate/metric"
	"inferspan/probes/target"
)

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
