package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"inferspan/tests/workload"
)

const (
	binary         = "../../bin/inferspan"
	workloadBinary = "../../bin/workload"
	serve          = "../engines/vllm/serve.sh"
	serveCUDA      = "../engines/vllm-cuda/serve.sh"
)

// engine is a running engine.
type engine struct {
	pid int // API server
	url string
	log string
}

// generateFlags make one server fit for all scenarios but pooling: few blocks so
// that requests are preempted, few tokens per step so that prompts are chunked.
var generateFlags = []string{
	"--num-gpu-blocks-override", "12", "--max-num-batched-tokens", "256",
	"--enable-auto-tool-choice", "--tool-call-parser", "hermes",
}

// generateNeeds are the scenarios that such a server can play.
var generateNeeds = []workload.Needs{workload.NeedsGenerate, workload.NeedsTools, workload.NeedsSmallKV}

var poolingFlags = []string{"--runner", "pooling", "--convert", "embed"}

// freePort returns a TCP port that was free a moment ago. It is none of those that the kernel
// gives connections (from 32768 on, mostly): an engine takes so long to start that one would
// have it by then.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(12000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// startEngine starts a vLLM that ends with the test.
func startEngine(t *testing.T, env []string, flags ...string) *engine {
	t.Helper()
	return startWith(t, serve, env, flags...)
}

// startWith is startEngine by another script.
func startWith(t *testing.T, script string, env []string, flags ...string) *engine {
	t.Helper()
	port := freePort(t)
	name := filepath.Base(filepath.Dir(script))
	log := filepath.Join(outDir(t), name+".log")
	args := append([]string{"start", "--port", strconv.Itoa(port), "--log", log, "--"}, flags...)
	cmd := exec.Command(script, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("starting %s: %v\n%s", name, err, &stderr)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	t.Logf("%s serves on port %d after %.0f s, process %d", name, port, time.Since(began).Seconds(), pid)
	e := &engine{pid: pid, url: fmt.Sprintf("http://127.0.0.1:%d", port), log: log}
	t.Cleanup(func() {
		if out, err := exec.Command(script, "stop", strconv.Itoa(pid)).CombinedOutput(); err != nil {
			t.Errorf("stopping %s: %v\n%s", name, err, out)
		}
	})
	return e
}

// outDir is where a test leaves logs and spans for a person to look at.
func outDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("../../out/e2e", strings.ReplaceAll(t.Name(), "/", "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// play runs every scenario that the server can play and returns the log. It fails
// the test when the server did not do as planned: then the log is no truth.
func (e *engine) play(t *testing.T, o workload.Options, needs ...workload.Needs) []workload.Entry {
	t.Helper()
	var names []string
	for _, s := range workload.Scenarios() {
		for _, n := range needs {
			if s.Needs == n {
				names = append(names, s.Name)
			}
		}
	}
	return e.playNamed(t, o, names...)
}

func (e *engine) playNamed(t *testing.T, o workload.Options, names ...string) []workload.Entry {
	t.Helper()
	log, err := e.send(t.Context(), o, names...)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// send is playNamed for goroutines that may not end the test.
func (e *engine) send(ctx context.Context, o workload.Options, names ...string) ([]workload.Entry, error) {
	o.BaseURL = e.url
	var log []workload.Entry
	for _, name := range names {
		part, err := workload.Run(ctx, workload.Find(name), o)
		if err != nil {
			return nil, fmt.Errorf("playing %s: %w", name, err)
		}
		if bad := workload.Check(part); len(bad) > 0 {
			return nil, fmt.Errorf("the server did not do as planned:\n%s", strings.Join(bad, "\n"))
		}
		log = append(log, part...)
	}
	return log, nil
}

// idle waits until the engine runs nothing, so that a scenario that left early
// does not reach into what follows.
func (e *engine) idle(t *testing.T) {
	t.Helper()
	for range 300 {
		m := e.metrics(t)
		if m.sum("vllm:num_requests_running") == 0 && m.sum("vllm:num_requests_waiting") == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("the engine is still busy after 30 s")
}

func (e *engine) metrics(t *testing.T) series {
	t.Helper()
	return scrape(t, e.url+"/metrics")
}

// series is a Prometheus page: name with labels as written -> value.
type series map[string]float64

func scrape(t *testing.T, url string) series {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatalf("reading metrics: %v", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("reading metrics: status %d, %v", resp.StatusCode, err)
	}
	return parseSeries(t, string(b))
}

func parseSeries(t *testing.T, page string) series {
	t.Helper()
	m := series{}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("reading metrics: line %q: %v", line, err)
		}
		m[line[:i]] = v
	}
	return m
}

// sum adds up the series of a name whose labels contain all of the given parts,
// such as `reason="stop"`.
func (m series) sum(name string, labels ...string) float64 {
	total := 0.0
next:
	for k, v := range m {
		base, rest, _ := strings.Cut(k, "{")
		if base != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue next
			}
		}
		total += v
	}
	return total
}
