package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"inferspan/tests/collectortest"
)

const (
	attrTokenize   = "gen_ai.latency.time_in_tokenize"
	attrDetokenize = "gen_ai.latency.time_in_detokenize"
)

// load sends requests to chat and completions, some of them streamed, with prompts of
// different lengths, and returns how many requests the engine gets of it. Of every
// eighth two choices are asked for.
func (e *engine) load(t *testing.T, n, atOnce, tokens int) int {
	t.Helper()
	var wg sync.WaitGroup
	gate := make(chan struct{}, atOnce)
	errs := make(chan error, n)
	inner := 0
	for i := range n {
		choices := 1
		if i%8 == 7 {
			choices = 2
		}
		inner += choices
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			text := fmt.Sprintf("request %d: %s", i, strings.Repeat("one more word ", 1+i*7%60))
			body := map[string]any{"model": "tiny", "max_tokens": tokens, "ignore_eos": true, "n": choices, "stream": i%3 == 0, "temperature": 1.0}
			path := "/v1/completions"
			if i%2 == 0 {
				path, body["messages"] = "/v1/chat/completions", []any{map[string]any{"role": "user", "content": text}}
			} else {
				body["prompt"] = text
			}
			b, err := json.Marshal(body)
			if err != nil {
				errs <- err
				return
			}
			resp, err := http.Post(e.url+path, "application/json", bytes.NewReader(b))
			if err != nil {
				errs <- err
				return
			}
			defer resp.Body.Close()
			if out, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				errs <- fmt.Errorf("status %d, %v: %s", resp.StatusCode, err, out)
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	return inner
}

// derived returns whether an attribute is marked derived, and by which method.
func (s *span) derived(attr string) (bool, string) {
	list, _ := s.Attrs["inferspan.derived"].([]any)
	methods, _ := s.Attrs["inferspan.derived.methods"].([]any)
	for _, m := range methods {
		if a, how, ok := strings.Cut(fmt.Sprint(m), ": "); ok && a == attr {
			return slices.Contains(list, any(attr)), how
		}
	}
	return slices.Contains(list, any(attr)), ""
}

// withProbes waits until an attached tracer has its probes on the interpreter of the
// front end in place and has seen them work.
func (e *engine) withProbes(t *testing.T) {
	t.Helper()
	for range 3 {
		time.Sleep(2 * time.Second)
		e.load(t, 4, 4, 40)
	}
}

// TestFrontTruth compares the times that end in the front end with the engine's own,
// with 32 requests at once, and looks at those of tokenizer and detokenizer.
func TestFrontTruth(t *testing.T) {
	need(t)
	c := collectortest.Start(t)
	e := startEngine(t, []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", "OTEL_SERVICE_NAME=vllm-front", "OTEL_BSP_SCHEDULE_DELAY=200"},
		"--otlp-traces-endpoint", c.Endpoint+"/v1/traces", "--max-num-seqs", "64")
	tr := attach(t, e, "--detokenize-sample", "1")
	e.withProbes(t)
	began := time.Now().UnixNano()
	n := e.load(t, 160, 32, 24)
	e.idle(t)
	tr.settle(t, 160)
	spans := tr.mustStop(t)
	waitSpans(t, c)
	native, _ := received(t, c)

	f := faults{t: t}
	defer f.end("times of the front end")
	ours, theirs := map[string][]*span{}, map[string][]*nativeSpan{}
	for _, s := range spans {
		if s.llmRequest() && s.Start > began {
			ours[s.text("gen_ai.request.id")] = append(ours[s.text("gen_ai.request.id")], s)
		}
	}
	for _, s := range native {
		if id, _ := s.Attrs["gen_ai.request.id"].(string); s.Start > began {
			theirs[id] = append(theirs[id], s)
		}
	}
	diffs := map[string]*differences{}
	for _, a := range delivered {
		diffs[a] = &differences{}
	}
	var tokenize, detokenize, perToken []float64
	seen := 0
	for id, list := range theirs {
		if len(ours[id]) != len(list) {
			f.add("request %s: the engine has %d spans, we have %d", id, len(list), len(ours[id]))
			continue
		}
		for i, s := range assign(ours[id], list) {
			seen++
			for _, a := range delivered {
				mine, ok := s.number(a)
				native, has := list[i].number(a)
				if d, _ := s.derived(a); !ok || !has || d {
					f.add("request %s: %s is %v, %v (derived %v), the engine has %v", id, a, mine, ok, d, native)
					continue
				}
				diffs[a].add(mine, native*1e9)
				if mine < 0 || math.Abs(mine-native*1e9) > 1e6 {
					f.add("request %s: %s is %v, the engine has %v", id, a, mine, native*1e9)
				}
			}
			for a, all := range map[string]*[]float64{attrTokenize: &tokenize, attrDetokenize: &detokenize} {
				v, ok := s.number(a)
				if d, how := s.derived(a); !ok || v <= 0 || d {
					f.add("request %s: %s is %v, %v (derived %v %s)", id, a, v, ok, d, how)
				}
				*all = append(*all, v)
			}
			if v, ok := s.number(attrDetokenize); ok {
				perToken = append(perToken, v/24)
			}
		}
	}
	if seen != n {
		f.add("%d requests compared, want %d", seen, n)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "n\tequal\tp50\tp99\tmax\tmax rel.\tover\tunit\t  attribute\n")
	for _, a := range delivered {
		diffs[a].print(w, a, "us", 1e3)
		if d := diffs[a].abs; len(d) > 0 && d[len(d)/2] > 100e3 {
			f.add("%s: the median difference is %.0f us", a, d[len(d)/2]/1e3)
		}
	}
	w.Flush()
	t.Logf("differences between our times and the engine's own\n%s", &b)
	for name, all := range map[string][]float64{attrTokenize: tokenize, attrDetokenize: detokenize, "per token": perToken} {
		if slices.Sort(all); len(all) > 0 {
			t.Logf("%s: %.1f us at least, median %.1f, at most %.1f", name, all[0]/1e3, all[len(all)/2]/1e3, all[len(all)-1]/1e3)
		}
	}
}

// TestFrontDefault checks that without being asked to look at tokens one by one we
// work out the time of the detokenizer, and say so; the rest is exact. Each front end
// and each core has clocks and messages of its own.
func TestFrontDefault(t *testing.T) {
	need(t)
	t.Run("one of each", func(t *testing.T) { frontDefault(t, nil) })
	if os.Getenv("INFERSPAN_LAYOUTS") != "1" {
		return // engines of several processes take minutes to start
	}
	t.Run("two front ends", func(t *testing.T) { frontDefault(t, []string{"--api-server-count", "2"}) })
	t.Run("two cores", func(t *testing.T) { frontDefault(t, []string{"--data-parallel-size", "2"}) })
}

func frontDefault(t *testing.T, flags []string) {
	e := startEngine(t, nil, append([]string{"--max-num-seqs", "64"}, flags...)...)
	tr := attach(t, e)
	e.withProbes(t)
	began := time.Now().UnixNano()
	n := e.load(t, 64, 16, 24)
	e.idle(t)
	tr.settle(t, 64)
	f := faults{t: t}
	defer f.end("times of the front end")
	seen := 0
	for _, s := range tr.mustStop(t) {
		if !s.llmRequest() || s.Start < began {
			continue
		}
		seen++
		for _, a := range append(slices.Clone(delivered), attrTokenize) {
			if v, ok := s.number(a); !ok || v <= 0 {
				f.add("%s is %v, %v", a, v, ok)
			}
			if d, how := s.derived(a); d {
				f.add("%s is derived: %s", a, how)
			}
		}
		if v, ok := s.number(attrDetokenize); !ok || v <= 0 {
			f.add("%s is %v, %v", attrDetokenize, v, ok)
		}
		if d, how := s.derived(attrDetokenize); !d || how != "calibrated" {
			f.add("%s is derived: %v, %q", attrDetokenize, d, how)
		}
	}
	if seen != n {
		f.add("%d requests, want %d", seen, n)
	}
}

// TestFrontSilent checks that with the engine's statistics off, where it stamps no
// messages, the times end at the receipt and say so.
func TestFrontSilent(t *testing.T) {
	need(t)
	e := startEngine(t, nil, "--max-num-seqs", "64", "--disable-log-stats")
	tr := attach(t, e)
	e.withProbes(t)
	began := time.Now().UnixNano()
	n := e.load(t, 32, 16, 12)
	tr.settle(t, 32)
	f := faults{t: t}
	defer f.end("times of the front end")
	seen := 0
	for _, s := range tr.mustStop(t) {
		if !s.llmRequest() || s.Start < began {
			continue
		}
		seen++
		for _, a := range delivered {
			if v, ok := s.number(a); !ok || v <= 0 {
				f.add("%s is %v, %v", a, v, ok)
			}
			if d, how := s.derived(a); !d || how != "receipt" {
				f.add("%s is derived: %v, %q", a, d, how)
			}
		}
		if v, ok := s.number(attrTokenize); !ok || v <= 0 {
			f.add("%s is %v, %v", attrTokenize, v, ok)
		}
	}
	if seen != n {
		f.add("%d requests, want %d", seen, n)
	}
}
