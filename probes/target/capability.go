package target

import (
	"fmt"

	"inferspan/correlate/semconv"
	"inferspan/probes/host"
)

// CapabilityState says how good the values of an item are.
type CapabilityState string

// States.
const (
	// Exact: the engine's own value, or what it is made from.
	Exact CapabilityState = "exact"
	// Derived: worked out from something near.
	Derived CapabilityState = "derived"
	// Unavailable: left out.
	Unavailable CapabilityState = "unavailable"
)

// CapabilityKind is the kind of a documented item.
type CapabilityKind string

// Kinds.
const (
	KindSpan      CapabilityKind = "span"
	KindAttribute CapabilityKind = "attribute"
	KindEvent     CapabilityKind = "event"
	KindMetric    CapabilityKind = "metric"
)

// Capability says of one documented item whether it can be had from an engine.
type Capability struct {
	ID     string          `json:"id"`           // semconv id of the span, event or metric; that of the span for an attribute
	Item   string          `json:"item"`         // name
	Of     string          `json:"of,omitempty"` // name of the span that has the attribute or event
	Kind   CapabilityKind  `json:"kind"`
	State  CapabilityState `json:"state"`
	Reason string          `json:"reason,omitempty"` // why not exact; of an exact item: on what condition
}

// Tap is a place where an engine is looked at.
type Tap uint16

// Taps.
const (
	TapRequests   Tap = 1 << iota // zmq_msg_recv in a core, or zmq_msg_send in a front end
	TapOutputs                    // zmq_msg_send in a core
	TapReceipts                   // zmq_msg_recv in a front end
	TapHTTP                       // socket calls of an API server
	TapSteps                      // captures of the scheduler in a core
	TapPeeks                      // looks into the memory of a core
	TapFront                      // captures in the interpreter of a front end: when it gets to a message
	TapTokenize                   // the same, of its tokenizer
	TapDetokenize                 // and of its detokenizer
	TapDispatch                   // zmq_msg_send in a DP controller
	TapTexts                      // zmq_msg_send in a detokenizer
	tapStats                      // events and statistics in the outputs
)

// ProbeState tells how attaching a tap to a process went.
type ProbeState struct {
	PID      int
	Tap      Tap
	Attached bool
	Reason   string // why not
}

// Capabilities says of each documented item of the engine what can be had on this
// host: spans with their attributes and events, then metrics. probes has what
// attaching gave; nil before attaching. Items of another generation of the engine
// are left out.
func Capabilities(e *Engine, h host.Report, probes []ProbeState) []Capability {
	c := capabilities{e: e, missing: make(map[Tap]string)}
	c.look(h, probes)
	var out []Capability
	for i := range semconv.Spans {
		s := &semconv.Spans[i]
		if !c.applies(s.Engine, s.Version) || s.Engine != "vllm" {
			continue
		}
		st, why := c.span(s)
		out = append(out, Capability{ID: s.ID, Item: s.NamePattern, Kind: KindSpan, State: st, Reason: why})
		for j := range s.Attrs {
			a := &s.Attrs[j]
			ast, awhy := st, why
			if st != Unavailable {
				ast, awhy = c.attribute(s, a)
			}
			out = append(out, Capability{ID: s.ID, Item: a.Name, Of: s.NamePattern, Kind: KindAttribute, State: ast, Reason: awhy})
		}
		for _, id := range s.Events {
			ev := semconv.EventByID(id)
			if ev == nil {
				continue
			}
			est, ewhy := st, why
			if st != Unavailable {
				est, ewhy = c.event(ev)
			}
			out = append(out, Capability{ID: ev.ID, Item: ev.Name, Of: s.NamePattern, Kind: KindEvent, State: est, Reason: ewhy})
		}
	}
	for i := range semconv.Metrics {
		m := &semconv.Metrics[i]
		if !c.applies(m.Engine, m.Version) || m.Own {
			continue
		}
		st, why := c.metric(m)
		out = append(out, Capability{ID: m.ID, Item: m.Name, Kind: KindMetric, State: st, Reason: why})
	}
	return out
}

type capabilities struct {
	e       *Engine
	inside  bool           // the core is part of a program
	missing map[Tap]string // why a tap gives nothing
}

// applies reports whether an item is one of this engine's generation.
func (c *capabilities) applies(engine, version string) bool {
	if engine != c.e.Kind && engine != "any" {
		return false
	}
	return version == "any" || version == c.e.Generation || c.e.Generation == "" && version == "V1"
}

// look finds out what each tap gives.
func (c *capabilities) look(h host.Report, probes []ProbeState) {
	miss := func(t Tap, format string, args ...any) {
		for one := TapRequests; one <= tapStats; one <<= 1 {
			if t&one != 0 && c.missing[one] == "" {
				c.missing[one] = fmt.Sprintf(format, args...)
			}
		}
	}
	const zmq = TapRequests | TapOutputs | TapReceipts
	const fronts = TapFront | TapTokenize | TapDetokenize
	const all = zmq | TapHTTP | TapSteps | fronts
	for _, it := range h.Items {
		if it.State == host.Missing && it.Required {
			t := Tap(all)
			if it.Name == host.Uprobe {
				t = zmq | TapSteps | fronts
			}
			miss(t, "the host lacks %s: %s", it.Name, it.Detail)
		}
	}
	if !h.OK(host.Syscalls) {
		miss(TapHTTP, "the host lacks %s: %s", host.Syscalls, h.Item(host.Syscalls).Detail)
	}
	count := make(map[Role]int)
	readable, unreadable := 0, ""
	receives, front, noFront := false, false, "no front end runs on this host"
	for i := range c.e.Processes {
		p := &c.e.Processes[i]
		count[p.Role]++
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
				miss(TapSteps|TapPeeks, "the interpreter of the engine core cannot be read: %s", p.Python.Problem)
			}
		}
		if p.Role == RoleAPIServer || p.Role == RoleOffline {
			switch {
			case p.ZMQ == nil:
				noFront = "the front end receives without libzmq: it is not vLLM's own in Python"
			case p.Python.Problem != "":
				noFront = "the interpreter of the front end cannot be read: " + p.Python.Problem
			default:
				front = true
			}
		}
		switch p.Role {
		case RoleAPIServer:
			if p.TLS {
				miss(TapHTTP, "HTTP is over TLS")
			}
			if p.UDS != "" {
				miss(TapHTTP, "HTTP is on a Unix socket")
			}
			receives = receives || p.ZMQ != nil
		case RoleOffline:
			receives = receives || p.ZMQ != nil
		}
	}
	switch {
	case c.e.Generation == "V0":
		miss(zmq|tapStats, "the messages of vLLM's V0 engine are not read")
		miss(TapSteps|TapPeeks|fronts, "the objects of vLLM's V0 engine are not read")
	case count[RoleCore] == 0:
		miss(TapRequests|TapOutputs|TapSteps|TapPeeks, "no engine core runs on this host")
	case readable == 0:
		miss(TapRequests|TapOutputs, "%s", unreadable)
	}
	if !front {
		miss(fronts, "%s", noFront)
	}
	if !receives {
		miss(TapReceipts, "the front end receives without libzmq")
	}
	switch {
	case count[RoleAPIServer] > 0:
	case count[RoleOffline] > 0, c.inside:
		miss(TapHTTP, "the engine is used as a library: there are no HTTP requests")
	default:
		miss(TapHTTP, "no API server runs on this host")
	}
	if c.e.LogStats != nil && !*c.e.LogStats {
		miss(tapStats, "statistics are off (--disable-log-stats)")
	}
	// A tap gives something if it is attached in at least one process.
	attached, tried := make(map[Tap]bool), make(map[Tap]string)
	for _, p := range probes {
		if p.Attached {
			attached[p.Tap] = true
		} else if tried[p.Tap] == "" {
			tried[p.Tap] = fmt.Sprintf("attaching to process %d: %s", p.PID, p.Reason)
		}
	}
	for t, why := range tried {
		if !attached[t] {
			miss(t, "%s", why)
		}
	}
}

// need returns why one of the taps gives nothing.
func (c *capabilities) need(t Tap) (string, bool) {
	for one := TapRequests; one <= tapStats; one <<= 1 {
		if why := c.missing[one]; t&one != 0 && why != "" {
			return why, false
		}
	}
	return "", true
}

// with gives the state of something made from the taps.
func (c *capabilities) with(t Tap) (CapabilityState, string) {
	if why, ok := c.need(t); !ok {
		return Unavailable, why
	}
	return Exact, ""
}

// stepped gives the state of something made from the taps, or else from the steps
// of the scheduler.
func (c *capabilities) stepped(t Tap) (CapabilityState, string) {
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

// peeked gives the state of something made from the taps, or else by looking at the
// core once in a while.
func (c *capabilities) peeked(t Tap) (CapabilityState, string) {
	why, ok := c.need(t)
	if ok {
		return Exact, ""
	}
	if no, ok := c.need(TapPeeks); !ok {
		if no != why {
			why += "; " + no
		}
		return Unavailable, why
	}
	return Derived, "looked at once a second: " + why
}

// received is the state of a time that ends when the front end gets to a message: it
// stamps it there, if statistics are on, soon after it has received it.
func (c *capabilities) received() (CapabilityState, string) {
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
func (c *capabilities) transfer() (CapabilityState, string) {
	switch {
	case c.e.PDRole == "none":
		return Unavailable, "the engine has no KV transfer"
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

func (c *capabilities) span(s *semconv.Span) (CapabilityState, string) {
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

func (c *capabilities) attribute(s *semconv.Span, a *semconv.Attr) (CapabilityState, string) {
	if s.Layer == "entry" {
		return c.entryAttribute(a)
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

func (c *capabilities) entryAttribute(a *semconv.Attr) (CapabilityState, string) {
	switch a.Name {
	case semconv.AttrGenAIResponseFinishReasons, semconv.AttrGenAIUsageInputTokens, semconv.AttrGenAIUsageOutputTokens, semconv.AttrGenAIUsageTotalTokens:
		if why, ok := c.need(TapRequests | TapOutputs); !ok {
			return Exact, "where the response says it; else left out: " + why
		}
		return Exact, "where the response says it; else from the engine's messages, and marked"
	}
	if a.Sensitive {
		return Exact, "if content is asked for"
	}
	return Exact, ""
}

func (c *capabilities) event(ev *semconv.Event) (CapabilityState, string) {
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

func (c *capabilities) metric(m *semconv.Metric) (CapabilityState, string) {
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
