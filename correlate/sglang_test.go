package correlate

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// tree writes a tree as a text, and checks that it is well formed.
func treeText(t *testing.T, tr *trace.Tree) string {
	t.Helper()
	sglangWellFormed(t, tr, true)
	var names []string
	var depths []int
	depth := map[trace.SpanID]int{}
	for i := range tr.Spans {
		s := &tr.Spans[i]
		d := 0
		if i > 0 {
			d = depth[s.ParentID] + 1
		}
		depth[s.SpanID] = d
		name, _, _ := strings.Cut(s.Name, " (host:")
		for _, e := range s.Events {
			name += " *" + e.Name
		}
		for _, l := range s.Links {
			for j := range tr.Spans {
				if tr.Spans[j].SpanID == l.SpanID {
					name += " <- " + tr.Spans[j].Name
				}
			}
		}
		names, depths = append(names, name), append(depths, d)
	}
	return shape(names, depths)
}

func wantTree(t *testing.T, tr *trace.Tree, want string) {
	t.Helper()
	want = strings.ReplaceAll(strings.TrimPrefix(want, "\n"), "\t", "")
	if got := treeText(t, tr); got != want {
		t.Errorf("the tree is\n%swant\n%s", got, want)
	}
}

// nativeSpan is a span of SGLang's own tracing, as the receiver wrote it down.
type nativeSpan struct {
	Name, Span, Parent string
	Start, Dur_us      int64
	Attrs              map[string]any
	Events             [][2]any
	Links              int
}

// TestSGLangNative rebuilds a tree of SGLang's own tracing from the stamps in it.
func TestSGLangNative(t *testing.T) {
	f, err := os.Open("testdata/sglang_native.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var native []nativeSpan
	byName := map[string]*nativeSpan{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var n nativeSpan
		if err := json.Unmarshal(sc.Bytes(), &n); err != nil {
			t.Fatal(err)
		}
		native = append(native, n)
	}
	for i := range native {
		byName[strings.Fields(native[i].Name)[0]] = &native[i]
	}
	const id = "913d25925afe43f5bac5734e2fa445ae"
	root := byName["Req"]
	zero := root.Start - 1e9 // ours count from here
	mono := func(wall int64) float64 { return float64(wall-zero) / 1e6 }
	end := func(n *nativeSpan) float64 { return mono(n.Start) + float64(n.Dur_us)/1e3 }

	s := newSGLang()
	s.sig[0] = &signal.Clock{At: 1, Wall: signal.Wall(zero + 1)}
	created := mono(root.Start)
	lat := func(k string) float64 { return root.Attrs["gen_ai.latency."+k].(float64) * 1e3 }
	finished := created + lat("e2e")
	s.stage(tokPID, id, "tokenize", created, end(byName["tokenize"]))
	s.added(end(byName["api_server_dispatch"]), id, func(a *signal.RequestAdded) {
		a.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	})
	s.stage(tokPID, id, "api_server_dispatch", mono(byName["api_server_dispatch"].Start), end(byName["api_server_dispatch"]))
	s.times(1077, id, created, finished-lat("time_in_model_inference"), 0, 0)
	loops := 0
	for i := range native {
		n := &native[i]
		switch n.Name {
		case "request_process", "prefill_waiting", "decode_forward":
			s.stage(schPID, id, n.Name, mono(n.Start), end(n))
		case "prefill_forward":
			s.stage(schPID, id, n.Name, mono(n.Start), end(n))
			s.mark(schPID, id, "schedule", mono(n.Start)+0.1, "prefill", 1)
			s.mark(schPID, id, "schedule", mono(n.Start)+10, "decode", 1)
			s.out(end(n)+0.1, id, 1)
		case "decode_loop":
			s.stage(schPID, id, n.Name, mono(n.Start), end(n), round(int64(loops)))
			if len(n.Events) > 0 {
				s.mark(schPID, id, "schedule", mono(n.Start)+float64(loops), "decode", 1)
				s.out(end(n)+0.1, id, 1)
			}
			loops++
		}
	}
	sched := byName["Scheduler"]
	s.mark(schPID, id, "complete", end(sched), "", 0)
	s.out(end(sched)+0.1, id, 1, finishedLength)
	s.times(finished, id, 0, 0, created+lat("time_to_first_token"), finished)
	trees, _ := run(t, NewOptions(), s.sig)
	if len(trees) != 1 {
		t.Fatalf("%d trees, want 1 as soon as the front end has stamped the end", len(trees))
	}
	ours := trees[0].Spans
	sglangWellFormed(t, trees[0], true)
	if len(ours) != len(native) {
		t.Errorf("%d spans, natively %d", len(ours), len(native))
	}
	plain := func(s string) string { return strings.ReplaceAll(s, " ", "") }
	name := func(id string) string {
		for i := range native {
			if native[i].Span == id {
				return plain(native[i].Name)
			}
		}
		return ""
	}
	oursName := func(id trace.SpanID) string {
		for i := range ours {
			if ours[i].SpanID == id {
				return plain(ours[i].Name)
			}
		}
		return ""
	}
	// What the links lead to is not in the sample: the rules of the tracer say it.
	links := map[string]string{
		"api_server_dispatch": "tokenize", "request_process": "api_server_dispatch", "prefill_waiting": "request_process",
		"prefill_forward": "prefill_waiting", "decode_forward": "prefill_forward",
	}
	used := make([]bool, len(ours))
	for i := range native {
		n := &native[i]
		k := -1
		for j := range ours {
			if !used[j] && plain(ours[j].Name) == plain(n.Name) && math.Abs(float64(ours[j].Start-n.Start)) < 200e3 {
				k = j
				break
			}
		}
		if k < 0 {
			t.Errorf("%s has no twin", n.Name)
			continue
		}
		used[k] = true
		o := &ours[k]
		if got, want := oursName(o.ParentID), name(n.Parent); got != want {
			t.Errorf("%s is below %q, natively below %q", n.Name, got, want)
		}
		if d := o.End - o.Start - n.Dur_us*1e3; math.Abs(float64(d)) > 150e3 || (n != sched && math.Abs(float64(d)) > 2e3) {
			t.Errorf("%s takes %d us, natively %d", n.Name, (o.End-o.Start)/1e3, n.Dur_us)
		}
		if len(o.Links) != n.Links || (n.Links == 1 && oursName(o.Links[0].SpanID) != links[n.Name]) {
			t.Errorf("%s has the links %v, natively %d", n.Name, o.Links, n.Links)
		}
		for key, want := range n.Attrs {
			got := o.Attr(key)
			if x, ok := got.(int64); ok {
				got = float64(x)
			}
			if w, ok := want.(float64); ok && strings.HasPrefix(key, "gen_ai.latency.") {
				if g, ok := got.(float64); !ok || math.Abs(g-w) > 1e-8 {
					t.Errorf("%s: %s = %v, natively %v", n.Name, key, got, want)
				}
				continue
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s = %v, natively %v", n.Name, key, got, want)
			}
		}
		for _, a := range o.Attrs {
			if _, ok := n.Attrs[a.Key]; !ok && !strings.HasPrefix(a.Key, "inferspan.") {
				t.Errorf("%s: %s is not there natively", n.Name, a.Key)
			}
		}
		if len(o.Events) != len(n.Events) {
			t.Errorf("%s has the events %v, natively %v", n.Name, o.Events, n.Events)
			continue
		}
		for j, e := range n.Events {
			want := e[1].(map[string]any)
			got := map[string]any{}
			for _, a := range o.Events[j].Attrs {
				got[a.Key] = a.Value
			}
			if o.Events[j].Name != e[0] || got["forward_mode"] != want["forward_mode"] || float64(got["batch_size"].(int64)) != want["batch_size"] || len(got["bid"].(string)) != len(want["bid"].(string)) {
				t.Errorf("%s has the event %v, natively %v", n.Name, got, want)
			}
		}
	}
	if !ours[0].RemoteParent || ours[0].ParentID != (trace.SpanID{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}) {
		t.Errorf("the request is below %x", ours[0].ParentID)
	}
}

func finishedLength(o *signal.Output) { finished(signal.FinishLength, "length")(o) }

// TestSGLangController: with data parallelism the core is known later, and the
// thread of the controller is between the two others.
func TestSGLangController(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang(withProcess(signal.Process{PID: dpcPID, NSPID: 7, Role: "dp_controller", HostID: hostID}))
	s.stage(tokPID, id, "tokenize", 1, 2)
	s.added(2.5, id, func(a *signal.RequestAdded) { a.Core = coreUnknown })
	s.stage(tokPID, id, "api_server_dispatch", 2.2, 2.6)
	s.times(2.6, id, 1, 2.6, 0, 0)
	s.stage(dpcPID, id, "dpc_dispatch", 2.7, 2.8)
	s.stage(schPID, id, "request_process", 3, 3.5)
	s.stage(schPID, id, "prefill_waiting", 3.5, 4)
	s.stage(schPID, id, "prefill_forward", 4, 10)
	s.mark(schPID, id, "complete", 10.1, "", 0)
	s.out(10.2, id, 1, finishedLength)
	s.times(11, id, 0, 0, 11, 11)
	for level, want := range map[int]string{3: `
		Req aaaaaaaa
		  Tokenizer
		    tokenize
		    api_server_dispatch <- tokenize
		  DP Controller
		    dpc_dispatch <- api_server_dispatch
		  Scheduler [TP 0] [PP 0]
		    request_process <- dpc_dispatch
		    prefill_waiting <- request_process
		    prefill_forward <- prefill_waiting
		`, 1: `
		Req aaaaaaaa
		  Tokenizer
		    tokenize
		  DP Controller
		  Scheduler [TP 0] [PP 0]
		    prefill_waiting <- tokenize
		    prefill_forward <- prefill_waiting
		`} {
		o := NewOptions()
		o.TraceLevel = level
		trees, m := run(t, o, s.sig)
		wantTree(t, trees[0], want)
		if got := point(t, m, "num_requests_total"); got != 1 {
			t.Errorf("%v requests", got)
		}
	}
}

// TestSGLangRanks: each rank is a thread of its own, and the last one may be late.
func TestSGLangRanks(t *testing.T) {
	const id = "aaaaaaaaaa"
	one := signal.Some[int64](1)
	s := newSGLang(withProcess(signal.Process{PID: sch1PID, NSPID: sch1PID, Role: "engine_core", HostID: hostID, TensorRank: one, PipelineRank: signal.Some[int64](0)}))
	s.stage(tokPID, id, "tokenize", 1, 2)
	s.added(2.5, id)
	s.times(2.6, id, 1, 2.6, 0, 0)
	for _, pid := range []uint32{schPID, sch1PID} {
		s.stage(pid, id, "prefill_waiting", 3.5, 4)
		s.stage(pid, id, "prefill_forward", 4, 10)
	}
	s.out(10.2, id, 1, finishedLength)
	s.times(11, id, 0, 0, 11, 11)
	s.mark(sch1PID, id, "complete", 10.9, "", 0)
	s.put(&signal.Clock{At: at(2000), Wall: wallT(2000)})
	trees, _ := run(t, NewOptions(), s.sig)
	if len(trees) != 1 {
		t.Fatalf("%d trees", len(trees))
	}
	wantTree(t, trees[0], `
		Req aaaaaaaa
		  Tokenizer
		    tokenize
		  Scheduler [TP 0] [PP 0]
		    prefill_waiting <- tokenize
		    prefill_forward <- prefill_waiting
		  Scheduler [TP 1] [PP 0]
		    prefill_waiting <- tokenize
		    prefill_forward <- prefill_waiting
		`)
}

func TestSGLangDisaggregated(t *testing.T) {
	const id = "aaaaaaaaaa"
	p := newSGLang(withRole("producer"))
	p.stage(tokPID, id, "tokenize", 1, 2)
	p.added(2.5, id, func(a *signal.RequestAdded) { a.Room = signal.Some[int64](0x1a2b3c4d) })
	p.times(2.6, id, 1, 2.6, 0, 0)
	p.stage(schPID, id, "prefill_prepare", 3, 3.2)
	p.stage(schPID, id, "prefill_bootstrap", 3.2, 3.5)
	p.stage(schPID, id, "prefill_waiting", 3.5, 4)
	p.stage(schPID, id, "prefill_forward", 4, 10)
	p.stage(schPID, id, "prefill_transfer_kv_cache", 10.1, 12)
	p.mark(schPID, id, "complete", 12.1, "", 0)
	p.out(12.2, id, 1, finishedLength)
	p.times(13, id, 0, 0, 13, 13)
	trees, m := run(t, NewOptions(), p.sig)
	wantTree(t, trees[0], `
		prefill Req aaaaaaaa
		  Prefill Tokenizer
		    tokenize
		  Prefill Scheduler [TP 0] [PP 0]
		    prefill_prepare <- tokenize
		    prefill_bootstrap <- prefill_prepare
		    prefill_waiting <- prefill_bootstrap
		    prefill_forward <- prefill_waiting
		    prefill_transfer_kv_cache <- prefill_forward
		`)
	wantAttrs(t, &trees[0].Spans[0], map[string]any{"bootstrap_room": "0x1a2b3c4d"})
	if slices.ContainsFunc(names(m), func(n string) bool { return n == "gen_ai.server.time_to_first_token" }) {
		t.Error("a prefill node has no time to first token")
	}
	d := newSGLang(withRole("consumer"))
	d.stage(tokPID, id, "tokenize", 1, 2)
	d.added(2.5, id, func(a *signal.RequestAdded) { a.Room = signal.Some[int64](0x1a2b3c4d) })
	d.times(2.6, id, 1, 2.6, 0, 0)
	d.stage(schPID, id, "decode_prepare", 3, 3.2)
	d.stage(schPID, id, "decode_bootstrap", 3.2, 3.5)
	d.stage(schPID, id, "decode_transferred", 3.5, 12)
	d.stage(schPID, id, "decode_waiting", 12, 13)
	d.stage(schPID, id, "fake_output", 13, 13.5)
	d.stage(schPID, id, "decode_loop", 13.5, 20, round(0))
	d.stage(schPID, id, "decode_forward", 13, 0)
	d.mark(schPID, id, "complete", 20.1, "", 0)
	d.out(20.2, id, 2, finishedLength)
	d.times(21, id, 0, 0, 14, 21)
	trees, _ = run(t, NewOptions(), d.sig)
	wantTree(t, trees[0], `
		decode Req aaaaaaaa
		  Decode Tokenizer
		    tokenize
		  Decode Scheduler [TP 0] [PP 0]
		    decode_prepare <- tokenize
		    decode_bootstrap <- decode_prepare
		    decode_transferred <- decode_bootstrap
		    decode_waiting <- decode_transferred
		    decode_forward <- decode_waiting
		      fake_output
		      decode_loop
		`)
	if f := one(t, trees, "decode_forward"); f.End != wall(20.1) {
		t.Errorf("decode_forward ends %d ns from the end of its thread", f.End-wall(20.1))
	}
}

// TestSGLangAbort: the client leaves, the scheduler answers with a last output.
func TestSGLangAbort(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang()
	s.begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Exchange.PID = tokPID })
	s.engineRequest(100, id, 40)
	i := slices.IndexFunc(s.sig, func(x signal.Signal) bool { o, ok := x.(*signal.StepOutput); return ok && o.At > at(130) })
	s.sig = s.sig[:i+1]
	s.endHTTP(135, 7, 0, id, signal.OutcomeDisconnect, func(e *signal.ExchangeEnd) { e.Exchange.PID = tokPID })
	s.put(&signal.RequestAborted{At: at(136), Core: coreUnknown, IDs: []string{id}})
	s.stage(schPID, id, "decode_forward", 110.5, 140)
	s.mark(schPID, id, "complete", 140, "", 0)
	s.out(140.2, id, 0, finished(signal.FinishAbort, "abort"), func(o *signal.Output) {
		o.Failure = &signal.Failure{Type: "abort", Message: "AbortReq from user", Status: signal.Some[int64](499), Err: "ClientClosed"}
	})
	s.times(141, id, 0, 0, 0, 141)
	o := NewOptions()
	o.Content = ContentSpan
	trees, m := run(t, o, s.sig)
	if len(trees) != 1 {
		t.Fatalf("%d trees", len(trees))
	}
	req, sched := one(t, trees, "Req aaaaaaaa"), schedulerOf(trees[0])
	wantAttrs(t, req, map[string]any{"inferspan.outcome": OutcomeDisconnect, "gen_ai.response.finish_reasons": nil, "gen_ai.latency.e2e": nil, "rid": id})
	wantAttrs(t, sched, map[string]any{"type": "abort", "message": "AbortReq from user", "status_code": int64(499), "err_type": "ClientClosed", "error.type": OutcomeDisconnect})
	if req.Code != trace.StatusUnset || sched.Code != trace.StatusError || sched.Message != "client disconnected after 3 tokens" {
		t.Errorf("status %d of the request, %d %q of the thread", req.Code, sched.Code, sched.Message)
	}
	conforms(t, trees[0], o)
	if got := point(t, m, "num_requests_total"); got != 1 {
		t.Errorf("%v requests", got)
	}
	trees, _ = run(t, NewOptions(), s.sig)
	wantAttrs(t, schedulerOf(trees[0]), map[string]any{"type": "abort", "message": nil})

	// The scheduler does not answer.
	s.sig = slices.DeleteFunc(s.sig, func(x signal.Signal) bool {
		switch x := x.(type) {
		case *signal.StepOutput:
			return x.At > at(140)
		case *signal.RequestTimes:
			return x.At > at(140)
		}
		return false
	})
	s.put(&signal.Clock{At: at(5000), Wall: wallT(5000)})
	trees, _ = run(t, NewOptions(), s.sig)
	if len(trees) != 1 {
		t.Fatalf("%d trees", len(trees))
	}
	wantAttrs(t, one(t, trees, "Req aaaaaaaa"), map[string]any{"inferspan.outcome": OutcomeDisconnect})
}

func schedulerOf(tr *trace.Tree) *trace.Span {
	for i := range tr.Spans {
		if strings.Contains(tr.Spans[i].Name, "Scheduler") {
			return &tr.Spans[i]
		}
	}
	return &trace.Span{}
}

// TestSGLangBare: no probes but the tap on messages.
func TestSGLangBare(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang()
	s.begin(1, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Exchange.PID = tokPID })
	s.added(2.5, id).out(10, id, 1).out(20, id, 1, finishedLength)
	s.endHTTP(22, 7, 200, id, signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.Exchange.PID = tokPID })
	s.put(&signal.Clock{At: at(2000), Wall: wallT(2000)})
	trees, m := run(t, NewOptions(), s.sig)
	if len(trees) != 1 {
		t.Fatalf("%d trees", len(trees))
	}
	wantTree(t, trees[0], `
		chat tiny
		  Req aaaaaaaa
		    Scheduler [TP 0] [PP 0]
		`)
	wantAttrs(t, &trees[0].Spans[1], map[string]any{
		"gen_ai.usage.completion_tokens": int64(2), "gen_ai.latency.e2e": nil, "inferspan.partial": nil, "inferspan.derived": []string{"span.start", "span.end", "gen_ai.latency.time_in_model_decode"},
	})
	wantAttrs(t, &trees[0].Spans[2], map[string]any{"inferspan.partial": []string{"stages"}, "inferspan.derived": []string{"span.end", "span.start"}})
	if got := point(t, m, "generation_tokens_total"); got != 2 {
		t.Errorf("%v tokens", got)
	}
	if slices.Contains(names(m), "gen_ai_server_request_duration") {
		t.Error("durations without stamps")
	}
}

// TestSGLangInFlight: attached when the request was decoding, and detached before
// its end.
func TestSGLangInFlight(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang()
	s.mark(schPID, id, "schedule", 50, "decode", 1)
	s.stage(schPID, id, "decode_loop", 49, 60, round(7), method("launch"))
	s.out(60.2, id, 1)
	s.put(&signal.Detach{At: at(61)})
	trees, _ := run(t, NewOptions(), s.sig)
	wantTree(t, trees[0], `
		Req aaaaaaaa
		  Scheduler [TP 0] [PP 0]
		    decode_forward
		      decode_loop *schedule
		`)
	wantAttrs(t, &trees[0].Spans[0], map[string]any{"inferspan.partial": []string{"arrival", "outputs", "end"}, "inferspan.outcome": OutcomeInFlight})
	wantAttrs(t, one(t, trees, "decode_forward"), map[string]any{"inferspan.derived": []string{"span.start"}})
	wantAttrs(t, one(t, trees, "decode_loop"), map[string]any{"inferspan.derived": []string{"span.start"}, "inferspan.derived.methods": []string{"span.start: launch"}})
	conforms(t, trees[0], NewOptions())
}

// TestSGLangWorkers: with several tokenizer workers each is named after its process,
// and puts its name in front of its requests' ids.
func TestSGLangWorkers(t *testing.T) {
	for _, edit := range []engineEdit{
		withProcess(signal.Process{PID: tokPID + 1, NSPID: 8, Role: "api_server", HostID: hostID}),
		func(e *signal.Engine) { e.FrontEnds = signal.Some[int64](2) }, // the other starts yet
	} {
		s := newSGLang(edit)
		s.engineRequest(100, "13729_aaaaaaaaaa", 1)
		s.mark(schPID, "13729_aaaaaaaaaa", signal.MarkComplete, 114, "", 0)
		s.out(115, "13729_aaaaaaaaaa", 1, finishedLength)
		trees, _ := run(t, NewOptions(), s.sig)
		wantAttrs(t, one(t, trees, "Req aaaaaaaa"), map[string]any{"rid": "aaaaaaaaaa"})
		wantAttrs(t, one(t, trees, "MultiTokenizer-13729 (host:3d1219c7 | pid:13729)"), map[string]any{"thread_label": "MultiTokenizer-13729", "pid": int64(13729), "host_id": hostID, "tp_rank": nil})
		conforms(t, trees[0], NewOptions())
	}
}
