package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"testing"
	"time"

	"inferspan/correlate/semconv"
)

// drafting is what the response of a request says of its drafts.
type drafting struct {
	Completion float64 `json:"completion_tokens"`
	Checks     float64 `json:"spec_verify_ct"`
	Correct    float64 `json:"spec_num_correct_drafts"`
}

// length is how many tokens a check of drafts gave: those that stood, and its own.
func (d drafting) length() float64 { return 1 + d.Correct/d.Checks }

// draft has the engine generate tokens, all at once in the response.
func draft(ctx context.Context, e *engine, prompt string, tokens int, temperature float64) (d drafting, err error) {
	body, err := json.Marshal(map[string]any{"text": prompt, "sampling_params": map[string]any{"max_new_tokens": tokens, "temperature": temperature, "ignore_eos": true}})
	if err != nil {
		return d, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/generate", bytes.NewReader(body))
	if err != nil {
		return d, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return d, err
	}
	defer resp.Body.Close()
	var said struct {
		Meta drafting `json:"meta_info"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		return d, fmt.Errorf("generate: status %s: %w", resp.Status, err)
	}
	if said.Meta.Checks == 0 {
		return d, fmt.Errorf("generate: %+v: no drafts were checked", said.Meta)
	}
	return said.Meta, nil
}

// acceptLength compares the accept length with what the engine says: of requests one by one
// exactly, as the length of a report is that of the outputs since the one before and stays
// while there are none; under a load by the mean.
func acceptLength(t *testing.T, e *engine) {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	tr := attach(t, e, "--prometheus", addr)
	waitDetail(t, addr)
	// next returns the metrics when there were n more reports.
	next := func(n float64) series {
		t.Helper()
		from := -1.0
		for range 200 {
			m := scrape(t, "http://"+addr+"/metrics")
			now := m.sum(semconv.MetricSGLangLogCount)
			if from < 0 {
				from = now
			}
			if now >= from+n {
				return m
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatal("no reports in 20 s")
		return nil
	}
	mean := func(a, b series) float64 {
		return (b.sum(semconv.MetricSGLangSpecAcceptLength) - a.sum(semconv.MetricSGLangSpecAcceptLength)) / (b.sum(semconv.MetricSGLangLogCount) - a.sum(semconv.MetricSGLangLogCount))
	}
	// Without a stream the output comes at the end, or with the 50th token.
	lengths := map[float64]bool{}
	for i, tokens := range []int{12, 25, 37, 48, 48, 48} {
		d, err := draft(t.Context(), e, fmt.Sprintf("%d steps forward, and %d steps back, and", i, tokens), tokens, float64(i)/4)
		if err != nil {
			t.Fatal(err)
		}
		got := mean(next(2), next(3))
		if math.Abs(got-d.length()) > 1e-9 {
			t.Errorf("accept length of a request of %d tokens is %v, its response has %v of %v checks and %v drafts that stood", tokens, got, d.length(), d.Checks, d.Correct)
		}
		lengths[got] = true
		t.Logf("%d tokens, %v checks, %v drafts stood: accept length %v, ours %v", tokens, d.Checks, d.Correct, d.length(), got)
	}
	if len(lengths) < 3 {
		t.Errorf("%d different accept lengths, want at least 3: this shows little", len(lengths))
	}
	acceptLengths(t, e, func() series { return next(1) }, mean)
	tr.mustStop(t)
}

// acceptLengths compares the means over some seconds of the same load.
func acceptLengths(t *testing.T, e *engine, report func() series, mean func(a, b series) float64) {
	t.Helper()
	const clients, lasts, tokens = 6, 20 * time.Second, 200
	ctx, cancel := context.WithTimeout(t.Context(), lasts+time.Minute)
	defer cancel()
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		all  drafting
		errs []error
	)
	calls := e.metrics(t).sum("sglang:spec_verify_calls_total")
	end := time.Now().Add(lasts)
	for c := range clients {
		wg.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				d, err := draft(ctx, e, fmt.Sprintf("client %d asks for the %dth time, and again, and again", c, i), tokens, 0.8)
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				}
				all.Checks, all.Correct = all.Checks+d.Checks, all.Correct+d.Correct
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	time.Sleep(3 * time.Second)
	before, theirs, looks := report(), 0.0, 0.0
	for time.Now().Before(end) {
		theirs += e.metrics(t).sum("sglang:spec_accept_length")
		looks++
		time.Sleep(time.Second)
	}
	after := report()
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	ours, theirs := mean(before, after), theirs/looks
	t.Logf("mean accept length of %.0f checks: ours %.4f, the engine's gauge %.4f, by the responses %.4f", all.Checks, ours, theirs, all.length())
	const slack = 0.1
	if math.Abs(ours-theirs) > slack*theirs || math.Abs(ours-all.length()) > slack*all.length() {
		t.Errorf("accept length is %v on average, the engine's is %v, by the responses it is %v", ours, theirs, all.length())
	}
	if counted := e.metrics(t).sum("sglang:spec_verify_calls_total") - calls; counted != all.Checks {
		t.Errorf("the responses have %v checks, the engine counted %v", all.Checks, counted)
	}
}
