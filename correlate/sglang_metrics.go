package correlate

import (
	"strconv"
	"strings"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// What counts, after SGLang's own metrics:
//   - a request counts with its tokens when it has finished, and one that was ended
//     early if the core answers with what it counted of it: not if it was refused, or
//     taken out of the queue;
//   - a health check, for which an idle server makes a token, does not count. Nor do
//     requests whose client says so (log_metrics) in the engine, but the front end keeps
//     that to itself;
//   - the tokens used are those of the same requests at the same moment, pooling
//     requests left out: of these the kind is not known. A response states a prompt
//     once for all of its choices, which are requests of their own here, and one that is
//     given up states nothing;
//   - the time to first token is added when the front end has it; for a client that does
//     not stream it is the end of the prefill;
//   - the time per output token of a request is its end-to-end time by its tokens,
//     and the gaps between its tokens are together the time from its first output to
//     its end;
//   - a look at a core is a report: each adds the state to the sums of the state, and
//     one to the count of reports. The first one of a core only begins the period that
//     the next one reports on. The generation throughput and the cache hit rate are
//     those that the engine holds, else those of the period; the hit rate of a period
//     without prompts is the one before.

// sglangMetrics are the documented metrics of an engine.
type sglangMetrics struct {
	requests, prompt, generated     uint64
	cached                          signal.Opt[int64] // a sum
	first, perToken, gaps, duration float64           // sums in seconds
	timed                           bool              // the front end's stamps are seen

	reports                                            uint64
	running, queued, used, usage, rate, hits, accepted sumOf
	cores                                              []reported
}

// sumOf is a sum of values that may not be known.
type sumOf struct {
	v  float64
	ok bool
}

func (s *sumOf) add(v float64) { s.v, s.ok = s.v+v, true }

// reported is a core at its last report.
type reported struct {
	co        *core
	at        signal.Mono
	generated uint64
	prompt    uint64
	cached    uint64
	hits      signal.Opt[float64]
}

// healthCheck: the request's id begins so, behind the name of a tokenizer worker if
// there are several.
func (r *request) healthCheck() bool { return strings.Contains(r.id, "HEALTH_CHECK_") }

func (m *sglangMetrics) countFirst(c *Correlator, r *request) {
	w := r.way
	if r.ttftCounted || r.healthCheck() || w == nil || w.created == 0 || w.first < w.created || r.pooling || r.core.eng.pdRole == "producer" {
		return
	}
	// Nor has one that was ended early in its first output.
	if r.done && !r.normal() && (r.tokens == 0 || w.first == w.finished) {
		return
	}
	r.ttftCounted, m.timed = true, true
	d := float64(r.firstToken()-w.created) / 1e9
	m.first += d
	r.core.m.first.add(firstBounds, d)
}

func (m *sglangMetrics) countFinished(c *Correlator, r *request) {
	if r.end != endFinished || r.refused || r.healthCheck() {
		return
	}
	tokens := max(r.tokens+r.before.V, 0)
	if !r.counted {
		r.counted = true
		m.requests++
		prompt := r.corePrompt
		if !prompt.OK {
			prompt = r.prompt
		}
		m.prompt += uint64(max(prompt.V, 0))
		m.generated += uint64(tokens)
		sumOpt(&m.cached, r.cached)
		if !r.pooling {
			u := r.core.eng.usageOf(r.front(), r.model(), sglChat.kind)
			u.in += uint64(max(prompt.V, 0))
			u.out += uint64(tokens)
		}
	}
	// A front end that is busy says when it had finished a good while after the core.
	w := r.way
	if r.durationCounted || w == nil || w.created == 0 || w.finished < w.created {
		return
	}
	r.durationCounted, m.timed = true, true
	d := float64(w.finished-w.created) / 1e9
	m.duration += d
	r.core.m.duration.add(durationBounds, d)
	if tokens > 0 && !r.pooling {
		m.perToken += d / float64(tokens)
		r.core.m.perToken.add(tokenBounds, d/float64(tokens))
	}
	if w.first != 0 && tokens > 1 && w.finished >= w.first {
		m.gaps += float64(w.finished-w.first) / 1e9
	}
}

func (m *sglangMetrics) state(co *core, s *signal.EngineState) {
	i := 0
	for i < len(m.cores) && m.cores[i].co != co {
		i++
	}
	now := reported{co: co, at: s.At, generated: co.m.generated, prompt: co.m.prompt, cached: co.m.cached}
	if i == len(m.cores) {
		m.cores = append(m.cores, now)
		return
	}
	last := &m.cores[i]
	if s.At <= last.at {
		return
	}
	m.reports++
	opt := func(to *sumOf, v signal.Opt[int64]) {
		if v = notNegative(v); v.OK {
			to.add(float64(v.V))
		}
	}
	opt(&m.running, s.Running)
	opt(&m.queued, s.Waiting)
	opt(&m.used, s.UsedTokens)
	if u := share(s.KVUsage); u.OK {
		m.usage.add(u.V)
	}
	switch {
	case s.Throughput.OK && s.Throughput.V >= 0:
		m.rate.add(s.Throughput.V)
	case co.eng.seen.Outputs:
		m.rate.add(float64(now.generated-last.generated) / (float64(s.At-last.at) / 1e9))
	}
	now.hits = last.hits
	if h := share(s.HitRate); h.OK {
		now.hits = h
	} else if p := now.prompt - last.prompt; p > 0 {
		now.hits = signal.Some(min(float64(now.cached-last.cached)/float64(p), 1))
	}
	if now.hits.OK {
		m.hits.add(now.hits.V)
	}
	if a := s.AcceptLength; a.OK && a.V >= 0 {
		m.accepted.add(a.V)
	}
	*last = now
}

func (m *sglangMetrics) corePoints(f families, e *engine, co *core) {
	// State that the engine would have reported itself, had it been asked to.
	res, index := e.resource(co.PID), strconv.Itoa(co.Index)
	for i := range m.cores {
		if m.cores[i].co != co {
			continue
		}
		for _, id := range [...]string{
			semconv.MetricIDSGLangSGLangNumRunningReqs, semconv.MetricIDSGLangSGLangNumQueueReqs, semconv.MetricIDSGLangSGLangNumUsedTokens,
			semconv.MetricIDSGLangSGLangTokenUsage, semconv.MetricIDSGLangSGLangLogCount,
		} {
			f.add(semconv.MetricIDOwnValueSource, 1, res, index, semconv.MetricByID(id).Name, sourcePeek)
		}
	}
}

func (m *sglangMetrics) enginePoints(f families, e *engine) {
	put := func(id string, v float64) { f.add(id, v, e.res, dimCallType, dimCallKind, dimRPCType) }
	for _, x := range [...]struct {
		id  string
		sum *sumOf
	}{
		{semconv.MetricIDSGLangSGLangNumRunningReqs, &m.running},
		{semconv.MetricIDSGLangSGLangNumQueueReqs, &m.queued},
		{semconv.MetricIDSGLangSGLangNumUsedTokens, &m.used},
		{semconv.MetricIDSGLangSGLangTokenUsage, &m.usage},
		{semconv.MetricIDSGLangSGLangGenThroughput, &m.rate},
		{semconv.MetricIDSGLangGenAISGLangCacheHitRate, &m.hits},
		{semconv.MetricIDSGLangSGLangSpecAcceptLength, &m.accepted},
	} {
		if x.sum.ok {
			put(x.id, x.sum.v)
		}
	}
	if m.reports > 0 {
		put(semconv.MetricIDSGLangSGLangLogCount, float64(m.reports))
	}
	if e.seen.Outputs {
		put(semconv.MetricIDSGLangPromptTokensTotal, float64(m.prompt))
		put(semconv.MetricIDSGLangGenerationTokensTotal, float64(m.generated))
		if m.cached.OK {
			put(semconv.MetricIDSGLangGenAISGLangCachedTokensTotal, float64(m.cached.V))
		}
		put(semconv.MetricIDSGLangNumRequestsTotal, float64(m.requests))
	}
	if m.timed {
		put(semconv.MetricIDSGLangGenAIServerTimeToFirstToken, m.first)
		put(semconv.MetricIDSGLangGenAIServerTimePerOutputToken, m.perToken)
		put(semconv.MetricIDSGLangSGLangInterTokenLatencySeconds, m.gaps)
		put(semconv.MetricIDSGLangGenAIServerRequestDuration, m.duration)
	}
}

func (*sglangMetrics) usageMetric() string  { return semconv.MetricIDSGLangGenAILLMUsageTokens }
func (*sglangMetrics) usageOfEntries() bool { return false }
