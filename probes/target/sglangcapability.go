package target

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"inferspan/correlate/semconv"
)

// sglangRules say what can be had of SGLang.
type sglangRules struct {
	*capabilities
	noStamps, noDispatch string // why the stamps of the front end, of the DP controller are not seen
	noDP                 bool   // there is no data parallelism
	silent               bool   // there are ranks that send nothing
	unstamped            []string
}

func sglangCapabilities(c *capabilities) capabilityRules { return &sglangRules{capabilities: c} }

const sglangWire = TapRequests | TapOutputs

// look finds out what each tap gives.
func (c *sglangRules) look() {
	sends, unsent := 0, "no scheduler runs on this host"
	fronts, noFront, sending := 0, "no front end runs on this host", false
	for i := range c.e.Processes {
		p := &c.e.Processes[i]
		switch p.Role {
		case RoleCore:
			if p.ZMQ != nil {
				sends++
			} else {
				unsent = "the scheduler maps no libzmq"
			}
			for _, rank := range []*int{p.Ranks.TP, p.Ranks.PP} {
				c.silent = c.silent || rank != nil && *rank > 0
			}
			if p.Python.Problem != "" {
				c.miss(TapSteps|TapPeeks, "the interpreter of the scheduler cannot be read: %s", p.Python.Problem)
			}
		case RoleAPIServer, RoleOffline:
			sending = sending || p.ZMQ != nil
			if p.Python.Problem != "" {
				noFront = "the interpreter of the front end cannot be read: " + p.Python.Problem
			} else {
				fronts++
			}
		case RoleController:
			if p.Python.Problem != "" {
				c.noDispatch = "the interpreter of the DP controller cannot be read: " + p.Python.Problem
			}
		}
	}
	if c.count(RoleCore) == 0 {
		c.miss(TapOutputs|TapSteps|TapPeeks, "%s", unsent)
	} else if sends == 0 {
		c.miss(TapOutputs, "%s", unsent)
	}
	if !sending {
		c.miss(TapRequests, "the front end maps no libzmq, or is on another host")
	}
	if fronts == 0 {
		c.noStamps = noFront
	}
	const old = "this version keeps no times of requests there"
	keeps := func(r Role) bool { names, known := c.e.Stamps[r]; return !known || len(names) > 0 }
	if !keeps(RoleAPIServer) || !keeps(RoleOffline) {
		c.noStamps = old
	}
	if !keeps(RoleController) {
		c.noDispatch = old
	}
	if c.count(RoleController) == 0 {
		c.noDispatch = "there is no DP controller on this host"
		c.noDP = c.e.Settings["dp_size"] == int64(1)
	}
	if names, known := c.e.Stamps[RoleCore]; known {
		c.unstamped = SGLangUnstamped(c.e.PDRole, func(n string) bool { return slices.Contains(names, n) })
	}
}

// stamped is the state of what the front end's stamps tell.
func (c *sglangRules) stamped() (CapabilityState, string) {
	if c.noStamps != "" {
		return Unavailable, c.noStamps
	}
	return c.with(TapFront)
}

// timed is the state of times that the front end stamps, for which the messages of the
// request stand otherwise.
func (c *sglangRules) timed() (CapabilityState, string) {
	if why, ok := c.need(TapOutputs); !ok {
		return Unavailable, why
	}
	if st, why := c.stamped(); st != Exact {
		return Derived, "by when its messages were sent: " + why
	}
	return Exact, ""
}

// scheduled is the state of what the scheduler's stamps tell.
func (c *sglangRules) scheduled() (CapabilityState, string) {
	if why, ok := c.need(TapSteps); !ok {
		return Unavailable, why
	}
	return Exact, ""
}

// atLevel adds the condition that an item is traced at all, unless it is by default.
func atLevel(level int, why string) string {
	const byDefault = 3
	if level <= byDefault {
		return why
	}
	return strings.TrimPrefix(why+fmt.Sprintf("; at trace level %d", level), "; ")
}

func (c *sglangRules) span(s *semconv.Span) (CapabilityState, string) {
	st, why := c.spanOf(s)
	if !st.had() {
		return st, why
	}
	return st, atLevel(s.MinLevel, why)
}

func (c *sglangRules) spanOf(s *semconv.Span) (CapabilityState, string) {
	workers := int64(c.count(RoleAPIServer))
	if n, ok := c.e.Setting("tokenizer_worker_num"); ok {
		workers = n
	}
	switch s.ID {
	case semconv.SpanSGLangEntryChat, semconv.SpanSGLangEntryTextCompletion:
		return c.with(TapHTTP)
	case semconv.SpanSGLangRequest:
		if why, ok := c.need(TapOutputs); !ok {
			return Unavailable, why
		}
		if why, ok := c.need(TapRequests); !ok {
			return Derived, "from its outputs on: " + why
		}
		return c.timed()
	case semconv.SpanSGLangThreadTokenizer:
		if workers > 1 {
			return Unavailable, "each of several tokenizer workers has a thread named after it"
		}
		return c.stamped()
	case semconv.SpanSGLangThreadMultiTokenizer:
		if workers < 2 {
			return noSuch, oneTokenizer
		}
		return c.stamped()
	case semconv.SpanSGLangThreadDPController, stageID("dpc_dispatch"):
		if c.noDP {
			return noSuch, noParallel
		}
		if c.noDispatch != "" {
			return Unavailable, c.noDispatch
		}
		return c.with(TapFront)
	case semconv.SpanSGLangThreadScheduler:
		if why, ok := c.need(TapSteps); !ok {
			if no, ok := c.need(sglangWire); !ok {
				return Unavailable, no
			}
			return Derived, "from the request's message to its last output: " + why
		}
		if c.unstamped != nil {
			return Exact, "marked partial, with the stages that this version keeps no times of"
		}
		if why := c.lesser[SGLangStages]; why != "" {
			return Derived, "begins and ends with what is seen of the request: " + why
		}
		if c.silent {
			return Exact, "ranks that send nothing end with what was last seen of them, and say so"
		}
		return Exact, ""
	case stageID("tokenize"), stageID("api_server_dispatch"):
		return c.stamped()
	}
	return c.stage(strings.TrimPrefix(s.ID, stageID("")))
}

func stageID(name string) string { return "sglang.stage." + name }

// SGLangStages stands for all stages of the scheduler where less is looked at.
const SGLangStages = "stages"

// stage is the state of a stage of the scheduler.
func (c *sglangRules) stage(name string) (CapabilityState, string) {
	parts := sglangServes(name)
	switch {
	case parts == nil:
		return Unavailable, "the engine takes its times only when it traces itself"
	case c.e.PDRole != "" && !slices.Contains(parts, c.e.PDRole):
		return noSuch, map[string]string{
			"none": noDisaggregation, "producer": noneInPrefill, "consumer": noneInDecode,
		}[c.e.PDRole]
	case slices.Contains(c.unstamped, name):
		return Unavailable, "this version keeps no times of it"
	}
	st, why := c.scheduled()
	if st != Exact {
		return st, why
	}
	if why := cmp.Or(c.lesser[SGLangStages], c.lesser[name]); why != "" {
		// When decoding began outputs show, of some requests.
		if c.lesser[SGLangStages] == "" && name != "decode_loop" {
			return Derived, "where outputs show the end of the prefill: " + why
		}
		return Unavailable, why
	}
	plain := c.e.PDRole == "none"
	switch {
	case name == "decode_waiting" && plain:
		return Derived, "ends with the launch of its batch"
	case name == "decode_loop" && c.silent:
		return Exact, "but the last ones on ranks that send nothing, and the last two of a request that does not stream"
	case name == "decode_loop":
		return Exact, "but the last two of a request that does not stream"
	case name == "decode_forward" && plain:
		return Exact, "after a wait it begins with the launch of its batch, and is marked"
	case name == "prefill_forward" && c.silent:
		return Exact, "but of requests of one token on ranks that send nothing"
	}
	return Exact, ""
}

func (c *sglangRules) attribute(s *semconv.Span, a *semconv.Attr, condition string) (CapabilityState, string) {
	switch s.Layer {
	case "entry":
		return c.ofEntry(a)
	case "native_request":
		return c.ofRequest(a)
	}
	rank := func(of func(*Ranks) *int) (CapabilityState, string) {
		for i := range c.e.Processes {
			if p := &c.e.Processes[i]; p.Role == RoleCore && of(&p.Ranks) != nil {
				return Exact, condition
			}
		}
		return noSuch, noRank
	}
	scheduler := s.ID == semconv.SpanSGLangThreadScheduler
	switch a.Name {
	case semconv.AttrHostID:
		if c.e.HostID == "" {
			return Unavailable, "the host has no /etc/machine-id: the engine names it otherwise"
		}
	case semconv.AttrTPRank, semconv.AttrPPRank, semconv.AttrDPRank:
		switch {
		case !scheduler:
			return Unavailable, "only schedulers have ranks"
		case a.Name == semconv.AttrTPRank:
			return rank(func(r *Ranks) *int { return r.TP })
		case a.Name == semconv.AttrPPRank:
			return rank(func(r *Ranks) *int { return r.PP })
		}
		return rank(func(r *Ranks) *int { return r.DP })
	case semconv.AttrType, semconv.AttrStatusCode, semconv.AttrErrType:
		return Exact, "of requests that fail"
	case semconv.AttrMessage:
		return Exact, "of requests that fail, if content is asked for"
	}
	return Exact, condition
}

func (c *sglangRules) ofEntry(a *semconv.Attr) (CapabilityState, string) {
	switch a.Name {
	case semconv.AttrGenAIUsageCacheReadInputTokens:
		if why, ok := c.need(TapOutputs); !ok {
			return Exact, "where the response says it; else left out: " + why
		}
		return Exact, "where the response says it; else from the engine's messages, and marked"
	case semconv.AttrGenAIResponseTokensStreamed:
		if why, ok := c.need(TapOutputs); !ok {
			return Unavailable, why
		}
		return Exact, "of streams"
	case semconv.AttrGenAIRequestHasToolCalls, semconv.AttrGenAIRequestToolCallDetected, semconv.AttrGenAIRequestToolCallsCount:
		return Exact, "of streams that were seen whole; else what the finish reasons tell, marked"
	}
	return c.entryAttribute(a, sglangWire)
}

func (c *sglangRules) ofRequest(a *semconv.Attr) (CapabilityState, string) {
	switch a.Name {
	case semconv.AttrGenAILatencyTimeToFirstToken, semconv.AttrGenAILatencyE2E, semconv.AttrGenAILatencyTimeInModelPrefill,
		semconv.AttrGenAILatencyTimeInModelDecode, semconv.AttrGenAILatencyTimeInModelInference:
		if st, why := c.stamped(); st != Exact {
			// Its begin is the front end's, which no message tells.
			if a.Name == semconv.AttrGenAILatencyTimeInModelDecode {
				return c.timed()
			}
			return Unavailable, why
		}
	case semconv.AttrBootstrapRoom:
		if c.e.PDRole == "none" {
			return noSuch, noDisaggregation
		}
	case semconv.AttrGenAIRequestTemperature, semconv.AttrGenAIRequestTopK:
		if why, ok := c.need(TapRequests); !ok {
			return Unavailable, why
		}
		return Exact, "left out of greedy sampling, which has several names"
	case semconv.AttrGenAIRequestTopP, semconv.AttrGenAIRequestN, semconv.AttrGenAIRequestMaxTokens:
		return c.with(TapRequests)
	case semconv.AttrGenAIResponseModel:
		if c.e.Model == "" && len(c.e.ServedNames) == 0 {
			return Unavailable, "the model's name could not be read"
		}
	}
	return Exact, ""
}

func (c *sglangRules) event(s *semconv.Span, ev *semconv.Event) (CapabilityState, string) {
	st, why := c.scheduled()
	if st != Exact {
		return st, why
	}
	if ev.ID != semconv.EventIDSGLangEventSchedule {
		if why := c.lesser[SGLangStages]; why != "" {
			return Unavailable, why
		}
		return Exact, ""
	}
	if names, known := c.e.Stamps[RoleCore]; known && !slices.Contains(names, sglangLaunch) {
		return Unavailable, "this version keeps no times of batches"
	}
	return Derived, "the launch of the batch, some 0.03 to 0.3 ms after"
}

func (c *sglangRules) metric(m *semconv.Metric) (CapabilityState, string) {
	switch m.ID {
	case semconv.MetricIDSGLangGenAILLMUsageTokens:
		if why, ok := c.need(TapOutputs); !ok {
			return Unavailable, why
		}
		return Exact, "of requests that generate: of others the kind is not known"
	case semconv.MetricIDSGLangSGLangNumRunningReqs, semconv.MetricIDSGLangSGLangNumQueueReqs, semconv.MetricIDSGLangSGLangLogCount:
		return c.looked("")
	case semconv.MetricIDSGLangSGLangNumUsedTokens, semconv.MetricIDSGLangSGLangTokenUsage:
		if c.e.Publishes != nil && !*c.e.Publishes {
			return Unavailable, "this version does not publish it"
		}
		return c.looked("the engine publishes it every 15 decode steps or so; ")
	case semconv.MetricIDSGLangSGLangGenThroughput, semconv.MetricIDSGLangGenAISGLangCacheHitRate:
		if why, ok := c.need(TapOutputs | TapPeeks); !ok {
			return Unavailable, why
		}
		return Derived, "of the messages between two looks at the scheduler: the engine works it out only with --enable-metrics"
	case semconv.MetricIDSGLangSGLangSpecAcceptLength:
		if c.e.Sources["settings"] != "" && c.e.Settings["speculative_algorithm"] == nil {
			return noSuch, noDrafts
		}
		if why, ok := c.need(TapOutputs | TapPeeks); !ok {
			return Unavailable, why
		}
		return Derived, "of the messages between two looks at the scheduler: the engine works it out only with --enable-metrics"
	case semconv.MetricIDSGLangGenAIServerTimeToFirstToken, semconv.MetricIDSGLangGenAIServerTimePerOutputToken,
		semconv.MetricIDSGLangSGLangInterTokenLatencySeconds, semconv.MetricIDSGLangGenAIServerRequestDuration,
		"otel.gen_ai.server.time_to_first_token", "otel.gen_ai.server.time_per_output_token", "otel.gen_ai.server.request.duration":
		if why, ok := c.need(TapOutputs); !ok {
			return Unavailable, why
		}
		return c.stamped()
	}
	return c.with(TapOutputs)
}

// looked is the state of what is read from the scheduler's memory.
func (c *sglangRules) looked(what string) (CapabilityState, string) {
	if why, ok := c.need(TapPeeks); !ok {
		return Unavailable, why
	}
	return Derived, what + "looked at once a second"
}
