package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TestSourceTraps counts the traps in the engine core per scheduler step, with step
// detail on, for 1 request at a time and for 128, by both ways to see the steps. The
// CPU build runs its worker in a process of its own: the core wakes it twice for each
// step, and waits for it in a loop that reads the clock.
func TestSourceTraps(t *testing.T) {
	need(t)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Skipf("the kernel does not count runs of BPF programs: %v", err)
	}
	defer stats.Close()
	e := startEngine(t, nil, "--max-num-seqs", "128")
	rate(t, e) // warms up
	var b, rates strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "source\trequests\tsteps\tsends\tclock\tsum\tAPI server\t")
	fmt.Fprintf(&rates, "%.0f untraced", max(rate(t, e), rate(t, e)))
	for _, source := range []string{"dispatch", "clock"} {
		tr := attach(t, e, "--step-source", source, "--steps", "1")
		// A few steps give no tokens, which the engine does not count: there are to be many more that do.
		one, many := e.trapsAt(t, tr, 1, 50, 250), e.trapsAt(t, tr, 128, 50, 250)
		if source == "clock" {
			// How often the core looks at the clock while it waits differs from step to step.
			one.clock, many.clock = e.clockHits(t, tr, 1, 200), e.clockHits(t, tr, 128, 50)
		}
		fmt.Fprintf(&rates, ", %.0f by %s", max(rate(t, e), rate(t, e)), source)
		tr.mustStop(t)
		fmt.Fprintf(&rates, ", %.0f untraced", max(rate(t, e), rate(t, e)))
		for _, s := range []*trapped{one, many} {
			own := s.clock
			if source == "dispatch" {
				// These hits are second looks at the traps of sends.
				if s.clock < s.sends-0.05 || s.clock > s.sends+0.05 {
					t.Errorf("%d requests: %.3f looks at %.3f sends per step", s.requests, s.clock, s.sends)
				}
				own = 0
				// One for the outputs, two for the worker.
				if s.sends > 3.05 {
					t.Errorf("%d requests: %.3f traps per step, want at most 3", s.requests, s.sends)
				}
			}
			fmt.Fprintf(w, "%s\t%d\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", source, s.requests, s.steps, s.sends, own, s.sends+own, s.front)
		}
		if d := many.sends - one.sends; d > 0.05 || d < -0.05 {
			t.Errorf("by %s: %.3f sends per step with one request, %.3f with 128", source, one.sends, many.sends)
		}
		time.Sleep(time.Second)
	}
	w.Flush()
	t.Logf("traps per scheduler step in the engine core, its worker in another process\n%s", &b)
	t.Run("switch", func(t *testing.T) { sourceSwitch(t, e) })
	t.Logf("tokens/s with 32 requests at a time, the better of two, in turn: %s (short runs on a shared machine: no benchmark)", &rates)
}

// sourceSwitch has the governor take the clock out, which some waiting loop goes over a
// budget of a nanosecond with, and put it back after its pause: dispatch stands in for it.
func sourceSwitch(t *testing.T, e *engine) {
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	tr := attach(t, e, "--step-source", "clock", "--steps", "1", "--probe-wait", "1ns", "--prometheus", addr)
	seen := func(source string, within time.Duration) {
		t.Helper()
		for end := time.Now().Add(within); time.Now().Before(end); {
			e.generate(t, 4, 20)
			resp, err := http.Get("http://" + addr + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(b)) {
				if strings.HasPrefix(line, "inferspan_detail_active{") && strings.Contains(line, `detail="steps"`) && strings.Contains(line, `source="`+source+`"`) && strings.HasSuffix(line, " 1\n") {
					return
				}
			}
			time.Sleep(200 * time.Millisecond)
		}
		t.Errorf("steps are not seen by %s within %v", source, within)
	}
	seen("clock", 10*time.Second)
	seen("dispatch", 20*time.Second)
	// The governor's first pause is 30 s.
	seen("clock", 50*time.Second)
	tr.mustStop(t)
	b, err := os.ReadFile(tr.jsonl)
	if err != nil {
		t.Fatal(err)
	}
	last, steps, dispatched := int64(0), 0, 0
	for line := range strings.Lines(string(b)) {
		var s struct {
			Step   *int64
			Method string
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil || s.Step == nil {
			continue
		}
		if steps++; s.Method == "dispatch" {
			dispatched++
		}
		if last != 0 && *s.Step <= last {
			t.Errorf("step %d after step %d", *s.Step, last)
		}
		last = *s.Step
	}
	t.Logf("%d steps, %d of them by dispatch", steps, dispatched)
	if dispatched == 0 || dispatched == steps {
		t.Errorf("%d steps of %d by dispatch, want some so and some by the clock", dispatched, steps)
	}
}

// clockHits is how often the engine core reads the clock in a step, with n requests at a
// time, what a request costs once included.
func (e *engine) clockHits(t *testing.T, tr *tracer, n, tokens int) float64 {
	t.Helper()
	before := e.count(t, tr)
	e.generate(t, n, tokens)
	after := e.count(t, tr)
	return (after.clock - before.clock) / (after.steps - before.steps)
}
