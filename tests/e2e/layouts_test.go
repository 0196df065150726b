package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inferspan/tests/workload"
)

// layoutScenarios are some requests of each kind: alone, at once, streamed, ended by
// a stop string.
var layoutScenarios = []string{"chat", "stream", "stop"}

// layout is a way to run the engine, with what its spans must say.
type layout struct {
	name  string
	flags []string
	cores int // engine cores, each of which must get requests
	role  string
	both  bool // spans of prefill and of decode
}

// TestLayouts tries engines of several processes and options, each a minute or two.
func TestLayouts(t *testing.T) {
	need(t)
	if os.Getenv("INFERSPAN_LAYOUTS") != "1" {
		t.Skip("INFERSPAN_LAYOUTS=1 is not set: this test starts many engines")
	}
	ngram := `{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3}`
	for _, l := range []layout{
		{"api servers", []string{"--api-server-count", "2"}, 1, "none", true},
		{"data parallel", []string{"--data-parallel-size", "2"}, 2, "none", true},
		{"tensor parallel", []string{"--tensor-parallel-size", "2"}, 1, "none", true},
		{"speculative", []string{"--speculative-config", ngram}, 1, "none", true},
		{"kv producer", kvFlags(t, "kv_producer"), 1, "producer", false},
		{"kv consumer", kvFlags(t, "kv_consumer"), 1, "consumer", false},
	} {
		t.Run(l.name, func(t *testing.T) {
			e := startEngine(t, nil, l.flags...)
			tr := attach(t, e, "--precision", "2")
			before := e.metrics(t)
			log := e.playNamed(t, workload.Options{Seed: 1}, layoutScenarios...)
			tr.settle(t, len(log))
			after := e.metrics(t)
			spans := tr.mustStop(t)
			checkHTTP(t, log, spans)
			checkTrees(t, spans)
			l.check(t, len(log), spans, before, after)
		})
	}
}

func kvFlags(t *testing.T, role string) []string {
	t.Helper()
	config, err := json.Marshal(map[string]any{"kv_connector": "ExampleConnector", "kv_role": role,
		"kv_connector_extra_config": map[string]string{"shared_storage_path": t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--kv-transfer-config", string(config)}
}

// check compares the spans with the engine's own counts, core by core.
func (l *layout) check(t *testing.T, requests int, spans []*span, before, after series) {
	t.Helper()
	f := faults{t: t}
	defer f.end("layout")
	below := children(spans)
	n, prompt := map[int]float64{}, map[int]float64{}
	for _, s := range spans {
		switch {
		case s.entry():
			if c := below[s.SpanID]["llm_request"]; c != 1 {
				f.add("entry span %s has %d engine requests, want 1", s.SpanID, c)
			}
		case s.llmRequest():
			c := below[s.SpanID]
			if want := l.both || l.role == "producer"; c["wait"] != 1 || (c["prefill"] == 1) != want {
				f.add("request %s has children %v", s.SpanID, c)
			}
			if l.role == "producer" && c["decode"] != 0 {
				f.add("request %s of a prefill node has a decode", s.SpanID)
			}
			if got := s.text("gen_ai.pd_role"); got != l.role {
				f.add("request %s has role %q, want %q", s.SpanID, got, l.role)
			}
			index, ok := s.number("gen_ai.engine.index")
			if !ok {
				f.add("request %s has no engine index", s.SpanID)
			}
			if size, ok := s.Resource["inferspan.engine.data_parallel_size"].(json.Number); ok && size.String() != fmt.Sprint(l.cores) {
				f.add("request %s has a data parallel size of %v, want %d", s.SpanID, size, l.cores)
			}
			if _, ok := s.number("gen_ai.latency.time_in_queue"); !ok {
				f.add("request %s has no queue time", s.SpanID)
			}
			p, _ := s.number("gen_ai.usage.prompt_tokens")
			n[int(index)]++
			prompt[int(index)] += p
		}
	}
	total := 0.0
	for i := range l.cores {
		engine := fmt.Sprintf("engine=%q", fmt.Sprint(i))
		grown := func(name string) float64 { return after.sum(name, engine) - before.sum(name, engine) }
		if want := grown("vllm:request_success_total"); n[i] != want || want == 0 {
			f.add("core %d: %v requests, the engine counts %v", i, n[i], want)
		}
		if want := grown("vllm:prompt_tokens_total"); prompt[i] != want {
			f.add("core %d: %v prompt tokens, the engine counts %v", i, prompt[i], want)
		}
		total += n[i]
	}
	if int(total) != requests {
		f.add("%v engine requests on %d cores, want %d", total, l.cores, requests)
	}
}

// TestLoRA asks for an adapter by its name. INFERSPAN_LORA is the folder of one that
// fits the model.
func TestLoRA(t *testing.T) {
	need(t)
	adapter := os.Getenv("INFERSPAN_LORA")
	if os.Getenv("INFERSPAN_LAYOUTS") != "1" || adapter == "" {
		t.Skip("INFERSPAN_LAYOUTS=1 and INFERSPAN_LORA are not set: the test needs an adapter of the model")
	}
	adapter, err := filepath.Abs(adapter)
	if err != nil {
		t.Fatal(err)
	}
	e := startEngine(t, nil, "--enable-lora", "--lora-modules", "sql="+adapter)
	const each = 4
	ask := func(i, tokens int) error {
		model := []string{"tiny", "sql"}[i%2]
		body := fmt.Sprintf(`{"model":%q,"prompt":"say %d","max_tokens":%d,"ignore_eos":true}`, model, i, tokens)
		resp, err := http.Post(e.url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d: %s", resp.StatusCode, answer)
		}
		return err
	}
	// Two run when the tracer comes: which model they ask for is known by looking.
	running := make(chan error, 2)
	for i := range 2 {
		go func() { running <- ask(i, 900) }()
	}
	for e.metrics(t).sum("vllm:num_requests_running") < 2 {
		time.Sleep(50 * time.Millisecond)
	}
	tr := attach(t, e)
	early := 2 - int(e.metrics(t).sum("vllm:num_requests_running"))
	for i := range 2 * each {
		if err := ask(i, 5); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := <-running; err != nil {
			t.Fatal(err)
		}
	}
	tr.settle(t, 2*each+2)
	got := map[string]int{}
	for _, s := range tr.mustStop(t) {
		if s.llmRequest() {
			got[s.text("gen_ai.request.model_name")]++
		}
	}
	if early > 0 {
		t.Fatalf("%d requests ended before the tracer was attached", early)
	}
	if got["tiny"] != each+1 || got["sql"] != each+1 || len(got) != 2 {
		t.Errorf("engine requests by model: %v, want %d of tiny and of sql", got, each+1)
	}
}
