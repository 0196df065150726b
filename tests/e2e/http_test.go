package e2e

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"inferspan/tests/workload"
)

// TestHTTPTruth plays the scenarios with 32 connections at a time, clients that
// leave among them, and checks each request that was sent against its entry span.
func TestHTTPTruth(t *testing.T) {
	need(t)
	e := startEngine(t, nil, generateFlags...)

	t.Run("every request marked", func(t *testing.T) {
		tr := attach(t, e)
		type result struct {
			log []workload.Entry
			err error
		}
		// Two plans at once, so that clients leave while others are served.
		leaving := make(chan result)
		go func() {
			log, err := e.send(t.Context(), workload.Options{Seed: 11, Trace: true, Concurrency: 16, Count: 40}, "leave-mid", "leave-early", "keep-alive", "pipeline", "invalid")
			leaving <- result{log, err}
		}()
		log, err := e.send(t.Context(), workload.Options{Seed: 12, Trace: true, Concurrency: 32, Count: 96}, "burst", "stop", "n", "completions", "other")
		r := <-leaving
		if err := errors.Join(err, r.err); err != nil {
			t.Fatal(err)
		}
		log = append(log, r.log...)
		e.idle(t)
		tr.settle(t, inferences(log))
		spans := tr.mustStop(t)
		checkHTTP(t, log, spans)
		checkTrees(t, spans)
	})

	t.Run("no request marked", func(t *testing.T) {
		tr := attach(t, e)
		log := e.play(t, workload.Options{Seed: 13, Plain: true, Concurrency: 32}, generateNeeds...)
		e.idle(t)
		tr.settle(t, inferences(log))
		spans := tr.mustStop(t)
		checkHTTP(t, log, spans)
		checkTrees(t, spans)
	})
}

// TestPooling does the same with an engine that makes embeddings.
func TestPooling(t *testing.T) {
	need(t)
	e := startEngine(t, nil, poolingFlags...)
	tr := attach(t, e)
	log := e.play(t, workload.Options{Seed: 5, Trace: true, Count: 24}, workload.NeedsPooling)
	tr.settle(t, inferences(log))
	spans := tr.mustStop(t)
	checkHTTP(t, log, spans)
	checkTrees(t, spans)
	n := 0
	for _, s := range spans {
		if s.llmRequest() {
			n++
		}
	}
	want := 0
	for i := range log {
		want += log[i].Inputs
		if log[i].Operation() == "rerank" {
			want++ // the query is embedded too
		}
	}
	if n != want {
		t.Errorf("%d llm_request spans, want %d", n, want)
	}
}

// checkHTTP checks that every inference request has exactly one entry span, that
// there is no other one, and that each says what the client saw.
func checkHTTP(t *testing.T, log []workload.Entry, spans []*span) {
	t.Helper()
	f := faults{t: t}
	defer f.end("entry spans")
	var entries []*span
	byTrace, byResponse := map[string][]*span{}, map[string][]*span{}
	for _, s := range spans {
		if !s.entry() {
			continue
		}
		entries = append(entries, s)
		byTrace[s.TraceID] = append(byTrace[s.TraceID], s)
		if id := s.text("gen_ai.response.id"); id != "" {
			byResponse[id] = append(byResponse[id], s)
		}
	}
	taken := map[*span]*workload.Entry{}
	near := map[*span]bool{} // matched by time only
	match := func(l *workload.Entry, by string, found []*span) {
		if len(found) != 1 {
			f.add("%s: %d entry spans by %s, want 1", describe(l), len(found), by)
			return
		}
		if other := taken[found[0]]; other != nil {
			f.add("%s: its entry span is that of %s too", describe(l), describe(other))
			return
		}
		taken[found[0]] = l
	}
	var rest []*workload.Entry
	for i := range log {
		l := &log[i]
		switch {
		case !l.Inference():
			if n := len(byTrace[l.TraceID]); l.TraceID != "" && n > 0 {
				f.add("%s: %d entry spans, want none", describe(l), n)
			}
		case l.TraceID != "":
			match(l, "trace id", byTrace[l.TraceID])
		case l.ResponseID != "":
			match(l, "response id", byResponse[l.ResponseID])
		default:
			rest = append(rest, l)
		}
	}
	// A request without a mark and without a response id is recognised by its path,
	// status and time.
	for _, l := range rest {
		var found []*span
		for _, s := range entries {
			if taken[s] == nil && s.text("url.path") == l.Path && within(s.Start, l.SendWall-clockSlack, wall(l, l.SentMono)+int64(200*time.Millisecond)) && sameStatus(s, l) {
				found = append(found, s)
			}
		}
		if len(found) == 0 {
			f.add("%s: no entry span at its time", describe(l))
			continue
		}
		best := found[0]
		for _, s := range found {
			if abs(s.Start-l.SendWall) < abs(best.Start-l.SendWall) {
				best = s
			}
		}
		taken[best], near[best] = l, true
	}
	for _, s := range entries {
		if taken[s] == nil {
			f.add("entry span %s %s %v was not sent by anyone", s.SpanID, s.Name, s.Attrs)
		}
	}
	for s, l := range taken {
		if near[s] {
			continue // it may be the span of a like request at the same moment
		}
		if bad := disagree(l, s); len(bad) > 0 {
			f.add("%s: %s\n  span %s %v %+v", describe(l), strings.Join(bad, "; "), s.Name, s.Attrs, s.Status)
		}
	}
	t.Logf("%d requests sent, %d of them inference, %d entry spans", len(log), inferences(log), len(entries))
}

// derived says whether the span marks the attribute as worked out, not seen.
func derived(s *span, key string) bool {
	list, _ := s.Attrs["inferspan.derived"].([]any)
	for _, v := range list {
		if v == key {
			return true
		}
	}
	return false
}

// engineWord gives the engine's word for a finish reason of an API.
func engineWord(reason string) string {
	switch reason {
	case "max_output_tokens", "max_tokens":
		return "length"
	case "completed", "end_turn", "stop_sequence", "tool_calls", "tool_use":
		return "stop"
	}
	return reason
}

func describe(l *workload.Entry) string {
	return fmt.Sprintf("%s %d (%s %s status %d id %q trace %q)", l.Scenario, l.Index, l.Method, l.Path, l.Status, l.ResponseID, l.TraceID)
}

// wall converts one of the entry's monotonic times.
func wall(l *workload.Entry, mono int64) int64 { return l.SendWall + mono - l.SendMono }

func within(v, lo, hi int64) bool { return v >= lo && v <= hi }

func abs(v int64) int64 { return max(v, -v) }

func sameStatus(s *span, l *workload.Entry) bool {
	status, ok := s.number("http.response.status_code")
	if l.Status == 0 {
		return true // the client did not wait for it
	}
	return ok && int(status) == l.Status
}

// clockSlack is how far the wall clock may be off: both sides read it with a
// system call near the event.
const clockSlack = int64(2 * time.Millisecond)

// disagree says in what an entry span differs from what the client knows.
func disagree(l *workload.Entry, s *span) (bad []string) {
	note := func(format string, a ...any) { bad = append(bad, fmt.Sprintf(format, a...)) }
	if got := s.text("gen_ai.operation.name"); got != l.Operation() {
		note("operation %q, want %q", got, l.Operation())
	}
	if got := s.text("url.path"); got != l.Path {
		note("path %q, want %q", got, l.Path)
	}
	if l.ParentID != "" && s.ParentID != l.ParentID {
		note("parent %s, want %s", s.ParentID, l.ParentID)
	}
	if !sameStatus(s, l) {
		note("status %v, want %d", s.Attrs["http.response.status_code"], l.Status)
	}
	if l.Model != "" && l.Status == 200 && s.text("gen_ai.request.model") != l.Model {
		note("model %q, want %q", s.text("gen_ai.request.model"), l.Model)
	}
	if got, ok := s.Attrs["gen_ai.request.is_stream"].(bool); ok && got != l.Stream {
		note("stream %v, want %v", got, l.Stream)
	}
	if l.ResponseID != "" && s.text("gen_ai.response.id") != l.ResponseID {
		note("response id %q, want %q", s.text("gen_ai.response.id"), l.ResponseID)
	}
	for _, u := range []struct {
		key  string
		want *int64
	}{{"gen_ai.usage.input_tokens", l.InputTokens}, {"gen_ai.usage.output_tokens", l.OutputTokens}} {
		if u.want == nil || *u.want == 0 {
			continue
		}
		if got, ok := s.number(u.key); !ok || int64(got) != *u.want {
			note("%s %v, want %d", u.key, s.Attrs[u.key], *u.want)
		}
	}
	if len(l.FinishReasons) > 0 {
		var got []string
		list, _ := s.Attrs["gen_ai.response.finish_reasons"].([]any)
		for _, v := range list {
			got = append(got, fmt.Sprint(v))
		}
		want := l.FinishReasons
		if derived(s, "gen_ai.response.finish_reasons") {
			// Taken from the engine, in whose words it is.
			want = nil
			for _, r := range l.FinishReasons {
				want = append(want, engineWord(r))
			}
		}
		if !reflect.DeepEqual(got, want) {
			note("finish reasons %q, want %q", got, want)
		}
	}
	outcome := s.text("inferspan.outcome")
	switch {
	case l.LeftMono != 0 && outcome == "completed" && s.End < wall(l, l.LeftMono) && servedWhole(s):
		// The client came to leave after the server had served it: on a busy machine a
		// client reads late.
	case l.LeftMono != 0:
		if outcome != "client_disconnect" || s.Status.Code != "ERROR" {
			note("outcome %q with status %s, want client_disconnect with ERROR", outcome, s.Status.Code)
		}
		if s.End < wall(l, l.LeftMono)-clockSlack {
			note("it ends %d us before the client left", (wall(l, l.LeftMono)-s.End)/1000)
		}
	case l.Status >= 400:
		if s.Status.Code != "ERROR" {
			note("status %s, want ERROR", s.Status.Code)
		}
	default:
		if outcome != "completed" || s.Status.Code == "ERROR" {
			note("outcome %q with status %s, want completed", outcome, s.Status.Code)
		}
		if s.End > wall(l, l.LastMono)+clockSlack {
			note("it ends %d us after the client had all of it", (s.End-wall(l, l.LastMono))/1000)
		}
	}
	if s.Start < l.SendWall-clockSlack {
		note("it starts %d us before the request was sent", (l.SendWall-s.Start)/1000)
	}
	return bad
}

// servedWhole reports whether the response had all tokens that it could have.
func servedWhole(s *span) bool {
	got, ok := s.number("gen_ai.usage.output_tokens")
	most, limited := s.number("gen_ai.request.max_tokens")
	return ok && limited && got == most
}
