package correlate

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"inferspan/correlate/semconv"
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

// sglangWellFormed checks what holds in every tree. Only with exact stamps are
// stages within their threads, and those within their requests.
func sglangWellFormed(t *testing.T, tr *trace.Tree, exact bool) {
	t.Helper()
	at := map[trace.SpanID]*trace.Span{}
	for i := range tr.Spans {
		s := &tr.Spans[i]
		if s.TraceID == (trace.TraceID{}) || s.TraceID != tr.Spans[0].TraceID || s.SpanID == (trace.SpanID{}) || at[s.SpanID] != nil || s.Resource == nil {
			t.Errorf("%s: ids %x %x", s.Name, s.TraceID, s.SpanID)
		}
		at[s.SpanID] = s
		if s.End < s.Start {
			t.Errorf("%s ends %d ns before it starts", s.Name, s.Start-s.End)
		}
		for _, l := range s.Links {
			if o := at[l.SpanID]; l.TraceID != s.TraceID || o == nil || layerOf(o).Layer != "native_stage" {
				t.Errorf("%s is linked to what does not come before it", s.Name)
			}
		}
		if !slices.IsSortedFunc(s.Events, func(a, b trace.Event) int { return int(a.Time - b.Time) }) {
			t.Errorf("%s: events out of order", s.Name)
		}
		if i == 0 {
			if (s.ParentID != trace.SpanID{}) != s.RemoteParent {
				t.Errorf("root %s: parent %x, remote %v", s.Name, s.ParentID, s.RemoteParent)
			}
			continue
		}
		p := at[s.ParentID]
		if p == nil {
			t.Errorf("%s comes before its parent or has none in its tree", s.Name)
			continue
		}
		if exact && (s.Start < p.Start || s.End > p.End) && layerOf(p).Layer != "entry" {
			t.Errorf("%s from %d to %d outside of %s from %d to %d", s.Name, s.Start, s.End, p.Name, p.Start, p.End)
		}
		parents := layerOf(s).Parents
		entry := layerOf(s).ID == semconv.SpanSGLangRequest && layerOf(p).Layer == "entry"
		// After a retraction a forward stage runs within the one before.
		within := layerOf(s).Layer == "native_stage" && p.Name == semconv.NameDecodeForward
		if !slices.Contains(parents, layerOf(p).ID) && !entry && !within {
			t.Errorf("%s below %s", s.Name, p.Name)
		}
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

func TestSGLangLevels(t *testing.T) {
	for level, want := range []string{
		`
		chat tiny
		`,
		`
		chat tiny
		  Req aaaaaaaa
		    Tokenizer
		      tokenize
		    Scheduler [TP 0] [PP 0]
		      prefill_waiting <- tokenize
		      prefill_forward <- prefill_waiting
		      decode_waiting <- prefill_forward
		      decode_forward <- decode_waiting
		`,
		`
		chat tiny
		  Req aaaaaaaa
		    Tokenizer
		      tokenize
		      api_server_dispatch <- tokenize
		    Scheduler [TP 0] [PP 0]
		      request_process <- api_server_dispatch
		      prefill_waiting <- request_process
		      prefill_forward <- prefill_waiting
		      decode_waiting <- prefill_forward
		      decode_forward <- decode_waiting
		`,
		`
		chat tiny
		  Req aaaaaaaa
		    Tokenizer
		      tokenize
		      api_server_dispatch <- tokenize
		    Scheduler [TP 0] [PP 0]
		      request_process <- api_server_dispatch
		      prefill_waiting <- request_process
		      prefill_forward *schedule <- prefill_waiting
		      decode_waiting <- prefill_forward
		      decode_forward <- decode_waiting
		        decode_loop *schedule
		        decode_loop *schedule
		`,
		`
		chat tiny
		  Req aaaaaaaa
		    Tokenizer
		      tokenize
		      api_server_dispatch <- tokenize
		    Scheduler [TP 0] [PP 0]
		      request_process <- api_server_dispatch
		      prefill_waiting <- request_process
		      prefill_forward *schedule <- prefill_waiting
		        run_batch_cpu
		      decode_waiting <- prefill_forward
		      decode_forward <- decode_waiting
		        decode_loop *schedule
		        decode_loop *schedule
		`,
	} {
		o := NewOptions()
		o.TraceLevel = level
		s := newSGLang()
		s.stage(schPID, "aaaaaaaaaa", "run_batch_cpu", 104.2, 105, microBatch(1))
		s.chat(100, 7, "aaaaaaaaaa", 3)
		trees, _ := run(t, o, s.sig)
		if len(trees) != 1 {
			t.Fatalf("level %d: %d trees", level, len(trees))
		}
		conforms(t, trees[0], o)
		wantTree(t, trees[0], want)
	}
}

// TestSGLangLevelChange: the level counts for requests that begin after it was set.
func TestSGLangLevelChange(t *testing.T) {
	s := newSGLang()
	s.chat(100, 7, "aaaaaaaaaa", 2)
	s.chat(200, 8, "bbbbbbbbbb", 2)
	c := New(NewOptions())
	var trees []*trace.Tree
	for i, x := range s.sig {
		if i == 6 { // the first request is under way
			if c.SetTraceLevel(5) || c.SetTraceLevel(-1) || !c.SetTraceLevel(1) {
				t.Error("levels are 0 to 4")
			}
		}
		c.Put(x, func(tr *trace.Tree) { trees = append(trees, tr) })
	}
	if a, b := len(find(trees[:1], "decode_loop")), len(find(trees[1:], "decode_loop")); a != 1 || b != 0 {
		t.Errorf("%d and %d decode_loop spans, want 1 and 0", a, b)
	}
}

func TestSGLangChunks(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang()
	s.added(2.5, id)
	s.times(2.6, id, 1, 2.6, 0, 0)
	s.stage(schPID, id, "request_process", 3, 3.5)
	s.stage(schPID, id, "prefill_waiting", 3.5, 4)
	s.stage(schPID, id, "chunked_prefill", 4, 6)
	s.stage(schPID, id, "chunked_prefill", 6, 8)
	s.stage(schPID, id, "chunked_prefill", 8, 10)
	s.stage(schPID, id, "prefill_forward", 4, 10)
	s.stage(schPID, id, "spec_draft", 10.5, 10.8)
	s.stage(schPID, id, "spec_verify", 10.8, 11, drafts(3))
	s.stage(schPID, id, "decode_loop", 10, 11, round(0))
	s.stage(schPID, id, "decode_forward", 10, 11.2)
	s.out(11.4, id, 4, finishedLength)
	s.times(12, id, 0, 0, 12, 12)
	trees, _ := run(t, NewOptions(), s.sig)
	wantTree(t, trees[0], `
		Req aaaaaaaa
		  Tokenizer
		  Scheduler [TP 0] [PP 0]
		    request_process
		    prefill_waiting <- request_process
		    prefill_forward <- prefill_waiting
		      chunked_prefill
		      chunked_prefill
		      chunked_prefill
		    decode_forward <- prefill_forward
		      spec_draft
		      spec_verify
		      decode_loop
		`)
	conforms(t, trees[0], NewOptions())
	wantAttrs(t, one(t, trees, "spec_verify"), map[string]any{"num_correct_drafts": int64(3), "accepted_tokens": int64(3)})
	wantAttrs(t, one(t, trees, "decode_loop"), map[string]any{"decode_ct": int64(0)})
	// The thread ends at its own stamp where there is one, else with its last stage.
	wantAttrs(t, &trees[0].Spans[2], map[string]any{"inferspan.derived": []string{"span.end"}})
}

// TestSGLangSilent: where the client does not stream, the first token is there when the
// prefill has ended, at every level, and the gaps begin with what the front end gets.
func TestSGLangSilent(t *testing.T) {
	const id = "aaaaaaaaaa"
	for _, stream := range []bool{false, true} {
		s := newSGLang()
		s.added(2.5, id, func(a *signal.RequestAdded) { a.Stream = signal.Some(stream) })
		s.times(2.6, id, 1, 2.6, 0, 0)
		s.stage(schPID, id, "prefill_waiting", 3.5, 4)
		s.stage(schPID, id, "prefill_forward", 4, 10)
		s.out(50.4, id, 50)
		s.times(51, id, 0, 0, 51, 0)
		s.out(71, id, 20, finishedLength)
		s.times(71, id, 0, 0, 0, 71)
		trees, series := run(t, NewOptions(), s.sig)
		conforms(t, trees[0], NewOptions())
		first, decode := 0.009, 0.061
		if stream {
			first, decode = 0.050, 0.020
		}
		wantAttrs(t, one(t, trees, "Req aaaaaaaa"), map[string]any{
			semconv.AttrGenAILatencyTimeToFirstToken: first, semconv.AttrGenAILatencyTimeInModelDecode: decode,
		})
		for name, want := range map[string]float64{"gen_ai_server_time_to_first_token": first, "sglang_inter_token_latency_seconds": 0.020} {
			if got := point(t, series, name); math.Abs(got-want) > 1e-9 {
				t.Errorf("stream %v: %s = %v, want %v", stream, name, got, want)
			}
		}
	}
}

// TestSGLangUnseen: a thread that had stages without stamps says so, at levels that have
// such stages.
func TestSGLangUnseen(t *testing.T) {
	const id = "aaaaaaaaaa"
	for _, level := range []int{2, 3} {
		s := newSGLang()
		s.added(2.5, id)
		s.times(2.6, id, 1, 2.6, 0, 0)
		s.stage(schPID, id, "prefill_waiting", 3.5, 4)
		s.stage(schPID, id, "prefill_forward", 4, 10)
		s.mark(schPID, id, signal.MarkUnseen, 30, "", 0)
		s.mark(schPID, id, signal.MarkComplete, 20, "", 0)
		s.out(20.4, id, 3, finishedLength)
		s.times(21, id, 0, 0, 21, 21)
		o := NewOptions()
		o.TraceLevel = level
		trees, _ := run(t, o, s.sig)
		conforms(t, trees[0], o)
		sched := one(t, trees, "Scheduler [TP 0] [PP 0] (host:"+hostID[:8]+" | pid:"+fmt.Sprint(schPID)+")")
		if got := fmt.Sprint(sched.Attr(semconv.AttrInferspanPartial)); (got == "[stages]") != (level == 3) {
			t.Errorf("level %d: partial %s", level, got)
		}
		if sched.End-sched.Start > 17e6 {
			t.Errorf("level %d: the thread lasts %d ns", level, sched.End-sched.Start)
		}
	}
}

// TestSGLangUnkept: an engine keeps no times of some stages.
func TestSGLangUnkept(t *testing.T) {
	const id = "aaaaaaaaaa"
	for level, want := range map[int]string{
		1: "[prefill_forward: this version keeps no times of it]",
		3: "[prefill_forward: this version keeps no times of it decode_loop: this version keeps no times of it schedule: this version keeps no times of it]",
	} {
		s := newSGLang()
		s.added(2.5, id)
		s.times(2.6, id, 1, 2.6, 0, 0)
		s.stage(schPID, id, "prefill_waiting", 3.5, 4)
		s.put(&signal.Mark{At: at(5), Engine: 1, PID: schPID, ID: id, Name: signal.MarkUnkept, Unkept: []string{"prefill_forward", "decode_loop", "schedule", "nope"}})
		s.mark(schPID, id, signal.MarkComplete, 20, "", 0)
		s.out(20.4, id, 3, finishedLength)
		s.times(21, id, 0, 0, 21, 21)
		o := NewOptions()
		o.TraceLevel = level
		trees, _ := run(t, o, s.sig)
		conforms(t, trees[0], o)
		sched := one(t, trees, "Scheduler [TP 0] [PP 0] (host:"+hostID[:8]+" | pid:"+fmt.Sprint(schPID)+")")
		if got := fmt.Sprint(sched.Attr(semconv.AttrInferspanPartial)); got != "[stages]" {
			t.Errorf("level %d: partial %s", level, got)
		}
		if got := fmt.Sprint(sched.Attr(semconv.AttrInferspanUnavailable)); got != want {
			t.Errorf("level %d: unavailable %s, want %s", level, got, want)
		}
	}
}

func TestSGLangRetract(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang()
	s.added(2.5, id)
	s.times(2.6, id, 1, 2.6, 0, 0)
	s.stage(schPID, id, "request_process", 3, 3.5)
	s.stage(schPID, id, "prefill_waiting", 3.5, 4)
	s.stage(schPID, id, "prefill_forward", 4, 10)
	s.out(10.2, id, 1)
	s.stage(schPID, id, "decode_loop", 10, 12, round(0))
	s.out(12.2, id, 1)
	s.mark(schPID, id, "retract", 12.5, "", 0)
	s.stage(schPID, id, "prefill_forward", 20, 25, again)
	s.stage(schPID, id, "decode_waiting", 25, 26, again)
	s.stage(schPID, id, "decode_loop", 26, 28, round(1), again)
	s.stage(schPID, id, "decode_forward", 26, 28.1, again)
	s.stage(schPID, id, "decode_forward", 10, 28.1)
	s.mark(schPID, id, "complete", 28.1, "", 0)
	s.out(28.2, id, 1, finishedLength)
	s.times(29, id, 0, 0, 11, 29)
	trees, _ := run(t, NewOptions(), s.sig)
	wantTree(t, trees[0], `
		Req aaaaaaaa
		  Tokenizer
		  Scheduler [TP 0] [PP 0]
		    request_process
		    prefill_waiting <- request_process
		    prefill_forward <- prefill_waiting
		    decode_forward *retract <- prefill_forward
		      decode_loop
		      prefill_forward
		      decode_waiting
		      decode_forward
		        decode_loop
		`)
}

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
// TestSGLangSilentRank: a rank that sends nothing shows neither the end of the request
// nor its last results.
func TestSGLangSilentRank(t *testing.T) {
	const id = "aaaaaaaaaa"
	for _, level := range []int{2, 3} {
		s := newSGLang(withProcess(signal.Process{PID: sch1PID, NSPID: sch1PID, Role: "engine_core", HostID: hostID, TensorRank: signal.Some[int64](1), PipelineRank: signal.Some[int64](0)}))
		s.added(2.5, id)
		s.times(2.6, id, 1, 2.6, 0, 0)
		for _, pid := range []uint32{schPID, sch1PID} {
			s.stage(pid, id, "prefill_forward", 4, 10)
			s.stage(pid, id, "decode_forward", 10, 0)
			s.stage(pid, id, "decode_loop", 10, 12, round(0))
		}
		s.stage(schPID, id, "decode_loop", 12, 14, round(1))
		s.mark(schPID, id, signal.MarkComplete, 14, "", 0)
		s.out(14.2, id, 3, finishedLength)
		s.times(15, id, 0, 0, 11, 15)
		s.put(&signal.Loss{At: at(2000)})
		o := NewOptions()
		o.TraceLevel = level
		trees, _ := run(t, o, s.sig)
		conforms(t, trees[0], o)
		for rank, want := range []string{"<nil>", map[int]string{2: "<nil>", 3: "[stages]"}[level]} {
			sched := one(t, trees, fmt.Sprintf("Scheduler [TP %d] [PP 0] (host:%s | pid:%d)", rank, hostID[:8], schPID+rank))
			if got := fmt.Sprint(sched.Attr(semconv.AttrInferspanPartial)); got != want {
				t.Errorf("level %d, rank %d: partial %s, want %s", level, rank, got, want)
			}
		}
	}
}

// TestSGLangSilentRankOneToken: nor does it show the only forward stage.
func TestSGLangSilentRankOneToken(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang(withProcess(signal.Process{PID: sch1PID, NSPID: sch1PID, Role: "engine_core", HostID: hostID, TensorRank: signal.Some[int64](1), PipelineRank: signal.Some[int64](0)}))
	s.added(2.5, id)
	s.times(2.6, id, 1, 2.6, 0, 0)
	s.stage(schPID, id, "prefill_waiting", 3, 4)
	s.stage(sch1PID, id, "prefill_waiting", 3, 4)
	s.stage(schPID, id, "prefill_forward", 4, 10)
	s.mark(schPID, id, signal.MarkComplete, 10, "", 0)
	s.out(10.2, id, 1, finishedLength)
	s.times(11, id, 0, 0, 11, 11)
	s.put(&signal.Loss{At: at(2000)})
	trees, _ := run(t, NewOptions(), s.sig)
	for rank, want := range []string{"<nil>", "[stages]"} {
		sched := one(t, trees, fmt.Sprintf("Scheduler [TP %d] [PP 0] (host:%s | pid:%d)", rank, hostID[:8], schPID+rank))
		if got := fmt.Sprint(sched.Attr(semconv.AttrInferspanPartial)); got != want {
			t.Errorf("rank %d: partial %s, want %s", rank, got, want)
		}
	}
}

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
	s.put(&signal.Loss{At: at(2000)})
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
	s.put(&signal.Loss{At: at(5000)})
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
	s.put(&signal.Loss{At: at(2000)})
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

func TestSGLangMetrics(t *testing.T) {
	s := newSGLang()
	state := func(t float64, running, waiting, used int64) {
		s.put(&signal.EngineState{At: at(t), Core: sglCore, Running: signal.Some(running), Waiting: signal.Some(waiting),
			KVUsage: signal.Some(float64(used) / 1000), UsedTokens: signal.Some(used), Blocks: signal.Some[int64](1000), FreeBlocks: signal.Some(1000 - used), AcceptLength: signal.Some(2.5)})
	}
	state(50, 9, 9, 900)
	s.chat(100, 7, "aaaaaaaaaa", 4)
	state(1050, 2, 1, 100)
	state(2050, 4, 0, 200)
	_, m := run(t, NewOptions(), s.sig)
	for name, want := range map[string]float64{
		"sglang_num_running_reqs": 6, "sglang_num_queue_reqs": 1, "sglang_num_used_tokens": 300, "sglang_token_usage": 0.3,
		"sglang_gen_throughput": 4, "gen_ai_sglang_cache_hit_rate": 0, "sglang_spec_accept_length": 5, "sglang_log_count": 2,
		"prompt_tokens_total": 10, "generation_tokens_total": 4, "gen_ai_sglang_cached_tokens_total": 0, "num_requests_total": 1,
		"gen_ai_server_time_to_first_token": 0.0095, "gen_ai_server_time_per_output_token": 0.0396 / 4,
		"sglang_inter_token_latency_seconds": 0.0301, "gen_ai_server_request_duration": 0.0396,
		"inferspan_kv_blocks_used": 200, "inferspan_kv_blocks": 1000,
	} {
		if got := point(t, m, name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if got := point(t, m, "genai_llm_usage_tokens", "input"); got != 10 {
		t.Errorf("%v input tokens", got)
	}
	metricsConformTo(t, m, "sglang")
	for _, def := range semconv.Metrics {
		if def.Engine == "sglang" && !slices.Contains(names(m), def.Name) {
			t.Errorf("no series of %s", def.Name)
		}
	}
	for _, name := range names(m) {
		if strings.Contains(name, "vllm") {
			t.Errorf("%s of SGLang", name)
		}
	}
}

// TestSGLangSteps: a client that does not stream gets its tokens in one output, after
// many steps; the step metrics are those of every engine.
func TestSGLangSteps(t *testing.T) {
	const id = "aaaaaaaaaa"
	s := newSGLang()
	s.added(2.5, id)
	s.times(2.6, id, 1, 2.6, 0, 0)
	for i := range 5 {
		st := &signal.Step{Core: sglCore, Number: signal.Some(int64(70 + i)), Schedule: at(4 + 10*float64(i)), Update: at(13 + 10*float64(i)),
			Tokens: signal.Some[int64](1), Blocks: signal.Some[int64](1000), FreeAfter: signal.Some[int64](900)}
		q := signal.StepRequest{ID: []byte(id), Tokens: 1, Entry: signal.StepRunning, Phase: signal.StepDecode}
		switch i {
		case 0:
			q.Tokens, q.Entry, q.Phase = 6, signal.StepNew, signal.StepPrefillChunk
		case 1:
			q.Tokens, q.Phase = 4, signal.StepPrefillEnd
		}
		st.Requests = []signal.StepRequest{q}
		s.put(st)
	}
	s.out(54, id, 4, finishedLength)
	s.times(55, id, 0, 0, 55, 55)
	o := NewOptions()
	o.Steps = StepsRefs
	trees, m := run(t, o, s.sig)
	if len(trees) != 1 {
		t.Fatalf("%d trees", len(trees))
	}
	wantAttrs(t, &trees[0].Spans[0], map[string]any{
		"inferspan.partial": nil, "gen_ai.usage.completion_tokens": int64(4), "inferspan.steps.first": int64(70), "inferspan.steps.last": int64(74),
		"inferspan.steps.count": int64(5), "inferspan.steps.prefill_tokens": []int64{6, 4},
	})
	conforms(t, trees[0], o)
	metricsConformTo(t, m, "sglang")
	for name, want := range map[string]float64{"inferspan_step_duration_seconds": 0.045, "inferspan_step_requests": 5, "inferspan_kv_blocks_used": 100} {
		if got := point(t, m, name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}

// TestSGLangBounds: what is kept of stages is bounded, and what was not kept is said.
func TestSGLangBounds(t *testing.T) {
	const id = "aaaaaaaaaa"
	o := NewOptions()
	o.MaxStages = 100
	s := newSGLang()
	s.engineRequest(100, id, 200)
	trees, m := run(t, o, s.sig)
	if n := len(trees[0].Spans); n > 110 {
		t.Errorf("%d spans", n)
	}
	wantAttrs(t, schedulerOf(trees[0]), map[string]any{"inferspan.partial": []string{"evicted"}})
	sglangWellFormed(t, trees[0], true)
	if got := point(t, m, "inferspan_evicted", "stage"); got < 200 {
		t.Errorf("%v given up", got)
	}
	// The room is there again for the next one.
	c := New(o)
	var next []*trace.Tree
	s.chat(5000, 9, "bbbbbbbbbb", 4)
	for _, x := range s.sig {
		c.Put(x, func(tr *trace.Tree) { next = append(next, tr) })
	}
	if len(next) != 2 || len(find(next[1:], "decode_loop")) != 3 || c.kept != 0 {
		t.Errorf("%d trees, %d still kept", len(next), c.kept)
	}
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
		s.out(115, "13729_aaaaaaaaaa", 1, finishedLength)
		trees, _ := run(t, NewOptions(), s.sig)
		wantAttrs(t, one(t, trees, "Req aaaaaaaa"), map[string]any{"rid": "aaaaaaaaaa"})
		wantAttrs(t, one(t, trees, "MultiTokenizer-13729 (host:3d1219c7 | pid:13729)"), map[string]any{"thread_label": "MultiTokenizer-13729", "pid": int64(13729), "host_id": hostID, "tp_rank": nil})
		conforms(t, trees[0], NewOptions())
	}
}
