package correlate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// entryOnly prints what only SGLang's entry spans have.
func entryOnly(s *trace.Span) string {
	var out []string
	for _, name := range []string{
		semconv.AttrGenAIRequestID, semconv.AttrGenAIResponseID, semconv.AttrGenAIResponseModel, semconv.AttrGenAIUsageCacheReadInputTokens, semconv.AttrGenAILatencyE2E,
		semconv.AttrGenAIResponseTokensStreamed, semconv.AttrGenAIRequestHasToolCalls, semconv.AttrGenAIRequestToolCallDetected, semconv.AttrGenAIRequestToolCallsCount,
		"gen_ai.completions.0.tool_calls.0.name", "gen_ai.completions.0.tool_calls.0.arguments", "gen_ai.completions.1.tool_calls.2.name",
		semconv.AttrGenAIUserID, semconv.AttrSessionID,
	} {
		if v := s.Attr(name); v != nil {
			out = append(out, fmt.Sprintf("%s=%v", strings.TrimPrefix(name, "gen_ai."), v))
		}
	}
	return strings.Join(out, " ")
}

func TestSGLangEntry(t *testing.T) {
	const id = "aaaaaaaaaa"
	calls := []signal.ToolCall{{Name: "weather", Arguments: `{"in":"x"}`}, {Choice: 1, Index: 2, Name: "time"}}
	stream := func(b *signal.ExchangeBegin) {
		b.Body.Parsed, b.Body.Inputs, b.Body.Stream, b.Body.User = true, 1, signal.Some(true), signal.Some("u")
	}
	for _, c := range []struct {
		name    string
		path    string
		content Policy
		begin   func(*signal.ExchangeBegin)
		end     func(*signal.ExchangeEnd)
		want    string
	}{
		{"not streamed", "/v1/chat/completions", ContentNone, func(b *signal.ExchangeBegin) { b.Body.Parsed = true }, func(e *signal.ExchangeEnd) {
			e.Model, e.ToolCalls, e.Calls = signal.Some("tiny"), signal.Some[int64](1), calls
		}, "response.id=aaaaaaaaaa response.model=tiny usage.cache_read.input_tokens=0 latency.e2e=0.042"},
		{"streamed, without tools", "/v1/chat/completions", ContentNone, stream, func(e *signal.ExchangeEnd) {
			e.Streamed, e.Model, e.ToolCalls, e.CachedTokens = true, signal.Some("tiny"), signal.Some[int64](0), signal.Some[int64](4)
		}, "request.id=aaaaaaaaaa response.id=aaaaaaaaaa usage.cache_read.input_tokens=4 latency.e2e=0.042 response.tokens_streamed=6 request.has_tool_calls=false request.tool_call_detected=false request.tool_calls_count=0"},
		{"streamed, with calls", "/v1/chat/completions", ContentNone, func(b *signal.ExchangeBegin) { stream(b); b.Body.Tools = 2 }, func(e *signal.ExchangeEnd) {
			e.Streamed, e.ToolCalls, e.Calls = true, signal.Some[int64](2), calls
		}, "request.id=aaaaaaaaaa response.id=aaaaaaaaaa usage.cache_read.input_tokens=0 latency.e2e=0.042 response.tokens_streamed=6 request.has_tool_calls=true request.tool_call_detected=true request.tool_calls_count=2 completions.0.tool_calls.0.name=weather completions.1.tool_calls.2.name=time"},
		{"arguments are content", "/v1/chat/completions", ContentSpan, stream, func(e *signal.ExchangeEnd) {
			e.Streamed, e.ToolCalls, e.Calls = true, signal.Some[int64](2), calls
		}, `request.id=aaaaaaaaaa response.id=aaaaaaaaaa usage.cache_read.input_tokens=0 latency.e2e=0.042 response.tokens_streamed=6 request.has_tool_calls=false request.tool_call_detected=true request.tool_calls_count=2 completions.0.tool_calls.0.name=weather completions.0.tool_calls.0.arguments={"in":"x"} completions.1.tool_calls.2.name=time`},
		{"arguments under the event policy", "/v1/chat/completions", ContentEvent, stream, func(e *signal.ExchangeEnd) {
			e.Streamed, e.ToolCalls, e.Calls = true, signal.Some[int64](1), calls[:1]
		}, "request.id=aaaaaaaaaa response.id=aaaaaaaaaa usage.cache_read.input_tokens=0 latency.e2e=0.042 response.tokens_streamed=6 request.has_tool_calls=false request.tool_call_detected=true request.tool_calls_count=1 completions.0.tool_calls.0.name=weather"},
		{"middle not seen, tools called", "/v1/chat/completions", ContentNone, stream, func(e *signal.ExchangeEnd) {
			e.Streamed, e.Gap, e.FinishReasons = true, true, []string{"tool_calls"}
		}, "request.id=aaaaaaaaaa response.id=aaaaaaaaaa usage.cache_read.input_tokens=0 latency.e2e=0.042 response.tokens_streamed=6 request.has_tool_calls=false request.tool_call_detected=true"},
		{"middle not seen, ended by itself", "/v1/chat/completions", ContentNone, stream, func(e *signal.ExchangeEnd) {
			e.Streamed, e.Gap, e.FinishReasons = true, true, []string{"stop"}
		}, "request.id=aaaaaaaaaa response.id=aaaaaaaaaa usage.cache_read.input_tokens=0 latency.e2e=0.042 response.tokens_streamed=6 request.has_tool_calls=false request.tool_call_detected=false"},
		{"middle not seen, cut off", "/v1/chat/completions", ContentNone, func(b *signal.ExchangeBegin) { stream(b); b.Body.Parsed, b.Body.Truncated = false, true }, func(e *signal.ExchangeEnd) {
			e.Streamed, e.Gap, e.FinishReasons = true, true, []string{"length"}
		}, "request.id=aaaaaaaaaa response.id=aaaaaaaaaa usage.cache_read.input_tokens=0 latency.e2e=0.042 response.tokens_streamed=6"},
		{"completion", "/v1/completions", ContentNone, stream, func(e *signal.ExchangeEnd) {
			e.Streamed, e.Model = true, signal.Some("tiny")
		}, "response.id=aaaaaaaaaa usage.cache_read.input_tokens=0 latency.e2e=0.042 response.tokens_streamed=6"},
	} {
		o := NewOptions()
		o.Content = c.content
		s := newSGLang(func(e *signal.Engine) { e.StreamInterval = signal.Some[int64](2) })
		s.begin(100, 7, c.path, func(b *signal.ExchangeBegin) { b.Exchange.PID = tokPID; b.Body = signal.RequestBody{}; c.begin(b) })
		s.engineRequest(100, id, 3)
		s.endHTTP(142, 7, 200, id, signal.OutcomeComplete, func(e *signal.ExchangeEnd) {
			e.Exchange.PID, e.FinishReasons = tokPID, []string{"length"}
			c.end(e)
		})
		trees, _ := run(t, o, s.sig)
		if len(trees) != 1 {
			t.Errorf("%s: %d trees", c.name, len(trees))
			continue
		}
		conforms(t, trees[0], o)
		if got := entryOnly(&trees[0].Spans[0]); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestSGLangEntryPaths: of paths without a documented entry span the request is the root.
func TestSGLangEntryPaths(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/chat/completions": "chat tiny", "/v1/completions": "text_completion tiny", "/v1/messages": "chat tiny", "/v1/responses": "chat tiny",
		"/generate": "Req aaaaaaaa", "/v1/embeddings": "Req aaaaaaaa", "/v1/score": "Req aaaaaaaa", "/v1/rerank": "Req aaaaaaaa", "/classify": "Req aaaaaaaa",
	} {
		s := newSGLang()
		s.begin(100, 7, path, func(b *signal.ExchangeBegin) { b.Exchange.PID = tokPID })
		s.engineRequest(100, "aaaaaaaaaa", 3)
		s.endHTTP(142, 7, 200, "aaaaaaaaaa", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.Exchange.PID = tokPID })
		trees, _ := run(t, NewOptions(), s.sig)
		var roots []string
		for _, tr := range trees {
			roots = append(roots, tr.Spans[0].Name)
		}
		if !slices.Equal(roots, []string{want}) {
			t.Errorf("%s: %q, want %q", path, roots, want)
		}
	}
}

// TestSGLangChoices: of a stream of several choices, or of several prompts, one request is known,
// which is not the sum.
func TestSGLangChoices(t *testing.T) {
	const id = "aaaaaaaaaa"
	for _, c := range []struct {
		name string
		body signal.RequestBody
		n    int64 // as the engine has it
		want [4]any
		lack int // how many are named as missing
	}{
		{"one", signal.RequestBody{Parsed: true, Inputs: 1}, 1, [4]any{int64(10), int64(3), []string{"length"}, int64(3)}, 0},
		{"choices", signal.RequestBody{Parsed: true, Inputs: 1, N: signal.Some[int64](3)}, 3, [4]any{int64(10), nil, nil, nil}, 4},
		{"choices, the rest of the body not read", signal.RequestBody{Truncated: true, Inputs: 1}, 3, [4]any{int64(10), nil, nil, nil}, 4},
		{"body not read", signal.RequestBody{Truncated: true}, 1, [4]any{}, 5},
		{"cut within its prompts", signal.RequestBody{Truncated: true, Inputs: 1, MoreInputs: true}, 1, [4]any{}, 5},
		{"prompts", signal.RequestBody{Parsed: true, Inputs: 2}, 1, [4]any{}, 5},
	} {
		s := newSGLang(func(e *signal.Engine) { e.StreamInterval = signal.Some[int64](1) })
		c.body.Stream = signal.Some(true)
		s.begin(100, 7, "/v1/completions", func(b *signal.ExchangeBegin) { b.Exchange.PID, b.Body = tokPID, c.body })
		s.engineRequest(100, id, 3)
		for i := range s.sig {
			if a, ok := s.sig[i].(*signal.RequestAdded); ok {
				a.Param.N = signal.Some(c.n)
			}
		}
		s.endHTTP(142, 7, 200, id, signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.Exchange.PID, e.Streamed, e.Gap = tokPID, true, true })
		trees, _ := run(t, NewOptions(), s.sig)
		for i, name := range []string{semconv.AttrGenAIUsageInputTokens, semconv.AttrGenAIUsageOutputTokens, semconv.AttrGenAIResponseFinishReasons, semconv.AttrGenAIResponseTokensStreamed} {
			wantAttrs(t, &trees[0].Spans[0], map[string]any{name: c.want[i]})
		}
		conforms(t, trees[0], NewOptions())
		list, _ := trees[0].Spans[0].Attr(semconv.AttrInferspanUnavailable).([]string)
		if len(list) != c.lack {
			t.Errorf("unavailable %q, want %d", list, c.lack)
		}
		if t.Failed() {
			t.Fatal(c.name)
		}
	}
}
