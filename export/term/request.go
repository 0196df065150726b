package term

import (
	"slices"
	"strconv"
	"strings"

	sc "inferspan/correlate/semconv"
	"inferspan/correlate/trace"
)

// opt is a number that may be unknown.
type opt struct {
	v  int64
	ok bool
}

func known(v int64) opt { return opt{v, true} }

func (o *opt) add(p opt) {
	if p.ok {
		o.v, o.ok = o.v+p.v, true
	}
}

// most keeps the larger one.
func (o *opt) most(p opt) {
	if p.ok && (!o.ok || p.v > o.v) {
		*o = p
	}
}

// request is what is shown of one tree. Where a request has several engine
// requests (n > 1) their durations are those of the one that took longest.
type request struct {
	start             int64 // ns since the epoch
	id, model         string
	what              string // operation, "" if there was no entry span
	outcome           string
	failed            bool
	status            int64  // HTTP, 0 if there was none
	finish            string // reasons, joined
	prompt, cached    opt
	output            opt
	ttft, tpot        opt // ns
	queue             opt
	prefill, decode   opt
	e2e, http         opt
	preemptions       int64
	partial           []string
	engineRequests    int
	derivedE, derived bool // e2e; ttft
}

// engineRequest is one request in the engine.
type engineRequest struct {
	prompt, cached, output                  opt
	e2eSpan                                 bool // e2e is the length of the span
	ttft, tpot, queue, prefill, decode, e2e opt  // ns
	preemptions                             int64
}

func intAttr(s *trace.Span, key string) opt {
	if v, ok := s.Attr(key).(int64); ok {
		return known(v)
	}
	return opt{}
}

func textAttr(s *trace.Span, key string) string {
	v, _ := s.Attr(key).(string)
	return v
}

// read takes out of a tree what is shown of it; each is called for every engine request.
func read(t *trace.Tree, each func(*engineRequest)) request {
	root := &t.Spans[0]
	r := request{
		start: root.Start, outcome: textAttr(root, sc.AttrInferspanOutcome), failed: root.Code == trace.StatusError,
		what: textAttr(root, sc.AttrGenAIOperationName), id: textAttr(root, sc.AttrGenAIResponseID),
		model: textAttr(root, sc.AttrGenAIRequestModel), status: intAttr(root, sc.AttrHTTPResponseStatusCode).v,
	}
	if f, ok := root.Attr(sc.AttrGenAIResponseFinishReasons).([]string); ok {
		r.finish = strings.Join(f, ",")
	}
	if !isEngineRequest(root) {
		r.http = known(root.End - root.Start)
	}
	var finish []string
	for i := range t.Spans {
		s := &t.Spans[i]
		if p, ok := s.Attr(sc.AttrInferspanPartial).([]string); ok {
			for _, reason := range p {
				if !slices.Contains(r.partial, reason) {
					r.partial = append(r.partial, reason)
				}
			}
		}
		if !isEngineRequest(s) {
			continue
		}
		e := readEngine(t.Spans[i:])
		if d, ok := s.Attr(sc.AttrInferspanDerived).([]string); ok {
			r.derived = r.derived || slices.Contains(d, sc.AttrGenAILatencyTimeToFirstToken)
			r.derivedE = r.derivedE || slices.Contains(d, sc.AttrGenAILatencyE2E) || e.e2eSpan && (slices.Contains(d, spanStart) || slices.Contains(d, spanEnd))
		}
		if r.id == "" {
			r.id = textAttr(s, sc.AttrGenAIRequestID)
		}
		if r.id == "" {
			r.id = textAttr(s, sc.AttrRID)
		}
		if r.model == "" {
			r.model = textAttr(s, sc.AttrGenAIRequestModelName)
		}
		if r.model == "" {
			r.model = textAttr(s, sc.AttrGenAIResponseModel)
		}
		if f := textAttr(s, sc.AttrInferspanFinishReason); f != "" && !slices.Contains(finish, f) {
			finish = append(finish, f)
		}
		r.engineRequests++
		// Candidates share their prompt.
		r.prompt.most(e.prompt)
		r.cached.most(e.cached)
		r.output.add(e.output)
		if !r.e2e.ok || e.e2e.ok && e.e2e.v > r.e2e.v {
			r.ttft, r.tpot, r.queue, r.prefill, r.decode, r.e2e = e.ttft, e.tpot, e.queue, e.prefill, e.decode, e.e2e
		}
		r.preemptions += e.preemptions
		each(&e)
	}
	if r.finish == "" {
		r.finish = strings.Join(finish, ",")
	}
	return r
}

// took is the time by which requests are told to be slow: what the client saw,
// or else the engine's end-to-end time.
func (r *request) took() opt {
	if r.http.ok {
		return r.http
	}
	return r.e2e
}

// mark is word, marked if the request was not seen whole.
func (r *request) mark() string {
	if w := r.word(); w != "ok" || len(r.partial) == 0 {
		return w
	}
	return "ok partial"
}

// word says in at most 10 columns how the request ended.
func (r *request) word() string {
	switch r.outcome {
	case "completed", "stop_string":
		return "ok"
	case "client_disconnect":
		return "disconnect"
	case "rejected", "error":
		if r.status != 0 && r.status != 200 {
			return "HTTP " + strconv.FormatInt(r.status, 10)
		}
		return r.outcome
	case "engine_exit":
		return "exit"
	case "in_flight":
		return "in flight"
	case "":
		if r.failed {
			return "error"
		}
		return "?"
	}
	return Clean(r.outcome)
}

// shortID leaves out what all ids begin with and shows the start of the rest.
func (r *request) shortID(n int) string {
	id := r.id
	if i := strings.IndexByte(id, '-'); i >= 0 && i < len(id)-4 && !strings.ContainsAny(id[:i], "0123456789") {
		id = id[i+1:]
	}
	if id == "" {
		return "-"
	}
	if len(id) > n {
		id = id[:n]
	}
	return Clean(id)
}

func (o opt) dur() string {
	if !o.ok {
		return "-"
	}
	return dur(o.v)
}

func (o opt) num() string {
	if !o.ok {
		return "-"
	}
	return strconv.FormatInt(o.v, 10)
}
