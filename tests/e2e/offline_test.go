package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const offline = "../engines/vllm/offline.sh"

// program is a program that uses the engine as a library.
type program struct {
	engine
	in  io.WriteCloser
	out *bufio.Reader
}

// result is what came of a request, as the program saw it.
type result struct {
	ID     string `json:"id"`
	Prompt int64  `json:"prompt"`
	Output int64  `json:"output"`
	Finish string `json:"finish"`
}

// startProgram starts a program that ends with the test. Its steps are logged from inside.
func startProgram(t *testing.T, env ...string) (p *program, steps string) {
	t.Helper()
	dir := outDir(t)
	steps, logging := stepLog(t, "vllm")
	errs, err := os.Create(filepath.Join(dir, "program.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	cmd := exec.Command(offline, `{"num_gpu_blocks_override":64,"max_num_batched_tokens":64,"max_num_seqs":16}`)
	cmd.Env = slices.Concat(os.Environ(), logging, env)
	cmd.Stderr = errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			cmd.Process.Kill()
			t.Errorf("the program did not end: %v", <-ended)
		}
	})
	p = &program{engine: engine{pid: cmd.Process.Pid}, in: in, out: bufio.NewReader(out)}
	if line, err := p.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the program said %q, %v; see %s", line, err, errs.Name())
	}
	return p, steps
}

// begin has the program generate.
func (p *program) begin(t *testing.T, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		t.Fatal(err)
	}
}

// end waits until the program has generated, and returns what came of it by id.
func (p *program) end(t *testing.T) map[string]result {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var all []result
	if err := json.Unmarshal([]byte(line), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]result{}
	for _, r := range all {
		out[r.ID] = r
	}
	return out
}

// TestOffline traces programs that use the engine as a library, with the core in the
// same process and in its own, at work as soon as the tracer says that it is attached.
func TestOffline(t *testing.T) {
	need(t)
	for _, c := range []struct {
		name string
		env  []string
	}{
		{"core in the program", []string{"VLLM_ENABLE_V1_MULTIPROCESSING=0"}},
		{"core on its own", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, log := startProgram(t, c.env...)
			t.Run("at once", func(t *testing.T) { p.atOnce(t, log) })
			t.Run("under way", func(t *testing.T) { p.underWay(t, log, "48 400") })
			t.Run("short", func(t *testing.T) { p.underWay(t, log, "96 40") })
		})
	}
}

// metricOf reads one of the tracer's metrics.
func metricOf(t *testing.T, port int, name string) float64 {
	t.Helper()
	return scrape(t, fmt.Sprintf("http://127.0.0.1:%d/metrics", port)).sum(name)
}

// stepNumbers are those of the step lines of a file.
func stepNumbers(t *testing.T, file string) map[int64]bool {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[int64]bool{}
	for line := range bytes.Lines(b) {
		var x struct{ Step *int64 }
		if err := json.Unmarshal(line, &x); err != nil {
			t.Fatal(err)
		}
		if x.Step != nil {
			out[*x.Step] = true
		}
	}
	return out
}

func (p *program) atOnce(t *testing.T, log string) {
	port := freePort(t)
	before := readTruth(t, log)
	tr := attach(t, &p.engine, "--precision", "2", "--steps", "2", "--prometheus", "127.0.0.1:"+strconv.Itoa(port))
	want := map[string]result{}
	for _, line := range []string{"36 24", "20 1", "12 40 e"} {
		p.begin(t, line)
		for id, r := range p.end(t) {
			want[id] = r
		}
	}
	time.Sleep(3 * time.Second) // the end of the last ones is seen when the core is found empty
	missed := metricOf(t, port, "inferspan_steps_missed_total")
	spans := tr.mustStop(t)
	f := faults{t: t}
	defer f.end("requests")
	seen, made := stepNumbers(t, tr.jsonl), 0
	truth := readTruth(t, log)
	for n, step := range truth {
		if before[n] != nil || len(step.Scheduled) == 0 {
			continue
		}
		made++
		// The last one may have no end that can be seen: its requests met their stop
		// strings in the step before, and gave no outputs.
		next := truth[n+1]
		if last := len(step.Stamps) == 0 && (next == nil || len(next.Scheduled) == 0 && truth[n+2] == nil); !seen[n] && !last {
			f.add("step %d was not seen", n)
		}
	}
	if missed != 0 || made == 0 {
		f.add("%v steps were missed of %d", missed, made)
	}
	kids := children(spans)
	n := 0
	for _, s := range spans {
		if !s.llmRequest() {
			continue
		}
		n++
		r, ok := want[s.text("gen_ai.request.id")]
		if !ok {
			f.add("request %s is not one of the program", s.text("gen_ai.request.id"))
			continue
		}
		for _, stage := range []string{"wait", "prefill", "decode"} {
			if kids[s.SpanID][stage] != 1 {
				f.add("request %s has %d spans %s", r.ID, kids[s.SpanID][stage], stage)
			}
		}
		for key, want := range map[string]int64{"gen_ai.usage.prompt_tokens": r.Prompt, "gen_ai.usage.completion_tokens": r.Output} {
			if got, ok := s.number(key); !ok || int64(got) != want {
				f.add("request %s: %s is %v, want %d", r.ID, key, got, want)
			}
		}
		for _, key := range []string{"gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_decode", "gen_ai.latency.time_to_first_token",
			"gen_ai.latency.e2e", "gen_ai.request.max_tokens", "gen_ai.request.temperature", "inferspan.steps.count"} {
			if _, ok := s.number(key); !ok {
				f.add("request %s has no %s", r.ID, key)
			}
		}
		outcome := map[string]string{"length": "completed", "stop": "stop_string"}[r.Finish]
		if got := s.text("inferspan.outcome"); got != outcome {
			f.add("request %s: outcome %s, want %s", r.ID, got, outcome)
		}
		if s.Attrs["inferspan.partial"] != nil || s.Resource["inferspan.engine.max_num_seqs"] == nil {
			f.add("request %s: partial %v, max_num_seqs %v", r.ID, s.Attrs["inferspan.partial"], s.Resource["inferspan.engine.max_num_seqs"])
		}
	}
	if n != len(want) {
		f.add("%d requests, want %d", n, len(want))
	}
}

func children(spans []*span) map[string]map[string]int {
	out := map[string]map[string]int{}
	for _, s := range spans {
		if out[s.ParentID] == nil {
			out[s.ParentID] = map[string]int{}
		}
		out[s.ParentID][s.Name]++
	}
	return out
}

// underWay attaches while the program generates. What is said then is right, and what is
// missing says why.
func (p *program) underWay(t *testing.T, log, line string) {
	before := countLines(t, log)
	p.begin(t, line)
	for i := 0; countLines(t, log) < before+20; i++ {
		if i == 200 {
			t.Fatal("the program does not begin")
		}
		time.Sleep(20 * time.Millisecond)
	}
	tr := attach(t, &p.engine, "--precision", "2", "--steps", "2")
	steps := countLines(t, log)
	want := p.end(t)
	begun, worked := scheduledSince(t, log, steps)
	time.Sleep(3 * time.Second)
	spans := tr.mustStop(t)
	f := faults{t: t}
	defer f.end("requests")
	kids := children(spans)
	n, computed, counted := 0, 0, 0
	for _, s := range spans {
		if !s.llmRequest() {
			continue
		}
		n++
		// Of those that ended before an output of theirs was seen only the core's id is known.
		id := s.text("inferspan.request.internal_id")
		name, _, _ := strings.Cut(id, "-")
		r, known := want[name]
		if got := s.text("gen_ai.request.id"); !known || got != "" && got != name {
			f.add("request %v is not one of the program", s.Attrs)
			continue
		}
		if got, ok := s.number("gen_ai.usage.completion_tokens"); ok {
			counted++
			delete(worked, id)
			if int64(got) != r.Output {
				f.add("request %s: %v tokens, want %d", r.ID, got, r.Output)
			}
		}
		// All began before the tracer came; most had not been scheduled yet. Some end before
		// the probes are in, and say so too.
		partial, why := s.Attrs["inferspan.partial"], fmt.Sprint(s.Attrs["inferspan.unavailable"])
		if kids[s.SpanID]["wait"] == 0 && !strings.Contains(why, "gen_ai.latency.time_in_queue") {
			f.add("request %s has no wait, and does not say why: partial is %v, unavailable %s", r.ID, partial, why)
		}
		switch kids[s.SpanID]["prefill"] {
		case 1:
			computed++
			delete(begun, id)
		default:
			if !strings.Contains(why, "gen_ai.latency.time_in_model_prefill") {
				f.add("request %s has no prefill, and does not say why: partial is %v, unavailable %s", r.ID, partial, why)
			}
		}
	}
	t.Logf("%d requests, %d of them with their prefill, %d with their tokens", n, computed, counted)
	// Whose first step came after the probes has its prefill, who was in any later step its tokens.
	for id := range begun {
		f.add("request %s was first scheduled when the tracer was there, and has no prefill", id)
	}
	for id := range worked {
		f.add("request %s was scheduled when the tracer was there, and has no tokens", id)
	}
}

// scheduledSince returns the requests of the steps in the log behind the first n: those that
// were first scheduled there, and all.
func scheduledSince(t *testing.T, log string, n int) (begun, all map[string]bool) {
	t.Helper()
	begun, all = map[string]bool{}, map[string]bool{}
	eachLine(t, log, func(s *stepTruth) {
		if s.EndOf != 0 {
			return
		}
		if n--; n >= 0 {
			return
		}
		for _, id := range s.New {
			begun[id] = true
		}
		for id := range s.Scheduled {
			all[id] = true
		}
	})
	return begun, all
}
