package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"inferspan/correlate/semconv"
	"inferspan/tests/cache"
	"inferspan/tests/workload"
)

// sglangLayout is a way to run SGLang, with what its spans must say.
type sglangLayout struct {
	name    string
	env     []string
	flags   []string
	cores   int // data-parallel schedulers, each of which must get requests
	ranks   int // schedulers that work on a request together
	control bool
	workers int // front ends
	drafts  bool
	retract bool
	play    []string
	then    func(*testing.T, *engine) // what is tried besides
}

// TestSGLangLayouts tries engines of several processes and options, each a minute or two.
func TestSGLangLayouts(t *testing.T) {
	needSGLang(t)
	if os.Getenv("INFERSPAN_LAYOUTS") != "1" {
		t.Skip("INFERSPAN_LAYOUTS=1 is not set: this test starts many engines")
	}
	cpus := "SGLANG_CPU_OMP_THREADS_BIND=0|1" // one for each rank
	gloo := "SGLANG_NCCL_SO_PATH=/nonexistent/libnccl.so"
	root, err := cache.Dir()
	if err != nil {
		t.Fatal(err)
	}
	retracts := append([]string{"--max-total-tokens", "3000", "--schedule-conservativeness", "0.1"}, "--chunked-prefill-size", fmt.Sprint(sglangChunk))
	for _, l := range []sglangLayout{
		{name: "data parallel", env: []string{cpus}, flags: []string{"--dp-size", "2"}, cores: 2, ranks: 1, control: true, workers: 1},
		{name: "tensor parallel", env: []string{cpus, gloo}, flags: []string{"--tp-size", "2"}, cores: 1, ranks: 2, workers: 1},
		// The last rank has no embeddings that its output layer could share.
		{name: "pipeline parallel", env: []string{cpus, gloo}, flags: []string{"--pp-size", "2", "--json-model-override-args", `{"tie_word_embeddings": false}`}, cores: 1, ranks: 2, workers: 1},
		{name: "attention data parallel", env: []string{cpus, gloo, "INFERSPAN_MODEL=" + filepath.Join(root, "tiny-qwen3")},
			flags: []string{"--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"}, cores: 2, ranks: 1, control: true, workers: 1},
		{name: "serve command", env: []string{"ENTRY=serve"}, cores: 1, ranks: 1, workers: 1},
		{name: "tokenizer workers", flags: []string{"--tokenizer-worker-num", "2"}, cores: 1, ranks: 1, workers: 2},
		{name: "retraction", flags: retracts, cores: 1, ranks: 1, workers: 1, retract: true, play: []string{"retract"}},
		{name: "speculative", flags: []string{"--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4", "--enable-metrics"}, cores: 1, ranks: 1, workers: 1, drafts: true, then: acceptLength},
	} {
		t.Run(l.name, func(t *testing.T) {
			e := startWith(t, serveSGLang, l.env, append([]string{"--sleep-on-idle"}, l.flags...)...)
			waitWorkers(t, e, l.workers)
			addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
			tr := attach(t, e, "--trace-level", "4", "--prometheus", addr)
			waitDetail(t, addr)
			if l.play == nil {
				l.play = layoutScenarios
			}
			log := e.playNamed(t, workload.Options{Seed: 1}, l.play...)
			restSGLang(t, e)
			tr.settle(t, inferences(log))
			time.Sleep(3 * time.Second) // requests without an entry span wait for one
			page := scrape(t, "http://"+addr+"/metrics")
			l.check(t, log, tr.mustStop(t))
			if n := page.sum("inferspan_lost_records_total") + page.sum("inferspan_steps_missed_total"); n != 0 {
				t.Errorf("%v records or steps were lost", n)
			}
			if l.then != nil {
				l.then(t, e)
			}
		})
	}
}

// waitWorkers waits until an engine has that many front ends that stay: it is healthy with
// the first, and on a busy host ends the others that do not answer it within 5 s, and starts
// them again.
func waitWorkers(t *testing.T, e *engine, workers int) {
	t.Helper()
	var up, before []int
	same := 0
	for range 180 {
		up = frontEnds(t, e)
		if same++; !slices.Equal(up, before) || len(up) != workers {
			before, same = up, 0
		}
		if workers == 1 && len(up) == 1 || same >= 6 {
			return
		}
		time.Sleep(time.Second)
	}
	t.Fatalf("front ends %v after 3 minutes, want %d that stay", up, workers)
}

// check compares the trees with the responses.
func (l *sglangLayout) check(t *testing.T, log []workload.Entry, spans []*span) {
	t.Helper()
	f := faults{t: t}
	defer f.end("layout")
	truth := map[string]*workload.Entry{}
	for i := range log {
		truth[log[i].ResponseID] = &log[i]
	}
	below := map[string][]*span{}
	retracts := 0
	for _, s := range spans {
		below[s.TraceID+s.ParentID] = append(below[s.TraceID+s.ParentID], s)
		for _, e := range s.Events {
			if e.Name == "retract" {
				retracts++
			}
		}
	}
	seen, used, partial := map[string]bool{}, map[string]map[string]bool{}, 0
	for _, s := range spans {
		id := s.text(semconv.AttrRID)
		if s.text(semconv.AttrModule) == "" {
			continue // not the span of a request
		}
		want := truth[id]
		if want == nil || seen[id] {
			f.add("%s: no response has that id, or it has two spans", id)
			continue
		}
		seen[id] = true
		completion, ok := s.number(semconv.AttrGenAIUsageCompletionTokens)
		prompt, _ := s.number(semconv.AttrGenAIUsagePromptTokens)
		if want.InputTokens != nil && want.OutputTokens != nil && (prompt != float64(*want.InputTokens) || completion != float64(*want.OutputTokens)) || !ok {
			f.add("%s: %v prompt and %v output tokens (known: %v), want those of %+v", id, prompt, completion, ok, *want)
		}
		threads := map[string]int{}
		for _, th := range below[s.TraceID+s.SpanID] {
			label, _, _ := strings.Cut(th.text(semconv.AttrThreadLabel), "-")
			threads[label]++
			if used[label] == nil {
				used[label] = map[string]bool{}
			}
			used[label][th.Name] = true
			n := map[string]int{}
			count(th, below, n)
			if label == "Scheduler" {
				if l.scheduler(&f, id, th, n, int(completion)) {
					partial++
				}
			} else if want := map[string]string{"Tokenizer": "tokenize", "MultiTokenizer": "tokenize", "DP Controller": "dpc_dispatch"}[label]; n[want] != 1 {
				f.add("%s: stages of %s: %v", id, th.Name, n)
			}
		}
		want2 := map[string]int{"Scheduler": l.ranks}
		if l.workers > 1 {
			want2["MultiTokenizer"] = 1
		} else {
			want2["Tokenizer"] = 1
		}
		if l.control {
			want2["DP Controller"] = 1
		}
		if fmt.Sprint(threads) != fmt.Sprint(want2) {
			f.add("%s: threads %v, want %v", id, threads, want2)
		}
	}
	for id := range truth {
		if !seen[id] {
			f.add("%s: no span", id)
		}
	}
	if n := len(used["Scheduler"]); n != l.cores*l.ranks {
		f.add("%d schedulers got requests, want %d: %v", n, l.cores*l.ranks, used["Scheduler"])
	}
	if n := len(used["MultiTokenizer"]); l.workers > 1 && n != l.workers {
		f.add("%d front ends got requests, want %d", n, l.workers)
	}
	if (retracts > 0) != l.retract {
		f.add("%d retract events", retracts)
	}
	t.Logf("%d requests, %d spans, %d threads of schedulers that lack rounds and say so, %d retract events", len(seen), len(spans), partial, retracts)
}

// scheduler checks the stages n of a scheduler's thread, and tells if it says that some are missing.
func (l *sglangLayout) scheduler(f *faults, id string, th *span, n map[string]int, completion int) (partial bool) {
	partial = th.Attrs[semconv.AttrInferspanPartial] != nil
	tp, _ := th.number(semconv.AttrTPRank)
	pp, _ := th.number(semconv.AttrPPRank)
	silent := l.ranks > 1 && tp+pp > 0 // it sends nothing, so that its last results are not seen
	for _, name := range []string{"request_process", "prefill_waiting", "prefill_forward", "decode_forward"} {
		if n[name] == 1 || name == "decode_forward" && completion < 2 || l.retract && n[name] > 1 {
			continue
		}
		if silent && partial && completion < 2 && name == "prefill_forward" {
			continue
		}
		f.add("%s: %d of %s in %s", id, n[name], name, th.Name)
	}
	// A prefill gives a token, too, and there is one more each time it was put back. Of one
	// that does not stream the result before its last one may be overwritten.
	missing := completion - 1 - n["event retract"] - n["decode_loop"]
	switch {
	case l.drafts: // a round gives one token or several
		if n["decode_loop"] == 0 && completion > 1 || missing < 0 || n["spec_draft"] != n["spec_verify"] {
			f.add("%s: stages %v for %d tokens", id, n, completion)
		}
	case completion < 2:
	case silent && partial && (missing == 1 || missing == 2):
	case missing != 0 && (missing != 2 || !partial):
		f.add("%s: %d decode loops for %d tokens in %s, partial %v", id, n["decode_loop"], completion, th.Name, partial)
	}
	return partial
}

// count counts the spans below s, and the events on all of them, by name.
func count(s *span, below map[string][]*span, n map[string]int) {
	for _, e := range s.Events {
		n["event "+e.Name]++
	}
	for _, c := range below[s.TraceID+s.SpanID] {
		n[c.Name]++
		count(c, below, n)
	}
}
