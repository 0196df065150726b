package correlate

import (
	"fmt"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

const (
	ms      = signal.Mono(1e6)
	wallOff = 1_700_000_000_000_000_000 // wall - mono in scripts
	apiPID  = 100
	corePID = 200
)

var testCore = signal.Core{Engine: 1, Index: 0, PID: corePID}

// script builds signals. Times are given in ms.
type script struct {
	sig []signal.Signal
	key uint64
}

func newScript() *script {
	s := &script{}
	s.put(&signal.Clock{At: 1, Wall: wallOff + 1})
	s.put(&signal.Engine{At: 1, ID: 1, Kind: "vllm", Version: "0.32.0", Model: "tiny", PDRole: "none",
		Resource: []signal.KV{{Key: "service.name", Value: "vllm"}},
		Process: []signal.Process{
			{PID: apiPID, Role: "api_server", Resource: []signal.KV{{Key: "process.pid", Value: int64(apiPID)}}},
			{PID: corePID, Role: "engine_core", Resource: []signal.KV{{Key: "process.pid", Value: int64(corePID)}}},
		}})
	return s
}

func (s *script) put(x signal.Signal) *script { s.sig = append(s.sig, x); return s }

func at(t float64) signal.Mono    { return signal.Mono(t * 1e6) }
func wall(t float64) int64        { return int64(at(t)) + wallOff }
func wallT(t float64) signal.Wall { return signal.Wall(wall(t)) }

func exch(conn uint64) signal.Exchange {
	return signal.Exchange{Engine: 1, PID: apiPID, Conn: conn}
}

func (s *script) begin(t float64, conn uint64, path string, edit ...func(*signal.ExchangeBegin)) *script {
	b := &signal.ExchangeBegin{At: at(t), Done: at(t), Exchange: exch(conn), Method: "POST", Path: path,
		Body: signal.RequestBody{Parsed: true, Model: signal.Some("tiny"), MaxTokens: signal.Some[int64](4)}}
	for _, e := range edit {
		e(b)
	}
	return s.put(b)
}

func (s *script) first(t float64, conn uint64, status int, id string) *script {
	return s.put(&signal.ExchangeFirst{At: at(t), Exchange: exch(conn), Status: status, ResponseID: id})
}

func (s *script) endHTTP(t float64, conn uint64, status int, id string, out signal.Outcome, edit ...func(*signal.ExchangeEnd)) *script {
	e := &signal.ExchangeEnd{At: at(t), Exchange: exch(conn), Status: status, ResponseID: id, Outcome: out}
	if status == 200 {
		e.First = at(t - 1)
	}
	for _, f := range edit {
		f(e)
	}
	return s.put(e)
}

func (s *script) add(arrival, t float64, resp string, edit ...func(*signal.RequestAdded)) *script {
	a := &signal.RequestAdded{At: at(t), Core: testCore, ID: resp + "-x", ExternalID: resp, ResponseID: resp, Arrival: wallT(arrival),
		PromptTokens: signal.Some[int64](16), Known: true,
		Param: signal.Param{Temperature: signal.Some(0.0), TopP: signal.Some(1.0), MaxTokens: signal.Some[int64](4), N: signal.Some[int64](1)}}
	for _, e := range edit {
		e(a)
	}
	return s.put(a)
}

type outEdit func(*signal.Output)

// step sends a message stamped at t, sent 0.1 ms and delivered 0.5 ms later.
func (s *script) step(t float64, outs ...signal.Output) *script {
	s.key++
	s.put(&signal.StepOutput{At: at(t + 0.1), Core: testCore, Stamp: at(t), Key: s.key, Outputs: outs,
		Stats: &signal.SchedulerStats{Running: signal.Some(int64(len(outs))), Waiting: signal.Some[int64](0), KVUsage: signal.Some(0.5)}})
	return s.put(&signal.Delivered{At: at(t + 0.5), Engine: 1, PID: apiPID, Key: s.key, Stamped: true})
}

func out(id string, n int, edit ...outEdit) signal.Output {
	o := signal.Output{ID: []byte(id + "-x"), NumTokens: n}
	for i := range n {
		o.Tokens = append(o.Tokens, int64(i))
	}
	for _, e := range edit {
		e(&o)
	}
	return o
}

// started is what comes with a first output.
func started(queued, sched float64) outEdit {
	return func(o *signal.Output) {
		o.Events = []signal.EngineEvent{{Kind: signal.EventQueued, At: at(queued)}, {Kind: signal.EventScheduled, At: at(sched)}}
		o.CachedTokens, o.PromptTokens = signal.Some[int64](0), signal.Some[int64](16)
	}
}

func finished(f signal.Finish, word string) outEdit {
	return func(o *signal.Output) { o.Finish, o.FinishReason = f, word }
}

// chat is a whole, undisturbed request beginning at t.
func (s *script) chat(t float64, conn uint64, id string) *script {
	return s.begin(t, conn, "/v1/chat/completions").
		add(t+1, t+2, id).
		step(t+10, out(id, 1, started(t+2.5, t+3))).
		step(t+20, out(id, 1)).
		step(t+30, out(id, 1)).
		step(t+40, out(id, 1, finished(signal.FinishLength, "length"))).
		first(t+41, conn, 200, "").
		endHTTP(t+42, conn, 200, id, signal.OutcomeComplete, func(e *signal.ExchangeEnd) {
			e.Model, e.FinishReasons = signal.Some("tiny"), []string{"length"}
			e.InputTokens, e.OutputTokens = signal.Some[int64](16), signal.Some[int64](4)
		})
}

func run(t testing.TB, o Options, sig []signal.Signal) ([]*trace.Tree, metric.Snapshot) {
	t.Helper()
	c := New(o)
	var trees []*trace.Tree
	for _, s := range sig {
		c.Put(s, func(tr *trace.Tree) { trees = append(trees, tr) })
	}
	return trees, c.Metrics()
}

// find returns the spans of that name in all trees.
func find(trees []*trace.Tree, name string) (out []*trace.Span) {
	for _, t := range trees {
		for i := range t.Spans {
			if t.Spans[i].Name == name {
				out = append(out, &t.Spans[i])
			}
		}
	}
	return out
}

func one(t *testing.T, trees []*trace.Tree, name string) *trace.Span {
	t.Helper()
	s := find(trees, name)
	if len(s) != 1 {
		t.Fatalf("%d spans named %q, want 1", len(s), name)
	}
	return s[0]
}

func wantAttrs(t *testing.T, s *trace.Span, want map[string]any) {
	t.Helper()
	for k, w := range want {
		if got := s.Attr(k); fmt.Sprintf("%T %v", got, got) != fmt.Sprintf("%T %v", w, w) {
			t.Errorf("%s: %s = %v (%T), want %v (%T)", s.Name, k, got, got, w, w)
		}
	}
}

func point(t *testing.T, m metric.Snapshot, name string, values ...string) float64 {
	t.Helper()
	for _, f := range m.Families {
		if f.Name != name {
			continue
		}
	points:
		for _, p := range f.Points {
			for _, v := range values {
				ok := false
				for _, l := range p.Labels {
					ok = ok || l.Value == v
				}
				if !ok {
					continue points
				}
			}
			return p.Value
		}
	}
	t.Fatalf("no series %s %v", name, values)
	return 0
}
