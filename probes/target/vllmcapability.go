package target

import "inferspan/correlate/semconv"

// vllmRules say what can be had of vLLM.
type vllmRules struct {
	*capabilities
	inside bool // the core is part of a program
}

func vllmCapabilities(c *capabilities) capabilityRules { return &vllmRules{capabilities: c} }

// look finds out what each tap gives.
func (c *vllmRules) look() {
	const zmq = TapRequests | TapOutputs | TapReceipts
	const fronts = TapFront | TapTokenize | TapDetokenize
	readable, unreadable := 0, ""
	receives, front, noFront := false, false, "no front end runs on this host"
	for i := range c.e.Processes {
		p := &c.e.Processes[i]
		switch p.Role {
		case RoleCore:
			switch {
			case p.InProcess:
				c.inside = true
				unreadable = "the engine core is part of the program and sends no messages"
			case p.ZMQ != nil:
				readable++
			default:
				unreadable = "the engine core maps no libzmq"
			}
			if p.Python.Problem != "" {
				c.miss(TapSteps|TapPeeks, "the interpreter of the engine core cannot be read: %s", p.Python.Problem)
			}
		case RoleAPIServer, RoleOffline:
			switch {
			case p.ZMQ == nil:
				noFront = "the front end receives without libzmq: it is not vLLM's own in Python"
			case p.Python.Problem != "":
				noFront = "the interpreter of the front end cannot be read: " + p.Python.Problem
			default:
				front = true
			}
			receives = receives || p.ZMQ != nil
		}
	}
	switch {
	case c.e.Generation == "V0":
		c.miss(zmq|tapStats, "the messages of vLLM's V0 engine are not read")
		c.miss(TapSteps|TapPeeks|fronts, "the objects of vLLM's V0 engine are not read")
	case c.count(RoleCore) == 0:
		c.miss(TapRequests|TapOutputs|TapSteps|TapPeeks, "no engine core runs on this host")
	case readable == 0:
		c.miss(TapRequests|TapOutputs, "%s", unreadable)
	}
	if !front {
		c.miss(fronts, "%s", noFront)
	}
	if !receives {
		c.miss(TapReceipts, "the front end receives without libzmq")
	}
	if c.inside && c.count(RoleAPIServer) == 0 {
		c.miss(TapHTTP, noHTTP)
	}
	if c.e.LogStats != nil && !*c.e.LogStats {
		c.miss(tapStats, "statistics are off (--disable-log-stats)")
	}
}

// stepped gives the state of something made from the taps, or else from the steps
// of the scheduler.
func (c *vllmRules) stepped(t Tap) (CapabilityState, string) {
	why, ok := c.need(t)
	if ok {
		return Exact, ""
	}
	// Without messages, requests are known by looks at the core, if it is known at all
	// that these are missing for good.
	if _, ok := c.need(TapRequests | TapOutputs); !ok && !c.inside {
		return Unavailable, why
	}
	need := Tap(TapSteps)
	if c.inside {
		need |= TapPeeks
	}
	if no, ok := c.need(need); !ok {
		if no != why {
			why += "; " + no
		}
		return Unavailable, why
	}
	return Derived, "from the steps of the scheduler: " + why
}

// received is the state of a time that ends when the front end gets to a message: it
// stamps it there, if statistics are on, soon after it has received it.
func (c *vllmRules) received() (CapabilityState, string) {
	if why, ok := c.need(TapRequests | TapOutputs); !ok {
		if c.inside {
			return c.stepped(TapRequests | TapOutputs)
		}
		return Unavailable, why
	}
	no, ok := c.need(TapFront | tapStats)
	if ok {
		return Exact, ""
	}
	if why, ok := c.need(TapReceipts); !ok {
		return Derived, "the core's send stands for the receipt in the front end: " + why
	}
	return Derived, "receipt of the message in the front end, just before the engine's own stamp: " + no
}

// transfer is the state of what tells of waits for a KV connector.
func (c *vllmRules) transfer() (CapabilityState, string) {
	switch {
	case c.e.PDRole == "none":
		return noSuch, noTransfer
	case c.e.KVLoads == nil:
		return Unavailable, "the scheduler could not be read"
	case !*c.e.KVLoads:
		return Unavailable, "how this version keeps the requests that wait for KV blocks cannot be followed"
	}
	if why, ok := c.need(TapSteps); !ok {
		return Unavailable, why
	}
	return Derived, "from the steps of the scheduler, of loads that go on beside them"
}

func (c *vllmRules) span(s *semconv.Span) (CapabilityState, string) {
	switch s.Layer {
	case "entry":
		return c.with(TapHTTP)
	}
	if s.Version == "V0" {
		return c.with(TapOutputs)
	}
	switch s.ID {
	case "vllm.v1.llm_request":
		return c.stepped(TapRequests | TapOutputs)
	case "vllm.v1.wait":
		return c.stepped(TapRequests | TapOutputs | tapStats)
	case "vllm.v1.prefill":
		if c.e.PDRole == "consumer" {
			return Unavailable, "a decode node has no prefill"
		}
		return c.stepped(TapRequests | TapOutputs | tapStats)
	case "vllm.v1.decode":
		if c.e.PDRole == "producer" {
			return Unavailable, "a prefill node has no decode"
		}
		return c.stepped(TapRequests | TapOutputs)
	case "vllm.v1.kv_transfer":
		return c.transfer()
	}
	return Unavailable, "not traced yet"
}

func (c *vllmRules) attribute(s *semconv.Span, a *semconv.Attr, _ string) (CapabilityState, string) {
	if s.Layer == "entry" {
		return c.entryAttribute(a, TapRequests|TapOutputs)
	}
	switch a.Name {
	case semconv.AttrGenAILatencyTimeInTokenize:
		return c.with(TapRequests | TapTokenize)
	case semconv.AttrGenAILatencyTimeInDetokenize:
		if why, ok := c.need(TapOutputs | TapDetokenize); !ok {
			return Unavailable, why
		}
		return Derived, "what a token costs on average, measured in short windows"
	case semconv.AttrGenAILatencyTimeInKVTransfer:
		return c.transfer()
	case semconv.AttrGenAIKVTransferCachedTokens:
		return c.with(TapOutputs)
	case semconv.AttrGenAILatencyE2E, semconv.AttrGenAILatencyTimeToFirstToken:
		return c.received()
	case semconv.AttrGenAILatencyTimeInQueue, semconv.AttrGenAIRequestPreemptionCount:
		return c.stepped(tapStats)
	case semconv.AttrGenAILatencyTimeInModelPrefill:
		if c.e.PDRole == "consumer" {
			return Exact, "always 0 on a decode node"
		}
		return c.stepped(tapStats)
	case semconv.AttrGenAILatencyTimeInModelInference:
		if c.e.PDRole == "consumer" {
			return Exact, ""
		}
		return c.stepped(tapStats)
	case semconv.AttrGenAILatencyTimeInModelDecode, semconv.AttrGenAIUsageCompletionTokens:
		return c.stepped(TapOutputs)
	case semconv.AttrGenAIPDRole:
		if c.e.PDRole == "" {
			return Unavailable, "the engine's KV transfer configuration is not known, or lets it play both roles"
		}
	case semconv.AttrGenAIRequestTemperature, semconv.AttrGenAIRequestTopP, semconv.AttrGenAIRequestMaxTokens, semconv.AttrGenAIRequestN:
		if len(c.e.Defaults["SamplingParams"]) == 0 {
			return Exact, "left out where a request has the default, which could not be read"
		}
	case semconv.AttrGenAIRequestModelName:
		if c.e.Model == "" && len(c.e.ServedNames) == 0 {
			return Unavailable, "the model's name could not be read"
		}
	}
	return Exact, ""
}

func (c *vllmRules) event(_ *semconv.Span, ev *semconv.Event) (CapabilityState, string) {
	tap := Tap(TapRequests | TapOutputs)
	st, why := c.stepped(tap)
	if ev.ID == "vllm.event.WAIT" || ev.ID == "vllm.event.PREEMPTED" {
		st, why = c.stepped(tap | tapStats)
	}
	if st == Exact && c.e.Tokenizer == "" && (ev.ID == "vllm.event.PREFILL" || ev.ID == "vllm.event.DECODE") {
		why = "without token texts: no tokenizer.json was found"
	}
	return st, why
}

func (c *vllmRules) metric(m *semconv.Metric) (CapabilityState, string) {
	if m.Version == "V0" {
		return c.with(TapOutputs)
	}
	switch m.ID {
	case "vllm.genai_llm_usage_tokens":
		if why, ok := c.need(TapHTTP); !ok {
			switch st, _ := c.stepped(TapRequests | TapOutputs); st {
			case Unavailable:
				return st, why
			case Derived:
				return st, "counted by the steps of the scheduler: " + why
			}
			return Derived, "counted by the engine's messages: " + why
		}
		return Exact, ""
	case "vllm.vllm_iter_count":
		if _, ok := c.need(TapOutputs); !ok {
			return c.stepped(TapOutputs)
		}
		if why, ok := c.need(tapStats); !ok {
			return Derived, "steps that gave outputs: " + why
		}
		return Exact, ""
	case "vllm.genai_llm_first_token_seconds", "vllm.gen_ai_server_request_duration",
		"otel.gen_ai.server.time_to_first_token", "otel.gen_ai.server.request.duration":
		return c.received()
	case "vllm.gen_ai_vllm_num_requests_running", "vllm.gen_ai_vllm_num_requests_waiting", "vllm.gen_ai_vllm_kv_cache_usage_perc":
		return c.peeked(TapOutputs | tapStats)
	case "vllm.gen_ai_vllm_prefix_cache_queries", "vllm.gen_ai_vllm_prefix_cache_hits":
		return c.with(TapOutputs | tapStats)
	case "vllm.gen_ai_vllm_num_preemptions", "vllm.gen_ai_vllm_request_queue_time_seconds",
		"vllm.gen_ai_vllm_request_prefill_time_seconds", "vllm.gen_ai_vllm_request_inference_time_seconds":
		return c.stepped(TapRequests | TapOutputs | tapStats)
	case "vllm.gen_ai_vllm_generation_tokens", "vllm.gen_ai_vllm_prompt_tokens", "vllm.gen_ai_server_time_per_output_token",
		"vllm.gen_ai_vllm_request_decode_time_seconds", "otel.gen_ai.server.time_per_output_token":
		return c.stepped(TapRequests | TapOutputs)
	case "vllm.gen_ai_vllm_request_params_n", "vllm.gen_ai_vllm_request_params_max_tokens":
		st, why := c.stepped(TapRequests | TapOutputs)
		if st == Exact && len(c.e.Defaults["SamplingParams"]) == 0 {
			return Derived, "requests with the default, which could not be read, are not counted"
		}
		return st, why
	}
	return c.stepped(TapRequests | TapOutputs)
}
