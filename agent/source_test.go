package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"inferspan/probes/attach"
	"inferspan/probes/attach/governor"
	"inferspan/probes/engine"
)

// bench is an interpreter with probes that are put in and out.
type bench struct {
	status []attach.PythonStatus
	refuse map[int]string
	log    []string
}

func (b *bench) Report() []attach.PythonStatus { return b.status }

func (b *bench) Detach(n int, reason string) error {
	b.status[n].Attached, b.status[n].Reason = false, reason
	b.log = append(b.log, fmt.Sprintf("out %d", n))
	return nil
}

func (b *bench) Reattach(n int) error {
	if why := b.refuse[n]; why != "" {
		return errors.New(why)
	}
	b.status[n].Attached, b.status[n].Reason = true, ""
	b.log = append(b.log, fmt.Sprintf("in %d", n))
	return nil
}

var (
	dispatchFirst = []engine.Probe{{Detail: "steps", Source: "dispatch", ZMQ: "zmq_msg_send", Lacks: "the start"}, {Detail: "steps", Source: "clock"}}
	clockOnly     = []engine.Probe{{Detail: "steps", Source: "clock"}}
)

func TestSources(t *testing.T) {
	const dispatch, clock = 0, 1
	out := func(n int) governor.Change {
		return governor.Change{Probe: governor.Probe{N: n}, Reason: "hit too often"}
	}
	back := func(n int) governor.Change {
		return governor.Change{Probe: governor.Probe{N: n}, Attached: true}
	}
	for _, c := range []struct {
		name    string
		probes  []engine.Probe
		want    string
		refuse  map[int]string
		changes []governor.Change
		log     string // what was put in and out, and told
		source  string
		why     string
	}{
		{name: "auto", probes: dispatchFirst, want: "auto", source: "dispatch"},
		{name: "no choice", probes: dispatchFirst, want: "", source: "dispatch"},
		{name: "auto, workers in the core", probes: clockOnly, want: "auto", source: "clock"},
		{name: "clock", probes: dispatchFirst, want: "clock", source: "clock"},
		{name: "dispatch", probes: dispatchFirst, want: "dispatch", source: "dispatch"},
		{name: "dispatch where there is none", probes: clockOnly, want: "dispatch", why: "does not show them by dispatch"},
		{name: "auto, dispatch cannot be attached", probes: dispatchFirst, want: "auto", refuse: map[int]string{dispatch: "no libzmq"}, log: "out 0 in 1", source: "clock", why: "dispatch: no libzmq"},
		{name: "nothing can be attached", probes: dispatchFirst, want: "auto", refuse: map[int]string{dispatch: "no libzmq", clock: "no clock"}, log: "out 0", why: "dispatch: no libzmq; clock: no clock"},
		{name: "only dispatch is wanted", probes: dispatchFirst, want: "dispatch", refuse: map[int]string{dispatch: "no libzmq"}, log: "out 0", why: "dispatch: no libzmq"},
		{name: "the clock costs too much", probes: dispatchFirst, want: "clock", changes: []governor.Change{out(clock)},
			log: "in 0 told 0 true", source: "dispatch", why: "clock: hit too often"},
		{name: "and comes back", probes: dispatchFirst, want: "clock", changes: []governor.Change{out(clock), back(clock)},
			log: "in 0 told 0 true out 0 told 0 false", source: "clock"},
		{name: "and goes again", probes: dispatchFirst, want: "clock", changes: []governor.Change{out(clock), back(clock), out(clock)},
			log: "in 0 told 0 true out 0 told 0 false in 0 told 0 true", source: "dispatch", why: "clock: hit too often"},
		{name: "nothing can stand in for it", probes: dispatchFirst, want: "clock", refuse: map[int]string{dispatch: "no libzmq"}, changes: []governor.Change{out(clock)}, source: "clock"},
		{name: "dispatch costs too much", probes: dispatchFirst, want: "auto", changes: []governor.Change{out(dispatch), back(dispatch)}, source: "dispatch"},
		{name: "the only one costs too much", probes: clockOnly, want: "auto", changes: []governor.Change{out(0), back(0)}, source: "clock"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSources(c.probes, c.want)
			b := &bench{status: make([]attach.PythonStatus, len(c.probes)), refuse: c.refuse}
			on := 0
			for n := range c.probes {
				if !s.off(n) {
					on++
					b.status[n].Attached, b.status[n].Reason = c.refuse[n] == "", c.refuse[n]
				}
			}
			if on > 1 {
				t.Errorf("%d probes are put in at first", on)
			}
			s.begin(b)
			for _, ch := range c.changes {
				n := ch.Probe.N
				b.status[n].Attached = ch.Attached
				s.change(ch, b, func(n int, attached bool) { b.log = append(b.log, fmt.Sprintf("told %d %v", n, attached)) })
				in := 0
				for _, st := range b.status {
					if st.Attached {
						in++
					}
				}
				if in > 1 {
					t.Errorf("%d probes are in place after %+v", in, ch)
				}
			}
			source, lacks, why := s.state()
			if log := strings.Join(b.log, " "); log != c.log || source != c.source || !strings.Contains(why, c.why) || c.why == "" && why != "" {
				t.Errorf("%q, source %q, why %q; want %q, %q, %q", log, source, why, c.log, c.source, c.why)
			}
			if want := map[string]string{"dispatch": "the start"}[c.source]; lacks != want {
				t.Errorf("it lacks %q, want %q", lacks, want)
			}
		})
	}
	if s := newSources([]engine.Probe{{Detail: "tokenize"}}, "auto"); s != nil || s.off(0) {
		t.Error("sources among probes that have none")
	}
}
