package correlate

import (
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// rules are what differs by the kind of engine once its signals are in: when a
// request is over, how it looks as spans, what counts in the documented metrics.
// Another engine is another implementation and a case in rulesOf. The state that a
// kind needs for an engine is in its rules.
type rules interface {
	// abortEnds: a request is over when its core is told to abort it; else the core
	// answers with a last output.
	abortEnds() bool
	// idleEnds: a core that is found without requests has none in any state.
	idleEnds() bool
	// settled: nothing more is to be expected of r, which has ended in its core. If
	// it is false, settle is to be called when it may have become true.
	settled(r *request) bool
	// stepsOf is how many steps of a request its outputs stand for that gave tokens.
	stepsOf(outputs, tokens int64) int64
	// hasEvents: requests have the events of precision 2.
	hasEvents() bool
	// view works out what can be said of r, which is about to be exported.
	view(c *Correlator, r *request) view
	// spans appends r's spans, parents before children; none if the level says so.
	spans(c *Correlator, spans []trace.Span, v *view, p parent) []trace.Span
	// countFirst adds r's first output to the metrics, countFinished its end. They
	// may be called several times.
	countFirst(c *Correlator, r *request)
	countFinished(c *Correlator, r *request)
	// state takes in a look at a core.
	state(co *core, s *signal.EngineState)
	// corePoints adds the documented metrics of a core, enginePoints those of the
	// engine as a whole.
	corePoints(f families, e *engine, co *core)
	enginePoints(f families, e *engine)
	// operation is what a POST to a path asks for, nil if that gives no entry span.
	operation(path string) *operation
	// entryIDs adds to an entry span its ids and the model of the response, entryRest
	// what follows the usage. stream says whether the response was streamed.
	entryIDs(a *attrs, x *exchange, stream signal.Opt[bool])
	entryRest(c *Correlator, a *attrs, x *exchange, views []view, stream signal.Opt[bool], derived *marks)
	// choices is how many responses x asks for, by what is known of it and of the requests
	// that it led to; nothing if that is not known.
	choices(x *exchange, views []view) signal.Opt[int64]
	// usageMetric is the id of the metric of the tokens used. By usageOfEntries API
	// requests count in it when they are exported, with what their responses say; else
	// countFinished adds them.
	usageMetric() string
	usageOfEntries() bool
}

// Kinds of engines with rules of their own; any other has vLLM's.
const (
	KindSGLang = "sglang"
)

func rulesOf(kind string) rules {
	if kind == KindSGLang {
		return &sglangRules{}
	}
	return vllmRules{}
}

func (c *Correlator) view(r *request) view     { return r.core.eng.rules.view(c, r) }
func (c *Correlator) countFirst(r *request)    { r.core.eng.rules.countFirst(c, r) }
func (c *Correlator) countFinished(r *request) { r.core.eng.rules.countFinished(c, r) }

// vllmRules are those of vLLM, and of an engine whose kind is not known yet.
type vllmRules struct{}

func (vllmRules) abortEnds() bool                  { return true }
func (vllmRules) idleEnds() bool                   { return true }
func (vllmRules) stepsOf(outputs, _ int64) int64   { return outputs }
func (vllmRules) hasEvents() bool                  { return true }
func (vllmRules) settled(*request) bool            { return true }
func (vllmRules) state(*core, *signal.EngineState) {}
func (vllmRules) enginePoints(families, *engine)   {}
func (vllmRules) usageMetric() string              { return usageMetricVLLM }
func (vllmRules) usageOfEntries() bool             { return true }

// choices have an id in common, so that views are all of them.
func (vllmRules) choices(_ *exchange, views []view) signal.Opt[int64] {
	return signal.Some(int64(len(views)))
}
