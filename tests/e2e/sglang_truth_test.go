package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"inferspan/tests/collectortest"
	"inferspan/tests/workload"
)

// sglangFlags make one server fit for all scenarios: few tokens per step so that prompts
// are chunked, little room so that requests queue, and admission that hopes for the best
// so that some are put back.
var sglangFlags = []string{
	"--chunked-prefill-size", "64", "--max-total-tokens", "3000", "--schedule-conservativeness", "0.1", "--enable-cache-report",
}

// played is a scenario with other numbers than its own, 0: its own.
type played struct {
	name               string
	count, concurrency int
}

// sglangPlay is the traffic of the comparison: some 300 requests.
var sglangPlay = []played{
	{name: "chat"}, {name: "stream"}, {name: "burst", count: 128, concurrency: 64}, {name: "long"}, {name: "prefix"},
	{name: "preempt", count: 24, concurrency: 24}, {name: "generate"}, {name: "queue"}, {name: "retract"}, {name: "leave-early"}, {name: "leave-mid"},
	{name: "n"}, {name: "completions"}, {name: "keep-alive"}, {name: "headers"},
}

func (e *engine) playAll(t *testing.T, list []played, seed uint64) []workload.Entry {
	t.Helper()
	var log []workload.Entry
	for _, p := range list {
		log = append(log, e.playNamed(t, workload.Options{Seed: seed, Count: p.count, Concurrency: p.concurrency}, p.name)...)
	}
	restSGLang(t, e)
	return log
}

// TestSGLangTruth compares our spans and metrics with those that SGLang makes itself, of
// the same requests at the same time, and then plays the same to a server that makes
// none: nothing may depend on it.
func TestSGLangTruth(t *testing.T) {
	needSGLang(t)
	var traced, plain map[string]int
	t.Run("engine traces too", func(t *testing.T) { traced = sglangTruth(t) })
	t.Run("engine does not trace", func(t *testing.T) { plain = sglangPlain(t) })
	if traced == nil || plain == nil {
		return // one was not run
	}
	for _, x := range []struct {
		a, b map[string]int
		how  string
	}{{traced, plain, "with"}, {plain, traced, "without"}} {
		for shape, n := range x.a {
			if x.b[shape] == 0 {
				t.Errorf("only %s the engine's own tracing (%d times): %s", x.how, n, shape)
			}
		}
	}
	t.Logf("%d kinds of spans with the engine's own tracing, %d without", len(traced), len(plain))
}

func sglangTruth(t *testing.T) map[string]int {
	c := collectortest.Start(t)
	e := startWith(t, serveSGLang, []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"},
		append(slices.Clone(sglangFlags), "--enable-trace", "--otlp-traces-endpoint", c.Endpoint+"/v1/traces", "--enable-metrics")...)
	sglangSteady(t, e)
	began := time.Now().UnixNano()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	tr := attach(t, e, "--otlp-endpoint", c.Endpoint, "--prometheus", addr)
	waitDetail(t, addr)
	before := e.metrics(t)
	log := e.playAll(t, sglangPlay, 5)
	tr.settle(t, inferences(log))
	after, ours := e.metrics(t), scrape(t, "http://"+addr+"/metrics")
	spans := tr.mustStop(t)
	waitSpans(t, c)
	native, got := sglangReceived(t, c)
	native = slices.DeleteFunc(native, func(s collectortest.Span) bool { return s.Start < began })

	dump(t, "native", native)
	dump(t, "ours", got)
	f := &faults{t: t}
	w := &twins{f: f}
	w.find(t, native, got)
	w.report(t)
	if n := len(w.nativeTrees); n < 200 {
		f.add("the engine made trees of %d requests, want at least 200", n)
	}
	if len(w.missing) > 0 {
		f.add("the engine has spans that we have not")
	}
	for _, what := range []string{"chunked_prefill", "event retract"} {
		if w.starts[what] == nil {
			f.add("no %s: the load is too light", what)
		}
	}
	f.end("the engine's own spans")
	sglangSums(t, log, got)
	sglangCounts(t, before, after, ours, w.nativeTrees)
	return sglangShapes(spans)
}

// leftOf is how many clients left before the end of their response.
func leftOf(log []workload.Entry) int {
	n := 0
	for i := range log {
		if log[i].LeftMono != 0 {
			n++
		}
	}
	return n
}

func sglangPlain(t *testing.T) map[string]int {
	c := collectortest.Start(t)
	e := startWith(t, serveSGLang, nil, sglangFlags...)
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	tr := attach(t, e, "--otlp-endpoint", c.Endpoint, "--prometheus", addr)
	waitDetail(t, addr)
	log := e.playAll(t, sglangPlay, 5)
	tr.settle(t, inferences(log))
	spans := tr.mustStop(t)
	waitSpans(t, c)
	_, got := sglangReceived(t, c)
	sglangSums(t, log, got)
	return sglangShapes(spans)
}

// dump leaves spans for a person to look at.
func dump(t *testing.T, name string, spans []collectortest.Span) {
	t.Helper()
	b, err := json.Marshal(spans)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outDir(t), name+".json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// waitDetail waits until the probes on the interpreters are in, which takes long where the
// host is busy.
func waitDetail(t *testing.T, addr string) {
	t.Helper()
	began := time.Now()
	for range 120 {
		m := scrape(t, "http://"+addr+"/metrics")
		if m.sum("inferspan_detail_active", `detail="steps"`) > 0 && m.sum("inferspan_detail_active", `detail="stamps"`) > 0 {
			t.Logf("all probes are in %.1f s after the first", time.Since(began).Seconds())
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	for k, v := range scrape(t, "http://"+addr+"/metrics") {
		if strings.HasPrefix(k, "inferspan_detail_active") {
			t.Logf("%s %v", k, v)
		}
	}
	t.Fatal("no probes on the interpreters after a minute")
}

// sglangReceived splits what the Collector got.
func sglangReceived(t *testing.T, c *collectortest.Collector) (native, ours []collectortest.Span) {
	t.Helper()
	all, err := c.Spans()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		switch {
		case s.Scope == "inferspan":
			ours = append(ours, s)
		case strings.HasPrefix(s.Scope, "sglang"):
			native = append(native, s)
		default:
			t.Errorf("a span of scope %q: %s", s.Scope, s.Name)
		}
	}
	if bad := c.Complaints(); len(bad) > 0 {
		t.Errorf("the Collector complains: %q", bad)
	}
	return native, ours
}

// sglangSums checks what holds in every tree by itself: stages of a thread that follow
// one another adjoin, and those of the scheduler cover the thread; rounds of decoding
// are numbered without gaps and adjoin; the request contains its threads.
func sglangSums(t *testing.T, log []workload.Entry, spans []collectortest.Span) {
	t.Helper()
	f := &faults{t: t}
	defer f.end("stages")
	trees := treesOf(spans)
	want := 0
	for i := range log {
		if log[i].Complete && log[i].Status == 200 {
			n := max(log[i].N, 1)
			if n > 1 {
				n++ // the warm-up before the samples
			}
			want += n * max(log[i].Inputs, 1)
		}
	}
	whole, stages, loops, gaps := 0, 0, 0, 0
	for _, x := range trees {
		if x.root == nil || len(x.threads) == 0 {
			f.add("a tree without request or threads: %+v", x.rid())
			continue
		}
		if x.root.Attrs["inferspan.outcome"] == "completed" {
			whole++
		}
		for _, th := range x.threads {
			if th.Start < x.root.Start-tolerance {
				f.add("request %s: %s begins before it", x.rid(), th.Name)
			}
			var last *otel
			for _, s := range th.children {
				stages++
				if s.End > th.End+tolerance {
					f.add("request %s: %s ends after its thread", x.rid(), s.Name)
				}
				// The waits of a request that was put back are in no stage.
				if last != nil && s.Start != last.End && th.Attrs["thread_label"] == "Scheduler" && !retracted(th) {
					f.add("request %s: %s begins %.3f ms after %s ends", x.rid(), s.Name, float64(s.Start-last.End)/1e6, last.Name)
				}
				last = s
				if s.Name != "decode_forward" || retracted(th) {
					continue
				}
				var before *otel
				for _, l := range s.children {
					if l.Name != "decode_loop" {
						continue
					}
					loops++
					if before != nil {
						was, errWas := toFloat(before.Attrs["decode_ct"])
						is, errIs := toFloat(l.Attrs["decode_ct"])
						if l.Start != before.End || errWas != nil || errIs != nil || is != was+1 {
							gaps++
						}
					}
					before = l
				}
			}
			if th.Attrs["thread_label"] == "Scheduler" && x.root.Attrs["inferspan.outcome"] == "completed" && !retracted(th) {
				// decode_forward lasts until its thread ends. Without one the engine stamps the
				// end some time after that of the prefill.
				sum, decodes := int64(0), false
				for _, s := range th.children {
					sum += s.End - s.Start
					decodes = decodes || s.Name == "decode_forward"
				}
				if sum > th.End-th.Start+tolerance || decodes && !near(sum, th.End-th.Start, th.End-th.Start) {
					f.add("request %s: the stages last %.3f ms, their thread %.3f ms", x.rid(), float64(sum)/1e6, float64(th.End-th.Start)/1e6)
				}
			}
		}
	}
	// The engine may be faster than the leaving of a client.
	if whole < want || whole > want+leftOf(log) {
		f.add("%d trees of requests that completed, want %d", whole, want)
	}
	t.Logf("%d requests, %d stages, %d rounds of decoding with %d gaps between them", len(trees), stages, loops, gaps)
}

func retracted(th *otel) bool {
	for _, s := range append(th.stages(), th) {
		if slices.ContainsFunc(s.Events, func(e collectortest.Event) bool { return e.Name == "retract" }) {
			return true
		}
	}
	return false
}

// sglangShapes counts spans by layer and the names of their attributes, those of the
// moment and of clients that left apart.
func sglangShapes(spans []*span) map[string]int {
	left := map[string]bool{}
	for _, s := range spans {
		switch s.text("inferspan.outcome") {
		case "client_disconnect", "aborted":
			left[s.TraceID] = true
		}
	}
	m := map[string]int{}
	for _, s := range spans {
		// Whether what the model says looks like a call is chance.
		if _, called := s.Attrs["gen_ai.request.tool_call_detected"]; called || left[s.TraceID] || s.Name == "" {
			continue
		}
		m[shapeOf(s, (&otel{Span: &collectortest.Span{Name: s.Name}}).layer())]++
	}
	return m
}
