package correlate

import (
	"strings"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// Requests that are over between the first look at a core and its probes say what is not
// known of them and why.
func TestOverBeforeProbes(t *testing.T) {
	change := func(ms float64, detail string, active bool) *signal.ProbeChange {
		return &signal.ProbeChange{At: at(ms), Engine: 1, PID: corePID, Probe: detail, Active: active}
	}
	state := func(ms float64, running int64) *signal.EngineState {
		return &signal.EngineState{At: at(ms), Core: testCore, Running: signal.Some(running), Waiting: signal.Some[int64](0)}
	}
	outline := func(p *signal.RequestPeeked) {
		p.Output, p.Preemptions = signal.Opt[int64]{}, signal.Opt[int64]{}
	}
	const over, early, late = "it was over before the probes were in", "the probes were not in yet", "it began before the probes were in"
	for _, c := range []struct {
		name    string
		build   func() *script
		outcome string
		partial string
		want    map[string]string // reason by attribute
		known   []string          // attributes that are there
	}{
		{"in a program: found, then gone", func() *script {
			return newScript().put(change(90, signal.DetailPeeks, true)).put(state(91, 1)).peek(100, "a", 0, outline).
				put(change(120, signal.DetailSteps, true)).put(state(130, 0))
		}, OutcomeLost, "end", map[string]string{
			"gen_ai.usage.completion_tokens": over, "gen_ai.latency.e2e": over, "gen_ai.latency.time_in_queue": over, "gen_ai.latency.time_to_first_token": over,
			"gen_ai.latency.time_in_model_prefill": over, "gen_ai.latency.time_in_model_decode": over, "gen_ai.latency.time_in_model_inference": over, "inferspan.steps.count": over,
		}, []string{"gen_ai.usage.prompt_tokens", "gen_ai.request.max_tokens"}},
		{"others go on: not known to be over", func() *script {
			return newScript().put(change(90, signal.DetailPeeks, true)).peek(100, "a", 0, outline).put(change(120, signal.DetailSteps, true)).put(state(130, 1))
		}, OutcomeInFlight, "end", map[string]string{
			"inferspan.steps.count": late, "gen_ai.latency.time_in_queue": late, "gen_ai.latency.time_in_model_prefill": late, "gen_ai.latency.time_in_model_inference": late}, nil},
		{"a state of before the look says nothing", func() *script {
			return newScript().put(change(90, signal.DetailPeeks, true)).peek(100, "a", 0, outline).put(state(99, 0))
		}, OutcomeInFlight, "end", map[string]string{
			"inferspan.steps.count": early, "gen_ai.latency.time_in_queue": early, "gen_ai.latency.time_in_model_prefill": early, "gen_ai.latency.time_in_model_inference": early,
			"gen_ai.latency.time_in_tokenize": early, "gen_ai.latency.time_in_detokenize": early}, nil},
		{"its outputs are seen, its steps not yet", func() *script {
			return newScript().put(change(90, signal.DetailPeeks, true)).peek(100, "a", 0).
				step(110, out("a", 1, started(51, 105))).step(115, out("a", 1, finished(signal.FinishStop, "stop"))).put(&signal.Clock{At: at(116), Wall: wallT(116)}).
				put(change(120, signal.DetailSteps, true))
		}, OutcomeCompleted, "", map[string]string{"inferspan.steps.count": early, "gen_ai.latency.time_in_tokenize": early, "gen_ai.latency.time_in_detokenize": early},
			[]string{"gen_ai.latency.time_in_queue", "gen_ai.usage.completion_tokens"}},
		{"never a look, as in recordings of before", func() *script {
			return newScript().step(110, out("a", 1, started(51, 105))).step(115, out("a", 1, finished(signal.FinishStop, "stop")))
		}, OutcomeCompleted, "arrival", nil, nil},
		{"over before the first look", func() *script {
			return newScript().put(&signal.CoreAwaited{At: at(90), Engine: 1, PID: corePID}).step(110, out("a", 1, started(51, 105))).step(115, out("a", 1, finished(signal.FinishStop, "stop"))).
				put(&signal.Clock{At: at(116), Wall: wallT(116)}).put(change(120, signal.DetailPeeks, true)).put(change(130, signal.DetailSteps, true))
		}, OutcomeCompleted, "arrival", map[string]string{"inferspan.steps.count": early,
			"gen_ai.latency.time_in_tokenize": early, "gen_ai.latency.time_in_detokenize": early}, []string{"gen_ai.latency.time_in_queue"}},
		{"cannot be looked at", func() *script {
			return newScript().put(&signal.CoreAwaited{At: at(90), Engine: 1, PID: corePID}).put(change(95, signal.DetailPeeks, false)).
				step(110, out("a", 1, started(51, 105))).step(115, out("a", 1, finished(signal.FinishStop, "stop")))
		}, OutcomeCompleted, "arrival", nil, nil},
		{"its probes cannot be put in", func() *script {
			return newScript().put(change(90, signal.DetailPeeks, true)).put(change(95, signal.DetailSteps, false)).peek(100, "a", 0).
				step(110, out("a", 1, started(51, 105))).step(115, out("a", 1, finished(signal.FinishStop, "stop")))
		}, OutcomeCompleted, "", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := NewOptions()
			o.Steps = StepsRefs
			trees, _ := run(t, o, c.build().put(&signal.Detach{At: at(9000)}).sig)
			q := one(t, trees, "llm_request")
			if got := q.Attr("inferspan.outcome"); got != c.outcome {
				t.Errorf("outcome %v, want %s", got, c.outcome)
			}
			partial, _ := q.Attr("inferspan.partial").([]string)
			if strings.Join(partial, " ") != c.partial {
				t.Errorf("partial %q, want %q", partial, c.partial)
			}
			list, _ := q.Attr("inferspan.unavailable").([]string)
			got := map[string]string{}
			for _, s := range list {
				name, why, _ := strings.Cut(s, ": ")
				if got[name] != "" || q.Attr(name) != nil {
					t.Errorf("%s is there or listed twice", name)
				}
				got[name] = why
			}
			for name, why := range c.want {
				if got[name] != why {
					t.Errorf("%s: %q, want %q", name, got[name], why)
				}
			}
			for name, why := range got {
				if c.want[name] == "" {
					t.Errorf("%s is listed: %s", name, why)
				}
			}
			for _, name := range c.known {
				if q.Attr(name) == nil {
					t.Errorf("no %s", name)
				}
			}
		})
	}
}

// TestAgentAhead: what the agent says may be of a moment that the kernel's records have not
// come to, and does not end what they have yet to tell of.
func TestAgentAhead(t *testing.T) {
	c := New(NewOptions())
	for _, s := range newScript().sig {
		c.Put(s, func(*trace.Tree) {})
	}
	now := c.now
	for _, s := range []signal.Signal{
		&signal.CoreAwaited{At: at(9000), Engine: 1, PID: corePID}, &signal.ProbeChange{At: at(9000), Engine: 1, PID: corePID, Probe: signal.DetailSteps, Active: true},
		&signal.EngineConfig{At: at(9000), Core: testCore}, &signal.RequestPeeked{At: at(9000), Request: signal.RequestAdded{Core: testCore, ID: "a"}},
		&signal.GPUKernels{At: at(9000), Engine: 1, PID: corePID}, &signal.Loss{At: at(9000), Stage: "kernel"},
	} {
		if c.Put(s, func(*trace.Tree) {}); c.now != now {
			t.Errorf("%T moves the time on by %d ms", s, (c.now-now)/1e6)
		}
	}
}
