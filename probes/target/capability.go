package target

import (
	"fmt"
	"strings"

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
	// noSuch is what rules give for an item that the engine does not have: it is unavailable,
	// and not missed.
	noSuch CapabilityState = "none"
)

// had: there are values.
func (s CapabilityState) had() bool { return s != Unavailable && s != noSuch }

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
	none   bool            // the engine has no such thing
}

// Reasons for noSuch.
const (
	noTransfer       = "the engine has no KV transfer"
	noDisaggregation = "there is no disaggregation"
	noneInPrefill    = "a prefill server has none"
	noneInDecode     = "a decode server has none"
	noParallel       = "there is no data parallelism"
	noRank           = "the scheduler has no such rank"
	noDrafts         = "there is no speculative decoding"
	oneTokenizer     = "there is one tokenizer"
)

// Missing reports whether the engine has the item and it is left out.
func (c *Capability) Missing() bool { return c.State == Unavailable && !c.none }

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
	tapStats                      // events and statistics in the outputs
)

// ProbeState tells how attaching a tap to a process went.
type ProbeState struct {
	PID      int
	Tap      Tap
	Attached bool
	Reason   string // why not
	// Less is what is left out there for a while since it costs too much, each in lines of
	// its own: names of stages or attributes, or in words. Why is the reason.
	Less string
	Why  string
}

// Capabilities says of each documented item of the engine what can be had on this
// host: spans with their attributes and events, then metrics. probes has what
// attaching gave; nil before attaching. Items of another generation of the engine
// are left out.
func Capabilities(e *Engine, h host.Report, probes []ProbeState) []Capability {
	k := kindOf(e.Kind)
	if k == nil {
		return nil
	}
	c := capabilities{e: e, missing: make(map[Tap]string), lesser: make(map[string]string)}
	rules := k.rules(&c)
	c.look(rules, h, probes)
	var out []Capability
	add := func(c Capability) {
		if c.State == noSuch {
			c.State, c.none = Unavailable, true
		}
		out = append(out, c)
	}
	for i := range semconv.Spans {
		s := &semconv.Spans[i]
		if s.Engine == "any" || !c.applies(s.Engine, s.Version) {
			continue
		}
		st, why := rules.span(s)
		add(Capability{ID: s.ID, Item: s.NamePattern, Kind: KindSpan, State: st, Reason: why})
		for j := range s.Attrs {
			a := &s.Attrs[j]
			ast, awhy := st, why
			if st.had() {
				ast, awhy = rules.attribute(s, a, why)
			}
			add(Capability{ID: s.ID, Item: a.Name, Of: s.NamePattern, Kind: KindAttribute, State: ast, Reason: awhy})
		}
		for _, id := range s.Events {
			ev := semconv.EventByID(id)
			if ev == nil {
				continue
			}
			est, ewhy := st, why
			if st.had() {
				est, ewhy = rules.event(s, ev)
			}
			add(Capability{ID: ev.ID, Item: ev.Name, Of: s.NamePattern, Kind: KindEvent, State: est, Reason: ewhy})
		}
	}
	for i := range semconv.Metrics {
		m := &semconv.Metrics[i]
		if !c.applies(m.Engine, m.Version) || m.Own {
			continue
		}
		st, why := rules.metric(m)
		add(Capability{ID: m.ID, Item: m.Name, Kind: KindMetric, State: st, Reason: why})
	}
	return out
}

// capabilityRules say what the taps of one kind of engine give.
type capabilityRules interface {
	// look notes with capabilities.miss which taps give nothing.
	look()
	// span says how a span can be had; attribute and event of one that can be had, the
	// former with the condition that the span has.
	span(s *semconv.Span) (CapabilityState, string)
	attribute(s *semconv.Span, a *semconv.Attr, condition string) (CapabilityState, string)
	event(s *semconv.Span, ev *semconv.Event) (CapabilityState, string)
	metric(m *semconv.Metric) (CapabilityState, string)
}

// capabilities is what taps give, whatever the engine.
type capabilities struct {
	e       *Engine
	missing map[Tap]string    // why a tap gives nothing
	lesser  map[string]string // what attached taps leave out for a while, and why
}

// applies reports whether an item is one of this engine's generation.
func (c *capabilities) applies(engine, version string) bool {
	if engine != c.e.Kind && engine != "any" {
		return false
	}
	return version == "any" || version == c.e.Generation || c.e.Generation == "" && version == "V1"
}

// miss notes that taps give nothing, if no reason is known yet.
func (c *capabilities) miss(t Tap, format string, args ...any) {
	for one := TapRequests; one <= tapStats; one <<= 1 {
		if t&one != 0 && c.missing[one] == "" {
			c.missing[one] = fmt.Sprintf(format, args...)
		}
	}
}

// look finds out what each tap gives: what the host lacks, then the engine, then what
// attaching gave.
func (c *capabilities) look(rules capabilityRules, h host.Report, probes []ProbeState) {
	const uprobes = TapRequests | TapOutputs | TapReceipts | TapDispatch | TapSteps | TapFront | TapTokenize | TapDetokenize
	for _, it := range h.Items {
		if it.State == host.Missing && it.Required {
			t := Tap(uprobes | TapHTTP)
			if it.Name == host.Uprobe {
				t = uprobes
			}
			c.miss(t, "the host lacks %s: %s", it.Name, it.Detail)
		}
	}
	if !h.OK(host.Syscalls) {
		c.miss(TapHTTP, "the host lacks %s: %s", host.Syscalls, h.Item(host.Syscalls).Detail)
	}
	for i := range c.e.Processes {
		p := &c.e.Processes[i]
		if p.Role == RoleAPIServer && p.TLS {
			c.miss(TapHTTP, "HTTP is over TLS")
		}
		if p.Role == RoleAPIServer && p.UDS != "" {
			c.miss(TapHTTP, "HTTP is on a Unix socket")
		}
	}
	rules.look()
	switch {
	case c.count(RoleAPIServer) > 0:
	case c.count(RoleOffline) > 0:
		c.miss(TapHTTP, noHTTP)
	default:
		c.miss(TapHTTP, "no API server runs on this host")
	}
	// A tap gives something if it is attached in at least one process.
	attached, tried := make(map[Tap]bool), make(map[Tap]string)
	for _, p := range probes {
		if p.Attached {
			attached[p.Tap] = true
			for _, name := range strings.Split(p.Less, "\n") {
				if name != "" && c.lesser[name] == "" {
					c.lesser[name] = fmt.Sprintf("process %d is looked at less: %s", p.PID, p.Why)
				}
			}
		} else if tried[p.Tap] == "" {
			tried[p.Tap] = fmt.Sprintf("attaching to process %d: %s", p.PID, p.Reason)
		}
	}
	for t, why := range tried {
		if !attached[t] {
			c.miss(t, "%s", why)
		}
	}
}

const noHTTP = "the engine is used as a library: there are no HTTP requests"

// count returns how many processes have a role.
func (c *capabilities) count(r Role) (n int) {
	for i := range c.e.Processes {
		if c.e.Processes[i].Role == r {
			n++
		}
	}
	return n
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

// entryAttribute is the state of an attribute of a span of an API request, given the
// taps on the engine's messages.
func (c *capabilities) entryAttribute(a *semconv.Attr, messages Tap) (CapabilityState, string) {
	switch a.Name {
	case semconv.AttrGenAIResponseFinishReasons, semconv.AttrGenAIUsageInputTokens, semconv.AttrGenAIUsageOutputTokens, semconv.AttrGenAIUsageTotalTokens:
		if why, ok := c.need(messages); !ok {
			return Exact, "where the response says it; else left out: " + why
		}
		return Exact, "where the response says it; else from the engine's messages, and marked"
	}
	if a.Sensitive {
		return Exact, "if content is asked for"
	}
	return Exact, ""
}
