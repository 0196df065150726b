package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"inferspan/bpf"
	probes "inferspan/probes/attach"
	engines "inferspan/probes/engine"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// TestSGLangStepCost prints what a step costs a scheduler with one request and with 64 that
// stream: traps, which do not depend on how many there are, and the time in BPF.
func TestSGLangStepCost(t *testing.T) {
	needSGLang(t)
	const tokens = 200
	e := startWith(t, serveSGLang, nil, "--sleep-on-idle")
	eng, err := target.Finder{}.ByPID(t.Context(), e.pid)
	if err != nil {
		t.Fatal(err)
	}
	k := slices.IndexFunc(eng.Processes, func(p target.Process) bool { return p.Role == target.RoleCore })
	if k < 0 {
		t.Fatal("no scheduler")
	}
	core := &eng.Processes[k]
	objs := countedRuns(t)
	a, err := probes.Attach(objs, eng.Kind, core)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	in, err := python.Open(core.PID)
	if err != nil {
		t.Fatal(err)
	}
	i, err := probes.AttachInterpreter(objs, core, in, pythonProbes(sglangInside(t, core, in)))
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	batches := -1
	for n, s := range i.Report() {
		if !s.Attached {
			t.Fatalf("%s: %s", s.Callable, s.Reason)
		}
		if strings.HasSuffix(s.Callable, "deque.append") {
			batches = n
		}
	}
	if batches < 0 {
		t.Fatal("no probe on batches")
	}
	look := func() (steps, traps uint64, inBPF time.Duration) {
		for n, s := range i.Report() {
			use, err := i.Use(n)
			if err != nil {
				t.Fatal(err)
			}
			if n == batches {
				steps = use.Hits
			}
			if !s.Shared {
				traps += use.Hits
			}
		}
		all, err := objs.Stats()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []bpf.Program{bpf.ProgPyHit, bpf.ProgWireSend} {
			inBPF += all[string(p)].Runtime
		}
		return steps, traps + all[string(bpf.ProgWireSend)].Runs, inBPF
	}
	stream := func(n int) {
		var wg sync.WaitGroup
		for k := range n {
			wg.Go(func() {
				body := fmt.Sprintf(`{"text": "request %d of many", "stream": true, "sampling_params": {"max_new_tokens": %d, "ignore_eos": true}}`, k, tokens)
				resp, err := http.Post(e.url+"/generate", "application/json", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("status %d: %v", resp.StatusCode, err)
				}
			})
		}
		wg.Wait()
	}
	stream(64) // what compiles on first use
	for _, n := range []int{1, 64, 1, 64} {
		steps, traps, inBPF := look()
		began := time.Now()
		stream(n)
		took := time.Since(began)
		s, r, b := look()
		steps, traps, inBPF = s-steps, r-traps, b-inBPF
		if steps < tokens/2 {
			t.Fatalf("%d steps", steps)
		}
		perStep := float64(traps) / float64(steps)
		t.Logf("%2d requests: %d steps of %.1f ms, %.2f traps and %.1f us in BPF a step, %.2f us for each request", n, steps,
			float64(took)/1e6/float64(steps), perStep, float64(inBPF)/1e3/float64(steps), float64(inBPF)/1e3/float64(n*tokens))
		// A batch, a message, and a look behind it; those that start together may need some
		// batches more.
		if perStep > 3.1 {
			t.Errorf("%d requests: %.2f traps per step, want at most 3.1", n, perStep)
		}
	}
}

// pythonProbes converts an engine's probes to those of an interpreter.
func pythonProbes(list []engines.Probe) []probes.PythonProbe {
	var out []probes.PythonProbe
	for _, p := range list {
		spec := probes.PythonProbe{Callable: p.Callable, ZMQ: p.ZMQ, Behind: p.Behind}
		for _, x := range p.Watches {
			spec.Watches = append(spec.Watches, probes.Watch{Caller: x.Caller, Plans: x.Plans})
		}
		out = append(out, spec)
	}
	return out
}
