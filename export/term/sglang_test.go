package term

import (
	"bytes"
	"testing"

	"inferspan/correlate"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
	"inferspan/export/internal/sample"
)

// sglangTrees runs a stream of an SGLang engine through correlate: a request that
// nothing disturbs, one that is put back while it decodes, one whose client leaves,
// and one that waits long.
func sglangTrees() (trees []*trace.Tree) {
	const (
		tokenizer = 100
		scheduler = 200
	)
	core := signal.Core{Engine: 1, PID: scheduler}
	c := correlate.New(correlate.NewOptions())
	at := func(ms float64) signal.Mono { return signal.Mono(ms * 1e6) }
	put := func(s signal.Signal) { c.Put(s, func(t *trace.Tree) { trees = append(trees, t) }) }
	put(&signal.Clock{At: 1, Wall: signal.Wall(sample.Start)})
	put(&signal.Engine{At: 1, ID: 1, Kind: "sglang", Model: "tiny", PDRole: "none", Process: []signal.Process{
		{PID: tokenizer, Role: "api_server", HostID: "0123456789abcdef"}, {PID: scheduler, Role: "engine_core", HostID: "0123456789abcdef", TensorRank: signal.Some[int64](0)},
	}})
	for i, x := range []struct {
		id                     string
		wait, prefill, decode  float64 // ms
		retracted, leaves, api bool
	}{
		{"11111111aaaa", 5, 40, 120, false, false, true},
		{"22222222bbbb", 5, 30, 200, true, false, true},
		{"33333333cccc", 5, 30, 60, false, true, false},
		{"44444444dddd", 300, 50, 100, false, false, false},
	} {
		t := 10 + 400*float64(i)
		ex := signal.Exchange{Engine: 1, PID: tokenizer, Conn: uint64(i)}
		if x.api {
			put(&signal.ExchangeBegin{At: at(t), Done: at(t), Exchange: ex, Method: "POST", Path: "/v1/chat/completions", Body: signal.RequestBody{Parsed: true, Model: signal.Some("tiny")}})
		}
		stage := func(pid uint32, name string, from, to float64) {
			put(&signal.Stage{At: at(to), Engine: 1, PID: pid, ID: x.id, Name: name, Start: at(from), End: at(to)})
		}
		stage(tokenizer, "tokenize", t+1, t+3)
		put(&signal.RequestAdded{At: at(t + 4), Core: core, ID: x.id, ExternalID: x.id, ResponseID: x.id, PID: tokenizer, Known: true, PromptTokens: signal.Some[int64](1000)})
		put(&signal.RequestTimes{At: at(t + 4), Engine: 1, PID: tokenizer, ID: x.id, Created: at(t + 1), Dispatched: at(t + 4)})
		now := t + 5
		next := func(name string, ms float64) {
			stage(scheduler, name, now, now+ms)
			now += ms
		}
		out := func(n int, finish signal.Finish, word string) {
			put(&signal.StepOutput{At: at(now), Core: core, Client: -1, Outputs: []signal.Output{{
				ID: []byte(x.id), NumTokens: n, Finish: finish, FinishReason: word, CachedTokens: signal.Some[int64](256), PromptTokens: signal.Some[int64](1000)}}})
		}
		next("prefill_waiting", x.wait)
		next("prefill_forward", x.prefill)
		out(1, signal.FinishNone, "")
		first := now
		if x.retracted {
			put(&signal.Mark{At: at(now + 1), Engine: 1, PID: scheduler, ID: x.id, Name: signal.MarkRetract})
		}
		next("decode_forward", x.decode)
		if x.leaves {
			out(0, signal.FinishAbort, "abort")
		} else {
			out(30, signal.FinishStop, "stop")
		}
		put(&signal.RequestTimes{At: at(now + 1), Engine: 1, PID: tokenizer, ID: x.id, First: at(first + 1), Finished: at(now + 1)})
		if x.api {
			put(&signal.ExchangeEnd{At: at(now + 2), First: at(now + 1), Exchange: ex, Status: 200, ResponseID: x.id, Outcome: signal.OutcomeComplete})
		}
	}
	put(&signal.Detach{At: at(4000)})
	return trees
}

func TestSGLangGolden(t *testing.T) {
	var b bytes.Buffer
	st := NewStream(&b, options(120))
	sum := NewSummary(options(120))
	for _, tr := range sglangTrees() {
		st.Tree(tr)
		sum.Tree(tr)
	}
	b.WriteByte('\n')
	if err := sum.Write(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "sglang-120.txt", b.Bytes())
	checkWidth(t, b.Bytes(), 120)
}
