package bpf_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/probes/attach"
	"inferspan/probes/python"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
	"inferspan/tests/child"
	"inferspan/tests/pythons"
)

var captureSteps = flag.Int("captures", 200, "captures of each thread in TestCaptures")

// eachPython runs f with each supported version, as a subtest.
func eachPython(t *testing.T, f func(t *testing.T, python string)) {
	needRoot(t)
	pythons.Each(t, func(t *testing.T, paths []string) {
		for _, p := range paths {
			f(t, p)
		}
	})
}

// pyProgram is a running testdata/capture.py.
type pyProgram struct {
	*child.Process
	t    *testing.T
	self int // its PID, as it sees it
}

func startPython(t *testing.T, path string, args ...string) *pyProgram {
	t.Helper()
	return startPythonIn(t, nil, path, args...)
}

func startPythonIn(t *testing.T, attr *syscall.SysProcAttr, path string, args ...string) *pyProgram {
	t.Helper()
	cmd := exec.Command(path, append([]string{"testdata/capture.py"}, args...)...)
	cmd.SysProcAttr = attr
	p := &pyProgram{Process: child.Start(t, cmd), t: t}
	// The PID is the one that the program knows itself by.
	ready := p.Line()
	self, ok := strings.CutPrefix(ready, "ready ")
	if !ok {
		t.Fatalf("%s: %q", path, ready)
	}
	p.self, _ = strconv.Atoi(self)
	return p
}

// do gives a command and returns the lines up to its end.
func (p *pyProgram) do(command string) []string {
	p.t.Helper()
	if err := p.Send("%s", command); err != nil {
		p.t.Fatal(err)
	}
	var lines []string
	for {
		line := p.Line()
		if line == "done" {
			return lines
		}
		lines = append(lines, line)
	}
}

// captures reads all captures in the background, until stop is called.
type captures struct {
	stop chan struct{}
	done chan []event.Record
}

func collect(t *testing.T, o *bpf.Objects) *captures {
	c := &captures{make(chan struct{}), make(chan []event.Record, 1)}
	go func() {
		var out []event.Record
		for stopping := false; ; {
			select {
			case <-c.stop:
				stopping = true
			default:
			}
			o.Reader().SetDeadline(time.Now().Add(3 * flushInterval))
			var r event.Record
			err := o.Reader().Read(&r)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if stopping {
					c.done <- out
					return
				}
				continue
			}
			if err != nil {
				t.Error(err)
				c.done <- out
				return
			}
			r.Data = append([]byte(nil), r.Data...)
			out = append(out, r)
		}
	}()
	return c
}

func (c *captures) end() []event.Record {
	close(c.stop)
	return <-c.done
}

// stepPlans read from Maker.step. A plan has room for some 40 names.
func stepPlans() []*plan.Plan {
	a := plan.New("step", plan.Func("__main__", "Maker.step"), 4)
	slots := func(r *plan.Ref, class, name string) *plan.Ref { return r.AttrOf(plan.Func("__main__", class), name) }
	self := a.Local("self")
	self.Attr("who").Value("who")
	self.Attr("seq").Value("seq")
	a.Local("how").Value("how")
	p := self.Attr("plain")
	p.Attr("number").Value("number")
	p.Attr("ratio").Value("ratio")
	p.Attr("flag").Value("flag")
	p.Attr("nothing").Value("nothing")
	p.Attr("text").Value("text")
	p.Attr("absent").Value("absent")
	p.Value("wrong")
	p.Len("len_wrong")
	self.Attr("touched").Attr("number").Value("touched")
	self.Attr("extra").Attr("number").Value("extra")
	self.Attr("wide").Attr("a37").Value("wide")
	huge := self.Attr("huge")
	huge.Attr("a299").Value("huge")
	huge.Attr("a0").Value("huge0")
	s := self.Attr("slots")
	slots(s, "Slots", "first").Value("first")
	slots(s, "Slots", "second").Value("second")
	slots(s, "Slots", "unset").Value("unset")
	slots(self.Attr("more"), "MoreSlots", "third").Value("third")
	both := self.Attr("both")
	both.Attr("fourth").Value("fourth")
	slots(both, "Slots", "first").Value("both_first")
	self.Attr("error").Attr("code").Value("code")
	sub := self.Attr("sub")
	sub.Attr("attr").Value("sub_attr")
	sub.Len("sub_len")
	self.Attr("general").Items("general", 100, 40)
	gone := self.Attr("gone")
	gone.Items("gone", 100, 40)
	gone.Key("k199").Value("gone_key")
	self.Attr("queue").Len("queue")
	self.Attr("queue").Index(0).Value("queue_0")
	self.Attr("queue").Index(20).Value("queue_20")
	self.Attr("frozen").Elements("frozen", 100, 40)
	return []*plan.Plan{a}
}

// outputPlan reads what else Maker.step has; it hangs off another code object.
func outputPlan() *plan.Plan {
	b := plan.New("output", plan.Func("__main__", "Maker.step"), 4)
	self := b.Local("self")
	self.Attr("who").Value("who")
	self.Attr("seq").Value("seq")
	self.Addr("self")
	out := b.Local("out")
	tokens := out.Attr("tokens")
	tokens.Items("tokens", 400, 40)
	tokens.Len("tokens_len")
	out.Attr("total").Value("total")
	fresh := out.Attr("fresh")
	fresh.Index(0).AttrOf(plan.Func("__main__", "Slots"), "second").Value("first_fresh")
	fresh.EachOf(plan.Func("__main__", "Slots"), "fresh", 100, 64, "second", "first")
	fresh.EachLenOf(plan.Func("__main__", "Slots"), "fresh_len", 100, 64, "first", "second")
	out.Attr("done").Elements("done", 100, 40)
	out.Attr("done").Len("done_len")
	out.Attr("maybe").Value("maybe")
	b.Local("items").Elements("tuple", 10, 0)
	b.Local("items").Len("tuple_len")
	b.Local("local").Value("local")
	b.Local("cell").Value("cell")
	b.Local("big").Value("big")
	b.Local("level").Value("level")
	b.Local("text").Value("str_sub")
	return b
}

// nestedPlan reads attributes of attributes of elements, and by conditions.
func nestedPlan() *plan.Plan {
	c := plan.New("nested", plan.Func("__main__", "Maker.step"), 4)
	self := c.Local("self")
	self.Attr("who").Value("who")
	self.Attr("seq").Value("seq")
	level := c.Local("level")
	low := plan.Func("__main__", "Level.LOW")
	jobs := c.Local("jobs")
	jobs.EachPath("jobs", 100, 40, "id", "stats.number", "stats.ratio", "stats.text", "wide.a3", "ids.len()")
	c.Local("by_name").EachPath("by_name", 100, 40, "id", "wide.a7")
	jobs.EachPathIf("ended", 100, 40, "reason", "id", "stats.ratio")
	jobs.EachPathIs("alone", 100, 40, "stream", plan.Func("builtins", "False"), "id", "stats.ratio")
	jobs.EachPathUnless("under_way", 100, 40, "reason", "stats.ratio", "id()")
	c.Local("jobs").When(level.Is(low)).EachPath("low", 100, 40, "id")
	c.Local("jobs").When(level.IsNot(low)).EachPath("high", 100, 40, "id")
	others := c.Local("others")
	c.Local("others").When(others.Differs(jobs)).EachPath("others", 100, 40, "id").Len("others_len")
	at := c.Local("self").When(level.Is(low)) // a condition within another one
	same := at.Attr("others")
	at.Attr("others").When(same.Differs(jobs)).EachPath("low_others", 100, 40, "id")
	c.Local("how").Value("how")
	return c
}

// plain converts a value to what JSON has for it.
func plain(v *plan.Value) any {
	switch v.Tag {
	case capture.TagInt:
		return json.Number(fmt.Sprint(v.Int))
	case capture.TagAddr:
		return json.Number(fmt.Sprint(v.Addr))
	case capture.TagFloat:
		return v.Float
	case capture.TagBool:
		return v.Int != 0
	case capture.TagNone:
		return nil
	case capture.TagMissing:
		return map[string]any{"missing": v.Missing.String()}
	case capture.TagItems:
		out := make([]any, 0, v.Count())
		for i := 0; i < len(v.Values); i += v.Per {
			if v.Per == 1 {
				out = append(out, plain(&v.Values[i]))
				continue
			}
			var item []any
			for j := range v.Per {
				item = append(item, plain(&v.Values[i+j]))
			}
			out = append(out, item)
		}
		return out
	}
	return v.Str
}

// equal compares a captured value with the one that the program said.
func equal(got, want any) bool {
	if g, ok := got.([]any); ok {
		w, ok := want.([]any)
		return ok && slices.EqualFunc(g, w, equal)
	}
	if f, ok := got.(float64); ok {
		n, ok := want.(json.Number)
		if !ok {
			return false
		}
		w, err := n.Float64()
		return err == nil && w == f
	}
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	return string(g) == string(w)
}

func openPython(t *testing.T, pid int) *python.Interp {
	t.Helper()
	in, err := python.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func interpreter(t *testing.T, o *bpf.Objects, pid int, probes ...attach.PythonProbe) *attach.Interpreter {
	t.Helper()
	i, err := attach.AttachInterpreter(o, process(t, pid, target.RoleCore), openPython(t, pid), probes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, p := range i.Report() {
		if !p.Attached {
			t.Errorf("%s: %s", p.Callable, p.Reason)
		}
		for _, w := range p.Watches {
			if w.Reason != "" {
				t.Errorf("%s: %s", w.Caller, w.Reason)
			}
			for _, pl := range w.Plans {
				if pl.Reason != "" || len(pl.Dropped) > 0 {
					t.Errorf("%s: %s, dropped %v", pl.Name, pl.Reason, pl.Dropped)
				}
			}
		}
	}
	return i
}

// TestCaptures compares every value of captures with what the program itself had,
// in threads, generators, coroutines and callbacks, with objects in all forms of
// storage that change all the time.
func TestCaptures(t *testing.T) {
	steps := *captureSteps
	eachPython(t, func(t *testing.T, path string) {
		for _, p := range append(stepPlans(), outputPlan(), nestedPlan()) {
			o := load(t, bpf.Options{RingBytes: 32 << 20})
			prog := startPython(t, path, fmt.Sprint(steps), "1")
			i := interpreter(t, o, prog.PID(), clockProbe(p))
			c := collect(t, o)
			lines := prog.do("run")
			checkCaptures(t, i, c.end(), lines, 4*steps)
			if got, want := losses(t, o), ([event.LossReasons]uint64{}); got != want {
				t.Errorf("%s: losses %v", path, got)
			}
			i.Close()
			o.Close()
		}
	})
}

// TestPutOff: where its conditions hold a capture ends, and what it lacks is read by the first
// one behind it that does not end there, of whatever thread.
func TestPutOff(t *testing.T) {
	const steps = 200
	eachPython(t, func(t *testing.T, path string) {
		p := plan.New("later", plan.Func("__main__", "Maker.step"), 4)
		self := p.Local("self")
		seq := self.Attr("seq")
		seq.Value("seq")
		level, maybe := p.Local("level"), p.Local("maybe")
		level.Value("level")
		maybe.Value("maybe")
		p.PutOff("put_off", level.Is(plan.Func("__main__", "Level.LOW")), maybe.Absent())
		p.Local("self").WhenDue().Attr("seq").Value("due")
		p.Local("self").Attr("seq").Value("rest")
		p.Local("self").When(maybe.Absent()).Attr("seq").Value("absent")
		o := load(t, bpf.Options{RingBytes: 32 << 20})
		prog := startPython(t, path, fmt.Sprint(steps), "1")
		i := interpreter(t, o, prog.PID(), clockProbe(p))
		c := collect(t, o)
		prog.do("run")
		due, ended, read := false, 0, 0
		for n, m := range decoded(t, i, c.end()) {
			absent := m["maybe"].Tag == capture.TagNone
			off := absent && m["level"].Int == 3
			want := map[string]bool{"seq": true, "level": true, "maybe": true, "put_off": off, "due": due && !off, "rest": !off, "absent": absent && !off}
			for slot, there := range want {
				if _, ok := m[slot]; ok != there {
					t.Errorf("capture %d: slot %s is there: %v, want %v", n, slot, ok, there)
				}
			}
			if want["due"] && m["due"].Int != m["seq"].Int {
				t.Errorf("capture %d: %v, want %v", n, m["due"], m["seq"])
			}
			if off {
				ended++
			} else if due {
				read++
			}
			due = off
		}
		if ended < steps/10 || read < steps/10 {
			t.Errorf("%d captures were put off, %d read what was", ended, read)
		}
		i.Close()
		o.Close()
	})
}

func checkCaptures(t *testing.T, i *attach.Interpreter, rs []event.Record, lines []string, want int) {
	t.Helper()
	said := map[string]map[string]any{}
	for _, l := range lines {
		var m map[string]any
		d := json.NewDecoder(strings.NewReader(l))
		d.UseNumber()
		if err := d.Decode(&m); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		said[fmt.Sprint(m["who"], " ", m["seq"])] = m
	}
	report := i.Report()[0].Watches[0].Plans[0]
	missing := map[string]int{}
	seen, wrong, size, values := 0, 0, 0, 0
	var c plan.Capture
	for _, r := range rs {
		if err := c.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Capture.Plan != report.Plan || r.Capture.Flags != 0 {
			t.Errorf("plan %d with flags %#x, want plan %d", r.Capture.Plan, r.Capture.Flags, report.Plan)
		}
		got := map[string]any{}
		for n, slot := range report.Slots {
			v := c.Slot(n)
			if v == nil {
				got[slot] = "not read"
				continue
			}
			if v.Tag == capture.TagItems && (slot == "done" || slot == "frozen") {
				sort.Slice(v.Values, func(i, j int) bool { return v.Values[i].Str < v.Values[j].Str })
			}
			if v.Tag == capture.TagItems && !v.Complete() {
				t.Errorf("%s: %d of %d items", slot, v.Count(), v.Total)
			}
			if v.Tag == capture.TagAddr {
				continue
			}
			got[slot] = plain(v)
			if v.Tag == capture.TagMissing {
				missing[slot+": "+v.Missing.String()]++
			}
		}
		key := fmt.Sprint(got["who"], " ", got["seq"])
		m := said[key]
		if m == nil {
			t.Fatalf("a capture of %s, which the program did not make: %v", key, got)
		}
		delete(said, key)
		seen++
		size += len(r.Data)
		for slot, v := range got {
			values++
			if !equal(v, m[slot]) {
				if wrong++; wrong < 10 {
					t.Errorf("%s, %v: %s is %v, want %v", key, m["how"], slot, v, m[slot])
				}
			}
		}
	}
	if seen != want || len(said) != 0 {
		t.Errorf("%d captures, want %d", seen, want)
	}
	t.Logf("plan %s: %d captures of %d bytes on average, %d values; missing as expected: %v", report.Name, seen, size/max(seen, 1), values, missing)
}
