// Package collectortest runs the Collector of tests/collector for tests and
// reads back what it received.
package collectortest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"inferspan/tests/cache"
)

// Build builds the Collector unless it is in the cache and returns the path of
// the binary. The cache is $INFERSPAN_CACHE, else the user's cache folder; the
// name of the binary holds a hash of its sources. The first build takes minutes.
func Build(ctx context.Context) (string, error) {
	_, self, _, _ := runtime.Caller(0)
	src := filepath.Join(filepath.Dir(self), "..", "collector")
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum", "main.go", "lines.go"} {
		data, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return "", fmt.Errorf("building the collector: %w", err)
		}
		h.Write(data)
	}
	root, err := cache.Dir()
	if err != nil {
		return "", fmt.Errorf("building the collector: %w", err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", fmt.Errorf("building the collector: %w", err)
	}
	bin := filepath.Join(root, "collector-"+hex.EncodeToString(h.Sum(nil))[:16])
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	// Built aside, so that a build cut short leaves nothing behind under the
	// final name and two at once do no harm.
	tmp := bin + ".tmp" + strconv.Itoa(os.Getpid())
	defer os.Remove(tmp)
	// -p 1: the Collector's packages are large, and so is what compiling several at once takes.
	cmd := exec.CommandContext(ctx, "go", "build", "-p", "1", "-trimpath", "-ldflags=-s -w", "-o", tmp, ".")
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the collector: %w\n%s", err, out)
	}
	if err := os.Rename(tmp, bin); err != nil {
		return "", fmt.Errorf("building the collector: %w", err)
	}
	return bin, nil
}

// Collector is a running Collector.
type Collector struct {
	Endpoint string // base URL of its OTLP/HTTP receiver

	cmd  *exec.Cmd
	log  string
	dir  string
	done chan struct{}
}

// Start builds and starts a Collector and waits until it receives. It is
// stopped when the test ends.
func Start(t testing.TB) *Collector {
	t.Helper()
	bin, err := Build(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// A free port can be taken by someone else before the Collector has it.
	for try := 0; ; try++ {
		c, err := start(t, bin)
		if err == nil {
			t.Cleanup(c.Stop)
			return c
		}
		if try == 3 {
			t.Fatal(err)
		}
	}
}

func start(t testing.TB, bin string) (*Collector, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	c := &Collector{Endpoint: "http://" + addr, dir: dir, log: filepath.Join(dir, "log"), done: make(chan struct{})}
	config := fmt.Sprintf(`
receivers:
  otlp:
    protocols:
      http:
        endpoint: %s
exporters:
  lines/traces: {path: %q}
  lines/metrics: {path: %q}
  lines/logs: {path: %q}
service:
  telemetry:
    metrics: {level: none}
  pipelines:
    traces: {receivers: [otlp], exporters: [lines/traces]}
    metrics: {receivers: [otlp], exporters: [lines/metrics]}
    logs: {receivers: [otlp], exporters: [lines/logs]}
`, addr, c.file("traces"), c.file("metrics"), c.file("logs"))
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd = exec.Command(bin, "--config", file)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the collector: %w", err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	for range 300 {
		select {
		case <-c.done:
			text, _ := os.ReadFile(c.log)
			return nil, fmt.Errorf("the collector ended:\n%s", text)
		case <-time.After(100 * time.Millisecond):
		}
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			return c, nil
		}
	}
	c.Stop()
	text, _ := os.ReadFile(c.log)
	return nil, fmt.Errorf("the collector does not listen:\n%s", text)
}

// Stop ends the Collector. It may be called more than once.
func (c *Collector) Stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(10 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

func (c *Collector) file(signal string) string { return filepath.Join(c.dir, signal+".jsonl") }

// Span is a span as the Collector received it.
type Span struct {
	TraceID, SpanID, ParentID string // hex
	Name                      string
	Kind                      int
	Start, End                int64          // ns since the epoch
	Attrs                     map[string]any // string, bool, int64, float64, []any, map[string]any
	Events                    []Event
	Links                     []Link
	Code                      int
	Message                   string
	Resource                  map[string]any
	Scope, ScopeVersion       string
}

// Event is a span event.
type Event struct {
	Name  string
	Time  int64
	Attrs map[string]any
}

// Link is a span link.
type Link struct{ TraceID, SpanID string }

// Log is a log record.
type Log struct {
	EventName       string
	TraceID, SpanID string
	Attrs           map[string]any
	Resource        map[string]any
}

type value struct {
	String *string                      `json:"stringValue"`
	Bool   *bool                        `json:"boolValue"`
	Int    *int64                       `json:"intValue,string"`
	Double *float64                     `json:"doubleValue"`
	Array  *struct{ Values []value }    `json:"arrayValue"`
	Map    *struct{ Values []keyValue } `json:"kvlistValue"`
}

type keyValue struct {
	Key   string
	Value value
}

func (v value) any() any {
	switch {
	case v.String != nil:
		return *v.String
	case v.Bool != nil:
		return *v.Bool
	case v.Int != nil:
		return *v.Int
	case v.Double != nil:
		return *v.Double
	case v.Array != nil:
		out := make([]any, len(v.Array.Values))
		for i := range out {
			out[i] = v.Array.Values[i].any()
		}
		return out
	case v.Map != nil:
		return attrs(v.Map.Values)
	}
	return nil
}

func attrs(kvs []keyValue) map[string]any {
	m := make(map[string]any, len(kvs))
	for _, kv := range kvs {
		m[kv.Key] = kv.Value.any()
	}
	return m
}

type resource struct{ Attributes []keyValue }

// lines decodes every line of a signal's file into a T.
func lines[T any](file string) ([]T, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []T
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // being written
		}
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		out = append(out, v)
	}
	return out, nil
}

// Spans returns the spans received so far, in order of arrival.
func (c *Collector) Spans() ([]Span, error) {
	type export struct {
		ResourceSpans []struct {
			Resource   resource
			ScopeSpans []struct {
				Scope struct{ Name, Version string }
				Spans []struct {
					TraceID, SpanID, ParentSpanID string
					Name                          string
					Kind                          int
					StartTimeUnixNano             int64 `json:",string"`
					EndTimeUnixNano               int64 `json:",string"`
					Attributes                    []keyValue
					Events                        []struct {
						Name         string
						TimeUnixNano int64 `json:",string"`
						Attributes   []keyValue
					}
					Links  []Link
					Status struct {
						Code    int
						Message string
					}
				}
			}
		}
	}
	es, err := lines[export](c.file("traces"))
	if err != nil {
		return nil, err
	}
	var out []Span
	for _, e := range es {
		for _, rs := range e.ResourceSpans {
			res := attrs(rs.Resource.Attributes)
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					sp := Span{TraceID: s.TraceID, SpanID: s.SpanID, ParentID: s.ParentSpanID, Name: s.Name, Kind: s.Kind,
						Start: s.StartTimeUnixNano, End: s.EndTimeUnixNano, Attrs: attrs(s.Attributes), Code: s.Status.Code,
						Message: s.Status.Message, Resource: res, Scope: ss.Scope.Name, ScopeVersion: ss.Scope.Version}
					for _, ev := range s.Events {
						sp.Events = append(sp.Events, Event{ev.Name, ev.TimeUnixNano, attrs(ev.Attributes)})
					}
					sp.Links = s.Links
					out = append(out, sp)
				}
			}
		}
	}
	return out, nil
}

// WaitSpans waits until at least n spans have come.
func (c *Collector) WaitSpans(n int, d time.Duration) ([]Span, error) {
	end := time.Now().Add(d)
	for {
		spans, err := c.Spans()
		if err != nil || len(spans) >= n {
			return spans, err
		}
		if time.Now().After(end) {
			return spans, fmt.Errorf("%d spans came in %v, want %d", len(spans), d, n)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Logs returns the log records received so far.
func (c *Collector) Logs() ([]Log, error) {
	type export struct {
		ResourceLogs []struct {
			Resource  resource
			ScopeLogs []struct {
				LogRecords []struct {
					EventName       string
					TraceID, SpanID string
					Attributes      []keyValue
				}
			}
		}
	}
	es, err := lines[export](c.file("logs"))
	if err != nil {
		return nil, err
	}
	var out []Log
	for _, e := range es {
		for _, rl := range e.ResourceLogs {
			for _, sl := range rl.ScopeLogs {
				for _, r := range sl.LogRecords {
					out = append(out, Log{r.EventName, r.TraceID, r.SpanID, attrs(r.Attributes), attrs(rl.Resource.Attributes)})
				}
			}
		}
	}
	return out, nil
}

// Complaints returns the lines of the Collector's log at the levels warn and above.
func (c *Collector) Complaints() []string {
	data, _ := os.ReadFile(c.log)
	var out []string
	for line := range strings.Lines(string(data)) {
		for _, level := range []string{"\twarn\t", "\terror\t", "\tfatal\t"} {
			if strings.Contains(line, level) {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return out
}
