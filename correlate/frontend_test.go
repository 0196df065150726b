package correlate

import (
	"testing"

	"inferspan/correlate/signal"
)

func (s *script) tokenize(t float64, us int64, tokens int64, edit ...func(*signal.Tokenized)) *script {
	k := &signal.Tokenized{At: at(t), Engine: 1, PID: apiPID, Duration: us * 1000, Tokens: signal.Some(tokens)}
	for _, e := range edit {
		e(k)
	}
	return s.put(k)
}

func prompt(n int64) func(*signal.RequestAdded) {
	return func(a *signal.RequestAdded) { a.PromptTokens = signal.Some(n) }
}

func TestTokenize(t *testing.T) {
	type times map[string]any // ns, with the method if it is derived
	for _, c := range []struct {
		name  string
		build func() *script
		want  times
	}{
		{"by the number of tokens", func() *script {
			return newScript().tokenize(5001, 300, 20).tokenize(5001.1, 200, 16).tokenize(5001.2, 400, 30).add(5000, 5002, "a").add(5000, 5003, "b", prompt(30))
		}, times{"a": int64(200e3), "b": int64(400e3)}},
		{"by the id", func() *script {
			return newScript().tokenize(5001, 300, 16, func(k *signal.Tokenized) { k.ID = "b" }).tokenize(5001.1, 200, 16, func(k *signal.Tokenized) { k.ID = "a" }).add(5000, 5002, "a").add(5000, 5003, "b")
		}, times{"a": int64(200e3), "b": int64(300e3)}},
		{"alike, one after the other", func() *script {
			return newScript().tokenize(5001, 300, 16).add(5000, 5002, "a").tokenize(5003, 200, 16).add(5002.5, 5004, "b")
		}, times{"a": int64(300e3), "b": int64(200e3)}},
		{"alike, at once", func() *script {
			return newScript().tokenize(5001, 300, 16).tokenize(5001.1, 200, 16).add(5000, 5002, "a").add(5000, 5003, "b")
		}, times{"a": []any{int64(300e3), "order"}, "b": []any{int64(200e3), "order"}}},
		{"records pass each other", func() *script {
			return newScript().add(5000, 5002, "a").tokenize(5001, 300, 16)
		}, times{"a": int64(300e3)}},
		{"records were lost", func() *script {
			return newScript().put(&signal.Loss{At: at(5000.5), Stage: "kernel", Lost: []signal.LossCount{{Reason: "ring_full", N: 1}}}).tokenize(5001, 300, 16).add(5000, 5002, "a")
		}, times{"a": []any{int64(300e3), "order"}}},
		{"we came in between", func() *script {
			s := newScript()
			s.sig[0].(*signal.Clock).At, s.sig[0].(*signal.Clock).Wall, s.sig[1].(*signal.Engine).At = at(5000.5), wallT(5000.5), at(5000.5)
			return s.tokenize(5001, 300, 16).add(5000, 5002, "a")
		}, times{"a": []any{int64(300e3), "order"}}},
		{"after it reached the core", func() *script { return newScript().add(5000, 5002, "a").tokenize(5100, 300, 16) }, times{"a": nil}},
		{"long before it arrived", func() *script { return newScript().tokenize(5001, 300, 16).add(19000, 19002, "a") }, times{"a": nil}},
		{"another number of tokens", func() *script { return newScript().tokenize(5001, 300, 17).add(5000, 5002, "a") }, times{"a": nil}},
		{"a call for three prompts", func() *script {
			of := func(i int) func(*signal.RequestAdded) {
				return func(a *signal.RequestAdded) { a.ResponseID, a.ExternalID = "cmpl-a", "cmpl-a-"+string(rune('0'+i)) }
			}
			s := newScript().tokenize(5001, 300, 60, func(k *signal.Tokenized) { k.Inputs = 3 })
			return s.add(5000, 5002, "a", of(0), prompt(10)).add(5000, 5002.1, "b", of(1), prompt(20)).add(5000, 5002.2, "c", of(2), prompt(30)).add(5000, 5002.3, "d", prompt(30))
		}, times{"a": []any{int64(50e3), "share_of_batch"}, "b": []any{int64(100e3), "share_of_batch"}, "c": []any{int64(150e3), "share_of_batch"}, "d": nil}},
		{"candidates of one prompt", func() *script {
			child := func(i int) func(*signal.RequestAdded) {
				return func(a *signal.RequestAdded) { a.ResponseID, a.ExternalID, a.Child = "r", "r", signal.Some(i) }
			}
			return newScript().tokenize(5001, 300, 16).add(5000, 5002, "a", child(0)).add(5000, 5002.1, "b", child(1))
		}, times{"a": int64(300e3), "b": int64(300e3)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.build()
			for id := range c.want {
				s.step(20000, out(id, 1, started(5002.5, 5003), finished(signal.FinishStop, "stop")))
			}
			s.put(&signal.Detach{At: at(199000)})
			trees, _ := run(t, NewOptions(), s.sig)
			got := map[string]any{}
			for _, q := range find(trees, "llm_request") {
				id := q.Attr("inferspan.request.internal_id").(string)
				v := q.Attr("gen_ai.latency.time_in_tokenize")
				if m, _ := q.Attr("inferspan.derived.methods").([]string); len(m) == 1 {
					v = []any{v, m[0][len("gen_ai.latency.time_in_tokenize: "):]}
				}
				got[id[:len(id)-2]] = v
			}
			for id, want := range c.want {
				if g := got[id]; !sameAny(g, want) {
					t.Errorf("%s: %v, want %v", id, g, want)
				}
			}
			o := NewOptions()
			for _, tr := range trees {
				conforms(t, tr, o)
			}
		})
	}
}

func sameAny(a, b any) bool {
	x, xok := a.([]any)
	y, yok := b.([]any)
	if xok != yok {
		return false
	}
	if !xok {
		return a == b
	}
	return len(x) == len(y) && x[0] == y[0] && x[1] == y[1]
}

func TestDetokenize(t *testing.T) {
	detok := func(id string, us, tokens int64, exact bool, method string) *signal.Detokenized {
		return &signal.Detokenized{At: at(141), Engine: 1, PID: apiPID, ID: id, Duration: us * 1000, Tokens: tokens, Exact: exact, Method: method}
	}
	for _, c := range []struct {
		name   string
		put    []signal.Signal
		want   any
		method any
	}{
		{"nothing", nil, nil, nil},
		{"the request's own, by its internal id", []signal.Signal{detok("chatcmpl-a-x", 10, 3, true, ""), detok("chatcmpl-a-x", 5, 1, true, "")}, int64(15e3), nil},
		{"the request's own, by its external id", []signal.Signal{detok("chatcmpl-a", 15, 4, true, "")}, int64(15e3), nil},
		{"not of all tokens", []signal.Signal{detok("chatcmpl-a", 15, 3, true, "")}, nil, nil},
		{"its share of messages", []signal.Signal{detok("chatcmpl-a", 10, 3, false, "bracket"), detok("chatcmpl-a", 5, 1, true, "")}, int64(15e3), []string{"gen_ai.latency.time_in_detokenize: bracket"}},
		{"the cost of a token", []signal.Signal{detok("", 1000, 100, true, "")}, int64(40e3), []string{"gen_ai.latency.time_in_detokenize: calibrated"}},
		{"its own before the cost of a token", []signal.Signal{detok("", 1000, 100, true, ""), detok("chatcmpl-a", 15, 4, true, "")}, int64(15e3), nil},
		{"the cost in another front end", []signal.Signal{&signal.Detokenized{At: at(1), Engine: 1, PID: 999, Duration: 1000, Tokens: 1}}, nil, nil},
		{"another request's", []signal.Signal{detok("chatcmpl-b", 15, 4, true, "")}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript().chat(100, 7, "chatcmpl-a")
			end := s.sig[len(s.sig)-1]
			s.sig = append(append(s.sig[:len(s.sig)-1], c.put...), end, &signal.Clock{At: at(9000), Wall: wallT(9000)})
			trees, _ := run(t, NewOptions(), s.sig)
			wantAttrs(t, one(t, trees, "llm_request"), map[string]any{"gen_ai.latency.time_in_detokenize": c.want, "inferspan.derived.methods": c.method})
		})
	}
}

func TestKVTransfer(t *testing.T) {
	kv := func(from, to float64, edit ...func(*signal.KVTransfer)) signal.Signal {
		k := &signal.KVTransfer{Core: testCore, ID: "chatcmpl-a-x", Start: at(from), End: at(to), Tokens: signal.Some[int64](12), Failed: signal.Some(false), Exact: true}
		for _, e := range edit {
			e(k)
		}
		return k
	}
	for _, c := range []struct {
		name  string
		put   []signal.Signal
		time  any
		times [2]float64 // of the span; 0: none
		attrs map[string]any
	}{
		{"exact", []signal.Signal{kv(102.6, 102.9)}, int64(0.3e6), [2]float64{102.6, 102.9}, map[string]any{"gen_ai.kv_transfer.direction": "recv", "gen_ai.kv_transfer.cached_tokens": int64(12),
			"gen_ai.kv_transfer.failed": false, "gen_ai.pd_role": "consumer", "gen_ai.request.id": "chatcmpl-a", "inferspan.derived": nil}},
		{"stamps differ a little", []signal.Signal{kv(102.49, 103.01)}, int64(0.52e6), [2]float64{102.5, 103}, nil},
		{"outside of the wait", []signal.Signal{kv(102.6, 105)}, int64(2.4e6), [2]float64{}, nil},
		{"by looking", []signal.Signal{kv(102.6, 102.9, func(k *signal.KVTransfer) { k.Exact, k.Method, k.Failed = false, "peek", signal.Opt[bool]{} })}, int64(0.3e6), [2]float64{102.6, 102.9},
			map[string]any{"inferspan.derived": []string{"span.start", "span.end"}, "gen_ai.kv_transfer.failed": nil}},
		{"by steps", []signal.Signal{kv(102.6, 102.9, func(k *signal.KVTransfer) { k.Exact, k.Method, k.Tokens = false, "steps", signal.Opt[int64]{} })}, int64(0.3e6), [2]float64{102.6, 102.9},
			map[string]any{"inferspan.derived": []string{"span.start", "span.end"}, "gen_ai.kv_transfer.failed": false, "gen_ai.kv_transfer.cached_tokens": nil}},
		{"again after a preemption", []signal.Signal{kv(130, 135, func(k *signal.KVTransfer) { k.Failed = signal.Some(true) }), kv(102.6, 102.9)}, int64(5.3e6), [2]float64{102.6, 102.9}, map[string]any{"gen_ai.kv_transfer.failed": false}},
		{"its beginning was not seen", []signal.Signal{kv(102.6, 102.7), kv(0, 102.9)}, nil, [2]float64{}, nil},
		{"tried again", []signal.Signal{kv(102.6, 102.7, func(k *signal.KVTransfer) { k.Failed = signal.Some(true) }), kv(102.8, 102.9)}, int64(0.2e6), [2]float64{102.6, 102.9}, map[string]any{"gen_ai.kv_transfer.failed": true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := pd("consumer")
			s.sig = append(append(append([]signal.Signal(nil), s.sig[:4]...), c.put...), s.sig[4:]...)
			o := NewOptions()
			trees, _ := run(t, o, s.sig)
			wantAttrs(t, one(t, trees, "llm_request"), map[string]any{"gen_ai.latency.time_in_kv_transfer": c.time, "gen_ai.latency.time_in_model_prefill": int64(0)})
			wellFormed(t, trees[0])
			conforms(t, trees[0], o)
			if c.times[0] == 0 {
				if n := len(find(trees, "kv_transfer")); n != 0 {
					t.Errorf("%d spans", n)
				}
				return
			}
			k := one(t, trees, "kv_transfer")
			if k.Start != wall(c.times[0]) || k.End != wall(c.times[1]) || k.ParentID != one(t, trees, "wait").SpanID || len(find(trees, "prefill")) != 0 {
				t.Errorf("from %d to %d", k.Start-wallOff, k.End-wallOff)
			}
			wantAttrs(t, k, c.attrs)
		})
	}
}

// What a connector had comes with the first output; none of it is not what a load was of.
func TestKVTransferTokens(t *testing.T) {
	for had, want := range map[int64]any{256: int64(256), 0: nil} {
		s := pd("")
		load := &signal.KVTransfer{Core: testCore, ID: "chatcmpl-a-x", Start: at(102.6), End: at(102.9), Method: "steps"}
		s.sig = append(append(append([]signal.Signal(nil), s.sig[:4]...), load), s.sig[4:]...)
		for _, x := range s.sig {
			if o, ok := x.(*signal.StepOutput); ok {
				o.Outputs[0].ExternalTokens = signal.Some(had)
				break
			}
		}
		trees, _ := run(t, NewOptions(), s.sig)
		wantAttrs(t, one(t, trees, "kv_transfer"), map[string]any{"gen_ai.kv_transfer.cached_tokens": want, "gen_ai.pd_role": nil})
		wantAttrs(t, one(t, trees, "llm_request"), map[string]any{"inferspan.derived.methods": []string{"gen_ai.latency.time_in_kv_transfer: steps"}})
		one(t, trees, "prefill")
		one(t, trees, "decode")
	}
}
