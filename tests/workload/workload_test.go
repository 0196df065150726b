package workload

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestPlanDependsOnSeedOnly(t *testing.T) {
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			a, b, c := s.Plan(1, 0), s.Plan(1, 0), s.Plan(2, 0)
			if !reflect.DeepEqual(a, b) {
				t.Error("two plans of one seed differ")
			}
			if s.Name != "other" && reflect.DeepEqual(a, c) {
				t.Error("plans of two seeds are the same")
			}
			n := 0
			keys := map[string]bool{}
			for _, session := range a {
				for _, r := range session.Requests {
					n++
					for _, k := range []string{r.Key, r.Marks} {
						if k != "" && keys[k] {
							t.Errorf("%s is used twice", k)
						}
						keys[k] = true
					}
				}
			}
			if n < s.Count {
				t.Errorf("%d requests, want at least %d", n, s.Count)
			}
		})
	}
}

func TestStamp(t *testing.T) {
	s := Find("chat")
	for _, plain := range []bool{false, true} {
		plan := s.Plan(1, 9)
		stamp(plan, s.Name, Options{Seed: 1, Trace: !plain, Plain: plain})
		seen := map[string]bool{}
		for _, session := range plan {
			for _, r := range session.Requests {
				if plain {
					if len(r.Header) != 0 || r.Marks != "" || r.Key != "" {
						t.Errorf("plain request has %v", r.Header)
					}
					continue
				}
				if r.Marks == "" || seen[r.Marks] {
					t.Errorf("trace mark %q is missing or used twice", r.Marks)
				}
				seen[r.Marks] = true
			}
		}
	}
}

// server answers like an engine, as far as the client can tell, and keeps what it got.
type server struct {
	mu   sync.Mutex
	got  []string
	done chan struct{} // closed when a client went away in mid-stream
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.got = append(s.got, r.Method+" "+r.URL.Path+" "+r.Header.Get("traceparent")+" "+string(b))
	s.mu.Unlock()
	var body struct {
		Stream bool   `json:"stream"`
		Model  string `json:"model"`
		Max    int    `json:"max_tokens"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		w.WriteHeader(400)
		io.WriteString(w, `{"error":{"type":"Bad Request"}}`)
		return
	}
	if !body.Stream {
		io.WriteString(w, `{"id":"cmpl-1","object":"text_completion","model":"tiny","choices":[{"index":0,"finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":6}}`)
		return
	}
	for i := 0; i < body.Max; i++ {
		if _, err := fmt.Fprintf(w, "data: {\"id\":\"chatcmpl-2\",\"choices\":[{\"index\":0}]}\n\n"); err != nil {
			close(s.done)
			return
		}
		w.(http.Flusher).Flush()
		if i > 5 {
			time.Sleep(time.Millisecond)
		}
	}
	io.WriteString(w, "data: [DONE]\n\n")
}

func TestClient(t *testing.T) {
	g := &gen{Rand: newRand(1, "test"), model: "tiny"}
	split := g.completion(30, 6, nil)
	split.Chunked, split.Pieces = true, 3
	leaves := g.chat(5, 5000, fields{"stream": true})
	leaves.Leave, leaves.Event = LeaveMid, 4
	scenario := &Scenario{Name: "test", Count: 6, Concurrency: 2, make: func(*gen) []Session {
		return []Session{
			{Pipelined: true, Requests: []Request{g.completion(3, 6, nil), g.chat(3, 6, fields{"stream": true})}},
			{Requests: []Request{split, g.completion(4, 6, nil)}},
			{Requests: []Request{leaves, g.completion(4, 6, nil)}},
		}
	}}
	h := &server{done: make(chan struct{})}
	srv := httptest.NewServer(h)
	defer srv.Close()
	log, err := Run(t.Context(), scenario, Options{BaseURL: srv.URL, Seed: 1, Trace: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(log) != 6 {
		t.Fatalf("%d entries, want 6", len(log))
	}
	select {
	case <-h.done:
	case <-time.After(10 * time.Second):
		t.Fatal("the server did not see the client leave")
	}
	bad := Check(log)
	if len(bad) != 1 || !strings.Contains(bad[0], "not sent") {
		t.Errorf("Check = %q, want only that the request after the one that left was not sent", bad)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.got) != 5 {
		t.Errorf("the server got %d requests, want 5", len(h.got))
	}
	for _, e := range log[:4] {
		if e.Status != 200 || !e.Complete || e.SendMono == 0 || e.SentMono < e.SendMono || e.FirstMono < e.SendMono || e.LastMono < e.FirstMono {
			t.Errorf("entry %+v has no full set of times in order", e)
		}
		want := "00-" + e.TraceID + "-" + e.ParentID + "-01 "
		if n := strings.Count(strings.Join(h.got, "\n"), want); n != 1 {
			t.Errorf("the server got traceparent %s %d times", want, n)
		}
	}
	if s := log[1]; s.Events != 7 || s.ResponseID != "chatcmpl-2" {
		t.Errorf("stream: %d events with id %q, want 7 with chatcmpl-2", s.Events, s.ResponseID)
	}
	if l := log[4]; l.LeftMono == 0 || l.Events != 4 || l.Complete {
		t.Errorf("left: %+v, want 4 events and a time", l)
	}
	for _, e := range []Entry{log[0], log[2], log[3]} {
		if e.ResponseID != "cmpl-1" || *e.InputTokens != 5 || *e.OutputTokens != 6 || !reflect.DeepEqual(e.FinishReasons, []string{"length"}) {
			t.Errorf("whole body: %+v", e)
		}
	}
}

func TestNote(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	tests := []struct {
		name   string
		path   string
		stream bool
		bodies []string
		want   Entry
	}{
		{"chat", "/v1/chat/completions", false,
			[]string{`{"id":"chatcmpl-a","object":"chat.completion","model":"tiny","choices":[{"index":1,"finish_reason":"stop","message":{"tool_calls":[{},{}]}},{"index":0,"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}`},
			Entry{ResponseID: "chatcmpl-a", ResponseModel: "tiny", FinishReasons: []string{"length", "stop"}, InputTokens: n(3), OutputTokens: n(4), CachedTokens: n(2), ToolCalls: 2}},
		{"chat stream", "/v1/chat/completions", true,
			[]string{`{"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":1}]},"finish_reason":null}]}`, `{"id":"c","choices":[{"index":0,"finish_reason":"tool_calls"}]}`, `{"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}`},
			Entry{ResponseID: "c", FinishReasons: []string{"tool_calls"}, InputTokens: n(3), OutputTokens: n(4), ToolCalls: 2}},
		{"responses stream", "/v1/responses", true,
			[]string{`{"type":"response.created","response":{"id":"resp_1","model":"tiny","status":"in_progress"}}`, `{"type":"response.output_text.delta","delta":"x"}`, `{"type":"response.incomplete","response":{"id":"resp_1","model":"tiny","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"usage":{"input_tokens":7,"output_tokens":8}}}`},
			Entry{ResponseID: "resp_1", ResponseModel: "tiny", FinishReasons: []string{"max_output_tokens"}, InputTokens: n(7), OutputTokens: n(8)}},
		{"messages stream", "/v1/messages", true,
			[]string{`{"type":"message_start","message":{"id":"m1","model":"tiny","usage":{"input_tokens":5,"output_tokens":0}}}`, `{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}`, `{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":6}}`},
			Entry{ResponseID: "m1", ResponseModel: "tiny", FinishReasons: []string{"max_tokens"}, InputTokens: n(5), OutputTokens: n(6)}},
		{"error", "/v1/completions", false, []string{`{"error":{"message":"no","type":"NotFoundError","code":404}}`}, Entry{ErrorType: "NotFoundError"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := Entry{Path: tt.path, Stream: tt.stream}
			for _, b := range tt.bodies {
				if err := e.note([]byte(b)); err != nil {
					t.Fatal(err)
				}
			}
			tt.want.Path, tt.want.Stream = tt.path, tt.stream
			if !reflect.DeepEqual(e, tt.want) {
				got, _ := json.Marshal(e)
				want, _ := json.Marshal(tt.want)
				t.Errorf("got %s\nwant %s", got, want)
			}
		})
	}
	if err := (&Entry{Path: "/v1/completions"}).note([]byte(`{"id":`)); err == nil {
		t.Error("a cut body gives no error")
	}
}
