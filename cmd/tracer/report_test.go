package main

import (
	"slices"
	"testing"

	"inferspan/probes/host"
	"inferspan/probes/target"
)

// What a plain engine has not is no news to who starts a run; what is left out of what it has is.
func TestNotExact(t *testing.T) {
	e := &target.Engine{
		ID: 1, Kind: "vllm", Version: "0.32.0", PDRole: "none", FactSource: "live",
		Processes: []target.Process{{PID: 1, Role: target.RoleAPIServer, Ports: []int{8000}, ZMQ: &target.Library{Path: "z"}}, {PID: 2, Role: target.RoleCore, ZMQ: &target.Library{Path: "z"}}},
	}
	missing, shown := 0, notExact(e, target.Capabilities(e, host.Report{}, nil))
	for _, c := range target.Capabilities(e, host.Report{}, nil) {
		line := func(l string) bool {
			return len(c.Reason) > 0 && len(l) > len(c.Reason) && l[len(l)-len(c.Reason):] == c.Reason
		}
		if c.State == target.Unavailable && !c.Missing() {
			missing++
			if slices.ContainsFunc(shown, line) {
				t.Errorf("%s is shown as left out: %s", c.Item, c.Reason)
			}
		}
	}
	if missing == 0 {
		t.Error("the engine has everything")
	}
	if len(shown) == 0 {
		t.Error("nothing is shown, though times of tokens becoming text are derived")
	}
	twice := []target.Capability{{Item: "schedule", State: target.Unavailable, Reason: "r"}, {Item: "schedule", State: target.Unavailable, Reason: "r"}}
	if got := notExact(&target.Engine{}, twice); !slices.Equal(got, []string{"unavailable: schedule: r"}) {
		t.Errorf("%q", got)
	}
}
