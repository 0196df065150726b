package correlate

import (
	"slices"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// scenario is a script with what must come of it.
type scenario struct {
	name  string
	opt   func(*Options)
	build func() *script
	check func(t *testing.T, r result)
}

// scenarios are run over by the conformance tests too.
var scenarios = slices.Concat(scenarioEnds, scenarioEntries, scenarioPartial, scenarioDetail, scenarioEngines)

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
