package target

import (
	"testing"

	"inferspan/correlate/semconv"
	"inferspan/probes/host"
)

// usualSGLang is an SGLang of which everything is known: one scheduler, no disaggregation.
func usualSGLang() *Engine {
	lib := &Library{Path: "/libzmq.so"}
	stamps := []string{sglangLaunch}
	for _, s := range sglangStages {
		stamps = append(stamps, s.stamps...)
	}
	return &Engine{
		ID: 1, Kind: "sglang", Version: "0.5.23", Model: "m", PDRole: "none", HostID: "h", Publishes: ptrTo(true),
		Settings: map[string]any{"tokenizer_worker_num": int64(1)}, Sources: map[string]string{"settings": "live"},
		Stamps: map[Role][]string{RoleCore: stamps, RoleAPIServer: {"created_time"}},
		Processes: []Process{
			{PID: 1, Role: RoleAPIServer, ZMQ: lib, Ports: []int{30000}},
			{PID: 2, Role: RoleCore, ZMQ: lib, Ranks: Ranks{TP: ptrTo(0), PP: ptrTo(0)}},
			{PID: 3, Role: RoleDetokenizer, ZMQ: lib},
		},
	}
}

func TestSGLangCapabilities(t *testing.T) {
	name := func(id string) string { return semconv.SpanByID(id).NamePattern }
	request, chat := name(semconv.SpanSGLangRequest), name(semconv.SpanSGLangEntryChat)
	tokenizer, several, controller, scheduler := name(semconv.SpanSGLangThreadTokenizer), name(semconv.SpanSGLangThreadMultiTokenizer), name(semconv.SpanSGLangThreadDPController), name(semconv.SpanSGLangThreadScheduler)
	// All of 0.5.5: it stamps the queue, the first forward pass and the end.
	old := func(e *Engine) {
		e.Stamps = map[Role][]string{RoleCore: {"wait_queue_entry_time", "forward_entry_time", "completion_time"}, RoleAPIServer: {}}
		e.Publishes = ptrTo(false)
	}
	for _, c := range []capabilityTest{
		{name: "usual", want: []wantCapability{
			{"", chat, Exact, ""}, {"", request, Exact, ""}, {"", tokenizer, Exact, ""}, {"", scheduler, Exact, ""},
			{"", several, Unavailable, "one tokenizer"}, {"", controller, Unavailable, "no DP controller"}, {"", "dpc_dispatch", Unavailable, "no DP controller"},
			{"", "prefill_forward", Exact, ""}, {"", "decode_waiting", Derived, "launch"}, {"", "decode_loop", Exact, "does not stream"},
			{"", "fake_output", Unavailable, "no disaggregation"}, {"", "spec_verify", Unavailable, "traces itself"},
			{request, "bootstrap_room", Unavailable, "no disaggregation"}, {request, "gen_ai.latency.e2e", Exact, ""},
			{scheduler, "tp_rank", Exact, ""}, {scheduler, "dp_rank", Unavailable, "no such rank"}, {tokenizer, "tp_rank", Unavailable, "only schedulers"},
			{scheduler, "retract", Exact, ""}, {"decode_forward", "schedule", Derived, "launch"},
			{chat, "gen_ai.usage.input_tokens", Exact, "response"}, {chat, "gen_ai.input.messages", Exact, "asked for"},
			{"", "sglang_num_running_reqs", Derived, "once a second"}, {"", "sglang_spec_accept_length", Unavailable, "no speculative decoding"},
			{"", "num_requests_total", Exact, ""}, {"", "gen_ai_server_request_duration", Exact, ""}, {"", "gen_ai.server.request.duration", Exact, ""},
		}},
		{name: "0.5.5", change: old, want: []wantCapability{
			{"", request, Derived, "messages"}, {"", tokenizer, Unavailable, "keeps no times"}, {"", scheduler, Exact, "marked partial"},
			{"", "prefill_waiting", Exact, ""}, {"", "request_process", Unavailable, "keeps no times"}, {"", "prefill_forward", Unavailable, "keeps no times"}, {"", "decode_loop", Unavailable, "keeps no times"},
			{scheduler, "schedule", Unavailable, "times of batches"}, {scheduler, "retract", Exact, ""},
			{request, "gen_ai.latency.e2e", Unavailable, "keeps no times"}, {request, "gen_ai.latency.time_in_model_decode", Derived, "messages"},
			{"", "sglang_num_used_tokens", Unavailable, "does not publish"}, {"", "sglang_num_queue_reqs", Derived, "once a second"},
			{"", "num_requests_total", Exact, ""}, {"", "gen_ai_server_request_duration", Unavailable, "keeps no times"},
		}},
		{name: "prefill server", change: func(e *Engine) { e.PDRole = "producer" }, want: []wantCapability{
			{"", "prefill_transfer_kv_cache", Exact, ""}, {"", "request_process", Unavailable, "a prefill server"}, {"", "decode_loop", Unavailable, "a prefill server"}, {request, "bootstrap_room", Exact, ""},
		}},
		{name: "decode server", change: func(e *Engine) { e.PDRole = "consumer" }, want: []wantCapability{
			{"", "decode_waiting", Exact, ""}, {"", "prefill_forward", Unavailable, "a decode server"}, {"", "fake_output", Exact, ""},
		}},
		{name: "several of all", change: func(e *Engine) {
			e.Settings["tokenizer_worker_num"], e.Settings["speculative_algorithm"] = int64(2), "NGRAM"
			e.Processes[1].Ranks.DP = ptrTo(0)
			e.Processes = append(e.Processes, Process{PID: 4, Role: RoleController, ZMQ: e.Processes[0].ZMQ}, Process{PID: 5, Role: RoleCore, ZMQ: e.Processes[0].ZMQ, Ranks: Ranks{TP: ptrTo(1)}})
		}, want: []wantCapability{
			{"", tokenizer, Unavailable, "named after it"}, {"", several, Exact, ""}, {"", controller, Exact, ""}, {"", "dpc_dispatch", Exact, ""},
			{scheduler, "dp_rank", Exact, "say so"}, {"", "decode_loop", Exact, "send nothing"}, {"", "sglang_spec_accept_length", Derived, "between two looks"},
		}},
		{name: "no probe on the front end", probes: []ProbeState{{PID: 1, Tap: TapFront, Reason: "why"}}, want: []wantCapability{
			{"", request, Derived, "process 1: why"}, {"", "tokenize", Unavailable, "why"}, {request, "gen_ai.latency.time_to_first_token", Unavailable, "why"}, {"", "prefill_forward", Exact, ""},
		}},
		{name: "no probe on the scheduler", probes: []ProbeState{{PID: 2, Tap: TapSteps, Reason: "why"}}, want: []wantCapability{
			{"", scheduler, Derived, "why"}, {"", "prefill_forward", Unavailable, "why"}, {scheduler, "retract", Unavailable, "why"}, {"", request, Exact, ""},
		}},
		{name: "no rounds for a while", probes: []ProbeState{{PID: 2, Tap: TapSteps, Attached: true, Less: "decode_waiting\ndecode_forward\ndecode_loop", Why: "too dear"}}, want: []wantCapability{
			{"", "decode_loop", Unavailable, "process 2 is looked at less: too dear"}, {"", "decode_forward", Derived, "too dear"}, {"", "prefill_forward", Exact, ""}, {scheduler, "retract", Exact, ""}, {"", scheduler, Exact, ""},
		}},
		{name: "no times for a while", probes: []ProbeState{{PID: 2, Tap: TapSteps, Attached: true, Less: "stages", Why: "too dear"}}, want: []wantCapability{
			{"", "decode_loop", Unavailable, "too dear"}, {"", "prefill_forward", Unavailable, "too dear"}, {scheduler, "retract", Unavailable, "too dear"}, {"", scheduler, Derived, "too dear"},
			{scheduler, "schedule", Derived, "launch of the batch"}, {"", "num_requests_total", Exact, ""}, {"", request, Exact, ""},
		}},
		{name: "library", change: func(e *Engine) { e.Processes[0].Role = RoleOffline; e.Stamps[RoleOffline] = []string{"created_time"} }, want: []wantCapability{
			{"", chat, Unavailable, "as a library"}, {"", request, Exact, ""}, {"", tokenizer, Exact, ""}, {"", "genai_llm_usage_tokens", Exact, "that generate"},
		}},
		{name: "no scheduler", change: func(e *Engine) { e.Processes = e.Processes[:1] }, want: []wantCapability{
			{"", chat, Exact, ""}, {"", request, Unavailable, "no scheduler"}, {"", scheduler, Unavailable, "no scheduler"}, {"", "num_requests_total", Unavailable, "no scheduler"},
		}},
		{name: "host without uprobes", host: host.Report{Items: []host.Item{{Name: host.Uprobe, State: host.Missing, Required: true, Detail: "why"}}}, want: []wantCapability{
			{"", request, Unavailable, "uprobe: why"}, {"", chat, Exact, ""}, {"", "prefill_waiting", Unavailable, "uprobe: why"}, {"", "sglang_num_running_reqs", Derived, "once a second"},
		}},
	} {
		c.check(t, usualSGLang())
	}
}

// TestMissing: what an engine does not have is not missed.
func TestMissing(t *testing.T) {
	e := usualSGLang()
	e.Settings["dp_size"] = int64(1)
	for item, missing := range map[string]bool{
		"fake_output": false, "dpc_dispatch": false, "sglang_spec_accept_length": false, "spec_verify": true, "prefill_forward": false,
	} {
		if c := find(t, Capabilities(e, host.Report{}, nil), "", item); c.Missing() != missing {
			t.Errorf("%s, %s: %s: missing is %v", item, c.State, c.Reason, !missing)
		}
	}
}

// TestSGLangStageNames: the stages whose times are known are documented ones.
func TestSGLangStageNames(t *testing.T) {
	for _, s := range sglangStages {
		if semconv.SpanByID(stageID(s.name)) == nil {
			t.Errorf("%s is not documented", s.name)
		}
	}
}
