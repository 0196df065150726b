package correlate

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// outcomeOfRun feeds signals and checks every tree and the metrics on the way.
func outcomeOfRun(t *testing.T, o Options, sig []stamped) []*trace.Tree {
	t.Helper()
	c := New(o)
	var trees []*trace.Tree
	put := func(s signal.Signal) {
		c.Put(s, func(tr *trace.Tree) {
			if o.StepRecords && len(tr.Steps) > 0 && len(tr.Spans) == 0 {
				stepWellFormed(t, &tr.Steps[0])
				return
			}
			wellFormed(t, tr)
			conforms(t, tr, o)
			trees = append(trees, tr)
		})
	}
	last := signal.Mono(1)
	var before metric.Snapshot
	for i, s := range sig {
		put(s.s)
		last = max(last, s.at)
		if i%50 == 0 {
			now := c.Metrics()
			metricsConform(t, now)
			grows(t, before, now)
			before = now
		}
	}
	put(&signal.Detach{At: last})
	grows(t, before, c.Metrics())
	if c.reqs.n != 0 || c.exs.n != 0 || len(c.held) != 0 || len(c.ended) != 0 || len(c.waiting) != 0 {
		t.Errorf("left over: %d requests, %d exchanges, %d held, %d ended, %d waiting", c.reqs.n, c.exs.n, len(c.held), len(c.ended), len(c.waiting))
	}
	for _, e := range c.engines {
		if len(e.byID) != 0 || len(e.byResp) != 0 || len(e.exchanges) != 0 {
			t.Errorf("left over: %d, %d, %d index entries", len(e.byID), len(e.byResp), len(e.exchanges))
		}
		for _, co := range e.cores {
			if len(co.reqs) != 0 || len(co.over) != 0 {
				t.Errorf("left over: %d running requests, %d ended", len(co.reqs), len(co.over))
			}
		}
	}
	return trees
}

// grows checks that no counter went down.
func grows(t *testing.T, a, b metric.Snapshot) {
	t.Helper()
	values := map[string]float64{}
	key := func(f *metric.Family, p *metric.Point) string { return fmt.Sprint(f.Name, p.Labels, p.Resource) }
	for i := range b.Families {
		for j := range b.Families[i].Points {
			values[key(&b.Families[i], &b.Families[i].Points[j])] = b.Families[i].Points[j].Value
		}
	}
	for i := range a.Families {
		if a.Families[i].Type == metric.Gauge {
			continue
		}
		for j := range a.Families[i].Points {
			p := &a.Families[i].Points[j]
			if v, ok := values[key(&a.Families[i], p)]; !ok || v < p.Value {
				t.Errorf("%s %v went from %v to %v", a.Families[i].Name, p.Labels, p.Value, v)
			}
		}
	}
}

// key names a span in all runs over the same traffic.
func key(s *trace.Span) string {
	if id := s.Attr(semconv.AttrInferspanRequestInternalID); id != nil {
		return id.(string)
	}
	return fmt.Sprintf("%s@%d", s.Attr(semconv.AttrURLPath), s.Start)
}

// contradicts reports values that differ from those of the whole stream and are
// not marked. Marked by itself is a span whose end or correlation is uncertain.
func contradicts(t *testing.T, whole, part []*trace.Tree) {
	t.Helper()
	full := map[string]*trace.Span{}
	for _, tr := range whole {
		for i := range tr.Spans {
			if !slices.Contains([]string{"engine_stage", "step"}, layerOf(&tr.Spans[i]).Layer) {
				full[key(&tr.Spans[i])] = &tr.Spans[i]
			}
		}
	}
	seen := map[string]bool{}
	for _, tr := range part {
		for i := range tr.Spans {
			s := &tr.Spans[i]
			if slices.Contains([]string{"engine_stage", "step"}, layerOf(s).Layer) {
				continue
			}
			derived, _ := s.Attr(semconv.AttrInferspanDerived).([]string)
			partial, _ := s.Attr(semconv.AttrInferspanPartial).([]string)
			f := full[key(s)]
			if f == nil {
				if !slices.Contains(derived, spanStart) {
					t.Errorf("%s %s is invented", s.Name, key(s))
				}
				continue
			}
			if seen[key(s)] {
				t.Errorf("%s %s comes twice", s.Name, key(s))
			}
			seen[key(s)] = true
			unsure := len(partial) > 0 || s.Attr(semconv.AttrInferspanCorrelation) == byOrder || f.Attr(semconv.AttrInferspanCorrelation) == byOrder
			for _, child := range tr.Spans[1:] {
				unsure = unsure || (i == 0 && (child.Attr(semconv.AttrInferspanCorrelation) == byOrder || child.Attr(semconv.AttrInferspanPartial) != nil))
			}
			for _, a := range s.Attrs {
				switch a.Key {
				case semconv.AttrInferspanDerived, semconv.AttrInferspanDerivedMethods, semconv.AttrInferspanPartial, semconv.AttrInferspanCorrelation:
					continue
				case semconv.AttrInferspanUnavailable:
					for _, u := range a.Value.([]string) {
						if name, _, _ := strings.Cut(u, ": "); s.Attr(name) != nil {
							t.Errorf("%s %s: %s is there and listed: %s", s.Name, key(s), name, u)
						}
					}
					continue
				case semconv.AttrInferspanOutcome, semconv.AttrErrorType, semconv.AttrInferspanFinishReason:
					if unsure || slices.Contains(derived, semconv.AttrInferspanOutcome) {
						continue
					}
				}
				want := f.Attr(a.Key)
				if want == nil && a.Key == semconv.AttrGenAILatencyTimeInDetokenize {
					continue // in the whole stream it came after the request was exported
				}
				fderived, _ := f.Attr(semconv.AttrInferspanDerived).([]string)
				if !reflect.DeepEqual(want, a.Value) && !slices.Contains(derived, a.Key) && !(want == nil && len(partial) > 0) && !slices.Contains(fderived, a.Key) {
					t.Errorf("%s %s: %s = %v, with the whole stream %v (derived %v, partial %v)", s.Name, key(s), a.Key, a.Value, want, derived, partial)
				}
			}
			if s.Start != f.Start && !slices.Contains(derived, spanStart) && !unsure {
				t.Errorf("%s %s starts at %d, with the whole stream at %d", s.Name, key(s), s.Start, f.Start)
			}
			if s.End != f.End && !slices.Contains(derived, spanEnd) && !unsure && i != 0 {
				t.Errorf("%s %s ends at %d, with the whole stream at %d (derived %v)", s.Name, key(s), s.End, f.End, derived)
			}
		}
	}
}

const rounds = 60

func eachTraffic(t *testing.T, f func(t *testing.T, rng *rand.Rand, o Options, sig []stamped, whole []*trace.Tree)) {
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			o := NewOptions()
			o.Precision = int(seed % 3)
			o.EventLimit = 4 + int(seed%5)
			if seed%4 == 3 {
				o.Content = ContentSpan
			}
			o.Steps = int(seed/3) % 3
			o.StepRecords = seed%2 == 1
			is := kindOfTraffic{silent: seed%5 == 4 || seed%10 == 3, inProcess: seed%10 == 3}
			sig := traffic(rng, 1+rng.IntN(40), is)
			whole := outcomeOfRun(t, o, sig)
			f(t, rng, o, sig, whole)
		})
	}
}

func TestPropertyWhole(t *testing.T) {
	eachTraffic(t, func(t *testing.T, _ *rand.Rand, o Options, sig []stamped, whole []*trace.Tree) {
		if again := outcomeOfRun(t, o, sig); !reflect.DeepEqual(again, whole) {
			t.Error("two runs over the same signals differ")
		}
		exs, reqs := 0, 0
		stepped, peeked := map[string]bool{}, map[string]bool{}
		for _, s := range sig {
			switch s := s.s.(type) {
			case *signal.ExchangeBegin:
				exs++
			case *signal.RequestAdded:
				reqs++
			case *signal.RequestPeeked:
				peeked[s.Request.ID] = true
			case *signal.Step:
				for i := range s.Requests {
					stepped[string(s.Requests[i].ID)] = true
				}
			}
		}
		inProcess := reqs == 0 // then requests are known by their steps and by looks
		if inProcess {
			for id := range peeked {
				stepped[id] = true
			}
			reqs = len(stepped)
		}
		for _, tr := range whole {
			for i := range tr.Spans {
				switch s := &tr.Spans[i]; layerOf(s).Layer {
				case "entry":
					exs--
				case "engine_request":
					reqs--
					p, _ := s.Attr(semconv.AttrInferspanPartial).([]string)
					if inProcess && !peeked[key(s)] && slices.Equal(p, []string{PartialArrival}) {
						p = nil
					}
					if p != nil {
						t.Errorf("%s is partial: %v", key(s), p)
					}
				}
			}
		}
		if exs != 0 || reqs != 0 {
			t.Errorf("%d exchanges and %d requests without a span", exs, reqs)
		}
	})
}

func TestPropertyPrefix(t *testing.T) {
	eachTraffic(t, func(t *testing.T, rng *rand.Rand, o Options, sig []stamped, whole []*trace.Tree) {
		for range 5 {
			contradicts(t, whole, outcomeOfRun(t, o, sig[:rng.IntN(len(sig)+1)]))
		}
	})
}

func TestPropertyLoss(t *testing.T) {
	eachTraffic(t, func(t *testing.T, rng *rand.Rand, o Options, sig []stamped, whole []*trace.Tree) {
		for range 5 {
			share := rng.Float64() * rng.Float64()
			lost := uint64(0)
			var part []stamped
			for i, s := range sig {
				if i > 1 && rng.Float64() < share {
					lost++
					part = append(part, stamped{s.at, 0, &signal.Loss{At: s.at, Stage: "kernel", Lost: []signal.LossCount{{Reason: "ring_full", N: lost}}}})
					continue
				}
				part = append(part, s)
			}
			contradicts(t, whole, outcomeOfRun(t, o, part))
		}
	})
}

func TestPropertyInterleaving(t *testing.T) {
	eachTraffic(t, func(t *testing.T, rng *rand.Rand, o Options, sig []stamped, whole []*trace.Tree) {
		for range 5 {
			// Records of one process keep their order; those of another come up to
			// so many later or earlier.
			reach := rng.IntN(30)
			part := slices.Clone(sig)
			for range len(part) * reach {
				i := 2 + rng.IntN(max(len(part)-3, 1))
				if i+1 < len(part) && part[i].proc != part[i+1].proc {
					part[i], part[i+1] = part[i+1], part[i]
				}
			}
			contradicts(t, whole, outcomeOfRun(t, o, part))
		}
	})
}

// TestPropertyHostile feeds values that no engine gives: times out of order,
// negative counts, repeated and unknown names.
func TestPropertyHostile(t *testing.T) {
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 2))
		o := NewOptions()
		o.Precision, o.MaxRequests, o.MaxExchanges = 2, 1+rng.IntN(20), 1+rng.IntN(20)
		o.Steps, o.StepRecords = StepsSpans, true
		sig := traffic(rng, 30, kindOfTraffic{silent: seed%2 == 0, inProcess: seed%5 == 0})
		number := func() int64 { return []int64{0, -1, 1 << 62, -1 << 63, rng.Int64N(1e9)}[rng.IntN(5)] }
		odd := func() signal.Mono {
			return []signal.Mono{0, -1, 1 << 62, -1 << 62, signal.Mono(rng.Int64N(1e9))}[rng.IntN(5)]
		}
		for i := range sig {
			if i < 2 || rng.IntN(4) != 0 {
				continue
			}
			switch s := sig[i].s.(type) {
			case *signal.StepOutput:
				s.Stamp, s.Key = odd(), uint64(rng.IntN(5))
				for k := range s.Outputs {
					s.Outputs[k].NumTokens = rng.IntN(9) - 4
					for j := range s.Outputs[k].Events {
						s.Outputs[k].Events[j].At = odd()
					}
				}
			case *signal.RequestAdded:
				s.Arrival, s.ID = signal.Wall(odd()), fmt.Sprint("r", rng.IntN(5))
			case *signal.Step:
				s.Number, s.Tokens, s.Blocks, s.FreeAfter = signal.Some(number()), signal.Some(number()), signal.Some(number()), signal.Some(number())
				s.Schedule = min(odd(), s.Update)
				s.Finished = append(s.Finished, []byte("r1"), nil)
				for k := range s.Requests {
					q := &s.Requests[k]
					q.Tokens, q.Computed, q.Phase, q.Entry = number(), signal.Some(number()), signal.StepPhase(rng.IntN(256)), signal.StepEntry(rng.IntN(256))
				}
			case *signal.RequestPeeked:
				s.Output, s.Preemptions, s.State = signal.Some(number()), signal.Some(number()), signal.RequestState(rng.IntN(256))
				s.Request.ID, s.Request.Arrival = fmt.Sprint("r", rng.IntN(5)), signal.Wall(odd())
				for j := range s.Events {
					s.Events[j].At = odd()
				}
			case *signal.EngineState:
				s.Running, s.Waiting, s.Blocks, s.FreeBlocks = signal.Some(number()), signal.Some(number()), signal.Some(number()), signal.Some(number())
			case *signal.KVTransfer:
				s.Start, s.Tokens = odd(), signal.Some(number())
			case *signal.Tokenized:
				s.Duration, s.Tokens, s.Inputs = number(), signal.Some(number()), rng.IntN(9)-4
			case *signal.Detokenized:
				s.Duration, s.Tokens = number(), number()
			case *signal.RequestAborted:
				s.IDs = append(s.IDs, "", "r1", "r1")
			case *signal.ExchangeBegin:
				s.Exchange.Conn = uint64(rng.IntN(3))
			case *signal.ExchangeEnd:
				s.Exchange.Conn, s.Outcome, s.Status = uint64(rng.IntN(3)), signal.Outcome(rng.IntN(9)), rng.IntN(700)
			}
		}
		rng.Shuffle(len(sig)-2, func(i, j int) { sig[i+2], sig[j+2] = sig[j+2], sig[i+2] })
		if seed%7 == 6 {
			sig = sig[2:] // no clock, no facts
		}
		outcomeOfRun(t, o, sig)
	}
}

// TestOrder measures how often matching by order is right: in the traffic a
// request arrives 1 ms after its exchange began. A wrong match is marked as
// uncertain, but should be rare.
func TestOrder(t *testing.T) {
	right, wrong, missed := 0, 0, 0
	eachTraffic(t, func(t *testing.T, _ *rand.Rand, _ Options, _ []stamped, whole []*trace.Tree) {
		for _, tr := range whole {
			entry := layerOf(&tr.Spans[0]).Layer == "entry"
			if entry && len(tr.Spans) == 1 && tr.Spans[0].Attr(semconv.AttrInferspanOutcome) == OutcomeDisconnect {
				missed++
			}
			for i := range tr.Spans[1:] {
				if s := &tr.Spans[1+i]; entry && s.Attr(semconv.AttrInferspanCorrelation) == byOrder {
					if d := s.Start - tr.Spans[0].Start; d > 999_000 && d < 1_001_000 {
						right++
					} else {
						wrong++
					}
				}
			}
		}
	})
	t.Logf("%d right, %d wrong, %d exchanges without their request", right, wrong, missed)
	if right < 20 || wrong*20 > right || missed*20 > right {
		t.Errorf("%d right, %d wrong, %d missed", right, wrong, missed)
	}
}
