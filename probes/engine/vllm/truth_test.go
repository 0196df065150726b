package vllm_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// decode runs records through assembler and decoder. emit gets copies.
func decode(t testing.TB, e *target.Engine, opt vllm.Options, recs []event.Record, emit func(signal.Signal)) (*vllm.Decoder, wire.Stats) {
	t.Helper()
	d, err := vllm.NewDecoder(e, opt)
	if err != nil {
		t.Fatal(err)
	}
	a := wire.NewAssembler(wire.Limits{}, false)
	for i := range recs {
		a.Put(&recs[i], func(m *wire.Message) { d.Message(m, func(s signal.Signal) { emit(clone(s)) }) })
	}
	if n, b := a.Pending(); n != 0 || b != 0 {
		t.Errorf("%d messages of %d bytes left unfinished", n, b)
	}
	return d, a.Stats()
}

func decodeAll(t testing.TB, e *target.Engine, opt vllm.Options, recs []event.Record) []signal.Signal {
	var out []signal.Signal
	d, ws := decode(t, e, opt, recs, func(s signal.Signal) { out = append(out, s) })
	if st := d.Stats(); st.Broken != 0 {
		t.Errorf("%d broken messages: %v", st.Broken, d.Problem())
	}
	if ws.Dropped != [wire.Drops]uint64{} {
		t.Errorf("messages dropped: %v", ws.Dropped)
	}
	return out
}

func clone(s signal.Signal) signal.Signal {
	switch s := s.(type) {
	case *signal.RequestAdded:
		c := *s
		return &c
	case *signal.RequestAborted:
		c := *s
		c.IDs = slices.Clone(s.IDs)
		return &c
	case *signal.StepOutput:
		c := *s
		c.Outputs = slices.Clone(s.Outputs)
		for i := range c.Outputs {
			o := &c.Outputs[i]
			o.ID, o.Tokens = slices.Clone(o.ID), slices.Clone(o.Tokens)
			o.Events, o.Logprobs = slices.Clone(o.Events), slices.Clone(o.Logprobs)
		}
		if s.Stats != nil {
			st := *s.Stats
			c.Stats = &st
		}
		return &c
	case *signal.Delivered:
		c := *s
		return &c
	case *signal.CoreFailed:
		c := *s
		return &c
	case *signal.Tokenized:
		c := *s
		return &c
	case *signal.Detokenized:
		c := *s
		return &c
	}
	panic("unknown signal")
}

// life is what the signals say of one request.
type life struct {
	added                  *signal.RequestAdded
	queued, sched          signal.Mono
	first, last            signal.Mono
	firstKey, lastKey      uint64
	tokens, cached, prompt int64
	preempted              int
	finish                 string
	stop                   string
	aborted                bool
	client                 int
}

func lives(t *testing.T, sigs []signal.Signal) (map[string]*life, []string) {
	t.Helper()
	all := map[string]*life{}
	var order []string
	for _, s := range sigs {
		switch s := s.(type) {
		case *signal.RequestAdded:
			if all[s.ID] != nil {
				t.Errorf("request %s added twice", s.ID)
			}
			all[s.ID] = &life{added: s, cached: -1, prompt: -1, client: -2}
			order = append(order, s.ID)
		case *signal.RequestAborted:
			for _, id := range s.IDs {
				if l := all[id]; l != nil {
					l.aborted = true
				}
			}
		case *signal.StepOutput:
			for _, o := range s.Outputs {
				l := all[string(o.ID)]
				if l == nil {
					t.Errorf("output for unknown request %s", o.ID)
					continue
				}
				for _, e := range o.Events {
					switch e.Kind {
					case signal.EventQueued:
						l.queued = e.At
					case signal.EventScheduled:
						if l.sched == 0 {
							l.sched = e.At
						}
					case signal.EventPreempted:
						l.preempted++
					}
				}
				if l.first == 0 {
					l.first, l.firstKey = s.Stamp, s.Key
				}
				l.last, l.lastKey = s.Stamp, s.Key
				l.tokens += int64(o.NumTokens)
				l.client = s.Client
				if o.CachedTokens.OK {
					l.cached = o.CachedTokens.V
				}
				if o.PromptTokens.OK {
					l.prompt = o.PromptTokens.V
				}
				if o.FinishReason != "" {
					l.finish, l.stop = o.FinishReason, o.StopReason
				}
			}
		}
	}
	return all, order
}

// TestTruth compares what the messages say with the spans that the engine
// exported for the same requests: all values must be equal.
func TestTruth(t *testing.T) {
	compared := 0
	for _, name := range vllmtest.Names() {
		t.Run(name, func(t *testing.T) {
			run, err := vllmtest.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			sigs := decodeAll(t, run.Engine, vllm.Options{}, run.Records)
			checkDelivered(t, sigs)
			all, order := lives(t, sigs)
			if len(all) == 0 {
				t.Fatal("no requests")
			}
			finished := 0
			for _, id := range order {
				l := all[id]
				if l.finish != "" || l.aborted {
					finished++
				}
				if l.client != l.added.Client && l.client != -2 {
					t.Errorf("%s: sent by front end %d, outputs go to %d", id, l.added.Client, l.client)
				}
			}
			if finished != len(all) {
				t.Errorf("%d of %d requests have an end", finished, len(all))
			}
			used := map[string]bool{}
			for _, sp := range run.Spans {
				l := match(sp, all, order, used)
				if l == nil {
					t.Errorf("no request for the span of %s", sp.Strings["gen_ai.request.id"])
					continue
				}
				compared++
				id := l.added.ID
				const lat = "gen_ai.latency."
				for _, d := range []struct {
					attr string
					ns   signal.Mono
				}{
					{lat + "time_in_queue", l.sched - l.queued},
					{lat + "time_in_model_prefill", l.first - l.sched},
					{lat + "time_in_model_decode", l.last - l.first},
					{lat + "time_in_model_inference", l.last - l.sched},
				} {
					want, ok := sp.Numbers[d.attr]
					if got := int64(d.ns); !ok || got != int64(math.Round(want*1e9)) {
						t.Errorf("%s: %s is %d ns, engine says %v s", id, d.attr, got, want)
					}
				}
				p := l.added.Param
				for _, d := range []struct {
					attr string
					got  signal.Opt[float64]
				}{
					{"gen_ai.usage.prompt_tokens", float(l.added.PromptTokens)},
					{"gen_ai.usage.completion_tokens", signal.Some(float64(l.tokens))},
					{"gen_ai.request.top_p", p.TopP},
					{"gen_ai.request.temperature", p.Temperature},
					{"gen_ai.request.max_tokens", float(p.MaxTokens)},
					{"gen_ai.request.n", float(p.N)},
				} {
					want, ok := sp.Numbers[d.attr]
					if !ok { // the engine leaves out what is 0
						want = 0
					}
					if !d.got.OK || d.got.V != want {
						t.Errorf("%s: %s is %v, engine says %v", id, d.attr, d.got, want)
					}
				}
				if l.prompt >= 0 && l.prompt != l.added.PromptTokens.V {
					t.Errorf("%s: core counts %d prompt tokens, request has %d", id, l.prompt, l.added.PromptTokens.V)
				}
				if int64(l.added.Arrival) != sp.Start {
					t.Errorf("%s: arrival %d, engine says %d", id, l.added.Arrival, sp.Start)
				}
			}
		})
	}
	if compared < 68 {
		t.Errorf("%d spans compared, want at least 68", compared)
	}
}

// checkDelivered checks that each step with outputs is received once, later.
func checkDelivered(t *testing.T, sigs []signal.Signal) {
	t.Helper()
	sent := map[uint64]signal.Mono{}
	for _, s := range sigs {
		switch s := s.(type) {
		case *signal.StepOutput:
			if s.Key == 0 || sent[s.Key] != 0 {
				t.Errorf("step at %d: key %x is not its own", s.At, s.Key)
			}
			sent[s.Key] = s.At
		case *signal.Delivered:
			if at := sent[s.Key]; at != 0 && s.At <= at {
				t.Errorf("received at %d, sent at %d", s.At, at)
			}
			delete(sent, s.Key)
		}
	}
	if len(sent) != 0 {
		t.Errorf("%d steps were not received", len(sent))
	}
}

func float(v signal.Opt[int64]) signal.Opt[float64] {
	return signal.Opt[float64]{V: float64(v.V), OK: v.OK}
}

// match finds the request of a span: same id and arrival, and of several
// children the one with the same time in queue and tokens.
func match(sp vllmtest.Span, all map[string]*life, order []string, used map[string]bool) *life {
	var best *life
	for _, id := range order {
		l := all[id]
		if used[id] || int64(l.added.Arrival) != sp.Start || l.added.ExternalID != sp.Strings["gen_ai.request.id"] {
			continue
		}
		if best == nil || int64(math.Round(sp.Numbers["gen_ai.latency.time_in_queue"]*1e9)) == int64(l.sched-l.queued) &&
			int64(math.Round(sp.Numbers["gen_ai.latency.time_in_queue"]*1e9)) != int64(best.sched-best.queued) {
			best = l
		}
	}
	if best != nil {
		used[best.added.ID] = true
	}
	return best
}

// TestSynthetic checks one message of each kind from every known version.
func TestSynthetic(t *testing.T) {
	all, err := vllmtest.AllSynthetic()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 31 {
		t.Fatalf("%d versions, want 31", len(all))
	}
	ns := func(s float64) signal.Mono { return signal.Mono(math.Round(s * 1e9)) }
	at := func(version string) int {
		return slices.IndexFunc(all, func(s vllmtest.Synthetic) bool { return s.Version == version })
	}
	for i, v := range all {
		t.Run(v.Version, func(t *testing.T) {
			hasTrace, hasSkipped := i >= at("0.10.2"), i >= at("0.20.2")
			x := v.Expect
			sigs := decodeAll(t, v.Engine, vllm.Options{Tokens: true}, v.Records)
			var steps []*signal.StepOutput
			var delivered []*signal.Delivered
			var added *signal.RequestAdded
			var aborted *signal.RequestAborted
			for _, s := range sigs {
				switch s := s.(type) {
				case *signal.RequestAdded:
					added = s
				case *signal.RequestAborted:
					aborted = s
				case *signal.StepOutput:
					steps = append(steps, s)
				case *signal.Delivered:
					delivered = append(delivered, s)
				}
			}
			if added == nil || aborted == nil || len(steps) != 2 || len(delivered) != 2 {
				t.Fatalf("signals: added %v, aborted %v, %d steps, %d delivered", added, aborted, len(steps), len(delivered))
			}
			if added.ID != x.RequestID || added.PromptTokens != signal.Some(x.PromptTokens) || added.Arrival != signal.Wall(math.Round(x.Arrival*1e9)) || !added.Known || added.Pooling {
				t.Errorf("request %+v", added)
			}
			if p := added.Param; p.Temperature != signal.Some(x.Temperature) || p.TopP != signal.Some(x.TopP) || p.MaxTokens != signal.Some(x.MaxTokens) || !p.HasStop || p.Logprobs {
				t.Errorf("parameters %+v", p)
			}
			if p := added.Param; p.N.OK || p.TopK.OK {
				t.Errorf("parameters not in the message: n %v, top_k %v", p.N, p.TopK)
			}
			if strings.Contains(added.TraceParent, "0af7651916cd43dd8448eb211c80319c") != hasTrace {
				t.Errorf("traceparent %q", added.TraceParent)
			}
			if !slices.Equal(aborted.IDs, []string{x.RequestID}) {
				t.Errorf("aborted %v", aborted.IDs)
			}
			o := steps[0].Outputs[0]
			if len(steps[0].Outputs) != 1 || string(o.ID) != x.RequestID || o.NumTokens != 1 || o.Tokens[0] != 558 || o.Finish != signal.FinishNone || o.FinishReason != "" {
				t.Errorf("first output %+v", o)
			}
			if !slices.Equal(o.Events, []signal.EngineEvent{{Kind: signal.EventQueued, At: ns(x.Queued)}, {Kind: signal.EventScheduled, At: ns(x.Scheduled)}}) {
				t.Errorf("events %v", o.Events)
			}
			if want := x.CachedTokens; o.CachedTokens.OK != (want != nil) || want != nil && o.CachedTokens.V != *want {
				t.Errorf("cached tokens %v", o.CachedTokens)
			}
			if steps[0].Stamp != ns(x.Stamp1) || steps[1].Stamp != ns(x.Stamp2) {
				t.Errorf("stamps %d %d", steps[0].Stamp, steps[1].Stamp)
			}
			st := steps[0].Stats
			waiting := x.Waiting
			if hasSkipped { // 3 requests were set aside
				waiting += 3
			}
			if st == nil || st.KVUsage != signal.Some(x.KVUsage) || st.Running != signal.Some(x.Running) || st.Waiting != signal.Some(waiting) ||
				st.PrefixQueries != signal.Some[int64](4) || st.PrefixHits != signal.Some[int64](2) || st.SpecDrafts.OK {
				t.Errorf("stats %+v", st)
			}
			o = steps[1].Outputs[0]
			if o.NumTokens != 3 || !slices.Equal(o.Tokens, []int64{1, 2, 3}) || o.Finish != signal.FinishLength || o.FinishReason != "length" || o.StopReason != x.StopReason {
				t.Errorf("second output %+v", o)
			}
			if steps[1].Stats != nil || steps[1].Client != added.Client || steps[0].Client != added.Client {
				t.Errorf("second step %+v", steps[1])
			}
			for i := range steps {
				if steps[i].Key == 0 || steps[i].Key != delivered[i].Key || delivered[i].At <= steps[i].At || delivered[i].PID != vllmtest.SyntheticServer {
					t.Errorf("step %d: key %x, delivered %+v", i, steps[i].Key, delivered[i])
				}
			}
		})
	}
}
