package correlate

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// Its role in disaggregated serving is part of the names; "" without.
func (e *engine) sglangRole() string {
	switch e.pdRole {
	case "producer":
		return "prefill"
	case "consumer":
		return "decode"
	}
	return ""
}

// rid is the request's id without the name of the tokenizer worker in front.
func (r *request) rid() string {
	if i := strings.LastIndexByte(r.id, '_'); i >= 0 && i < len(r.id)-1 {
		return r.id[i+1:]
	}
	return r.id
}

// front is the process of r's front end, 0 if it is not known.
func (r *request) front() uint32 {
	if r.pid == 0 && r.ex != nil {
		return r.ex.key.PID
	}
	return r.pid
}

// spans appends the request's span, those of its threads, and their stages.
func (*sglangRules) spans(c *Correlator, spans []trace.Span, v *view, p parent) []trace.Span {
	r := v.r
	if r.level <= 0 {
		return spans
	}
	e := r.core.eng
	pid := r.front()
	rid := r.rid()
	var f facts
	f.b = append(f.b, p.trace[:]...)
	id := f.str(semconv.SpanSGLangRequest).str(r.id).num(uint64(v.start)).num(uint64(len(spans))).spanID()

	role := e.sglangRole()
	name := "Req " + short(rid, 8)
	if role != "" {
		name = role + " " + name
	}
	at := len(spans)
	spans = append(spans, trace.Span{
		TraceID: p.trace, SpanID: id, ParentID: p.span, RemoteParent: p.remote, TraceState: p.state,
		Name: name, Kind: trace.KindInternal, Start: v.start, End: v.end, Resource: e.resource(pid),
	})
	spans[at].Attrs = c.sglangAttrs(v, rid)

	b := threadBuilder{c: c, v: v, root: spans[at], role: role}
	return b.threads(spans)
}

// short cuts a text to n characters.
func short(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

func seconds(a *attrs, key string, ns signal.Opt[int64]) {
	if ns.OK {
		a.put(key, float64(ns.V)/1e9)
	}
}

// normal: r came to an end of its own.
func (r *request) normal() bool {
	return r.end == endFinished && r.finish != signal.FinishAbort && r.finish != signal.FinishError
}

func (c *Correlator) sglangAttrs(v *view, rid string) []trace.Attr {
	r := v.r
	a := make(attrs, 0, 24)
	a.put(semconv.AttrRID, rid)
	a.put(semconv.AttrModule, "sglang::request")
	if r.room.OK && r.room.V > 0 {
		a.put(semconv.AttrBootstrapRoom, "0x"+strconv.FormatInt(r.room.V, 16))
	}
	if r.normal() {
		a.text(semconv.AttrGenAIRequestID, rid)
		putOpt(&a, semconv.AttrGenAIRequestTemperature, r.param.Temperature)
		putOpt(&a, semconv.AttrGenAIRequestTopP, r.param.TopP)
		putOpt(&a, semconv.AttrGenAIRequestTopK, r.param.TopK)
		putOpt(&a, semconv.AttrGenAIRequestN, r.param.N)
		putOpt(&a, semconv.AttrGenAIRequestMaxTokens, r.param.MaxTokens)
		a.text(semconv.AttrGenAIResponseModel, r.core.eng.model)
		if r.finishReason != "" {
			reasons, _ := json.Marshal([]string{r.finishReason}) // of strings: no error
			a.put(semconv.AttrGenAIResponseFinishReasons, string(reasons))
		}
		prompt := r.corePrompt
		if !prompt.OK {
			prompt = r.prompt
		}
		putOpt(&a, semconv.AttrGenAIUsagePromptTokens, prompt)
		if !r.pooling {
			putOpt(&a, semconv.AttrGenAIUsageCompletionTokens, v.tokens)
		}
		putOpt(&a, semconv.AttrGenAIUsageCachedTokens, r.cached)
		seconds(&a, semconv.AttrGenAILatencyTimeToFirstToken, v.ttft)
		seconds(&a, semconv.AttrGenAILatencyE2E, v.e2e)
		seconds(&a, semconv.AttrGenAILatencyTimeInModelPrefill, v.prefill)
		seconds(&a, semconv.AttrGenAILatencyTimeInModelDecode, v.decode)
		seconds(&a, semconv.AttrGenAILatencyTimeInModelInference, v.inference)
	}
	a.put(semconv.AttrInferspanOutcome, v.outcome)
	a.text(semconv.AttrInferspanFinishReason, r.finishReason)
	a.text(semconv.AttrInferspanCorrelation, r.corr)
	c.stepRefs(v, &a)
	c.gpuAttrs(v, &a)
	v.derived = v.derived.of(a, nil)
	a.list(semconv.AttrInferspanDerived, v.derived)
	a.list(semconv.AttrInferspanDerivedMethods, v.methods.methodsOf(v.derived))
	if r.normal() {
		has := func(name string) bool {
			return slices.ContainsFunc(a, func(x trace.Attr) bool { return x.Key == name })
		}
		v.missing(signal.DetailStamps, has, semconv.AttrGenAILatencyTimeToFirstToken, semconv.AttrGenAILatencyE2E,
			semconv.AttrGenAILatencyTimeInModelPrefill, semconv.AttrGenAILatencyTimeInModelDecode, semconv.AttrGenAILatencyTimeInModelInference)
	}
	v.unavailable.add(r.ranksUnseen()...)
	a.list(semconv.AttrInferspanUnavailable, v.unavailable)
	a.list(semconv.AttrInferspanPartial, v.partial)
	return a
}

// threadBuilder makes the spans of the threads of one request.
type threadBuilder struct {
	c    *Correlator
	v    *view
	root trace.Span
	role string // in lower case, "" without
	// last stages of the first level in the threads that hand the request on.
	tokenizer, controller trace.SpanID
}

func (b *threadBuilder) threads(spans []trace.Span) []trace.Span {
	r := b.v.r
	var list []thread
	if r.way != nil {
		list = slices.Clone(r.way.threads)
	}
	list = b.known(list)
	list = slices.DeleteFunc(list, func(t thread) bool { return t.kind == threadUnknown || t.from == 0 })
	slices.SortStableFunc(list, func(a, b thread) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.from, b.from), cmp.Compare(a.pid, b.pid))
	})
	failed := -1 // the thread that says why the request failed
	if b.failed() {
		for i := range list {
			if failed < 0 || list[i].pid == r.core.PID || (list[failed].pid != r.core.PID && list[failed].kind != threadScheduler) {
				failed = i
			}
		}
	}
	for i := range list {
		spans = b.thread(spans, &list[i], i == failed)
	}
	return spans
}

// known adds to what the threads say what else is known of them.
func (b *threadBuilder) known(list []thread) []thread {
	r := b.v.r
	i := slices.IndexFunc(list, func(t thread) bool { return t.pid == r.pid })
	if w := r.way; w != nil && w.created != 0 && r.pid != 0 {
		if i < 0 {
			list = append(list, thread{pid: r.pid})
			i = len(list) - 1
		}
		list[i].kind = threadTokenizer
		list[i].extend(w.created)
		list[i].extend(w.dispatched)
	}
	if r.core.PID != 0 && !slices.ContainsFunc(list, func(t thread) bool { return t.kind == threadScheduler }) {
		t := thread{pid: r.core.PID, kind: threadScheduler, madeUp: true}
		t.extend(r.added)
		t.extend(max(r.lastSend, r.endAt))
		list = append(list, t)
	}
	return list
}

// failed: the request came to an end that was not its own.
func (b *threadBuilder) failed() bool {
	r := b.v.r
	return r.failure != nil || (r.end == endFinished && !r.normal()) || b.v.outcome == OutcomeAborted || b.v.outcome == OutcomeDisconnect || b.v.outcome == OutcomeEngineExit
}

var threadLabels = [...]string{threadTokenizer: "Tokenizer", threadController: "DP Controller", threadScheduler: "Scheduler"}

// process of a thread, the zero value if it is not known.
func (e *engine) process(pid uint32) process {
	for i := range e.procs {
		if e.procs[i].pid == pid {
			return e.procs[i]
		}
	}
	return process{}
}

// label names a thread as the engine does.
func (b *threadBuilder) label(t *thread, p *process) string {
	label := threadLabels[t.kind]
	if t.kind == threadTokenizer && p.role != "" {
		e := b.v.r.core.eng
		workers := e.planned
		if !workers.OK {
			for _, q := range e.procs {
				if q.role == p.role {
					workers.V++
				}
			}
		}
		if workers.V > 1 { // each is named after its process
			label = "MultiTokenizer-" + strconv.FormatUint(uint64(cmp.Or(p.nspid, t.pid)), 10)
		}
	}
	return ofRole(b.role, label)
}

// ofRole puts a role in disaggregated serving in front of a label.
func ofRole(role, label string) string {
	if role == "" {
		return label
	}
	return strings.ToUpper(role[:1]) + role[1:] + " " + label
}

const hostUnknown = "unknown" // the engine's own word

// ranks is what follows the label in a thread's name.
func (p *process) ranks() (out string) {
	for _, x := range [...]struct {
		word string
		rank signal.Opt[int64]
	}{{"TP", p.tensorRank}, {"PP", p.pipelineRank}, {"DP", p.dataRank}} {
		if x.rank.OK {
			out += " [" + x.word + " " + strconv.FormatInt(x.rank.V, 10) + "]"
		}
	}
	return out
}

func (b *threadBuilder) thread(spans []trace.Span, t *thread, failed bool) []trace.Span {
	c, r, e := b.c, b.v.r, b.v.r.core.eng
	p := e.process(t.pid)
	tid := int64(cmp.Or(p.nspid, t.pid))
	label := b.label(t, &p)
	name := label + p.ranks() + " (host:" + short(cmp.Or(p.host, hostUnknown), 8) + " | pid:" + strconv.FormatInt(tid, 10) + ")"

	var derived, partial marks
	end := t.to
	open := slices.ContainsFunc(t.stages, func(s stage) bool { return s.end == 0 })
	switch {
	case t.complete != 0:
		end = max(end, t.complete)
	case t.kind == threadTokenizer && r.level < stageDefs[semconv.NameAPIServerDispatch].level && r.way != nil:
		// The tracer ends it with the handing over, or else with the request.
		end = max(end, r.way.finished)
	case t.kind != threadScheduler:
	case open || len(t.stages) == 0:
		// Until the core had done with it, so far as that was seen.
		end = max(end, r.endAt, r.lastSend)
		derived.add(spanEnd)
	default:
		derived.add(spanEnd)
	}
	if t.madeUp {
		derived.add(spanStart)
		partial.add(PartialStages)
	}
	// What the probes would have shown while they were out is missing.
	probes := signal.DetailStamps
	if t.kind == threadScheduler {
		probes = signal.DetailSteps
	}
	// A rank that sends nothing shows no last results.
	silent := t.kind == threadScheduler && t.complete == 0 && b.v.outcome == OutcomeCompleted
	forward := slices.ContainsFunc(t.stages, func(s stage) bool { return s.def.opens })
	loops := (t.unseen || silent && open) && r.level >= stageDefs[semconv.NameDecodeLoop].level
	unkept := append(t.notKept(r.level), b.lessStages(t)...)
	if why := r.core.eng.halfSeen(probes, t.pid); why != "" && r.lostDetail(probes) == "" {
		unkept = append(unkept, "stages: "+why)
	}
	if r.lostDetail(probes) != "" || loops || unkept != nil || silent && len(t.stages) > 0 && !forward {
		partial.add(PartialStages)
	}
	if t.dropped {
		partial.add(PartialEvicted)
	}
	list, lost := place(t, end)
	for range lost {
		c.own.evicted("stage_without_parent")
	}
	rest := attend(list, t.marks)

	a := make(attrs, 0, 14)
	a.text(semconv.AttrHostID, p.host)
	a.put(semconv.AttrPID, tid)
	a.put(semconv.AttrThreadLabel, label)
	putOpt(&a, semconv.AttrTPRank, p.tensorRank)
	putOpt(&a, semconv.AttrPPRank, p.pipelineRank)
	putOpt(&a, semconv.AttrDPRank, p.dataRank)
	var code trace.Code
	var msg string
	if failed {
		code, msg = b.failure(&a)
	}

	off := r.off
	res := e.resource(t.pid)
	var f facts
	f.b = append(append(f.b, b.root.TraceID[:]...), b.root.SpanID[:]...)
	id := f.str("thread").num(uint64(t.pid)).spanID()
	at := len(spans)
	spans = append(spans, trace.Span{
		TraceID: b.root.TraceID, SpanID: id, ParentID: b.root.SpanID, TraceState: b.root.TraceState,
		Name: name, Kind: trace.KindInternal, Start: int64(t.from) + off, End: int64(max(end, t.from)) + off,
		Code: code, Message: msg, Resource: res,
	})
	var methods marks
	spans[at].Events, spans[at].DroppedEvents = b.events(rest, t.pid, &derived, &methods)
	a.list(semconv.AttrInferspanDerived, derived)
	a.list(semconv.AttrInferspanDerivedMethods, methods)
	a.list(semconv.AttrInferspanUnavailable, unkept)
	a.list(semconv.AttrInferspanPartial, partial)
	spans[at].Attrs = a

	before := b.tokenizer // where the first stage here is linked to
	if t.kind == threadScheduler && b.controller != (trace.SpanID{}) {
		before = b.controller
	}
	if t.kind == threadTokenizer {
		before = trace.SpanID{}
	}
	var latest trace.SpanID
	var latestEnd signal.Mono
	alike := map[stageKey]uint64{}
	for i := range list {
		s := &list[i]
		k := stageKey{s.def, s.start, s.stage.end}
		var g facts
		g.b = append(append(g.b, b.root.TraceID[:]...), id[:]...)
		g.str(s.def.name).num(uint64(s.start)).num(uint64(s.stage.end)).num(alike[k])
		alike[k]++
		x := trace.Span{
			TraceID: b.root.TraceID, SpanID: g.spanID(), ParentID: id, TraceState: b.root.TraceState,
			Name: s.def.name, Kind: trace.KindInternal, Start: int64(s.start) + off, End: int64(s.end) + off, Resource: res,
		}
		switch {
		case s.parent >= 0:
			x.ParentID = spans[at+1+s.parent].SpanID
		case s.prev >= 0:
			x.Links = []trace.Link{{TraceID: x.TraceID, SpanID: spans[at+1+s.prev].SpanID}}
		case before != (trace.SpanID{}):
			x.Links = []trace.Link{{TraceID: x.TraceID, SpanID: before}}
		}
		x.Attrs, x.Events, x.DroppedEvents = b.stage(s, t.pid)
		spans = append(spans, x)
		if s.parent < 0 && s.end >= latestEnd {
			latest, latestEnd = x.SpanID, s.end
		}
	}
	spans = b.forwards(spans, t, list, at+1)
	switch t.kind {
	case threadTokenizer:
		b.tokenizer = latest
	case threadController:
		b.controller = latest
	}
	return spans
}

// stageKey identifies a stage in its thread.
type stageKey struct {
	def        *stageDef
	start, end signal.Mono
}

// stage returns what goes with the span of a stage.
func (b *threadBuilder) stage(s *placed, pid uint32) ([]trace.Attr, []trace.Event, int) {
	var a attrs
	if s.def.number != "" && s.n >= 0 {
		a.put(s.def.number, s.n)
		if s.def.number == semconv.AttrNumCorrectDrafts {
			a.put(semconv.AttrAcceptedTokens, s.n)
		}
	}
	var methods marks
	if s.method != "" {
		for _, d := range s.derived {
			methods.add(d + ": " + s.method)
		}
	}
	events, dropped := b.events(s.events, pid, &s.derived, &methods)
	a.list(semconv.AttrInferspanDerived, s.derived)
	a.list(semconv.AttrInferspanDerivedMethods, methods)
	return a, events, dropped
}

// events makes the events of a span and marks those whose time is derived.
func (b *threadBuilder) events(list []mark, pid uint32, derived, methods *marks) (out []trace.Event, dropped int) {
	limit := b.c.opt.EventLimit
	for i := range list {
		m := &list[i]
		if len(out) >= limit {
			dropped = len(list) - i
			b.c.own.droppedEvents += uint64(dropped)
			break
		}
		var a attrs
		if m.event == eventSchedule {
			a.put(semconv.AttrBID, b.batch(m, pid))
			putOpt(&a, semconv.AttrBatchSize, m.size)
			a.text(semconv.AttrForwardMode, m.mode)
		}
		out = append(out, trace.Event{Name: m.event.Name, Time: int64(m.at) + b.v.r.off, Attrs: a})
		if m.method != "" {
			derived.add(spanEvent + m.event.Name)
			methods.add(spanEvent + m.event.Name + ": " + m.method)
		}
	}
	return out, dropped
}

// batch gives a batch an id, the same for all of its requests. The engine's own is
// random and only made when it traces.
func (b *threadBuilder) batch(m *mark, pid uint32) string {
	var f facts
	f.str("batch").num(uint64(b.v.r.core.Engine)).num(uint64(pid))
	if m.batch.OK {
		f.num(uint64(m.batch.V))
	} else {
		f.num(uint64(m.at))
	}
	id := f.spanID()
	return hex.EncodeToString(id[:4])
}

// failure says why the request did not come to an end of its own.
func (b *threadBuilder) failure(a *attrs) (trace.Code, string) {
	r := b.v.r
	if x := r.failure; x != nil {
		a.text(semconv.AttrType, x.Type)
		if b.c.opt.Content.span() && utf8.ValidString(x.Message) {
			a.text(semconv.AttrMessage, x.Message)
		}
		putOpt(a, semconv.AttrStatusCode, x.Status)
		a.text(semconv.AttrErrType, x.Err)
	} else if r.end == endFinished {
		a.text(semconv.AttrType, r.finishReason)
	}
	a.put(semconv.AttrErrorType, b.v.outcome)
	_, msg := b.v.status()
	return trace.StatusError, msg
}
