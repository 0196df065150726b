package e2e

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"inferspan/correlate/semconv"
	"inferspan/tests/workload"
)

// sglangPairs are our metrics that grow with requests, and the engine's own.
var sglangPairs = []pair{
	{ours: semconv.MetricNumRequestsTotal, theirs: "sglang:num_requests_total"},
	{ours: semconv.MetricPromptTokensTotal, theirs: "sglang:prompt_tokens_total"},
	{ours: semconv.MetricGenerationTokensTotal, theirs: "sglang:generation_tokens_total"},
	{ours: semconv.MetricGenAISGLangCachedTokensTotal, theirs: "sglang:cached_tokens_total"},
	{ours: semconv.MetricGenAIServerTimeToFirstToken, theirs: "sglang:time_to_first_token_seconds_sum", time: true},
	{ours: semconv.MetricGenAIServerRequestDuration, theirs: "sglang:e2e_request_latency_seconds_sum", time: true},
	{ours: semconv.MetricSGLangInterTokenLatencySeconds, theirs: "sglang:inter_token_latency_seconds_sum", time: true},
}

// sglangGauges are our sums of snapshots, and the engine's gauges: they are compared by
// their means while the load is the same.
var sglangGauges = []struct {
	ours, theirs string
	slack        float64 // of what the engine has
}{
	{semconv.MetricSGLangNumRunningReqs, "sglang:num_running_reqs", 0.1},
	{semconv.MetricSGLangNumQueueReqs, "sglang:num_queue_reqs", 0.1},
	{semconv.MetricSGLangNumUsedTokens, "sglang:num_used_tokens", 0.1},
	{semconv.MetricSGLangTokenUsage, "sglang:token_usage", 0.1},
	// The engine's gauge is the rate of its last 40 batches, held until the next; what it
	// counts in the same seconds is the same over all of them.
	{semconv.MetricSGLangGenThroughput, "", 0.1},
	// The engine's gauge is that of its last batch that was reported.
	{semconv.MetricGenAISGLangCacheHitRate, "sglang:cache_hit_rate", 0.05},
}

// sglangCounts compares what grew while the requests were sent. The documented time per
// output token is not the engine's metric of that name, but made of what its spans say.
func sglangCounts(t *testing.T, before, after, ours series, native []*otelTree) {
	t.Helper()
	perToken, requests := 0.0, 0.0
	for _, n := range native {
		if n.root == nil {
			continue
		}
		e2e, err := toFloat(n.root.Attrs["gen_ai.latency.e2e"])
		tokens, errTokens := toFloat(n.root.Attrs["gen_ai.usage.completion_tokens"])
		if err == nil && errTokens == nil && tokens > 0 {
			perToken += e2e / tokens
		}
		requests++
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "ours\tengine\tdifference\t  metric\n")
	compare := func(name string, mine, theirs float64, time bool) {
		diff := math.Abs(mine - theirs)
		fmt.Fprintf(w, "%.6g\t%.6g\t%.3g\t  %s\n", mine, theirs, mine-theirs, name)
		switch {
		case time && diff > 0.001*requests && diff > 0.01*theirs:
			t.Errorf("%s is %v, the engine has %v of %v requests", name, mine, theirs, requests)
		case !time && diff != 0:
			t.Errorf("%s is %v, the engine has %v", name, mine, theirs)
		case theirs == 0:
			t.Errorf("%s: the engine counted nothing, so this run shows nothing", name)
		}
	}
	for _, p := range sglangPairs {
		compare(p.ours, ours.sum(p.ours), after.sum(p.theirs)-before.sum(p.theirs), p.time)
	}
	compare(semconv.MetricGenAIServerTimePerOutputToken, ours.sum(semconv.MetricGenAIServerTimePerOutputToken), perToken, true)
	for _, p := range [][2]string{{"input", "sglang:prompt_tokens_total"}, {"output", "sglang:generation_tokens_total"}} {
		usage := fmt.Sprintf("usageType=%q", p[0])
		compare(semconv.MetricGenAILLMUsageTokens+" "+usage, ours.sum(semconv.MetricGenAILLMUsageTokens, usage), after.sum(p[1])-before.sum(p[1]), false)
	}
	fmt.Fprintf(w, "\t%v\t\t  intervals between tokens\n", after.sum("sglang:inter_token_latency_seconds_count")-before.sum("sglang:inter_token_latency_seconds_count"))
	w.Flush()
	t.Logf("growth over %.0f requests\n%s", requests, &b)
}

// sglangSteady compares the state: the means over some seconds of the same load.
func sglangSteady(t *testing.T, e *engine) {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	tr := attach(t, e, "--prometheus", addr)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		// Streams that do not fit all at once, one after another on each of the connections.
		_, err := workload.Run(ctx, workload.Find("preempt"), workload.Options{BaseURL: e.url, Seed: 40, Count: 2000, Concurrency: 24})
		done <- err
	}()
	time.Sleep(5 * time.Second)
	const looks = 20
	sums := make([]float64, len(sglangGauges))
	before := scrape(t, "http://"+addr+"/metrics")
	began, decoded := time.Now(), e.metrics(t).sum("sglang:realtime_tokens_total", `mode="decode"`)
	for range looks {
		m := e.metrics(t)
		for i, g := range sglangGauges {
			sums[i] += m.sum(g.theirs)
		}
		time.Sleep(time.Second)
	}
	after := scrape(t, "http://"+addr+"/metrics")
	rate := (e.metrics(t).sum("sglang:realtime_tokens_total", `mode="decode"`) - decoded) / time.Since(began).Seconds()
	cancel()
	<-done
	tr.mustStop(t)
	restSGLang(t, e)
	reports := after.sum(semconv.MetricSGLangLogCount) - before.sum(semconv.MetricSGLangLogCount)
	if reports < looks/2 {
		t.Errorf("%v reports in %d s", reports, looks)
		return
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "ours\tengine\t  mean of\n")
	for i, g := range sglangGauges {
		mine, theirs := (after.sum(g.ours)-before.sum(g.ours))/reports, sums[i]/looks
		if g.theirs == "" {
			theirs = rate
		}
		fmt.Fprintf(w, "%.5g\t%.5g\t  %s\n", mine, theirs, g.ours)
		if math.Abs(mine-theirs) > g.slack*max(theirs, 1) {
			t.Errorf("%s is %v on average, the engine has %v", g.ours, mine, theirs)
		}
	}
	w.Flush()
	t.Logf("%v reports in %d s of the same load\n%s", reports, looks, &b)
}
