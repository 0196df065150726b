package agent

import (
	"strconv"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/trace"
	"inferspan/probes/host"
	"inferspan/probes/note"
	"inferspan/probes/target"
)

// The capability report in the metrics follows what becomes of probes.
func TestCapabilitiesFollowProbes(t *testing.T) {
	on := true
	e := &target.Engine{ID: 1, Kind: "vllm", Version: "0.32.0", Generation: "V1", LogStats: &on, Tokenizer: "x", Model: "m", Processes: []target.Process{
		{PID: 1, Role: target.RoleAPIServer, ZMQ: &target.Library{}}, {PID: 2, Role: target.RoleCore, ZMQ: &target.Library{}},
	}}
	p := NewPipeline(Options{}, func(*trace.Tree) {})
	_ = p.Engine(e)
	p.Capabilities(e, host.Report{}, nil)
	metric := func(name string, labels ...string) (v float64, found string) {
		for _, f := range p.Metrics().Families {
			if f.Name != name {
				continue
			}
		points:
			for _, pt := range f.Points {
				text := ""
				for _, l := range pt.Labels {
					text += l.Name + "=" + l.Value + " "
				}
				for _, l := range labels {
					if !strings.Contains(text, l) {
						continue points
					}
				}
				return pt.Value, text
			}
		}
		return -1, ""
	}
	tell := func(pid uint32, n note.Probe) {
		r, err := note.Put(note.KindProbe, pid, 5, n)
		if err != nil {
			t.Fatal(err)
		}
		var x event.Record = *r
		_ = p.Record(&x)
	}
	const ttft = "item=gen_ai.latency.time_to_first_token"
	for _, step := range []struct {
		active bool
		reason string
	}{{true, ""}, {false, "hit too often"}, {true, ""}} {
		tell(1, note.Probe{Detail: "stamps", Active: step.active, Reason: step.reason})
		want := map[bool]float64{false: 0, true: 1}[step.active]
		if v, labels := metric("inferspan_detail_active", "detail=stamps"); v != want || !strings.Contains(labels, "reason="+step.reason) {
			t.Errorf("detail_active %v {%s}, want %v with %q", v, labels, want, step.reason)
		}
		_, limited := metric("inferspan_capability_limited", ttft)
		if (limited == "") != step.active || !strings.Contains(limited, step.reason) {
			t.Errorf("active %v: time to first token is limited by %q", step.active, limited)
		}
	}
	tell(2, note.Probe{Detail: "steps", Active: true, Source: "dispatch", Lacks: "the start", Reason: "clock: hit too often"})
	if v, labels := metric("inferspan_detail_active", "detail=steps", "source=dispatch", "reason=clock: hit too often"); v != 1 {
		t.Errorf("steps by dispatch: %v {%s}", v, labels)
	}
}

func TestProbeStates(t *testing.T) {
	var s probeStates
	for i, c := range []struct {
		pid    uint32
		active bool
		reason string
		news   bool
	}{{1, true, "", true}, {1, true, "", false}, {2, false, "x", true}, {1, false, "y", true}, {1, false, "y", false}, {1, true, "better one is out", true}} {
		p, ok := stateOf(c.pid, "stamps", c.active, c.reason, nil, "")
		if !ok || p.Tap != target.TapFront {
			t.Fatalf("%+v, %v", p, ok)
		}
		if news := s.put(p); news != c.news {
			t.Errorf("%d: news %v, want %v", i, news, c.news)
		}
	}
	if len(s) != 2 || !s[0].Attached || s[0].Reason != "" || s[1].Attached {
		t.Errorf("%+v", s)
	}
	if _, ok := stateOf(1, "what is this", true, "", nil, ""); ok {
		t.Error("a detail that has no tap")
	}
}

// While probes look at less, metrics say so, and what is left out is no longer to be had.
func TestCapabilitiesFollowLess(t *testing.T) {
	e := &target.Engine{ID: 1, Kind: "sglang", Version: "0.5.23", Model: "m", PDRole: "none", Processes: []target.Process{
		{PID: 1, Role: target.RoleAPIServer, ZMQ: &target.Library{}}, {PID: 2, Role: target.RoleCore, ZMQ: &target.Library{}},
	}}
	p := NewPipeline(Options{}, func(*trace.Tree) {})
	_ = p.Engine(e)
	p.Capabilities(e, host.Report{}, nil)
	for _, step := range []struct {
		less   []string
		points string // of inferspan_detail_reduced
	}{
		{nil, ""},
		{[]string{"decode_forward", "decode_loop"}, "steps decode_forward too dear 1|steps decode_loop too dear 1"},
		{nil, "steps   0"},
	} {
		n := note.Probe{Detail: "steps", Active: true, Less: step.less}
		if step.less != nil {
			n.Why = "too dear"
		}
		r, err := note.Put(note.KindProbe, 2, 5, n)
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Record(r)
		var points []string
		active, limited := 0.0, false
		for _, f := range p.Metrics().Families {
			for _, pt := range f.Points {
				text := ""
				for _, l := range pt.Labels {
					text += l.Value + " "
				}
				switch f.Name {
				case "inferspan_detail_reduced":
					points = append(points, text+strconv.FormatFloat(pt.Value, 'g', -1, 64))
				case "inferspan_detail_active":
					active += pt.Value
				case "inferspan_capability_limited":
					limited = limited || strings.HasPrefix(text, "1 decode_loop ")
				}
			}
		}
		if got := strings.Join(points, "|"); got != step.points || active != 1 || limited != (step.less != nil) {
			t.Errorf("left out %q: reduced %q, want %q; active %v; decode_loop is limited: %v", step.less, got, step.points, active, limited)
		}
	}
}
