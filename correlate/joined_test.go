package correlate

import (
	"slices"
	"strings"
	"testing"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// latePID is a front end that the engine starts while it is traced.
const latePID = 13990

// A request that a front end had before it got its probes says so in its thread there, one
// that came later does not; both have that front end's resource. That the engine started it
// is a note.
func TestFrontEndStartedLater(t *testing.T) {
	front := signal.Process{PID: latePID, Role: "api_server", NSPID: latePID, HostID: hostID, Resource: []signal.KV{{Key: "process.pid", Value: int64(latePID)}}}
	for _, c := range []struct {
		name   string
		probes float64 // when it got them, 0: never
		marked bool
	}{
		{"before", 90, false},
		{"under way", 120, true},
		{"never", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSGLang()
			probes := func(pid uint32, ms float64, active bool, reason string) {
				s.put(&signal.ProbeChange{At: at(ms), Engine: 1, PID: pid, Probe: signal.DetailStamps, Active: active, Reason: reason})
			}
			probes(tokPID, 50, true, "")
			s.put(&signal.Clock{At: at(80), Wall: wallOff + 80_000_000})
			more := *newSGLang(withProcess(front)).sig[1].(*signal.Engine)
			s.put(&more)
			if c.probes != 0 {
				probes(latePID, c.probes, true, "")
			}
			s.added(100, "late_r", func(a *signal.RequestAdded) { a.PID = latePID })
			s.put(&signal.RequestTimes{At: at(121), Engine: 1, PID: latePID, ID: "late_r", Created: at(99), Dispatched: at(100)})
			s.out(130, "late_r", 1, finished(signal.FinishLength, "length"))
			s.put(&signal.ProcessExit{At: at(200), Engine: 1, PID: tokPID})
			s.put(&signal.Detach{At: at(5000)}) // no exchange came
			trees, _, _, cor := collect(t, NewOptions(), s.sig)
			if len(trees) != 1 {
				t.Fatalf("%d trees, want 1", len(trees))
			}
			found := false
			for _, sp := range trees[0].Spans {
				if !strings.HasPrefix(sp.Name, "MultiTokenizer-") && !strings.HasPrefix(sp.Name, "Tokenizer") {
					continue
				}
				found = true
				var partial []string
				for _, a := range sp.Attrs {
					if a.Key == semconv.AttrInferspanPartial {
						partial, _ = a.Value.([]string)
					}
				}
				if slices.Contains(partial, PartialStages) != c.marked {
					t.Errorf("thread %s is marked %v, want marked %v", sp.Name, partial, c.marked)
				}
				if !slices.ContainsFunc(sp.Resource.Attrs, func(x trace.Attr) bool { return x.Key == "process.pid" && x.Value == int64(latePID) }) {
					t.Errorf("resource %+v", sp.Resource)
				}
			}
			if !found {
				t.Errorf("no thread of the front end: %+v", trees[0].Spans)
			}
			notes := cor.Notes()
			if len(notes) == 0 || notes[len(notes)-1].Text != "the engine started process 13990 (api_server)" {
				t.Errorf("notes %+v", notes)
			}
		})
	}
}

// What a process that is gone lacked nothing lacks any more.
func TestDetailOfExited(t *testing.T) {
	s := newSGLang(withProcess(signal.Process{PID: latePID, Role: "api_server"}))
	s.put(&signal.ProbeChange{At: at(10), Engine: 1, PID: tokPID, Probe: signal.DetailStamps, Active: true})
	s.put(&signal.ProbeChange{At: at(11), Engine: 1, PID: latePID, Probe: signal.DetailStamps, Reason: "why"})
	for _, want := range []float64{0, 1} {
		_, _, m, _ := collect(t, NewOptions(), s.sig)
		if got := point(t, m, "inferspan_detail_active", signal.DetailStamps); got != want {
			t.Errorf("active is %v, want %v", got, want)
		}
		s.put(&signal.ProcessExit{At: at(20), Engine: 1, PID: latePID})
	}
}
