package bpf_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/probes/attach"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
	"inferspan/tests/pythons"
)

var monotonic = plan.Func("time", "monotonic")

// clockProbe is a probe on time.monotonic that captures calls from clock.
func clockProbe(plans ...*plan.Plan) attach.PythonProbe {
	return attach.PythonProbe{Callable: monotonic, Watches: []attach.Watch{{Caller: plan.Func("__main__", "clock"), Plans: plans}}}
}

// onePython is an interpreter for tests that do not depend on the version.
func onePython(t *testing.T) string {
	t.Helper()
	needRoot(t)
	have := pythons.Find()
	for _, v := range []string{"3.12", "3.13", "3.14", "3.11", "3.10"} {
		if len(have[v]) > 0 {
			return have[v][0]
		}
	}
	t.Skip("no Python on this machine")
	return ""
}

// decoded decodes captures that are all of one plan, slots by name.
func decoded(t *testing.T, i *attach.Interpreter, rs []event.Record) []map[string]plan.Value {
	t.Helper()
	slots := map[uint32][]string{}
	for _, p := range i.Report() {
		for _, w := range p.Watches {
			for _, pl := range w.Plans {
				slots[pl.Plan] = pl.Slots
			}
		}
	}
	var out []map[string]plan.Value
	for _, r := range rs {
		var c plan.Capture
		if err := c.Decode(&r); err != nil {
			t.Fatal(err)
		}
		names := slots[r.Capture.Plan]
		if names == nil {
			t.Fatalf("a capture of plan %d, which is not in the report", r.Capture.Plan)
		}
		m := map[string]plan.Value{}
		for n, name := range names {
			if v := c.Slot(n); v != nil {
				m[name] = *v
			}
		}
		out = append(out, m)
	}
	return out
}

// TestHits compares the counts by code object with the calls made, and takes a probe
// out and puts it back.
func TestHits(t *testing.T) {
	eachPython(t, func(t *testing.T, path string) {
		prog := startPython(t, path, "1", "1")
		o := load(t, bpf.Options{})
		p := plan.New("clock", plan.Func("__main__", "inner"), 2)
		p.Local("x").Value("x")
		i := interpreter(t, o, prog.PID(), clockProbe(p))
		count := func() (map[string]uint64, uint64) {
			t.Helper()
			hits, err := i.Hits()
			if err != nil {
				t.Fatal(err)
			}
			m := map[string]uint64{}
			for _, h := range hits {
				name, file, err := i.CodeName(h.Code)
				if err != nil || !strings.HasSuffix(file, "capture.py") {
					t.Errorf("code object at %#x: %s in %s, %v", h.Code, name, file, err)
				}
				if h.Watched != (name == "clock") {
					t.Errorf("%s: watched is %v", name, h.Watched)
				}
				m[name] += h.Count
			}
			u, err := i.Use(0)
			if err != nil {
				t.Fatal(err)
			}
			if u.Captured > 0 != (u.Hits > 0) || u.Captured > time.Second {
				t.Errorf("captures at %d hits took %v", u.Hits, u.Captured)
			}
			return m, u.Hits
		}
		prog.do("spin 1000")
		prog.do("nested")
		m, all := count()
		if m["spin"] != 1000 || m["clock"] != 4 || len(m) != 2 || all != 1004 {
			t.Errorf("%s: hits %v, %d in all, want 1000 of spin and 4 of clock", path, m, all)
		}
		if rs := records(t, o, 3); len(rs) != 3 {
			t.Errorf("%d captures, want one for each call of inner", len(rs))
		}
		if err := i.Detach(0, "for the test"); err != nil {
			t.Fatal(err)
		}
		if r := i.Report()[0]; r.Attached || r.Reason != "for the test" {
			t.Errorf("report after Detach: %+v", r)
		}
		prog.do("spin 1000")
		prog.do("nested")
		if m, all := count(); m["spin"] != 1000 || m["clock"] != 4 || all != 0 {
			t.Errorf("hits %v and %d after Detach", m, all)
		}
		if rs := records(t, o, 0); len(rs) != 0 {
			t.Errorf("%d captures after Detach", len(rs))
		}
		if err := i.Reattach(0); err != nil {
			t.Fatal(err)
		}
		if r := i.Report()[0]; !r.Attached || r.Reason != "" {
			t.Errorf("report after Reattach: %+v", r)
		}
		prog.do("spin 10")
		prog.do("nested")
		if m, all := count(); m["spin"] != 1010 || m["clock"] != 8 || all != 14 {
			t.Errorf("hits %v and %d after Reattach", m, all)
		}
		if rs := records(t, o, 3); len(rs) != 3 {
			t.Errorf("%d captures after Reattach", len(rs))
		}
		i.Close()
		o.Close()
	})
}

// TestPlansInTurn checks which of several plans for one caller runs.
func TestPlansInTurn(t *testing.T) {
	prog := startPython(t, onePython(t), "1", "1")
	o := load(t, bpf.Options{})
	var plans []*plan.Plan
	for _, fn := range []string{"outer", "other", "inner"} {
		p := plan.New(fn, plan.Func("__main__", fn), 3)
		p.Local("x").Value("x")
		in := p.Frame(plan.Func("__main__", "inner"), 2)
		in.Local("x").Value("inner")
		p.Frame(plan.Func("__main__", "main"), 16).Local("makers").Len("makers")
		p.Frame(plan.Func("__main__", "main"), 1).Local("makers").Len("near")
		plans = append(plans, p)
	}
	i := interpreter(t, o, prog.PID(), clockProbe(plans...))
	prog.do("nested")
	rs := records(t, o, 3)
	want := []struct {
		plan     string
		x, inner int64
	}{{"outer", 1, 2}, {"other", 2, 6}, {"inner", 3, 3}}
	for n, m := range decoded(t, i, rs) {
		name := ""
		for _, p := range i.Report()[0].Watches[0].Plans {
			if p.Plan == rs[n].Capture.Plan {
				name = p.Name
			}
		}
		if name != want[n].plan || m["x"].Int != want[n].x || m["inner"].Int != want[n].inner || m["makers"].Int != 4 {
			t.Errorf("capture %d: %s %v, want %v", n, name, m, want[n])
		}
		if m["near"].Missing != capture.MissingFrame {
			t.Errorf("capture %d: a frame that is farther away is %v", n, m["near"])
		}
	}
	if len(rs) != 3 {
		t.Errorf("%d captures, want 3: the last call is from no function that is read from", len(rs))
	}
}

// TestReplacedFunction has the program replace a watched function.
func TestReplacedFunction(t *testing.T) {
	eachPython(t, func(t *testing.T, path string) {
		prog := startPython(t, path, "1", "1")
		o := load(t, bpf.Options{})
		p := plan.New("inner", plan.Func("__main__", "inner"), 2)
		p.Local("x").Value("x")
		i := interpreter(t, o, prog.PID(), clockProbe(p))
		prog.do("nested")
		if rs := records(t, o, 3); len(rs) != 3 {
			t.Fatalf("%d captures", len(rs))
		}
		if stale, err := i.Stale(); err != nil || len(stale) != 0 {
			t.Errorf("stale before the change: %v, %v", stale, err)
		}
		before := i.Report()[0].Watches[0]
		prog.do("replace")
		prog.do("nested")
		if rs := records(t, o, 0); len(rs) != 0 {
			t.Errorf("%d captures of calls from code that is not watched", len(rs))
		}
		stale, err := i.Stale()
		if err != nil || len(stale) != 1 || stale["__main__.clock"] == "" {
			t.Errorf("%s: stale after the change: %v, %v", path, stale, err)
		}
		if changed, err := i.Refresh(); err != nil || !changed {
			t.Errorf("Refresh: %v, %v", changed, err)
		}
		after := i.Report()[0].Watches[0]
		if after.Code == before.Code || after.Code == 0 || after.Plans[0].Plan == before.Plans[0].Plan || after.Reason != "" {
			t.Errorf("watch before %+v, after %+v", before, after)
		}
		prog.do("nested")
		for n, m := range decoded(t, i, records(t, o, 3)) {
			if want := []int64{2, 6, 3}[n]; m["x"].Int != want {
				t.Errorf("capture %d: %v, want %d", n, m, want)
			}
		}
		if stale, err := i.Stale(); err != nil || len(stale) != 0 {
			t.Errorf("stale after Refresh: %v, %v", stale, err)
		}
		if changed, err := i.Refresh(); err != nil || changed {
			t.Errorf("Refresh of what is not stale: %v, %v", changed, err)
		}
		i.Close()
		o.Close()
	})
}

// TestReturns captures at the return of a function, too.
func TestReturns(t *testing.T) {
	eachPython(t, func(t *testing.T, path string) {
		prog := startPython(t, path, "1", "1")
		o := load(t, bpf.Options{})
		fn := plan.Func("__main__", "sleeper")
		p := plan.New("sleeper", fn, 1)
		p.Local("x").Value("x")
		i := interpreter(t, o, prog.PID(), attach.PythonProbe{
			Callable: plan.Func("time", "sleep"), Returns: true, Watches: []attach.Watch{{Caller: fn, Plans: []*plan.Plan{p}}}})
		if r := i.Report()[0]; r.Returns == 0 {
			// The compiler placed a part of the function elsewhere.
			t.Logf("%s: %s", path, r.ReturnReason)
			if r.ReturnReason == "" {
				t.Errorf("%s: neither returns nor a reason: %+v", path, r)
			}
			i.Close()
			o.Close()
			return
		}
		const wait = 30 * time.Millisecond
		for range 3 {
			prog.do("sleep 0.03")
		}
		rs := records(t, o, 6)
		for n, m := range decoded(t, i, rs) {
			flags := uint16(0)
			if n%2 == 1 {
				flags = event.CaptureReturn
				if took := time.Duration(rs[n].Time - rs[n-1].Time); took < wait || took > wait+time.Second {
					t.Errorf("%s: a call that sleeps %v took %v", path, wait, took)
				}
			}
			if rs[n].Capture.Flags != flags || m["x"].Float != 0.03 {
				t.Errorf("%s: capture %d: flags %#x and %v", path, n, rs[n].Capture.Flags, m)
			}
		}
		if u, err := i.Use(0); err != nil || u.Hits != 6 {
			t.Errorf("%d hits, %v", u.Hits, err)
		}
		i.Close()
		o.Close()
	})
}

// TestLarge captures dicts of more entries than a plan asks for, than a record has
// room for, and than are looked at.
func TestLarge(t *testing.T) {
	prog := startPython(t, onePython(t), "1", "1")
	o := load(t, bpf.Options{})
	p := plan.New("large", plan.Func("__main__", "large"), 2)
	x := p.Local("x")
	x.Items("some", 7, 64)
	x.Len("len")
	x.Items("all", 1<<16, 64)
	x.Elements("numbers", 1<<16, 0)
	i := interpreter(t, o, prog.PID(), clockProbe(p))
	for _, n := range []int{0, 1, 7, 8, 300, 2000, 20000} {
		prog.do(fmt.Sprint("large ", n))
		rs := records(t, o, 1)
		m := decoded(t, i, rs)[0]
		some, all := m["some"], m["all"]
		if some.Count() != min(n, 7) || some.Total != n || m["len"].Int != int64(n) || all.Total != n {
			t.Errorf("%d entries: %d of %d, %d of %d, length %d", n, some.Count(), some.Total, all.Count(), all.Total, m["len"].Int)
		}
		if n <= 300 != all.Complete() {
			t.Errorf("%d entries: %d of them in %d bytes", n, all.Count(), len(rs[0].Data))
		}
		if cut := rs[0].Capture.Flags&event.CaptureCut != 0; cut != (n > 300) {
			t.Errorf("%d entries, %d in the record: cut is %v", n, all.Count(), cut)
		}
		for j := range all.Count() {
			key, v := all.Values[2*j].Str, all.Values[2*j+1].Int
			if want := fmt.Sprintf("key-%06d-", j) + strings.Repeat("x", 40); key != want || v != int64(j) {
				t.Errorf("entry %d is %s: %d", j, key, v)
				break
			}
		}
		t.Logf("%d entries: %d keys and values in a record of %d bytes", n, all.Count(), len(rs[0].Data))
	}
}

// TestCorruptObjects captures objects whose memory is not what their types say: what
// is captured must be right, or missing.
func TestCorruptObjects(t *testing.T) {
	eachPython(t, func(t *testing.T, path string) {
		prog := startPython(t, path, "1", "1")
		o := load(t, bpf.Options{})
		p := plan.New("look", plan.Func("__main__", "look"), 2)
		p.Local("what").Value("what")
		x := p.Local("x")
		x.Value("value")
		x.Len("len")
		x.Items("items", 10, 64)
		x.Elements("elements", 10, 64)
		x.Each("each", 10, 64, "a", "b")
		x.Attr("a").Value("attr")
		x.Key("a").Value("key")
		x.Index(0).Value("first")
		x.Index(1).Attr("a").Value("deep")
		i := interpreter(t, o, prog.PID(), clockProbe(p))
		prog.do("corrupt")
		rs := records(t, o, 63)
		missing := map[string]int{}
		for _, m := range decoded(t, i, rs) {
			if len(m) != 10 {
				t.Errorf("%s: %d slots in a capture", path, len(m))
			}
			for name, v := range m {
				if v.Tag == capture.TagMissing {
					missing[v.Missing.String()]++
				}
				for _, e := range append([]plan.Value{v}, v.Values...) {
					switch {
					case name == "what" || e.Tag == capture.TagMissing || e.Tag == capture.TagItems:
					case e.Tag == capture.TagInt && (e.Int >= 0 && e.Int <= 5 || name == "len" && e.Int < 1<<48):
					case e.Tag == capture.TagStr1 && (e.Str == "a" || e.Str == "b"):
					case e.Tag == capture.TagInt || e.IsStr() && strings.HasPrefix(m["what"].Str, "str"):
						// The text is as long as the object says it is.
					default:
						t.Errorf("%s, %s: %s is %v", path, m["what"].Str, name, e.String())
					}
				}
			}
		}
		t.Logf("%s: missing %v", path, missing)
		for _, why := range []capture.Missing{capture.MissingFault, capture.MissingBad, capture.MissingLimit, capture.MissingType} {
			if missing[why.String()] == 0 {
				t.Errorf("%s: nothing is missing for the reason %s", path, why)
			}
		}
		// The program is as it was.
		prog.do("nested")
		i.Close()
		o.Close()
	})
}

// TestNamespaceAndFork captures from a process in a PID namespace of its own, where its
// thread has another number, and from a child of fork, whose thread state is a copy.
func TestNamespaceAndFork(t *testing.T) {
	eachPython(t, func(t *testing.T, path string) {
		for _, how := range []string{"namespace", "fork"} {
			args := []string{"1", "1"}
			var attr *syscall.SysProcAttr
			if how == "namespace" {
				attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			} else {
				args = append(args, "fork")
			}
			prog := startPythonIn(t, attr, path, args...)
			pid := prog.self
			if how == "namespace" {
				if pid != 1 {
					t.Fatalf("the process has the number %d in its namespace", pid)
				}
				pid = prog.PID()
			} else if pid == prog.PID() {
				t.Fatal("the process is not a child")
			}
			o := load(t, bpf.Options{})
			p := plan.New("inner", plan.Func("__main__", "inner"), 2)
			p.Local("x").Value("x")
			i := interpreter(t, o, pid, clockProbe(p))
			prog.do("nested")
			for n, m := range decoded(t, i, records(t, o, 3)) {
				if want := []int64{2, 6, 3}[n]; m["x"].Int != want {
					t.Errorf("%s, %s: capture %d: %v, want %d", path, how, n, m, want)
				}
			}
			i.Close()
			o.Close()
		}
	})
}

// TestCaptureRingFull checks that captures are whole or lost, and counted.
func TestCaptureRingFull(t *testing.T) {
	const steps = 300
	prog := startPython(t, onePython(t), "1", "1")
	o := load(t, bpf.Options{RingBytes: 64 << 10})
	i := interpreter(t, o, prog.PID(), clockProbe(stepPlans()...))
	prog.do(fmt.Sprint("steps ", steps))
	rs := records(t, o, 1)
	decoded(t, i, rs)
	lost := losses(t, o)
	if got := uint64(len(rs)) + lost[event.LossRingFull]; got != steps || lost[event.LossRingFull] == 0 {
		t.Errorf("%d captures and %d lost, want %d together", len(rs), lost[event.LossRingFull], steps)
	}
}

// TestProbeProblems checks that what cannot be attached is reported.
func TestProbeProblems(t *testing.T) {
	prog := startPython(t, onePython(t), "1", "1")
	o := load(t, bpf.Options{})
	ok := func(fn string) *plan.Plan {
		p := plan.New("ok", plan.Func("__main__", fn), 2)
		p.Local("x").Value("x")
		return p
	}
	dropped := ok("inner")
	dropped.Local("nothing").Value("nothing")
	p := process(t, prog.PID(), target.RoleCore)
	in := openPython(t, p.PID)
	i, err := attach.AttachInterpreter(o, p, in, []attach.PythonProbe{
		{Callable: plan.Func("time", "no_such_function")},
		{Callable: plan.Func("no_such_module", "f")},
		{Callable: plan.Func("__main__", "clock")},
		{Callable: monotonic, Watches: []attach.Watch{
			{Caller: plan.Func("__main__", "no_such_function"), Plans: []*plan.Plan{ok("inner")}},
			{Caller: plan.Func("__main__", "clock"), Plans: []*plan.Plan{ok("gone"), dropped}},
			{Caller: plan.Func("__main__", "spin"), Plans: []*plan.Plan{ok("gone")}},
			{Caller: plan.Func("__main__", "clock"), Plans: []*plan.Plan{ok("outer")}},
		}},
		{Callable: monotonic},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	r := i.Report()
	for n, says := range []string{"no_such_function", "no_such_module", "", "", "has a probe"} {
		if attached := n == 3; r[n].Attached != attached || !strings.Contains(r[n].Reason, says) || (r[n].Reason == "") != attached {
			t.Errorf("probe %d: %+v, want a reason that says %q", n, r[n], says)
		}
	}
	w := r[3].Watches
	if w[0].Code != 0 || !strings.Contains(w[0].Reason, "no_such_function") {
		t.Errorf("caller that does not exist: %+v", w[0])
	}
	if w[1].Code == 0 || w[1].Reason != "" || w[1].Plans[0].Plan != 0 || !strings.Contains(w[1].Plans[0].Reason, "gone") ||
		w[1].Plans[1].Plan == 0 || !strings.Contains(w[1].Plans[1].Dropped["nothing"], "nothing") {
		t.Errorf("plans of which one can be used: %+v", w[1])
	}
	if w[2].Code != 0 || w[2].Reason == "" {
		t.Errorf("no plan that can be used: %+v", w[2])
	}
	if w[3].Code != 0 || !strings.Contains(w[3].Reason, "watched") {
		t.Errorf("the same caller twice: %+v", w[3])
	}
	prog.do("nested")
	for n, m := range decoded(t, i, records(t, o, 3)) {
		if _, there := m["nothing"]; there || m["x"].Int != []int64{2, 6, 3}[n] {
			t.Errorf("capture %d: %v", n, m)
		}
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	if hits, err := o.Hits(); err != nil || len(hits) != 0 {
		t.Errorf("hits after Close: %v, %v", hits, err)
	}
}
