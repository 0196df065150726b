package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	probes "inferspan/probes/attach"
	"inferspan/probes/attach/governor"
	"inferspan/probes/elf"
	engines "inferspan/probes/engine"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// trapsOn is what a probe of one process adds to a request.
type trapsOn struct {
	process, at, caller string
	traps               float64 // a request; 0: a second look at another probe's trap
	trap                time.Duration
	runs                float64 // of the program, a request
	run                 time.Duration
	beside              bool // the request does not wait for it
}

func (x *trapsOn) total() time.Duration {
	return time.Duration(x.traps*float64(x.trap) + x.runs*float64(x.run))
}

// TestSGLangLatency accounts for what the probes add to a request of one token that comes to
// an idle server: all traps of the processes that it goes through, at what a trap costs on
// this host, and the time in BPF that the kernel measures at each. Beside the request's path
// are those behind the sending of it, or of its output, when another process has it. The
// probes are put in one at a time, since the kernel counts by program.
func TestSGLangLatency(t *testing.T) {
	needSGLang(t)
	e := startWith(t, serveSGLang, nil, "--sleep-on-idle")
	eng, err := target.Finder{}.ByPID(t.Context(), e.pid)
	if err != nil {
		t.Fatal(err)
	}
	objs := countedRuns(t)
	costs, err := governor.Calibrate(objs, bpf.ProgPyHit)
	if err != nil {
		t.Fatal(err)
	}
	l := latency{e: e, eng: eng, objs: objs, costs: costs}
	l.requests(t, 50) // what compiles on first use
	var rows []trapsOn
	for i := range eng.Processes {
		p := &eng.Processes[i]
		if taps, _ := probes.Plan(eng.Kind, p); len(taps) > 0 {
			rows = append(rows, l.process(t, p)...)
		}
	}

	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "traps\tns each\tin BPF, ns\tus in all\t  process, probe, caller\n")
	var sum, beside, alone time.Duration
	traps := map[string]float64{}
	for i := range rows {
		x := &rows[i]
		what := ""
		if x.beside {
			what = ", beside"
			beside += x.total()
		} else {
			sum += x.total()
			alone += time.Duration(x.traps * float64(x.trap))
		}
		fmt.Fprintf(w, "%.2f\t%d\t%d\t%.1f\t  %s, %s, %s%s\n", x.traps, x.trap, x.run, float64(x.total())/1e3, x.process, x.at, x.caller, what)
		traps[x.process] += x.traps
	}
	w.Flush()
	t.Logf("a request of one token, %d of them for each probe; a trap is %v where the kernel emulates the instruction, %v where it steps it\n%s%.1f us on its path, %.1f us of it traps, and %.1f us beside",
		latencyRounds*latencyRequests, costs.Emulated, costs.Stepped, &b, float64(sum)/1e3, float64(alone)/1e3, float64(beside)/1e3)
	// Six reads of the clock, of which two are watched, and a send; a batch, a send and a look
	// behind it.
	for _, want := range []struct {
		role  target.Role
		traps float64
	}{{target.RoleAPIServer, 7}, {target.RoleCore, 3}} {
		if n := traps[string(want.role)]; n < want.traps-0.02 || n > want.traps+0.02 {
			t.Errorf("%.2f traps a request in the %s, want %v", n, want.role, want.traps)
		}
	}
	// What the programs take depends on what else the host does: they wait for memory that
	// is in no cache. The traps do not.
	const most = 50 * time.Microsecond
	if alone > most {
		t.Errorf("the traps alone add %v to a request, want at most %v", alone, most)
	}
}

// countedRuns loads the kernel's side until the test ends, with the kernel counting how often
// and how long programs run. Records are passed over.
func countedRuns(t *testing.T) *bpf.Objects {
	t.Helper()
	objs, err := bpf.Load(bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { objs.Close() })
	stats, err := bpf.EnableStats()
	if err != nil {
		t.Skipf("the kernel does not count runs of BPF programs: %v", err)
	}
	t.Cleanup(func() { stats.Close() })
	go func() { // records would fill the ring
		var r event.Record
		for !errors.Is(objs.Reader().Read(&r), os.ErrClosed) {
		}
	}()
	return objs
}

// Each probe is measured in rounds of so many requests: the kernel counts the time of a
// program with that in which it was kept from running, which the median leaves out.
const (
	latencyRounds   = 9
	latencyRequests = 20
)

// latency measures one probe after another.
type latency struct {
	e     *engine
	eng   *target.Engine
	objs  *bpf.Objects
	costs governor.Costs
}

// requests sends n requests of one token, one after another with a rest in between.
func (l *latency) requests(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range n {
		if _, err := completionOf(ctx, l.e.url+"/generate", fmt.Appendf(nil, `{"text": "request %d of many", "sampling_params": {"max_new_tokens": 1}}`, i%7)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// measured is what a program did in rounds of requests.
type measured struct {
	runs     float64       // a request
	each     time.Duration // a run
	captured time.Duration // a request, in captures
}

// rounds sends requests and returns what a program did. captured gives how long it was at
// captures so far.
func (l *latency) rounds(t *testing.T, program bpf.Program, captured func() time.Duration) (m measured) {
	t.Helper()
	look := func() (bpf.ProgramStats, time.Duration) {
		s, err := l.objs.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return s[string(program)], captured()
	}
	var means, captures []time.Duration
	runs := uint64(0)
	for range latencyRounds {
		before, at := look()
		l.requests(t, latencyRequests)
		after, to := look()
		if n := after.Runs - before.Runs; n > 0 {
			runs += n
			means = append(means, (after.Runtime-before.Runtime)/time.Duration(n))
			captures = append(captures, (to-at)/latencyRequests)
		}
	}
	if len(means) == 0 {
		return m
	}
	return measured{float64(runs) / (latencyRounds * latencyRequests), median(means), median(captures)}
}

// process measures the probes of a process: that on libzmq alone, then with each of those
// on the interpreter.
func (l *latency) process(t *testing.T, p *target.Process) []trapsOn {
	t.Helper()
	a, err := probes.Attach(l.objs, l.eng.Kind, p)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	m := l.rounds(t, bpf.ProgWireSend, func() time.Duration { return 0 })
	out := []trapsOn{{process: string(p.Role), at: "zmq_msg_send", caller: "the message", traps: m.runs, trap: l.at(t, p), runs: m.runs, run: m.each}}
	in, err := python.Open(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	for _, probe := range sglangInside(t, p, in) {
		out = append(out, l.interpreter(t, p, in, probe)...)
	}
	return out
}

// at is what a trap at the entry of zmq_msg_send costs.
func (l *latency) at(t *testing.T, p *target.Process) time.Duration {
	t.Helper()
	f, err := os.Open(p.ZMQ.MapFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := elf.New(f)
	if err != nil {
		t.Fatal(err)
	}
	fn, err := x.Func("zmq_msg_send")
	if err != nil {
		t.Fatal(err)
	}
	if at, emulated := x.Emulated(fn); emulated && at == fn.Offset {
		return l.costs.Emulated
	}
	return l.costs.Stepped
}

// interpreter measures a probe on the interpreter, with those that call what it is on.
func (l *latency) interpreter(t *testing.T, p *target.Process, in *python.Interp, probe engines.Probe) []trapsOn {
	t.Helper()
	i, err := probes.AttachInterpreter(l.objs, p, in, pythonProbes([]engines.Probe{probe}))
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	status := i.Report()[0]
	if !status.Attached {
		t.Fatalf("%s: %s", status.Callable, status.Reason)
	}
	watched := map[uint64]bool{}
	count := func() map[uint64]uint64 {
		hits, err := i.Hits()
		if err != nil {
			t.Fatal(err)
		}
		n := map[uint64]uint64{}
		for _, h := range hits {
			n[h.Code] += h.Count
			watched[h.Code] = h.Watched
		}
		return n
	}
	was := count()
	m := l.rounds(t, bpf.ProgPyHit, func() time.Duration {
		use, err := i.Use(0)
		if err != nil {
			t.Fatal(err)
		}
		return use.Captured
	})
	now := count()
	const requests = latencyRounds * latencyRequests
	captures := 0.0 // a request
	for code, n := range now {
		if watched[code] {
			captures += float64(n-was[code]) / requests
		}
	}
	plain := m.each // a hit without a capture
	if m.runs > 0 {
		plain = max(0, plain-time.Duration(float64(m.captured)/m.runs))
	}
	trap := l.costs.Emulated
	if status.Stepped {
		trap = l.costs.Stepped
	}
	var out []trapsOn
	for code, n := range now {
		if n -= was[code]; n == 0 {
			continue
		}
		name := "code that is not known"
		if s, _, err := i.CodeName(code); err == nil {
			name = s
		}
		x := trapsOn{process: string(p.Role), at: status.Callable, caller: name, runs: float64(n) / requests, trap: trap, run: plain}
		x.beside = probe.Behind && !status.Shared || strings.HasSuffix(name, ".set_api_server_dispatch_finish_time")
		if watched[code] {
			x.run += time.Duration(float64(m.captured) / captures)
		}
		if !status.Shared {
			x.traps = x.runs
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b trapsOn) int { return cmp.Compare(a.caller, b.caller) })
	return out
}
