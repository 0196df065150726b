package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"inferspan/correlate/semconv"
	"inferspan/tests/workload"
)

const serveSGLang = "../engines/sglang/serve.sh"

// sglangChunk is how many tokens of prompts a step of the test's server computes.
const sglangChunk = 64

// needSGLang skips the test where SGLang is not installed.
func needSGLang(t *testing.T) {
	t.Helper()
	need(t)
	const venv = `cd ../engines/sglang && here=$PWD && . ../common.sh && . ./env.sh && echo "$VENV"`
	out, err := exec.Command("bash", "-c", venv).Output()
	if err != nil {
		t.Fatalf("finding SGLang: %v", err)
	}
	if _, err := os.Stat(strings.TrimSpace(string(out)) + "/bin/python"); errors.Is(err, os.ErrNotExist) {
		t.Skip("SGLang is not installed: make engine-sglang installs it")
	}
}

// restSGLang waits until the engine runs nothing.
func restSGLang(t *testing.T, e *engine) {
	t.Helper()
	for range 300 {
		resp, err := http.Get(e.url + "/v1/loads")
		if err != nil {
			t.Fatal(err)
		}
		var loads struct {
			Loads []struct {
				Running int `json:"num_running_reqs"`
				Waiting int `json:"num_waiting_reqs"`
			} `json:"loads"`
		}
		err = json.NewDecoder(resp.Body).Decode(&loads)
		resp.Body.Close()
		if err != nil {
			t.Fatalf("reading the loads: %v", err)
		}
		n := 0
		for _, l := range loads.Loads {
			n += l.Running + l.Waiting
		}
		if len(loads.Loads) > 0 && n == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("the engine is still busy after 30 s")
}

// said is what a response says of its request.
type said struct {
	prompt, completion float64
	cached             float64 // -1: nothing
	entry, stream      bool    // it has an entry span; it was streamed
}

// generate plays n requests to the engine's own interface, half of them streamed, some
// at a time, and returns what their responses say.
func generate(ctx context.Context, e *engine, n int) (map[string]said, error) {
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		out  = map[string]said{}
		errs []error
	)
	for i := range n {
		wg.Go(func() {
			id, s, err := generateOne(ctx, e, i)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			out[id] = s
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

func generateOne(ctx context.Context, e *engine, i int) (id string, s said, err error) {
	stream := i%2 == 0
	body, err := json.Marshal(map[string]any{
		"text": fmt.Sprintf("%d words on a road %s", i, strings.Repeat("and on ", i)), "stream": stream,
		"sampling_params": map[string]any{"max_new_tokens": 4 + i, "temperature": 0.5, "ignore_eos": true},
	})
	if err != nil {
		return "", s, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/generate", bytes.NewReader(body))
	if err != nil {
		return "", s, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", s, fmt.Errorf("generate: status %s", resp.Status)
	}
	var last []byte // the latest event has the totals
	if stream {
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: {")); ok {
				last = append([]byte("{"), data...)
			}
		}
		err = lines.Err()
	} else {
		last, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		return "", s, err
	}
	var r struct {
		Meta struct {
			ID         string  `json:"id"`
			Prompt     float64 `json:"prompt_tokens"`
			Completion float64 `json:"completion_tokens"`
			Cached     float64 `json:"cached_tokens"`
		} `json:"meta_info"`
	}
	if err := json.Unmarshal(last, &r); err != nil {
		return "", s, fmt.Errorf("generate: %w in %q", err, last)
	}
	return r.Meta.ID, said{r.Meta.Prompt, r.Meta.Completion, r.Meta.Cached, false, stream}, nil
}

// TestSGLang traces a mixed workload of 60 requests: every request is a whole tree, with
// the tokens that its response states.
func TestSGLang(t *testing.T) {
	needSGLang(t)
	e := startWith(t, serveSGLang, nil, "--sleep-on-idle", "--enable-cache-report", "--chunked-prefill-size", fmt.Sprint(sglangChunk))
	e.playNamed(t, workload.Options{Seed: 30, Count: 2}, "chat") // what compiles on first use
	restSGLang(t, e)
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	tr := attach(t, e, "--prometheus", addr)

	truth, gone := map[string]said{}, 0
	var log []workload.Entry
	for _, x := range []struct {
		name  string
		count int
	}{{"chat", 8}, {"stream", 12}, {"prefix", 8}, {"long", 6}, {"stop", 4}, {"leave-mid", 4}, {"leave-early", 4}} {
		log = append(log, e.playNamed(t, workload.Options{Seed: 31, Count: x.count}, x.name)...)
	}
	for _, x := range log {
		if x.LeftMono != 0 {
			gone++
			continue
		}
		if x.ResponseID == "" {
			t.Fatalf("no response id: %+v", x)
		}
		s := said{prompt: -1, completion: -1, cached: -1, entry: true, stream: x.Stream}
		if x.InputTokens != nil && x.OutputTokens != nil {
			s.prompt, s.completion = float64(*x.InputTokens), float64(*x.OutputTokens)
		}
		if x.CachedTokens != nil {
			s.cached = float64(*x.CachedTokens)
		}
		truth[x.ResponseID] = s
	}
	more, err := generate(t.Context(), e, 14)
	if err != nil {
		t.Fatal(err)
	}
	for id, s := range more {
		truth[id] = s
	}
	restSGLang(t, e)
	tr.settle(t, len(log))
	time.Sleep(3 * time.Second) // requests without an entry span wait for one
	page := scrape(t, "http://"+addr+"/metrics")
	spans := tr.mustStop(t)
	if n := len(truth) + gone; n != 60 {
		t.Errorf("%d requests were played", n)
	}
	checkSGLang(t, spans, truth, gone)
	for name, v := range page {
		if strings.HasPrefix(name, "inferspan_lost_records_total") && v != 0 || strings.HasPrefix(name, "inferspan_detail_active") && v != 1 {
			t.Errorf("%s is %v", name, v)
		}
	}
	if n := page.sum("inferspan_steps_missed_total"); n != 0 {
		t.Errorf("%v steps were missed", n)
	}
}

// stagesOf are the stages of one request by thread and name.
type stagesOf map[string]map[string]int

func checkSGLang(t *testing.T, spans []*span, truth map[string]said, gone int) {
	children := map[string][]*span{}
	byID := map[string]*span{}
	for _, s := range spans {
		byID[s.TraceID+s.SpanID] = s
		children[s.TraceID+s.ParentID] = append(children[s.TraceID+s.ParentID], s)
	}
	f := faults{t: t}
	seen := map[string]bool{}
	unfinished, cached, chunked := 0, 0, 0
	for _, s := range spans {
		if s.text(semconv.AttrModule) == "" {
			continue // not the span of a request
		}
		id := s.text(semconv.AttrRID)
		if seen[id] {
			f.add("%s has two spans", id)
		}
		seen[id] = true
		want, ok := truth[id]
		if !ok {
			unfinished++ // for the client; the engine may have been faster than its leaving
			continue
		}
		if p := byID[s.TraceID+s.ParentID]; want.entry && (p == nil || !p.entry() || p.text("gen_ai.response.id") != id) {
			f.add("%s: below %+v, want its entry span", id, p)
		}
		number := func(key string) float64 {
			v, ok := s.number(key)
			if !ok {
				f.add("%s lacks %s", id, key)
			}
			return v
		}
		prompt, completion, hit := number(semconv.AttrGenAIUsagePromptTokens), number(semconv.AttrGenAIUsageCompletionTokens), number(semconv.AttrGenAIUsageCachedTokens)
		if want.completion >= 0 && (prompt != want.prompt || completion != want.completion) {
			f.add("%s: %v prompt and %v output tokens, want %+v", id, prompt, completion, want)
		}
		if want.cached >= 0 && hit != want.cached {
			f.add("%s: %v cached tokens, want %+v", id, hit, want)
		}
		if hit > 0 {
			cached++
		}
		got := stagesBelow(s, children)
		for thread, stages := range map[string][]string{
			"Tokenizer": {"tokenize", "api_server_dispatch"},
			"Scheduler": {"request_process", "prefill_waiting", "prefill_forward", "decode_forward"},
		} {
			for _, name := range stages {
				if name == "decode_forward" && completion < 2 {
					continue
				}
				if got[thread][name] != 1 {
					f.add("%s: %d of %s in %v", id, got[thread][name], name, got)
				}
			}
		}
		if len(got) != 2 {
			f.add("%s: threads %v", id, got)
		}
		// Of one that is not streamed the result before its last one may be gone by the time
		// that anything is seen of it: where the two meet is not known then.
		lost := completion - 1 - float64(got["Scheduler"]["decode_loop"])
		if lost != 0 && (want.stream || lost != 2) {
			f.add("%s: %d decode loops for %v tokens", id, got["Scheduler"]["decode_loop"], completion)
		}
		if rest := int(prompt - hit); rest > sglangChunk {
			chunked++
			if n := got["Scheduler"]["chunked_prefill"]; n < (rest+sglangChunk-1)/sglangChunk {
				f.add("%s: %d chunks for %d tokens", id, n, rest)
			}
		}
	}
	for id := range truth {
		if !seen[id] {
			f.add("%s: no span", id)
		}
	}
	// One that leaves early may do so before the engine has its request.
	if unfinished > gone || unfinished < gone/2 {
		f.add("%d requests did not finish, %d clients left", unfinished, gone)
	}
	if cached == 0 || chunked == 0 {
		f.add("%d requests found something in the prefix cache, %d were chunked", cached, chunked)
	}
	f.end("requests")
	t.Logf("%d requests: %d with cached tokens, %d chunked, %d given up; %d spans", len(seen), cached, chunked, unfinished, len(spans))
}

// stagesBelow counts the stages below the span of a request.
func stagesBelow(s *span, children map[string][]*span) stagesOf {
	out := stagesOf{}
	for _, thread := range children[s.TraceID+s.SpanID] {
		label := thread.text(semconv.AttrThreadLabel)
		if out[label] == nil {
			out[label] = map[string]int{}
		}
		var count func(s *span)
		count = func(s *span) {
			for _, c := range children[s.TraceID+s.SpanID] {
				out[label][c.Name]++
				count(c)
			}
		}
		count(thread)
	}
	return out
}
