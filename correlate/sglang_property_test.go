package correlate

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sort"
	"testing"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// placeOf returns when and in which process a signal was seen.
func placeOf(s signal.Signal) stamped {
	switch x := s.(type) {
	case *signal.RequestAdded:
		return stamped{x.At, x.PID, s}
	case *signal.Stage:
		return stamped{x.At, x.PID, s}
	case *signal.Mark:
		return stamped{x.At, x.PID, s}
	case *signal.RequestTimes:
		return stamped{x.At, x.PID, s}
	case *signal.StepOutput:
		return stamped{x.At, x.Core.PID, s}
	case *signal.RequestAborted:
		return stamped{x.At, schPID, s}
	case *signal.EngineState:
		return stamped{x.At, schPID, s}
	case *signal.ExchangeBegin:
		return stamped{x.At, tokPID, s}
	case *signal.ExchangeEnd:
		return stamped{x.At, tokPID, s}
	}
	return stamped{1, 0, s}
}

// sglangTraffic makes a random but consistent stream of an engine with two
// schedulers behind a controller.
func sglangTraffic(rng *rand.Rand, n int) []stamped {
	s := newSGLang(
		withProcess(signal.Process{PID: dpcPID, NSPID: dpcPID, Role: "dp_controller", HostID: hostID}),
		withProcess(signal.Process{PID: sch1PID, NSPID: sch1PID, Role: "engine_core", HostID: hostID, TensorRank: signal.Some[int64](0), PipelineRank: signal.Some[int64](0), DataRank: signal.Some[int64](1)}),
	)
	for i := range n {
		id := fmt.Sprintf("%08x%08x", i, rng.Uint32())
		conn := uint64(i)
		t := 10 + rng.Float64()*float64(n)*10
		alone := rng.IntN(6) == 0
		core := sglCore
		if rng.IntN(2) == 0 {
			core = signal.Core{Engine: 1, Index: 1, PID: sch1PID}
		}
		pid := core.PID
		if !alone {
			s.begin(t, conn, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Exchange.PID, b.Body.MaxTokens = tokPID, signal.Some[int64](64) })
		}
		s.stage(tokPID, id, "tokenize", t+0.1, t+1)
		s.added(t+1.5, id, func(a *signal.RequestAdded) {
			if rng.IntN(2) == 0 {
				a.Core = coreUnknown
			} else {
				a.Core = core
			}
		})
		s.stage(tokPID, id, "api_server_dispatch", t+1.2, t+1.6)
		s.times(t+1.6, id, t+0.1, t+1.6, 0, 0)
		s.stage(dpcPID, id, "dpc_dispatch", t+1.7, t+1.8)
		now := t + 2
		next := func(name string, edit ...stageEdit) {
			from := now
			now += 0.1 + rng.Float64()*10
			s.stage(pid, id, name, from, now, edit...)
		}
		next("request_process")
		next("prefill_waiting")
		prefill := now
		s.mark(pid, id, signal.MarkSchedule, now+0.05, "prefill", 1)
		if rng.IntN(3) == 0 {
			for range 2 + rng.IntN(3) {
				next("chunked_prefill")
			}
		} else {
			now += 1 + rng.Float64()*10
		}
		s.stage(pid, id, "prefill_forward", prefill, now)
		tokens := 1 + rng.IntN(8)
		leaves := !alone && rng.IntN(4) == 0
		out := func(n int, edit ...outEdit) {
			s.out(now+0.2, id, n, edit...)
			s.sig[len(s.sig)-1].(*signal.StepOutput).Core = core
		}
		end := finished(signal.FinishStop, "stop")
		if leaves {
			end = func(o *signal.Output) {
				finished(signal.FinishAbort, "abort")(o)
				o.NumTokens, o.Failure = 0, &signal.Failure{Type: "abort", Message: "secret"}
			}
		}
		nothing := func(*signal.Output) {}
		put := func(last bool) {
			if last {
				out(1, end)
			} else {
				out(1, nothing)
			}
		}
		first := now + 0.5
		put(tokens == 1)
		s.times(first, id, 0, 0, first, 0)
		left := now
		if tokens > 1 {
			next("decode_waiting")
			decode := now
			retracted := 0.0 // start of the inner decode_forward
			for j := range tokens - 1 {
				if rng.IntN(10) == 0 && retracted == 0 {
					s.mark(pid, id, signal.MarkRetract, now+0.01, "", 0)
					now++
					next("prefill_forward", again)
					next("decode_waiting", again)
					retracted = now
				}
				s.mark(pid, id, signal.MarkSchedule, now, "decode", 1)
				next("decode_loop", round(int64(j)))
				put(j == tokens-2)
			}
			if retracted != 0 {
				s.stage(pid, id, "decode_forward", retracted, now+0.1, again)
			}
			s.stage(pid, id, "decode_forward", decode, now+0.1)
		}
		if leaves {
			s.put(&signal.RequestAborted{At: at(left + 0.3), Core: coreUnknown, IDs: []string{id}})
		}
		s.mark(pid, id, signal.MarkComplete, now+0.1, "", 0)
		s.times(now+0.6, id, 0, 0, 0, now+0.6)
		if alone {
			continue
		}
		if leaves {
			s.endHTTP(left+0.2, conn, 0, id, signal.OutcomeDisconnect, func(e *signal.ExchangeEnd) { e.Exchange.PID = tokPID })
		} else {
			s.endHTTP(now+1.6, conn, 200, id, signal.OutcomeComplete, func(e *signal.ExchangeEnd) {
				e.Exchange.PID, e.FinishReasons = tokPID, []string{"stop"}
				e.InputTokens, e.OutputTokens = signal.Some[int64](10), signal.Some(int64(tokens))
			})
		}
	}
	all := make([]stamped, len(s.sig))
	for i, x := range s.sig {
		all[i] = placeOf(x)
	}
	for i := range n {
		all = append(all, placeOf(&signal.EngineState{At: at(float64(20 + i*30)), Core: sglCore, Running: signal.Some[int64](1), Waiting: signal.Some[int64](2), KVUsage: signal.Some(0.5), UsedTokens: signal.Some[int64](7)}))
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].at < all[j].at })
	return all
}

// sglangRun feeds signals and checks every tree, and that nothing is left over.
func sglangRun(t *testing.T, o Options, sig []stamped, exact bool) []*trace.Tree {
	t.Helper()
	c := New(o)
	var trees []*trace.Tree
	put := func(s signal.Signal) {
		c.Put(s, func(tr *trace.Tree) {
			sglangWellFormed(t, tr, exact)
			conforms(t, tr, o)
			trees = append(trees, tr)
		})
	}
	last := signal.Mono(1)
	before := c.Metrics()
	for i, s := range sig {
		put(s.s)
		last = max(last, s.at)
		if i%50 == 0 {
			now := c.Metrics()
			metricsConformTo(t, now, "sglang")
			grows(t, before, now)
			before = now
		}
	}
	put(&signal.Detach{At: last})
	grows(t, before, c.Metrics())
	if c.reqs.n != 0 || c.exs.n != 0 || len(c.held) != 0 || len(c.ended) != 0 || len(c.waiting) != 0 || len(c.closing) != 0 || c.kept != 0 {
		t.Errorf("left over: %d requests, %d exchanges, %d held, %d ended, %d waiting, %d closing, %d stages", c.reqs.n, c.exs.n, len(c.held), len(c.ended), len(c.waiting), len(c.closing), c.kept)
	}
	for _, e := range c.engines {
		for _, co := range e.cores {
			if len(co.reqs) != 0 || len(co.over) != 0 {
				t.Errorf("left over: %d running requests, %d ended", len(co.reqs), len(co.over))
			}
		}
	}
	return trees
}

func eachSGLangTraffic(t *testing.T, f func(t *testing.T, rng *rand.Rand, o Options, sig []stamped, whole []*trace.Tree)) {
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			o := NewOptions()
			o.TraceLevel = int(seed % 5)
			o.EventLimit = 1 + int(seed%5)
			if seed%4 == 3 {
				o.Content = ContentSpan
			}
			sig := sglangTraffic(rng, 1+rng.IntN(30))
			f(t, rng, o, sig, sglangRun(t, o, sig, true))
		})
	}
}

// byRequest returns the spans of each request, by its id, with the names of those
// that they are below and linked to.
func byRequest(trees []*trace.Tree) map[string][]string {
	out := map[string][]string{}
	for _, tr := range trees {
		at := map[trace.SpanID]*trace.Span{}
		rid := ""
		for i := range tr.Spans {
			s := &tr.Spans[i]
			at[s.SpanID] = s
			if id, ok := s.Attr(semconv.AttrRID).(string); ok {
				rid = id
			}
			line := fmt.Sprint(s.Name, " ", s.Start, " ", s.End, " ", s.Code, s.Events)
			if p := at[s.ParentID]; p != nil {
				line += " below " + p.Name
			}
			for _, l := range s.Links {
				line += " <- " + at[l.SpanID].Name
			}
			out[rid] = append(out[rid], line)
		}
	}
	slices.Sort(out[""]) // the entry spans: trees may come in another order
	return out
}

func TestSGLangPropertyWhole(t *testing.T) {
	eachSGLangTraffic(t, func(t *testing.T, _ *rand.Rand, o Options, sig []stamped, whole []*trace.Tree) {
		if again := sglangRun(t, o, sig, true); !reflect.DeepEqual(again, whole) {
			t.Error("two runs over the same signals differ")
		}
		want, stages := 0, 0
		for _, s := range sig {
			switch x := s.s.(type) {
			case *signal.RequestAdded:
				want++
			case *signal.Stage:
				if stageDefs[x.Name].level <= o.TraceLevel {
					stages++
				}
			}
		}
		got := 0
		for _, tr := range whole {
			for i := range tr.Spans {
				s := &tr.Spans[i]
				if p := s.Attr(semconv.AttrInferspanPartial); p != nil {
					t.Errorf("%s is partial: %v", s.Name, p)
				}
				if d := s.Attr(semconv.AttrInferspanDerived); d != nil && layerOf(s).Layer != "entry" {
					t.Errorf("%s is derived: %v", s.Name, d)
				}
				switch layerOf(s).Layer {
				case "native_request":
					got++
				case "native_stage":
					stages--
				}
			}
		}
		if o.TraceLevel == 0 {
			want = 0
		}
		if got != want || (o.TraceLevel > 0 && stages != 0) {
			t.Errorf("%d requests of %d, %d stages too few", got, want, stages)
		}
	})
}

// TestSGLangPropertyPrefix: of the beginning of a stream, every span has its parent,
// and what does not say that it is derived is as in the whole.
func TestSGLangPropertyPrefix(t *testing.T) {
	eachSGLangTraffic(t, func(t *testing.T, rng *rand.Rand, o Options, sig []stamped, whole []*trace.Tree) {
		full := map[trace.SpanID]*trace.Span{}
		for _, tr := range whole {
			for i := range tr.Spans {
				full[tr.Spans[i].SpanID] = &tr.Spans[i]
			}
		}
		for range 8 {
			for _, tr := range sglangRun(t, o, sig[:rng.IntN(len(sig)+1)], false) {
				for i := range tr.Spans {
					s := &tr.Spans[i]
					derived, _ := s.Attr(semconv.AttrInferspanDerived).([]string)
					f := full[s.SpanID]
					if layerOf(s).Layer != "native_stage" || f == nil || f.Name != s.Name {
						continue
					}
					if (s.Start != f.Start && !slices.Contains(derived, spanStart)) || (s.End != f.End && !slices.Contains(derived, spanEnd) && s.Name != semconv.NameDecodeForward) {
						t.Errorf("%s from %d to %d, with the whole stream from %d to %d", s.Name, s.Start, s.End, f.Start, f.End)
					}
				}
			}
		}
	})
}

// TestSGLangPropertyInterleaving: signals of different processes may pass each other.
func TestSGLangPropertyInterleaving(t *testing.T) {
	eachSGLangTraffic(t, func(t *testing.T, rng *rand.Rand, o Options, sig []stamped, whole []*trace.Tree) {
		want := byRequest(whole)
		for range 5 {
			reach := rng.IntN(4)
			part := slices.Clone(sig)
			for range len(part) * reach {
				i := 2 + rng.IntN(max(len(part)-3, 1))
				if i+1 < len(part) && part[i].proc != part[i+1].proc {
					part[i], part[i+1] = part[i+1], part[i]
				}
			}
			if got := byRequest(sglangRun(t, o, part, false)); o.TraceLevel > 0 && !reflect.DeepEqual(got, want) {
				for id := range want {
					if !reflect.DeepEqual(got[id], want[id]) {
						t.Errorf("%s is %q, in order %q", id, got[id], want[id])
						return
					}
				}
			}
		}
	})
}

func TestSGLangPropertyLoss(t *testing.T) {
	eachSGLangTraffic(t, func(t *testing.T, rng *rand.Rand, o Options, sig []stamped, _ []*trace.Tree) {
		for range 5 {
			lost := rng.Float64()
			var part []stamped
			for i, s := range sig {
				if i < 2 || rng.Float64() > lost {
					part = append(part, s)
				}
			}
			sglangRun(t, o, part, false)
		}
	})
}

func TestSGLangPropertyHostile(t *testing.T) {
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 8))
		o := NewOptions()
		o.TraceLevel, o.MaxRequests, o.MaxExchanges, o.MaxStages = 4, 1+rng.IntN(20), 1+rng.IntN(20), 1+rng.IntN(100)
		sig := sglangTraffic(rng, 30)
		number := func() int64 { return []int64{0, -1, 1 << 62, -1 << 63, rng.Int64N(1e9)}[rng.IntN(5)] }
		odd := func() signal.Mono {
			return []signal.Mono{0, -1, 1 << 62, -1 << 62, signal.Mono(rng.Int64N(1e9))}[rng.IntN(5)]
		}
		stages := []string{"decode_loop", "chunked_prefill", "prefill_forward", "decode_forward", "spec_verify", "run_batch_cpu", "fake_output", "nope", ""}
		ids := []string{"", "_", "a_", "a_b", "\xff\xfe", "r1", "r2"}
		for i := range sig {
			if i < 2 || rng.IntN(3) != 0 {
				continue
			}
			switch s := sig[i].s.(type) {
			case *signal.Stage:
				s.Start, s.Round, s.Name, s.Drafts = odd(), signal.Some(number()), stages[rng.IntN(len(stages))], signal.Some(number())
				if rng.IntN(2) == 0 {
					s.End, s.ID, s.PID = odd(), ids[rng.IntN(len(ids))], uint32(rng.IntN(600))
				}
			case *signal.Mark:
				s.Batch, s.Size, s.ID, s.Mode = signal.Some(number()), signal.Some(number()), ids[rng.IntN(len(ids))], "prefill"
			case *signal.RequestTimes:
				s.Created, s.First, s.Finished, s.Dispatched = odd(), odd(), odd(), odd()
			case *signal.RequestAdded:
				s.ID, s.Room = ids[rng.IntN(len(ids))], signal.Some(number())
			case *signal.StepOutput:
				s.Stamp, s.Key = odd(), uint64(rng.IntN(5))
				for k := range s.Outputs {
					s.Outputs[k].NumTokens, s.Outputs[k].CachedTokens, s.Outputs[k].PromptTokens = rng.IntN(9)-4, signal.Some(number()), signal.Some(number())
					s.Outputs[k].ID = []byte(ids[rng.IntN(len(ids))])
				}
			case *signal.EngineState:
				s.Running, s.UsedTokens, s.At = signal.Some(number()), signal.Some(number()), odd()
			case *signal.RequestAborted:
				s.IDs = append(s.IDs, "", "r1", "r1")
			}
		}
		rng.Shuffle(len(sig)-2, func(i, j int) { sig[i+2], sig[j+2] = sig[j+2], sig[i+2] })
		if seed%7 == 6 {
			sig = sig[2:] // no clock, no facts
		}
		c := New(o)
		n := 0
		for _, s := range sig {
			c.Put(s.s, func(tr *trace.Tree) {
				n++
				hostileWellFormed(t, tr)
			})
		}
		c.Put(&signal.Detach{At: 1 << 61}, func(tr *trace.Tree) { hostileWellFormed(t, tr) })
		if c.reqs.n != 0 || c.exs.n != 0 || c.kept != 0 {
			t.Errorf("left over: %d requests, %d exchanges, %d stages", c.reqs.n, c.exs.n, c.kept)
		}
		c.Metrics()
	}
}

// hostileWellFormed checks what holds whatever the signals say.
func hostileWellFormed(t *testing.T, tr *trace.Tree) {
	t.Helper()
	at := map[trace.SpanID]bool{}
	for i := range tr.Spans {
		s := &tr.Spans[i]
		if s.End < s.Start || at[s.SpanID] || s.Resource == nil || (i > 0 && !at[s.ParentID]) {
			t.Errorf("span %d, %s: from %d to %d, id %x, below %x", i, s.Name, s.Start, s.End, s.SpanID, s.ParentID)
		}
		at[s.SpanID] = true
	}
}
