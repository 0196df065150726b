package correlate

import (
	"cmp"
	"slices"
	"strings"

	"inferspan/correlate/metric"
	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// What counts, after vLLM's own metrics:
//   - an iteration is a step of a core that gave outputs. Messages with scheduler
//     statistics only come from steps that just clean up, or computed a part of a
//     prompt: vLLM does not count those either. A step's messages to several
//     front ends count once; statistics, which come with the first of them, tell
//     steps apart, and with statistics off, that a front end is served again;
//   - prompt tokens are added when a request's first output comes, as the core
//     counts them (cached ones included); generated tokens with every output.
//     What a core sends while an abort is on its way counts; vLLM, which counts in
//     the front end, leaves that out;
//   - the time to first token is added when the first token is delivered, also
//     for requests that are cut short later; pooling requests have none;
//   - everything else is added when a request finishes: not for aborted ones and
//     errors. A stop string is a success, with the reason stop;
//   - time per output token is decode time / (tokens - 1) of one request;
//   - n of a request with several candidates adds up over the candidates;
//   - of an engine that sends nothing, requests count that its scheduler has no
//     more; whether they are successes is not known.

// Bounds in seconds: those of the OpenTelemetry conventions, continued to where
// vLLM's own end.
var (
	durationBounds = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36, 1310.72, 2621.44, 7680}
	firstBounds    = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	tokenBounds    = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
)

type histogram struct {
	buckets []uint64
	sum     float64
	n       uint64
}

func (h *histogram) add(bounds []float64, v float64) {
	if h.buckets == nil {
		h.buckets = make([]uint64, len(bounds)+1)
	}
	i, _ := slices.BinarySearch(bounds, v)
	h.buckets[i]++
	h.sum += v
	h.n++
}

// coreMetrics are the metrics of one core. Times are sums in ns.
type coreMetrics struct {
	iterations                uint64
	statsSeen                 bool
	stepCounted               bool   // the step under way, statistics on
	stepClients               []int  // front ends served in the step under way, statistics off
	gauges                           // by the engine's statistics
	peek                      gauges // by looks at its memory
	stepped                   gauges // by its steps
	blocks, blocksUsed        signal.Opt[int64]
	prefixQueries, prefixHits signal.Opt[int64] // sums
	preemptions               uint64
	prompt, generated, cached uint64
	n, maxTokens              signal.Opt[int64] // sums
	queue, prefill            int64
	decode, inference         int64
	success                   []reasonCount // in order of appearance
	first, perToken, duration histogram
}

// gauges are the state of a core, from one source.
type gauges struct {
	running, waiting signal.Opt[int64]
	usage            signal.Opt[float64]
}

type reasonCount struct {
	reason string
	n      uint64
}

func sumOpt(to *signal.Opt[int64], v signal.Opt[int64]) {
	if v.OK && v.V >= 0 {
		to.V += v.V
		to.OK = true
	}
}

func (m *coreMetrics) step(s *signal.StepOutput) {
	st := s.Stats
	if st != nil {
		m.statsSeen, m.stepCounted = true, false
	}
	if len(s.Outputs) > 0 {
		switch {
		case m.statsSeen:
			if !m.stepCounted {
				m.stepCounted = true
				m.iterations++
			}
		case len(m.stepClients) == 0 || slices.Contains(m.stepClients, s.Client):
			m.iterations++
			m.stepClients = append(m.stepClients[:0], s.Client)
		default:
			m.stepClients = append(m.stepClients, s.Client)
		}
	}
	if st == nil {
		return
	}
	if st.Running.OK {
		m.running = st.Running
	}
	if st.Waiting.OK {
		m.waiting = st.Waiting
	}
	if u := share(st.KVUsage); u.OK {
		m.usage = u
	}
	sumOpt(&m.prefixQueries, st.PrefixQueries)
	sumOpt(&m.prefixHits, st.PrefixHits)
}

// forgetGauges: a core that has ended has no state.
func (m *coreMetrics) forgetGauges() {
	m.gauges = gauges{}
	m.forgetPeek()
	m.forgetSteps()
}

func (m *coreMetrics) forgetPeek() {
	m.peek, m.blocks, m.blocksUsed = gauges{}, signal.Opt[int64]{}, signal.Opt[int64]{}
}

func (m *coreMetrics) forgetSteps() {
	m.stepped, m.blocks, m.blocksUsed = gauges{}, signal.Opt[int64]{}, signal.Opt[int64]{}
}

// stepState takes in what a step says of the state of the core.
func (m *coreMetrics) stepState(s *signal.Step) {
	m.stepped.running, m.stepped.waiting = notNegative(s.Running), notNegative(s.Waiting)
	free := s.FreeAfter
	if !free.OK {
		free = s.FreeBlocks
	}
	if s.Blocks.OK && free.OK && m.setBlocks(s.Blocks.V, free.V) {
		m.stepped.usage = signal.Some(float64(m.blocksUsed.V) / float64(m.blocks.V))
	}
}

// setBlocks notes the KV blocks, if the numbers can be.
func (m *coreMetrics) setBlocks(all, free int64) bool {
	if all <= 0 || free < 0 || free > all {
		return false
	}
	m.blocks, m.blocksUsed = signal.Some(all), signal.Some(all-free)
	return true
}

// countFirst adds r's time to first token, once.
func (vllmRules) countFirst(c *Correlator, r *request) {
	if r.ttftCounted || !r.firstOK || r.arrival == 0 || r.tokens == 0 || r.pooling || !c.offset(&r.off, &r.offOK) {
		return
	}
	r.ttftCounted = true
	at := cmp.Or(r.firstRecv.at, r.firstSend)
	if d := int64(at) + r.off - int64(r.arrival); d >= 0 {
		r.core.m.first.add(firstBounds, float64(d)/1e9)
	}
}

// countFinished adds a request that finished, once.
func (vllmRules) countFinished(c *Correlator, r *request) {
	if r.counted {
		return
	}
	r.counted = true
	reason := r.finishReason
	switch {
	case r.end == endAborted || c.stoppedBefore(r):
		reason = "stop"
	case r.finish == signal.FinishAbort || r.finish == signal.FinishError:
		return
	}
	m := &r.core.m
	if r.end != endStepped { // else it is not known how it ended
		i := slices.IndexFunc(m.success, func(x reasonCount) bool { return x.reason == reason })
		if i < 0 {
			i = len(m.success)
			m.success = append(m.success, reasonCount{reason: reason})
		}
		m.success[i].n++
	}
	sumOpt(&m.n, r.param.N)
	sumOpt(&m.maxTokens, r.param.MaxTokens)
	if r.firstOK {
		role := r.core.eng.pdRole
		queued, sched, _ := r.scheduled()
		m.queue += between(queued, sched).V
		if role != "consumer" {
			m.prefill += between(sched, r.first).V
		}
		if role != "producer" {
			d := between(r.first, r.last)
			m.decode += d.V
			if d.OK && r.tokens > 1 {
				m.perToken.add(tokenBounds, float64(d.V)/1e9/float64(r.tokens-1))
			}
		}
		switch role {
		case "producer":
			m.inference += between(sched, r.first).V
		case "consumer":
			m.inference += between(r.first, r.last).V
		default:
			m.inference += between(sched, r.last).V
		}
	}
	if r.arrival != 0 && c.offset(&r.off, &r.offOK) {
		at := cmp.Or(r.lastRecv.at, r.lastSend)
		if d := int64(at) + r.off - int64(r.arrival); d >= 0 {
			m.duration.add(durationBounds, float64(d)/1e9)
		}
	}
}

// usageCounter counts the tokens of entry spans.
type usageCounter struct {
	pid         uint32
	model, kind string
	in, out     uint64
}

func (e *engine) usageOf(pid uint32, model, kind string) *usageCounter {
	for i := range e.usage {
		if u := &e.usage[i]; u.pid == pid && u.model == model && u.kind == kind {
			return u
		}
	}
	e.usage = append(e.usage, usageCounter{pid: pid, model: model, kind: kind})
	return &e.usage[len(e.usage)-1]
}

func (c *Correlator) countUsage(x *exchange, model string, in, out signal.Opt[int64]) {
	// Without usage the model is only what a client says, perhaps of a model
	// that is not there: not a dimension.
	if (!in.OK && !out.OK) || x.status >= 400 || !x.eng.rules.usageOfEntries() {
		return
	}
	u := x.eng.usageOf(x.key.PID, model, x.op.kind)
	if in.OK {
		u.in += uint64(max(in.V, 0))
	}
	if out.OK {
		u.out += uint64(max(out.V, 0))
	}
}

// countUsageAlone counts requests that came without an entry span. Of pooling
// requests the kind is not known.
func (c *Correlator) countUsageAlone(v *view) {
	r := v.r
	if r.pooling || !r.firstOK || !r.core.eng.rules.usageOfEntries() {
		return
	}
	u := r.core.eng.usageOf(0, r.core.eng.model, "LLM")
	p := r.prompt
	if !p.OK {
		p = r.corePrompt
	}
	u.in += uint64(max(p.V, 0))
	u.out += uint64(max(v.tokens.V, 0))
}

// ownMetrics are the counts about the tracer's own view.
type ownMetrics struct {
	lostRecords    []labelled // stage, reason
	evictions      []labelled // kind
	requests       []labelled // layer, outcome
	partial        []labelled // layer, reason
	droppedOutputs uint64
	droppedEvents  uint64
}

type labelled struct {
	a, b string
	n    uint64
}

func counter(list *[]labelled, a, b string) *labelled {
	for i := range *list {
		if x := &(*list)[i]; x.a == a && x.b == b {
			return x
		}
	}
	*list = append(*list, labelled{a: a, b: b})
	return &(*list)[len(*list)-1]
}

// lost takes a total and reports whether it has grown.
func (o *ownMetrics) lost(stage, reason string, total uint64) bool {
	l := counter(&o.lostRecords, stage, reason)
	if total <= l.n {
		return false
	}
	l.n = total
	return true
}

func (o *ownMetrics) evicted(kind string) { counter(&o.evictions, kind, "").n++ }

func (o *ownMetrics) request(layer, outcome string, partial marks) {
	counter(&o.requests, layer, outcome).n++
	for _, p := range partial {
		counter(&o.partial, layer, p).n++
	}
}

// families collects points by metric id.
type families map[string][]metric.Point

func (f families) add(id string, v float64, res *trace.Resource, labels ...string) {
	f[id] = append(f[id], metric.Point{Labels: dims(id, labels), Value: v, Resource: res})
}

func (f families) hist(id string, h *histogram, bounds []float64, res *trace.Resource, labels ...string) {
	if h.n > 0 {
		f[id] = append(f[id], metric.Point{Labels: dims(id, labels), Value: h.sum, Count: h.n, Buckets: slices.Clone(h.buckets), Resource: res})
	}
}

// dims pairs a metric's documented dimensions with their values.
func dims(id string, values []string) []metric.Label {
	m := semconv.MetricByID(id)
	out := make([]metric.Label, len(m.Dimensions))
	for i, d := range m.Dimensions {
		out[i] = metric.Label{Name: d, Value: values[i]}
	}
	return out
}

// Constants that the documented dimensions ask for.
const (
	dimCallType = "gen_ai"
	dimCallKind = "custom_entry"
	dimRPCType  = "2100"
)

func (c *Correlator) snapshot() metric.Snapshot {
	f := families{}
	inFlight := [2]int{}
	for _, e := range c.engines {
		for _, co := range e.cores {
			c.corePoints(f, e, co)
		}
		e.rules.enginePoints(f, e)
		detailPoints(f, e)
		for _, u := range e.usage {
			res := e.resource(u.pid)
			f.add(e.rules.usageMetric(), float64(u.in), res, dimCallType, dimCallKind, dimRPCType, u.model, u.kind, "input")
			f.add(e.rules.usageMetric(), float64(u.out), res, dimCallType, dimCallKind, dimRPCType, u.model, u.kind, "output")
		}
	}
	c.gpuPoints(f)
	for r := c.reqs.head; r != nil; r = r.next {
		if !r.done {
			inFlight[1]++
		}
	}
	for x := c.exs.head; x != nil; x = x.next {
		if !x.ended {
			inFlight[0]++
		}
	}
	f.add(semconv.MetricIDOwnRequestsInFlight, float64(inFlight[0]), nil, "entry")
	f.add(semconv.MetricIDOwnRequestsInFlight, float64(inFlight[1]), nil, "engine_request")
	for _, l := range c.own.requests {
		f.add(semconv.MetricIDOwnRequests, float64(l.n), nil, l.a, l.b)
	}
	for _, l := range c.own.partial {
		f.add(semconv.MetricIDOwnPartialRequests, float64(l.n), nil, l.a, l.b)
	}
	for _, l := range c.own.lostRecords {
		f.add(semconv.MetricIDOwnLostRecords, float64(l.n), nil, l.a, l.b)
	}
	for _, l := range c.own.evictions {
		f.add(semconv.MetricIDOwnEvicted, float64(l.n), nil, l.a)
	}
	f.add(semconv.MetricIDOwnDroppedOutputs, float64(c.own.droppedOutputs), nil, "request_over")
	f.add(semconv.MetricIDOwnDroppedEvents, float64(c.own.droppedEvents), nil)

	s := metric.Snapshot{Start: c.start}
	if c.clock.ok {
		s.Time = c.clock.wall(c.now)
	}
	for i := range semconv.Metrics {
		m := &semconv.Metrics[i]
		points := f[m.ID]
		if len(points) == 0 {
			continue
		}
		slices.SortStableFunc(points, func(a, b metric.Point) int {
			return slices.CompareFunc(a.Labels, b.Labels, func(x, y metric.Label) int { return strings.Compare(x.Value, y.Value) })
		})
		// Engines of several kinds share names, with dimensions of their own.
		if k := slices.IndexFunc(s.Families, func(x metric.Family) bool { return x.Name == m.Name }); k >= 0 {
			s.Families[k].Points = append(s.Families[k].Points, points...)
			continue
		}
		fam := metric.Family{Name: m.Name, Help: m.Meaning, Unit: m.Unit, Points: points}
		switch m.Instrument {
		case "Gauge":
			fam.Type = metric.Gauge
		case "UpDownCounter":
			fam.Type = metric.UpDownCounter
		case "Histogram":
			fam.Type = metric.Histogram
			fam.Bounds = bounds[m.ID]
		}
		s.Families = append(s.Families, fam)
	}
	return s
}

var bounds = map[string][]float64{
	semconv.MetricIDOTelGenAIServerTimeToFirstToken:   firstBounds,
	semconv.MetricIDOTelGenAIServerTimePerOutputToken: tokenBounds,
	semconv.MetricIDOTelGenAIServerRequestDuration:    durationBounds,
	semconv.MetricIDOwnStepDuration:                   stepBounds,
	semconv.MetricIDOwnStepRun:                        stepBounds,
	semconv.MetricIDOwnStepGap:                        gapBounds,
	semconv.MetricIDOwnForwardSkew:                    gapBounds,
	semconv.MetricIDOwnStepTokens:                     countBounds,
	semconv.MetricIDOwnStepRequests:                   countBounds,
}
