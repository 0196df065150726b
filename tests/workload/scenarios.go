package workload

import (
	"strings"
	"time"
)

// Scenarios returns all scenarios in a fixed order.
func Scenarios() []*Scenario { return all }

// Find returns the scenario of that name, nil if there is none.
func Find(name string) *Scenario {
	for _, s := range all {
		if s.Name == name {
			return s
		}
	}
	return nil
}

var all = []*Scenario{
	{Name: "chat", About: "one chat request at a time, not streamed", Needs: NeedsGenerate, Count: 10, Concurrency: 1, make: chat},
	{Name: "stream", About: "streamed chat, four at a time, with and without usage in the stream", Needs: NeedsGenerate, Count: 16, Concurrency: 4, make: stream},
	{Name: "burst", About: "32 at a time, streamed and not, chat and completions", Needs: NeedsGenerate, Count: 96, Concurrency: 32, make: burst},
	{Name: "long", About: "prompts of some 800 tokens, which the scheduler splits into chunks when they arrive together", Needs: NeedsGenerate, Count: 8, Concurrency: 8, make: long},
	{Name: "prefix", About: "prompts that share their beginning with earlier ones", Needs: NeedsGenerate, Count: 10, Concurrency: 1, make: prefix},
	{Name: "preempt", About: "more context at a time than the KV cache holds", Needs: NeedsSmallKV, Count: 12, Concurrency: 12, make: preempt},
	{Name: "leave-early", About: "clients that close before the first token, streamed and not", Needs: NeedsGenerate, Count: 8, Concurrency: 4, make: leaveEarly},
	{Name: "leave-mid", About: "clients that close in mid-stream", Needs: NeedsGenerate, Count: 8, Concurrency: 4, make: leaveMid},
	{Name: "invalid", About: "requests that are refused: 400, 404, 405, 422-like bodies", Needs: NeedsGenerate, Count: 9, Concurrency: 1, make: invalid},
	{Name: "n", About: "several choices per request, streamed and not", Needs: NeedsGenerate, Count: 4, Concurrency: 2, make: choices},
	{Name: "logprobs", About: "log-probabilities of outputs and prompts", Needs: NeedsGenerate, Count: 6, Concurrency: 2, make: logprobs},
	{Name: "stop", About: "stop strings and stop tokens", Needs: NeedsGenerate, Count: 9, Concurrency: 3, make: stop},
	{Name: "completions", About: "text completions: one prompt, several, token ids, echo", Needs: NeedsGenerate, Count: 8, Concurrency: 2, make: completions},
	{Name: "responses", About: "/v1/responses, streamed and not", Needs: NeedsGenerate, Count: 4, Concurrency: 2, make: responses},
	{Name: "messages", About: "/v1/messages, streamed and not", Needs: NeedsGenerate, Count: 4, Concurrency: 2, make: messages},
	{Name: "keep-alive", About: "several requests one after another on a connection", Needs: NeedsGenerate, Count: 12, Concurrency: 3, make: keepAlive},
	{Name: "pipeline", About: "several requests sent before the first response is read", Needs: NeedsGenerate, Count: 6, Concurrency: 2, make: pipeline},
	{Name: "chunked", About: "request bodies in HTTP chunks and in several writes, and a large one", Needs: NeedsGenerate, Count: 6, Concurrency: 2, make: chunked},
	{Name: "headers", About: "traceparent, tracestate, x-request-id, a key that must not be seen", Needs: NeedsGenerate, Count: 6, Concurrency: 2, make: headers},
	{Name: "other", About: "requests that are not inference: health, models, metrics, tokenize", Needs: NeedsGenerate, Count: 5, Concurrency: 1, make: other},
	{Name: "tools", About: "tool calls: offered, required, one by name, tool results", Needs: NeedsTools, Count: 6, Concurrency: 2, make: tools},
	{Name: "embeddings", About: "embeddings: text, several, token ids", Needs: NeedsPooling, Count: 8, Concurrency: 2, make: embeddings},
	{Name: "generate", About: "/generate, streamed and not, text and token ids", Needs: NeedsNative, Count: 24, Concurrency: 4, make: generate},
	{Name: "queue", About: "more requests than the server runs at a time, of which every third client leaves while it waits", Needs: NeedsNative, Count: 48, Concurrency: 48, make: queue},
	{Name: "retract", About: "more context at a time than the KV cache holds, of requests that might end at any token as far as the server knows", Needs: NeedsNative, Count: 24, Concurrency: 24, make: retract},
	{Name: "score", About: "score and rerank", Needs: NeedsPooling, Count: 6, Concurrency: 2, make: score},
}

var usageInStream = fields{"include_usage": true}

func chat(g *gen) []Session {
	return alone(g.chat(g.between(5, 40), g.between(4, 24), fields{"temperature": 0.7, "top_p": 0.9, "top_k": 20, "user": "user-" + words[g.IntN(len(words))]}))
}

func stream(g *gen) []Session {
	return alone(
		g.chat(g.between(5, 60), g.between(8, 40), fields{"stream": true, "stream_options": usageInStream}),
		g.chat(g.between(5, 60), g.between(8, 40), fields{"stream": true, "temperature": 0}),
	)
}

func burst(g *gen) []Session {
	return alone(
		g.chat(g.between(10, 120), g.between(8, 64), fields{"stream": true, "stream_options": usageInStream}),
		g.chat(g.between(10, 120), g.between(8, 64), fields{"temperature": 0.5}),
		g.completion(g.between(10, 120), g.between(8, 64), fields{"stream": true}),
		g.completion(g.between(10, 120), g.between(8, 64), nil),
	)
}

func long(g *gen) []Session {
	return alone(
		g.completion(g.between(700, 850), 12, nil),
		g.chat(g.between(700, 850), 12, fields{"stream": true, "stream_options": usageInStream}),
	)
}

func prefix(g *gen) []Session {
	shared := text(g.Rand, 300)
	var rs []Request
	for range 5 {
		rs = append(rs, g.completion(0, 6, fields{"prompt": shared + " " + text(g.Rand, g.between(3, 30))}))
	}
	return alone(rs...)
}

func preempt(g *gen) []Session {
	return alone(
		g.completion(g.between(60, 90), g.between(200, 300), nil),
		g.chat(g.between(60, 90), g.between(200, 300), fields{"stream": true, "stream_options": usageInStream}),
	)
}

// The answers are so long that the server cannot be done when the client leaves.
const tooLong = 800

func leaveEarly(g *gen) []Session {
	a := g.chat(g.between(10, 60), tooLong, fields{"stream": true})
	b := g.chat(g.between(10, 60), tooLong, nil)
	for _, r := range []*Request{&a, &b} {
		r.Leave, r.Want = LeaveEarly, 0
		r.After = time.Duration(g.between(0, 60)) * time.Millisecond
	}
	return alone(a, b)
}

func leaveMid(g *gen) []Session {
	a := g.chat(g.between(10, 60), tooLong, fields{"stream": true})
	b := g.completion(g.between(10, 60), tooLong, fields{"stream": true})
	for _, r := range []*Request{&a, &b} {
		r.Leave, r.Event = LeaveMid, g.between(2, 30)
	}
	return alone(a, b)
}

func invalid(g *gen) []Session {
	want := func(status int, r Request) Request { r.Want = status; return r }
	broken := g.chat(5, 5, nil)
	broken.Body = broken.Body[:len(broken.Body)-7]
	get := g.chat(5, 5, nil)
	get.Method, get.Body = "GET", nil
	return alone(
		want(400, g.chat(5, 5, fields{"temperature": "warm"})),
		want(400, g.chat(5, -3, nil)),
		want(404, g.chat(5, 5, fields{"model": "someone-else"})),
		want(400, broken),
		want(400, g.completion(3000, 5, nil)), // longer than the context
		want(404, g.completion(5, 5, fields{"model": "someone-else", "stream": true})),
		want(405, get),
		want(400, g.chat(5, 5, fields{"n": 0})),
		want(400, g.post("/v1/chat/completions", fields{"max_tokens": 5})), // no messages
	)
}

func choices(g *gen) []Session {
	return alone(
		g.chat(g.between(10, 30), 10, fields{"n": 3, "temperature": 0.8}),
		g.chat(g.between(10, 30), 10, fields{"n": 3, "temperature": 0.8, "stream": true, "stream_options": usageInStream}),
		g.completion(g.between(10, 30), 10, fields{"n": 2, "temperature": 0.8}),
	)
}

func logprobs(g *gen) []Session {
	return alone(
		g.chat(g.between(5, 20), 8, fields{"logprobs": true, "top_logprobs": 3}),
		g.completion(g.between(5, 20), 8, fields{"logprobs": 5}),
		g.completion(200, 4, fields{"logprobs": 2, "prompt_logprobs": 3}), // beyond one frame: arrays travel beside the message
		g.chat(g.between(5, 20), 8, fields{"logprobs": true, "top_logprobs": 2, "stream": true}),
	)
}

func stop(g *gen) []Session {
	return alone(
		g.chat(10, 300, fields{"stop": []string{"e"}, "temperature": 1, "seed": 7}),
		g.chat(10, 300, fields{"stop": []string{"a", "o"}, "temperature": 1, "stream": true}),
		// Half of the vocabulary: one of them is drawn soon.
		g.completion(10, 300, fields{"stop_token_ids": upTo(3, 1000), "temperature": 1}),
	)
}

func upTo(lo, hi int) []int {
	var s []int
	for i := lo; i < hi; i++ {
		s = append(s, i)
	}
	return s
}

func completions(g *gen) []Session {
	three := []string{text(g.Rand, 8), text(g.Rand, 12), text(g.Rand, 5)}
	return alone(
		g.completion(g.between(5, 40), 10, nil),
		g.completion(0, 6, fields{"prompt": three}),
		g.completion(0, 6, fields{"prompt": upTo(300, 300+g.between(5, 50))}),
		g.completion(g.between(5, 40), 6, fields{"echo": true, "stream": true, "stream_options": usageInStream}),
	)
}

func responses(g *gen) []Session {
	return alone(
		g.post("/v1/responses", fields{"input": text(g.Rand, 12), "max_output_tokens": 10}),
		g.post("/v1/responses", fields{"input": text(g.Rand, 12), "max_output_tokens": 10, "stream": true}),
	)
}

func messages(g *gen) []Session {
	msg := []fields{{"role": "user", "content": text(g.Rand, 12)}}
	return alone(
		g.post("/v1/messages", fields{"messages": msg, "max_tokens": 10}),
		g.post("/v1/messages", fields{"messages": msg, "max_tokens": 10, "stream": true}),
	)
}

func keepAlive(g *gen) []Session {
	return []Session{{Requests: []Request{
		g.chat(g.between(5, 30), 6, nil),
		g.chat(g.between(5, 30), 6, fields{"stream": true}),
		g.completion(g.between(5, 30), 6, nil),
		g.chat(g.between(5, 30), 6, nil),
	}}}
}

// native makes a request of SGLang's own kind.
func (g *gen) native(prompt any, tokens int, stream bool) Request {
	return g.nativeWith(prompt, fields{"max_new_tokens": tokens, "ignore_eos": true, "temperature": 0.8}, stream)
}

func (g *gen) nativeWith(prompt any, params fields, stream bool) Request {
	body := fields{"sampling_params": params, "stream": stream}
	if ids, ok := prompt.([]int); ok {
		body["input_ids"] = ids
	} else {
		body["text"] = prompt
	}
	r := g.post("/generate", body)
	r.Max = params["max_new_tokens"].(int)
	return r
}

func generate(g *gen) []Session {
	return alone(
		g.native(text(g.Rand, g.between(5, 60)), g.between(1, 30), true),
		g.native(text(g.Rand, g.between(5, 60)), g.between(1, 30), false),
		g.native(upTo(300, 300+g.between(5, 50)), g.between(1, 30), true),
	)
}

// retract: SGLang reserves room for all tokens of a request that ignores the end of the
// text, and a part of it for one that does not.
func retract(g *gen) []Session {
	n := g.between(200, 300)
	params := fields{"max_new_tokens": n, "min_new_tokens": n, "temperature": 0.8}
	return alone(
		g.nativeWith(text(g.Rand, g.between(60, 90)), params, true),
		g.nativeWith(text(g.Rand, g.between(60, 90)), params, false),
	)
}

func queue(g *gen) []Session {
	leaver := g.native(text(g.Rand, g.between(60, 90)), tooLong, true)
	leaver.Leave, leaver.Want = LeaveEarly, 0
	leaver.After = time.Duration(g.between(100, 400)) * time.Millisecond
	return alone(
		g.native(text(g.Rand, g.between(60, 90)), g.between(100, 150), true),
		g.native(text(g.Rand, g.between(60, 90)), g.between(100, 150), false),
		leaver,
	)
}

func pipeline(g *gen) []Session {
	return []Session{{Pipelined: true, Requests: []Request{
		g.chat(g.between(5, 30), 6, nil),
		g.completion(g.between(5, 30), 6, nil),
		g.chat(g.between(5, 30), 6, nil),
	}}}
}

func chunked(g *gen) []Session {
	a := g.chat(g.between(50, 100), 6, nil)
	a.Chunked, a.Pieces = true, 4
	b := g.chat(g.between(50, 100), 6, fields{"stream": true})
	b.Pieces = 3
	// Larger than what the tracer copies of a request; the field that matters comes after the filler.
	c := g.chat(20, 6, fields{"metadata": fields{"filler": strings.Repeat(text(g.Rand, 50)+" ", 1500)}, "stream": false})
	return alone(a, b, c)
}

func headers(g *gen) []Session {
	a, b, c := g.chat(10, 6, nil), g.chat(10, 6, fields{"stream": true}), g.completion(10, 6, nil)
	g.trace(&a)
	a.Header = append(a.Header, [2]string{"tracestate", "vendor=" + words[g.IntN(len(words))]})
	g.key(&b)
	b.Header = append(b.Header, [2]string{"Authorization", "Bearer not-a-real-key-" + words[g.IntN(len(words))]})
	g.trace(&c)
	g.key(&c)
	return alone(a, b, c)
}

func other(g *gen) []Session {
	get := func(path string) Request { return Request{Method: "GET", Path: path, Want: 200} }
	tok := g.post("/tokenize", fields{"prompt": text(g.Rand, 20)})
	missing := g.post("/v1/nothing-here", fields{"prompt": text(g.Rand, 20)})
	missing.Want = 404
	return alone(get("/health"), get("/v1/models"), get("/metrics"), tok, missing)
}

var weather = fields{"type": "function", "function": fields{
	"name": "look", "description": "look at a place",
	"parameters": fields{"type": "object", "properties": fields{"place": fields{"type": "string", "enum": []string{"river", "mountain", "sea"}}}, "required": []string{"place"}, "additionalProperties": false},
}}

func tools(g *gen) []Session {
	named := fields{"type": "function", "function": fields{"name": "look"}}
	return alone(
		g.chat(10, 16, fields{"tools": []fields{weather}, "tool_choice": "auto"}),
		g.chat(10, 120, fields{"tools": []fields{weather}, "tool_choice": named}),
		g.chat(10, 120, fields{"tools": []fields{weather}, "tool_choice": "required", "ignore_eos": false}),
		g.chat(10, 120, fields{"tools": []fields{weather}, "tool_choice": named, "stream": true}),
		g.chat(10, 16, fields{"tools": []fields{weather}, "messages": []fields{
			{"role": "user", "content": text(g.Rand, 6)},
			{"role": "assistant", "content": nil, "tool_calls": []fields{{"id": "call-1", "type": "function", "function": fields{"name": "look", "arguments": `{"place":"river"}`}}}},
			{"role": "tool", "tool_call_id": "call-1", "content": text(g.Rand, 6)},
		}}),
	)
}

func embeddings(g *gen) []Session {
	two := g.post("/v1/embeddings", fields{"input": []string{text(g.Rand, 8), text(g.Rand, 20)}})
	two.Inputs = 2
	return alone(
		g.post("/v1/embeddings", fields{"input": text(g.Rand, g.between(5, 40))}),
		two,
		g.post("/v1/embeddings", fields{"input": upTo(300, 320)}),
		g.post("/v1/embeddings", fields{"input": text(g.Rand, 10), "encoding_format": "base64"}),
	)
}

func score(g *gen) []Session {
	docs := []string{text(g.Rand, 8), text(g.Rand, 12), text(g.Rand, 16)}
	a := g.post("/score", fields{"text_1": text(g.Rand, 6), "text_2": docs})
	b := g.post("/rerank", fields{"query": text(g.Rand, 6), "documents": docs})
	c := g.post("/v1/rerank", fields{"query": text(g.Rand, 6), "documents": docs, "top_n": 2})
	a.Inputs, b.Inputs, c.Inputs = 3, 3, 3
	return alone(a, b, c)
}
