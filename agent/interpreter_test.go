package agent

import (
	"slices"
	"testing"

	"inferspan/probes/attach"
)

// TestUnloaded: a plan that could not be made is missing, unless it is for a function that
// this version does not have.
func TestUnloaded(t *testing.T) {
	good := attach.PlanStatus{Plan: 7, Name: "outputs"}
	broken := attach.PlanStatus{Name: "batch", Reason: "plan batch: more than 96 operations"}
	other := attach.PlanStatus{Name: "old", Reason: "plan old: no such function", Absent: true}
	for _, c := range []struct {
		plans []attach.PlanStatus
		want  []string
	}{
		{nil, nil},
		{[]attach.PlanStatus{good, other}, nil},
		{[]attach.PlanStatus{broken}, []string{"loop: plan batch: more than 96 operations"}},
		{[]attach.PlanStatus{good, broken, other}, []string{"loop: plan batch: more than 96 operations"}},
	} {
		if got := unloaded(&attach.WatchStatus{Caller: "loop", Plans: c.plans}); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.plans, got, c.want)
		}
	}
}
