package captures

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestEngineCounters: requests, their tokens, and the tokens used are what the engine itself
// counted while it was recorded.
func TestEngineCounters(t *testing.T) {
	text, err := os.ReadFile("sglang-usage.engine")
	if err != nil {
		t.Fatal(err)
	}
	engine := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if engine[name], err = strconv.ParseFloat(value, 64); err != nil {
			t.Fatal(err)
		}
	}
	out, err := replay("sglang-usage.isr", "prom")
	if err != nil {
		t.Fatal(err)
	}
	// sum adds up the series of a metric that have all of the labels.
	sum := func(name string, labels ...string) (total float64) {
		for line := range bytes.Lines(out) {
			series, value, _ := strings.Cut(strings.TrimSpace(string(line)), "} ")
			if !strings.HasPrefix(series, name+"{") {
				continue
			}
			wanted := true
			for _, l := range labels {
				wanted = wanted && strings.Contains(series, l)
			}
			if wanted {
				v, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatal(err)
				}
				total += v
			}
		}
		return total
	}
	for _, c := range []struct {
		theirs string
		ours   float64
	}{
		{"sglang:num_requests_total", sum("num_requests_total")},
		{"sglang:prompt_tokens_total", sum("prompt_tokens_total")},
		{"sglang:generation_tokens_total", sum("generation_tokens_total")},
		{"sglang:prompt_tokens_total", sum("genai_llm_usage_tokens", `usageType="input"`)},
		{"sglang:generation_tokens_total", sum("genai_llm_usage_tokens", `usageType="output"`)},
	} {
		if want := engine[c.theirs]; want == 0 || c.ours != want {
			t.Errorf("%v, the engine has %v of %s", c.ours, want, c.theirs)
		}
	}
	// Some that were given up count, and some do not: else this shows nothing.
	spans, err := replay("sglang-usage.isr", "jsonl")
	if err != nil {
		t.Fatal(err)
	}
	left, requests := 0, 0
	for line := range bytes.Lines(spans) {
		if !bytes.Contains(line, []byte(`"sglang::request"`)) {
			continue
		}
		requests++
		for _, how := range []string{"aborted", "client_disconnect"} {
			if bytes.Contains(line, fmt.Appendf(nil, `"inferspan.outcome":%q`, how)) {
				left++
			}
		}
	}
	if counted := int(engine["sglang:num_requests_total"]); left < 2 || counted >= requests || counted <= requests-left {
		t.Errorf("%d requests, %d of them given up, %d counted", requests, left, counted)
	}
}
