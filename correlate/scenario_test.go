package correlate

import (
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// result is what a scenario gave.
type result struct {
	trees []*trace.Tree
	m     metric.Snapshot
}

func (r result) entries() (out []*trace.Span) {
	for _, t := range r.trees {
		if t.Spans[0].Attr("gen_ai.span.kind") != nil {
			out = append(out, &t.Spans[0])
		}
	}
	return out
}

func (r result) requests() []*trace.Span { return find(r.trees, "llm_request") }

func with(o signal.Output, edit ...outEdit) signal.Output {
	for _, e := range edit {
		e(&o)
	}
	return o
}

func contentScript() *script {
	return newScript().begin(100, 7, "/v1/chat/completions", func(b *signal.ExchangeBegin) { b.Body.Messages = "[in]" }).
		add(101, 102, "chatcmpl-a", func(a *signal.RequestAdded) { a.Param.Logprobs = true }).
		step(110, out("chatcmpl-a", 2, started(102.5, 103), func(o *signal.Output) { o.Logprobs = []float64{-0.5, -1} }, finished(signal.FinishStop, "stop"))).
		endHTTP(112, 7, 200, "chatcmpl-a", signal.OutcomeComplete, func(e *signal.ExchangeEnd) { e.Content = "[out]" })
}

func pd(role string) *script {
	s := newScript().chat(100, 7, "chatcmpl-a")
	s.sig[1].(*signal.Engine).PDRole = role
	return s
}

func TestScenarios(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			o := NewOptions()
			if sc.opt != nil {
				sc.opt(&o)
			}
			trees, m := run(t, o, sc.build().sig)
			sc.check(t, result{trees, m})
		})
	}
}
