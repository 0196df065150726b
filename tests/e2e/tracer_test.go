package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// span is a line of the JSONL export.
type span struct {
	TraceID  string         `json:"trace_id"`
	SpanID   string         `json:"span_id"`
	ParentID string         `json:"parent_span_id"`
	Name     string         `json:"name"`
	Kind     string         `json:"kind"`
	Start    int64          `json:"start_unix_nano"`
	End      int64          `json:"end_unix_nano"`
	Attrs    map[string]any `json:"attributes"`
	Events   []struct {
		Name  string         `json:"name"`
		Time  int64          `json:"time_unix_nano"`
		Attrs map[string]any `json:"attributes"`
	} `json:"events"`
	Status struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"status"`
	Resource map[string]any `json:"resource"`

	// A line of a scheduler step (--steps) has these and no name.
	Step      int64         `json:"step"`
	Partial   bool          `json:"partial"`
	Requests  []stepRequest `json:"requests"`
	Forward   []forward     `json:"forward"`
	FirstSkew *int64        `json:"first_launch_skew_nano"`
	LastSkew  *int64        `json:"last_launch_skew_nano"`
}

// stepRequest is a request in a step.
type stepRequest struct {
	ID     string  `json:"id"`
	Tokens float64 `json:"tokens"`
}

func (s *span) text(key string) string { v, _ := s.Attrs[key].(string); return v }

// number returns a numeric attribute; ok is false if the span has none of that name.
func (s *span) number(key string) (v float64, ok bool) {
	n, ok := s.Attrs[key].(json.Number)
	if !ok {
		return 0, false
	}
	v, err := n.Float64()
	return v, err == nil
}

// entry says whether it is the span of an API request. Only those carry the kind.
func (s *span) entry() bool { return s.text("gen_ai.span.kind") != "" }

func (s *span) llmRequest() bool { return s.Name == "llm_request" }

func readSpans(t *testing.T, path string) []*span {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []*span
	in := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			s := &span{}
			d := json.NewDecoder(bytes.NewReader(line))
			d.UseNumber()
			if err := d.Decode(s); err != nil {
				t.Fatalf("%s line %d: %v", path, n, err)
			}
			all = append(all, s)
		}
		if err != nil {
			return all
		}
	}
}

// syncBuffer collects the output of a process while it runs.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// tracer is a running "inferspan attach".
type tracer struct {
	cmd    *exec.Cmd
	stdout syncBuffer
	stderr syncBuffer
	jsonl  string
	done   chan error
}

// Traps are dear in a virtual machine, and the steps of a tiny model short: probes stay in
// whatever they cost, unless a test is about that and gives the budget that is the default.
var (
	unbounded = []string{"--probe-work", "0", "--probe-wait", "0"}
	governed  = []string{"--probe-work", "1", "--probe-wait", "20us"}
)

// attach starts the tracer on the engine and returns when its probes are in place.
func attach(t *testing.T, e *engine, flags ...string) *tracer {
	t.Helper()
	return attachTo(t, e, "spans", flags...)
}

// attachTo is attach, with the name of the file of spans where a test has several.
func attachTo(t *testing.T, e *engine, name string, flags ...string) *tracer {
	t.Helper()
	return attachWith(t, binary, nil, e, name, flags...)
}

// attachWith is attachTo with another build of the tracer, and more in its environment.
func attachWith(t *testing.T, program string, env []string, e *engine, name string, flags ...string) *tracer {
	t.Helper()
	tr := &tracer{jsonl: filepath.Join(outDir(t), name+".jsonl"), done: make(chan error, 1)}
	args := append([]string{"attach", "--pid", strconv.Itoa(e.pid), "--jsonl", tr.jsonl}, slices.Concat(unbounded, flags)...)
	tr.cmd = exec.Command(program, args...)
	tr.cmd.Env = append(os.Environ(), env...)
	tr.cmd.Stdout, tr.cmd.Stderr = &tr.stdout, &tr.stderr
	if err := tr.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { tr.done <- tr.cmd.Wait() }()
	t.Cleanup(func() {
		if tr.cmd.ProcessState == nil {
			tr.cmd.Process.Kill()
			<-tr.done
		}
	})
	for range 300 {
		if strings.Contains(tr.stderr.String(), "attached") {
			return tr
		}
		select {
		case err := <-tr.done:
			tr.done <- err
			t.Fatalf("attach ended: %v\n%s", err, tr.stderr.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatalf("attach is not ready after 30 s\n%s", tr.stderr.String())
	return nil
}

// settle waits until the tracer has written at least n entry spans, or 10 s.
func (tr *tracer) settle(t *testing.T, n int) {
	t.Helper()
	for range 100 {
		b, err := os.ReadFile(tr.jsonl)
		if err == nil && bytes.Count(b, []byte(`"gen_ai.span.kind"`)) >= n {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// stop interrupts the tracer and returns its exit code, and the spans that it wrote.
func (tr *tracer) stop(t *testing.T) (int, []*span) {
	t.Helper()
	tr.cmd.Process.Signal(syscall.SIGINT)
	var err error
	select {
	case err = <-tr.done:
	case <-time.After(60 * time.Second):
		t.Fatalf("attach did not end within 60 s of the interrupt\n%s", tr.stderr.String())
	}
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return code, readSpans(t, tr.jsonl)
}

// mustStop is stop for runs that must end well.
func (tr *tracer) mustStop(t *testing.T) []*span {
	t.Helper()
	code, spans := tr.stop(t)
	if code != 0 {
		t.Fatalf("attach ended with %d\n%s", code, tr.stderr.String())
	}
	// What it said of losses and of probes that came and went is wanted when something is wrong.
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the tracer said:\n%s", tr.stderr.String())
		}
	})
	return spans
}
