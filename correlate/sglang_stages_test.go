package correlate

import (
	"fmt"
	"testing"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

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
	s.put(&signal.Clock{At: at(2000), Wall: wallT(2000)}) // its stamp of the end did not come
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
		s.put(&signal.Clock{At: at(2000), Wall: wallT(2000)})
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

// TestSGLangStampsBehind: what a scheduler has to say of a request that ends may come behind
// the message of its end, and even behind what the front end says then.
func TestSGLangStampsBehind(t *testing.T) {
	const id = "aaaaaaaaaa"
	for _, from := range []int{0, 1, 2} { // signals of the end that come before the stamps
		s := newSGLang()
		s.added(2.5, id)
		s.times(2.6, id, 1, 2.6, 0, 0)
		s.stage(schPID, id, "prefill_forward", 4, 10)
		s.out(10.2, id, 1)
		s.times(11, id, 0, 0, 11, 0)
		stamps := func() {
			s.stage(schPID, id, "decode_forward", 10, 14)
			s.stage(schPID, id, "decode_loop", 10, 14, round(0))
			s.mark(schPID, id, signal.MarkComplete, 14.1, "", 0)
		}
		for n, end := range []func(){
			func() { s.out(14.2, id, 1, finishedLength) },
			func() { s.times(14.6, id, 0, 0, 0, 14.6) },
			func() {},
		} {
			if n == from {
				stamps()
			}
			end()
		}
		var trees []*trace.Tree
		c := New(NewOptions())
		for _, x := range s.sig {
			if len(trees) > 0 {
				t.Errorf("%d: the request is over before all was said of it", from)
			}
			c.Put(x, func(tr *trace.Tree) { trees = append(trees, tr) })
		}
		wantTree(t, trees[0], `
			Req aaaaaaaa
			  Tokenizer
			  Scheduler [TP 0] [PP 0]
			    prefill_forward
			    decode_forward <- prefill_forward
			      decode_loop
			`)
		conforms(t, trees[0], NewOptions())
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
	s.put(&signal.Clock{At: at(2000), Wall: wallT(2000)})
	trees, _ := run(t, NewOptions(), s.sig)
	for rank, want := range []string{"<nil>", "[stages]"} {
		sched := one(t, trees, fmt.Sprintf("Scheduler [TP %d] [PP 0] (host:%s | pid:%d)", rank, hostID[:8], schPID+rank))
		if got := fmt.Sprint(sched.Attr(semconv.AttrInferspanPartial)); got != want {
			t.Errorf("rank %d: partial %s, want %s", rank, got, want)
		}
	}
}

// TestSGLangRankUnseen: a rank in which nothing of a request was seen has no thread, and the
// request says so, with the reason; what has other ranks is another's.
func TestSGLangRankUnseen(t *testing.T) {
	const id = "aaaaaaaaaa"
	rank := func(pid uint32, tp, dp int64) engineEdit {
		return withProcess(signal.Process{PID: pid, NSPID: pid, Role: "engine_core", HostID: hostID, TensorRank: signal.Some(tp), PipelineRank: signal.Some[int64](0), DataRank: signal.Opt[int64]{V: dp, OK: dp > 0}})
	}
	probes := func(pid uint32, edit func(*signal.ProbeChange)) *signal.ProbeChange {
		c := &signal.ProbeChange{At: at(2), Engine: 1, PID: pid, Probe: signal.DetailSteps, Active: true}
		edit(c)
		return c
	}
	whole := func(*signal.ProbeChange) {}
	for _, c := range []struct {
		name    string
		changes []*signal.ProbeChange
		stage   bool // one of rank 1 is seen
		want    any
	}{
		{"no batch there", []*signal.ProbeChange{probes(schPID, whole), probes(sch1PID, whole)}, false,
			[]string{"Scheduler [TP 1] [PP 0]: the rank sends nothing, and no batch there shows the request"}},
		{"seen there", []*signal.ProbeChange{probes(schPID, whole), probes(sch1PID, whole)}, true, nil},
		{"nothing is said of probes", nil, false, nil},
		{"no probes there", []*signal.ProbeChange{probes(schPID, whole)}, false, []string{"Scheduler [TP 1] [PP 0]: there are no probes in it"}},
		{"probes not all there", []*signal.ProbeChange{probes(sch1PID, func(c *signal.ProbeChange) { c.Active, c.Reason = false, "no such variable" }), probes(schPID, whole)}, false,
			[]string{"Scheduler [TP 1] [PP 0]: not all probes are in: no such variable"}},
		{"less is looked at there", []*signal.ProbeChange{probes(schPID, whole), probes(sch1PID, func(c *signal.ProbeChange) { c.Less, c.Why = []string{"stages"}, "too dear" })}, false,
			[]string{"Scheduler [TP 1] [PP 0]: the probes looked at less: too dear"}},
	} {
		s := newSGLang(rank(sch1PID, 1, 0), rank(sch1PID+1, 0, 1))
		for _, x := range c.changes {
			s.put(x)
		}
		s.added(2.5, id)
		s.times(2.6, id, 1, 2.6, 0, 0)
		s.stage(schPID, id, "prefill_forward", 4, 10)
		if c.stage {
			s.stage(sch1PID, id, "prefill_waiting", 3, 4)
		}
		s.mark(schPID, id, signal.MarkComplete, 10, "", 0)
		s.out(10.2, id, 1, finishedLength)
		s.times(11, id, 0, 0, 11, 11)
		s.put(&signal.Clock{At: at(2000), Wall: wallT(2000)})
		trees, _ := run(t, NewOptions(), s.sig)
		conforms(t, trees[0], NewOptions())
		wantAttrs(t, one(t, trees, "Req aaaaaaaa"), map[string]any{semconv.AttrInferspanUnavailable: c.want})
		if t.Failed() {
			t.Fatal(c.name)
		}
	}
}

// TestSGLangHalfProbed: where a plan could not be made for the interpreter, another may show
// some stages all the same. The thread says that others are missing.
func TestSGLangHalfProbed(t *testing.T) {
	const id = "aaaaaaaaaa"
	for _, c := range []struct {
		name    string
		reason  string
		partial any
		list    any
	}{
		{"all are in", "", nil, nil},
		{"no plan for the batch", "Scheduler.event_loop_overlap: no local variable batch", []string{"stages"},
			[]string{"stages: not all probes are in: Scheduler.event_loop_overlap: no local variable batch"}},
	} {
		s := newSGLang()
		s.put(&signal.ProbeChange{At: at(2), Engine: 1, PID: schPID, Probe: signal.DetailSteps, Active: c.reason == "", Reason: c.reason})
		s.added(2.5, id)
		s.times(2.6, id, 1, 2.6, 0, 0)
		s.stage(schPID, id, "prefill_forward", 4, 10)
		s.stage(schPID, id, "decode_forward", 10, 40)
		s.mark(schPID, id, signal.MarkComplete, 40, "", 0)
		s.out(40.2, id, 3, finishedLength)
		s.times(41, id, 0, 0, 11, 41)
		trees, _ := run(t, NewOptions(), s.sig)
		conforms(t, trees[0], NewOptions())
		wantAttrs(t, schedulerOf(trees[0]), map[string]any{semconv.AttrInferspanPartial: c.partial, semconv.AttrInferspanUnavailable: c.list})
		if t.Failed() {
			t.Fatal(c.name)
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
