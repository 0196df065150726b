package prom

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"inferspan/correlate"
	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/internal/sample"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestGolden(t *testing.T) {
	var b bytes.Buffer
	if err := WriteText(&b, sample.Snapshot(), export.Defaults{}); err != nil {
		t.Fatal(err)
	}
	const file = "testdata/snapshot.prom"
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("got\n%s", b.Bytes())
	}
	var again bytes.Buffer
	if err := WriteText(&again, sample.Snapshot(), export.Defaults{}); err != nil || !bytes.Equal(again.Bytes(), b.Bytes()) {
		t.Errorf("a second time: %v\n%s", err, again.Bytes())
	}
	lint(t, &b)
}

// lint demands that the text parses and that our own names are clean; the
// documented ones are as they are.
func lint(t *testing.T, r io.Reader) {
	t.Helper()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(bytes.NewReader(text)); err != nil {
		t.Error(err)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, own) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func TestTargetsThatLookAlike(t *testing.T) {
	a := &trace.Resource{Attrs: []trace.Attr{{Key: "k8s.pod.name", Value: "a"}}}
	b := &trace.Resource{Attrs: []trace.Attr{{Key: "k8s.pod.name", Value: "b"}}}
	s := &metric.Snapshot{Families: []metric.Family{{Name: "x", Help: "h", Type: metric.Gauge, Points: []metric.Point{{Value: 1, Resource: a}, {Value: 2, Resource: b}}}}}
	var out bytes.Buffer
	if err := WriteText(&out, s, export.Defaults{ServiceName: "llm"}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\nx{service_name=\"llm\",target_id="); n != 2 {
		t.Errorf("got\n%s", &out)
	}
}

func TestFaultsAreNamedAndTheRestIsShown(t *testing.T) {
	bad := sample.Snapshot()
	bad.Families = append(bad.Families,
		metric.Family{Name: "short", Type: metric.Histogram, Bounds: []float64{1}, Points: []metric.Point{{Buckets: []uint64{1}}}},
		metric.Family{Name: "utf8", Help: "h", Type: metric.Gauge, Points: []metric.Point{{Labels: []metric.Label{{Name: "a", Value: "\xff"}}}}})
	var out bytes.Buffer
	err := WriteText(&out, bad, export.Defaults{})
	if err == nil || !strings.Contains(err.Error(), "short: 1 buckets for 1 bounds") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "gen_ai_vllm_generation_tokens{") || !strings.Contains(out.String(), "utf8{a=\"\ufffd\"} 0") {
		t.Errorf("got\n%s", &out)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestWriteError(t *testing.T) {
	if err := WriteText(failing{}, sample.Snapshot(), export.Defaults{}); err == nil || err.Error() != "writing metrics: broken" {
		t.Errorf("got %v", err)
	}
}

func get(t *testing.T, url string, header ...string) (string, string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range header {
		req.Header.Set("Accept", h)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %s %v", url, resp.Status, err)
	}
	return string(b), resp.Header.Get("Content-Type")
}

func TestServer(t *testing.T) {
	var logged []error
	snap := sample.Snapshot()
	stats := export.Stats{Name: "otlp", Exported: export.Count{Spans: 7, Logs: 1}, Waiting: export.Count{Spans: 3}, Bytes: 99}
	stats.Dropped[0].Spans = 5
	h, err := Handler(func() *metric.Snapshot { return snap }, HandlerOptions{Version: "1.2.3",
		Queues: func() []export.Stats { return []export.Stats{stats} }, Log: func(err error) { logged = append(logged, err) }})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := Listen("127.0.0.1:0", h)
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + srv.Addr().String()
	// A scraper that prefers OpenMetrics must see the documented names too.
	body, ct := get(t, base+"/metrics", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
	if !strings.HasPrefix(ct, "text/plain; version=0.0.4") {
		t.Errorf("content type %s", ct)
	}
	for _, want := range []string{
		`inferspan_build_info{version="1.2.3"} 1`,
		`inferspan_export_spans_total{sink="otlp"} 7`,
		`inferspan_export_dropped_spans_total{reason="queue_full",sink="otlp"} 5`,
		`inferspan_export_dropped_spans_total{reason="timeout",sink="otlp"} 0`,
		`inferspan_export_queue_spans{sink="otlp"} 3`,
		`inferspan_lost_records_total{reason="ring_full",stage="kernel"} 3`,
		"process_resident_memory_bytes ", "process_cpu_seconds_total ", "go_goroutines ",
		`gen_ai_vllm_generation_tokens{callType="gen_ai",engine_index="0",model_name="tiny",process_pid="5151",rpcType="2100",service_name="vllm"} 7`,
	} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("no %s", want)
		}
	}
	lint(t, strings.NewReader(body))
	if len(logged) != 0 {
		t.Errorf("logged %v", logged)
	}
	if root, _ := get(t, base+"/"); !strings.Contains(root, "/metrics") {
		t.Errorf("root says %q", root)
	}
	snap = &metric.Snapshot{Families: []metric.Family{{Name: "h", Type: metric.Histogram, Points: []metric.Point{{}}}}}
	if body, _ := get(t, base+"/metrics"); !strings.Contains(body, "inferspan_build_info") || len(logged) != 1 {
		t.Errorf("a bad family took the rest with it, or was not logged: %v", logged)
	}
	snap = nil
	get(t, base+"/metrics")

	if _, err := Listen(srv.Addr().String(), h); err == nil || !strings.HasPrefix(err.Error(), "serving metrics at 127.0.0.1:") || !strings.HasSuffix(err.Error(), "address already in use") {
		t.Errorf("second listener: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for range 2 {
		if err := srv.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestKindsOfEngines: metrics that two kinds of engines share are one family.
func TestKindsOfEngines(t *testing.T) {
	c := correlate.New(correlate.NewOptions())
	put := func(s signal.Signal) { c.Put(s, func(*trace.Tree) {}) }
	put(&signal.Clock{At: 1, Wall: 1})
	for i, kind := range []string{"vllm", "sglang"} {
		core := signal.Core{Engine: signal.EngineID(1 + i), PID: uint32(100 + i)}
		put(&signal.Engine{At: 1, ID: core.Engine, Kind: kind, Model: "m", Resource: []signal.KV{{Key: "service.name", Value: kind}}})
		put(&signal.RequestAdded{At: 2, Core: core, ID: "r", ExternalID: "r", ResponseID: "r", Known: true, Arrival: 2, PromptTokens: signal.Some[int64](3)})
		put(&signal.RequestTimes{At: 3, Engine: core.Engine, ID: "r", Created: 2, First: 4, Finished: 5})
		put(&signal.StepOutput{At: 5, Core: core, Stamp: 5, Outputs: []signal.Output{{ID: []byte("r"), NumTokens: 1, Finish: signal.FinishStop, FinishReason: "stop"}}})
	}
	put(&signal.Detach{At: 6})
	m := c.Metrics()
	var b bytes.Buffer
	if err := WriteText(&b, &m, export.Defaults{}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"vllm", "sglang"} {
		for _, name := range []string{"genai_llm_usage_tokens", "gen_ai_server_request_duration"} {
			if !regexp.MustCompile(`(?m)^` + name + `\{.*service_name="` + kind + `"`).MatchString(b.String()) {
				t.Errorf("no series of %s of %s in\n%s", name, kind, b.String())
			}
		}
	}
}
