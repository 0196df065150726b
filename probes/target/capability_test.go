package target

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/correlate/semconv"
	"inferspan/probes/host"
)

// usual is a vLLM of which everything is known.
func usual() *Engine {
	on := true
	lib := &Library{Path: "/libzmq.so"}
	return &Engine{
		ID: 1, Kind: "vllm", Generation: "V1", Version: "0.32.0", Model: "m", PDRole: "none", LogStats: &on, Tokenizer: "/t",
		Defaults: map[string]map[string]any{"SamplingParams": {"n": int64(1)}},
		Processes: []Process{
			{PID: 1, Role: RoleAPIServer, ZMQ: lib, Ports: []int{8000}},
			{PID: 2, Role: RoleCore, ZMQ: lib},
			{PID: 3, Role: RoleWorker, ZMQ: lib},
		},
	}
}

func find(t *testing.T, caps []Capability, of, item string) Capability {
	t.Helper()
	for _, c := range caps {
		if c.Item == item && c.Of == of {
			return c
		}
	}
	t.Fatalf("no %q of %q in the report", item, of)
	return Capability{}
}

func TestCapabilities(t *testing.T) {
	const request, chat = "llm_request", "chat {model}"
	for _, c := range []capabilityTest{
		{name: "usual", want: []wantCapability{
			{"", request, Exact, ""}, {"", "wait", Exact, ""}, {"", "prefill", Exact, ""}, {"", "decode", Exact, ""}, {"", chat, Exact, ""},
			{request, "gen_ai.latency.time_in_queue", Exact, ""},
			{request, "gen_ai.latency.e2e", Exact, ""},
			{request, "gen_ai.latency.time_to_first_token", Exact, ""},
			{request, "gen_ai.latency.time_in_tokenize", Exact, ""},
			{request, "gen_ai.latency.time_in_detokenize", Derived, "on average"},
			{request, "gen_ai.latency.time_in_kv_transfer", Unavailable, "no KV transfer"},
			{"", "kv_transfer", Unavailable, "no KV transfer"},
			{request, "gen_ai.pd_role", Exact, ""},
			{request, "DECODE", Exact, ""},
			{chat, "gen_ai.usage.input_tokens", Exact, "response"},
			{chat, "gen_ai.input.messages", Exact, "asked for"},
			{"", "vllm_iter_count", Exact, ""},
			{"", "gen_ai.server.time_to_first_token", Exact, ""},
			{"", "gen_ai_vllm_num_requests_running", Exact, ""},
		}},
		{name: "statistics off", change: func(e *Engine) { *e.LogStats = false }, want: []wantCapability{
			{"", request, Exact, ""}, {"", "wait", Derived, "steps of the scheduler: statistics are off"}, {"", "decode", Exact, ""},
			{request, "gen_ai.latency.time_in_queue", Derived, "steps"},
			{request, "gen_ai.latency.time_in_model_decode", Exact, ""},
			{request, "gen_ai.request.preemption_count", Derived, "steps"}, {request, "gen_ai.latency.e2e", Derived, "receipt"},
			{request, "PREEMPTED", Derived, "steps"}, {request, "PREFILL", Exact, ""},
			{"", "vllm_iter_count", Derived, "--disable-log-stats"},
			{"", "gen_ai_vllm_kv_cache_usage_perc", Derived, "once a second"},
			{"", "gen_ai_vllm_prefix_cache_hits", Unavailable, "--disable-log-stats"},
			{"", "gen_ai_vllm_generation_tokens", Exact, ""},
		}},
		{name: "statistics off, no steps", change: func(e *Engine) { *e.LogStats = false },
			probes: []ProbeState{{PID: 2, Tap: TapSteps, Reason: "hit too often"}, {PID: 2, Tap: TapPeeks, Attached: true}}, want: []wantCapability{
				{"", "wait", Unavailable, "hit too often"}, {request, "gen_ai.latency.time_in_queue", Unavailable, "--disable-log-stats"},
				{"", "gen_ai_vllm_kv_cache_usage_perc", Derived, "once a second"},
			}},
		{name: "statistics off, unreadable interpreter", change: func(e *Engine) { *e.LogStats = false; e.Processes[1].Python.Problem = "too new" }, want: []wantCapability{
			{"", "prefill", Unavailable, "too new"}, {"", "gen_ai_vllm_num_requests_running", Unavailable, "too new"},
		}},
		{name: "core in a program", change: func(e *Engine) {
			*e.LogStats = false
			e.Processes = e.Processes[1:2]
			e.Processes[0].InProcess = true
		}, want: []wantCapability{
			{"", chat, Unavailable, "library"}, {"", request, Derived, "part of the program"}, {"", "wait", Derived, "steps"}, {"", "decode", Derived, "steps"},
			{request, "gen_ai.latency.time_in_queue", Derived, "steps"}, {request, "gen_ai.latency.e2e", Derived, "steps"},
			{request, "gen_ai.usage.completion_tokens", Derived, "steps"}, {"", "gen_ai_vllm_generation_tokens", Derived, "steps"},
			{"", "genai_llm_usage_tokens", Derived, "steps"}, {request, "DECODE", Derived, "steps"}, {"", "gen_ai_vllm_request_success", Derived, "steps"}, {"", "vllm_iter_count", Derived, "steps"},
		}},
		{name: "TLS", change: func(e *Engine) { e.Processes[0].TLS = true }, want: []wantCapability{
			{"", chat, Unavailable, "TLS"}, {chat, "gen_ai.response.id", Unavailable, "TLS"}, {"", request, Exact, ""},
			{"", "genai_llm_usage_tokens", Derived, "TLS"},
		}},
		{name: "Unix socket", change: func(e *Engine) { e.Processes[0].UDS = "/run/x" }, want: []wantCapability{{"", chat, Unavailable, "Unix socket"}}},
		{name: "library", change: func(e *Engine) { e.Processes[0].Role = RoleOffline }, want: []wantCapability{
			{"", chat, Unavailable, "library"}, {"", request, Exact, ""}, {request, "gen_ai.latency.e2e", Exact, ""},
		}},
		{name: "Rust front end", change: func(e *Engine) { e.Processes[0].ZMQ = nil }, want: []wantCapability{
			{"", chat, Exact, ""}, {request, "gen_ai.latency.e2e", Derived, "core's send"}, {request, "gen_ai.latency.time_in_tokenize", Unavailable, "not vLLM's own"},
		}},
		{name: "unreadable front end", change: func(e *Engine) { e.Processes[0].Python.Problem = "too new" }, want: []wantCapability{
			{request, "gen_ai.latency.e2e", Derived, "receipt of the message in the front end, just before the engine's own stamp: the interpreter of the front end cannot be read: too new"},
			{request, "gen_ai.latency.time_in_tokenize", Unavailable, "too new"}, {request, "gen_ai.latency.time_in_detokenize", Unavailable, "too new"},
		}},
		{name: "front end without probes", probes: []ProbeState{{PID: 1, Tap: TapFront, Reason: "hit too often"}}, want: []wantCapability{
			{request, "gen_ai.latency.time_to_first_token", Derived, "hit too often"}, {request, "gen_ai.latency.time_in_tokenize", Exact, ""},
		}},
		{name: "tokenizer without probes", probes: []ProbeState{{PID: 1, Tap: TapFront, Attached: true}, {PID: 1, Tap: TapTokenize, Reason: "hit too often"}, {PID: 1, Tap: TapDetokenize, Reason: "not found"}}, want: []wantCapability{
			{request, "gen_ai.latency.time_to_first_token", Exact, ""}, {request, "gen_ai.latency.time_in_tokenize", Unavailable, "hit too often"},
			{request, "gen_ai.latency.time_in_detokenize", Unavailable, "not found"},
		}},
		{name: "no core", change: func(e *Engine) { e.Processes = e.Processes[:1] }, want: []wantCapability{
			{"", chat, Exact, ""}, {"", request, Unavailable, "no engine core"}, {"", "vllm_iter_count", Unavailable, "no engine core"},
			{"", "gen_ai.server.request.duration", Unavailable, "no engine core"}, {chat, "gen_ai.usage.output_tokens", Exact, "left out"},
		}},
		{name: "core without libzmq", change: func(e *Engine) { e.Processes[1].ZMQ = nil }, want: []wantCapability{{"", request, Unavailable, "maps no libzmq"}}},
		{name: "prefill node", change: func(e *Engine) { e.PDRole = "producer" }, want: []wantCapability{
			{"", "decode", Unavailable, "prefill node"}, {"", "prefill", Exact, ""}, {"", "kv_transfer", Unavailable, "could not be read"},
		}},
		{name: "decode node", change: func(e *Engine) { e.PDRole, e.KVLoads = "consumer", ptrTo(true) }, want: []wantCapability{
			{"", "prefill", Unavailable, "decode node"}, {request, "gen_ai.latency.time_in_model_prefill", Exact, "0"},
			{"", "kv_transfer", Derived, "steps"}, {request, "gen_ai.latency.time_in_kv_transfer", Derived, "steps"},
			{"kv_transfer", "gen_ai.kv_transfer.cached_tokens", Exact, ""}, {"kv_transfer", "gen_ai.kv_transfer.failed", Exact, ""},
		}},
		{name: "decode node without steps", change: func(e *Engine) {
			e.PDRole, e.KVLoads, e.Processes[1].Python.Problem = "consumer", ptrTo(true), "stripped"
		}, want: []wantCapability{
			{"", "kv_transfer", Unavailable, "stripped"}, {request, "gen_ai.latency.time_in_kv_transfer", Unavailable, "stripped"},
		}},
		{name: "decode node of an older version", change: func(e *Engine) { e.PDRole, e.KVLoads = "consumer", ptrTo(false) }, want: []wantCapability{
			{"", "kv_transfer", Unavailable, "this version"},
		}},
		{name: "PD role not known", change: func(e *Engine) { e.PDRole = "" }, want: []wantCapability{{request, "gen_ai.pd_role", Unavailable, "not known"}}},
		{name: "no defaults, no tokenizer, no model", change: func(e *Engine) { e.Defaults, e.Tokenizer, e.Model = nil, "", "" }, want: []wantCapability{
			{request, "gen_ai.request.temperature", Exact, "default"}, {request, "PREFILL", Exact, "tokenizer.json"},
			{request, "gen_ai.request.model_name", Unavailable, "model's name"}, {"", "gen_ai_vllm_request_params_max_tokens", Derived, "default"},
		}},
		{name: "host without uprobes", host: host.Report{Items: []host.Item{{Name: host.Uprobe, State: host.Missing, Required: true, Detail: "why"}}}, want: []wantCapability{
			{"", request, Unavailable, "uprobe: why"}, {"", chat, Exact, ""},
		}},
		{name: "host without BTF", host: host.Report{Items: []host.Item{{Name: host.BTF, State: host.Missing, Required: true, Detail: "why"}}}, want: []wantCapability{
			{"", request, Unavailable, "btf: why"}, {"", chat, Unavailable, "btf: why"},
		}},
		{name: "host without syscall tracepoints", host: host.Report{Items: []host.Item{{Name: host.Syscalls, State: host.Missing, Detail: "why"}}}, want: []wantCapability{
			{"", request, Exact, ""}, {"", chat, Unavailable, "syscall tracepoints: why"},
		}},
		{name: "probe refused", probes: []ProbeState{{PID: 2, Tap: TapRequests, Attached: true}, {PID: 2, Tap: TapOutputs, Reason: "no symbol"}, {PID: 1, Tap: TapHTTP, Attached: true}}, want: []wantCapability{
			{"", request, Unavailable, "attaching to process 2: no symbol"}, {"", chat, Exact, ""},
		}},
		{name: "probe refused in one of two", probes: []ProbeState{{PID: 2, Tap: TapOutputs, Attached: true}, {PID: 4, Tap: TapOutputs, Reason: "gone"}}, want: []wantCapability{{"", request, Exact, ""}}},
		{name: "V0", change: func(e *Engine) { e.Generation = "V0" }, want: []wantCapability{
			{"", chat, Exact, ""}, {"", request, Unavailable, "V0"}, {"", "num_running_sys", Unavailable, "V0"},
		}},
	} {
		c.check(t, usual())
	}
}

// capabilityTest is an engine unlike the usual one, and what the report says of it.
type capabilityTest struct {
	name   string
	change func(*Engine)
	host   host.Report
	probes []ProbeState
	want   []wantCapability
}

type wantCapability struct {
	of, item string
	state    CapabilityState
	reason   string // part of it
}

// check changes the usual engine, and looks at the report.
func (c *capabilityTest) check(t *testing.T, e *Engine) {
	t.Helper()
	if c.change != nil {
		c.change(e)
	}
	caps := Capabilities(e, c.host, c.probes)
	for _, w := range c.want {
		got := find(t, caps, w.of, w.item)
		if got.State != w.state || !strings.Contains(got.Reason, w.reason) || w.reason == "" && got.Reason != "" {
			t.Errorf("%s: %s %s: %s %q; want %s with %q", c.name, w.of, w.item, got.State, got.Reason, w.state, w.reason)
		}
	}
	whole(t, c.name, caps)
}

// whole checks that a report has nothing twice and says why.
func whole(t *testing.T, name string, caps []Capability) {
	t.Helper()
	seen := make(map[string]bool)
	for _, g := range caps {
		key := fmt.Sprintf("%s %s %s", g.Kind, g.ID, g.Item)
		if seen[key+g.Of] {
			t.Errorf("%s: %s is there twice", name, key)
		}
		seen[key+g.Of] = true
		if g.State != Exact && g.Reason == "" || g.State == noSuch || g.Item == "" || g.ID == "" {
			t.Errorf("%s: %+v", name, g)
		}
	}
}

// TestCapabilitiesComplete compares the items with the documented ones.
func TestCapabilitiesComplete(t *testing.T) {
	for _, c := range []struct {
		engine  *Engine
		version string // documented items of another one do not apply
		least   int
	}{{usual(), "V1", 25}, {usualSGLang(), "any", 40}} {
		have := make(map[string]bool)
		for _, x := range Capabilities(c.engine, host.Report{}, nil) {
			have[string(x.Kind)+" "+x.ID+" "+x.Item] = true
			if engine, _, _ := strings.Cut(x.ID, "."); strings.Contains(x.ID, ".v0.") || engine != c.engine.Kind && engine != "otel" && engine != "prom" {
				t.Errorf("%+v is not of %s", x, c.engine.Kind)
			}
		}
		n := 0
		for _, s := range semconv.Spans {
			if s.Engine != c.engine.Kind || s.Version != c.version && s.Version != "any" {
				continue
			}
			n++
			if !have["span "+s.ID+" "+s.NamePattern] {
				t.Errorf("span %s is missing", s.ID)
			}
			for _, a := range s.Attrs {
				if !have["attribute "+s.ID+" "+a.Name] {
					t.Errorf("attribute %s of %s is missing", a.Name, s.ID)
				}
			}
		}
		for _, m := range semconv.Metrics {
			if m.Engine == c.engine.Kind && (m.Version == c.version || m.Version == "any") && !m.Own {
				n++
				if !have["metric "+m.ID+" "+m.Name] {
					t.Errorf("metric %s is missing", m.ID)
				}
			}
		}
		if n < c.least {
			t.Errorf("only %d spans and metrics of %s are documented", n, c.engine.Kind)
		}
	}
}

func ptrTo[T any](v T) *T { return &v }
