package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"inferspan/correlate/semconv"
	"inferspan/tests/workload"
)

// pair is one of our metrics and the engine's own count of the same thing.
type pair struct {
	ours, theirs string
	label        string // `finished_reason="stop"`; "" for all series
	time         bool   // a sum of seconds: equal within 1 ms a request or 1 %
	// front: ends at a moment of the front end's event loop. Few requests that waited
	// for it long, when something was compiled, make most of the difference.
	front bool
	// late: the engine's front end does not count what arrives after it gave a request
	// up, which is a few outputs before the engine core hears of it.
	late bool
}

var pairs = []pair{
	{ours: semconv.MetricVLLMIterCount, theirs: "vllm:iteration_tokens_total_count"},
	{ours: semconv.MetricGenAIVLLMPromptTokens, theirs: "vllm:prompt_tokens_total"},
	{ours: semconv.MetricGenAIVLLMGenerationTokens, theirs: "vllm:generation_tokens_total", late: true},
	{ours: semconv.MetricGenAIVLLMRequestSuccess, theirs: "vllm:request_success_total", label: `finished_reason="stop"`},
	{ours: semconv.MetricGenAIVLLMRequestSuccess, theirs: "vllm:request_success_total", label: `finished_reason="length"`},
	{ours: semconv.MetricGenAIVLLMNumPreemptions, theirs: "vllm:num_preemptions_total"},
	{ours: semconv.MetricGenAIVLLMPrefixCacheQueries, theirs: "vllm:prefix_cache_queries_total"},
	{ours: semconv.MetricGenAIVLLMPrefixCacheHits, theirs: "vllm:prefix_cache_hits_total"},
	{ours: semconv.MetricGenAIVLLMRequestParamsN, theirs: "vllm:request_params_n_sum"},
	{ours: semconv.MetricGenAIVLLMRequestParamsMaxTokens, theirs: "vllm:request_params_max_tokens_sum"},
	{ours: semconv.MetricGenAIVLLMRequestQueueTimeSeconds, theirs: "vllm:request_queue_time_seconds_sum", time: true},
	{ours: semconv.MetricGenAIVLLMRequestPrefillTimeSeconds, theirs: "vllm:request_prefill_time_seconds_sum", time: true},
	{ours: semconv.MetricGenAIVLLMRequestDecodeTimeSeconds, theirs: "vllm:request_decode_time_seconds_sum", time: true},
	{ours: semconv.MetricGenAIVLLMRequestInferenceTimeSeconds, theirs: "vllm:request_inference_time_seconds_sum", time: true},
	{ours: semconv.MetricGenAIServerRequestDuration, theirs: "vllm:e2e_request_latency_seconds_sum", front: true},
	{ours: semconv.MetricGenAILLMFirstTokenSeconds, theirs: "vllm:time_to_first_token_seconds_sum", front: true},
}

// TestMetrics compares our metrics with the growth of the engine's own over the
// same traffic, has a real Prometheus scrape ours, and prints what tracing costs.
func TestMetrics(t *testing.T) {
	need(t)
	e := startEngine(t, nil, generateFlags...)
	t.Run("engine's own", func(t *testing.T) { metricsTruth(t, e) })
	t.Run("prometheus", func(t *testing.T) { prometheus(t, e) })
	t.Run("cost", func(t *testing.T) { cost(t, e) })
}

func metricsTruth(t *testing.T, e *engine) {
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	e.playNamed(t, workload.Options{Seed: 20, Count: 4}, "chat", "logprobs") // what compiles on first use
	e.idle(t)
	tr := attach(t, e, "--prometheus", addr)
	before := e.metrics(t)
	log := e.play(t, workload.Options{Seed: 21}, generateNeeds...)
	e.idle(t)
	tr.settle(t, inferences(log))
	after := e.metrics(t)
	ours := scrape(t, "http://"+addr+"/metrics")
	tr.mustStop(t)

	left := 0.0 // requests given up
	for i := range log {
		if log[i].LeftMono != 0 {
			left++
		}
	}
	requests := after.sum("vllm:request_success_total") - before.sum("vllm:request_success_total")
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "ours\tengine\tdifference\t  metric\n")
	for _, p := range pairs {
		var labels []string
		if p.label != "" {
			labels = []string{p.label}
		}
		mine := ours.sum(p.ours, labels...)
		theirs := after.sum(p.theirs, labels...) - before.sum(p.theirs, labels...)
		diff := math.Abs(mine - theirs)
		fmt.Fprintf(w, "%.6g\t%.6g\t%.3g\t  %s %s\n", mine, theirs, mine-theirs, p.ours, p.label)
		switch {
		case p.time && diff > 0.001*requests && diff > 0.01*theirs:
			t.Errorf("%s is %v, the engine has %v of %v requests", p.ours, mine, theirs, requests)
		case p.front && (diff <= 0.001*requests || diff <= 0.05*theirs):
		case p.late && mine >= theirs && diff <= 3*left:
		case !p.time && diff != 0:
			t.Errorf("%s %s is %v, the engine has %v", p.ours, p.label, mine, theirs)
		case !p.time && theirs == 0:
			t.Errorf("%s %s: the engine counted nothing, so this run shows nothing", p.ours, p.label)
		}
	}
	w.Flush()
	t.Logf("growth over %.0f requests\n%s", requests, &b)
}

// prometheus has Debian's Prometheus scrape the tracer.
func prometheus(t *testing.T, e *engine) {
	program := lookPath(t, "prometheus", "prometheus")
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	tr := attach(t, e, "--prometheus", addr)
	e.playNamed(t, workload.Options{Seed: 22}, "chat", "stream", "stop")
	e.idle(t)

	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: inferspan\n  static_configs: [{targets: ['%s']}]\n", addr)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	web := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cmd := exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+web)
	var out syncBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}()
	up := func() string {
		v, err := query(t.Context(), web, "up")
		if err != nil {
			return err.Error()
		}
		if len(v) != 1 || v[0].Value[1] != "1" {
			return fmt.Sprintf("up is %v", v)
		}
		return ""
	}
	why := ""
	for range 300 {
		if why = up(); why == "" {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if why != "" {
		t.Fatalf("Prometheus does not see the target up: %s\n%s", why, out.String())
	}
	have, err := query(t.Context(), web, `{job="inferspan"}`)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]map[string]string{}
	for _, v := range have {
		names[v.Metric["__name__"]] = v.Metric
	}
	n := 0
	for _, m := range semconv.Metrics {
		if m.Engine != "vllm" || m.Version == "V0" || m.Own {
			continue
		}
		n++
		labels, ok := names[m.Name]
		if !ok {
			t.Errorf("Prometheus has no series %s", m.Name)
			continue
		}
		for _, d := range m.Dimensions {
			if _, ok := labels[d]; !ok {
				t.Errorf("series %s has no label %s: %v", m.Name, d, labels)
			}
		}
	}
	t.Logf("Prometheus has %d series of %d names; all of the %d documented ones were looked up", len(have), len(names), n)
	tr.mustStop(t)
}

type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

func query(ctx context.Context, web, q string) ([]sample, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+web+"/api/v1/query?query="+url.QueryEscape(q), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status string
		Data   struct{ Result []sample }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("querying Prometheus: %w", err)
	}
	sort.Slice(answer.Data.Result, func(i, j int) bool {
		return answer.Data.Result[i].Metric["__name__"] < answer.Data.Result[j].Metric["__name__"]
	})
	return answer.Data.Result, nil
}
