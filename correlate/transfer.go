package correlate

import (
	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// transfer is what a request waited for KV blocks from another node. A load that
// was tried again counts as one from its first beginning to its last end, with the
// time of all.
type transfer struct {
	start, end signal.Mono
	ns         int64
	tokens     signal.Opt[int64]
	failed     signal.Opt[bool]
	exact      bool
	method     string
}

func (c *Correlator) kvTransfer(s *signal.KVTransfer) {
	e := c.engine(s.Core.Engine)
	e.seen.Transfers = true
	r := e.core(s.Core).find(s.ID)
	if r == nil || s.Start <= 0 || s.End < s.Start || (r.done && s.End > r.endAt) {
		return
	}
	t := r.kv
	if t == nil {
		t = &transfer{start: s.Start, exact: true}
		r.kv = t
	}
	t.start, t.end = min(t.start, s.Start), max(t.end, s.End)
	t.ns += int64(s.End - s.Start)
	if s.Tokens.OK && s.Tokens.V >= 0 {
		t.tokens = s.Tokens
	}
	if s.Failed.OK {
		t.failed = signal.Some(s.Failed.V || t.failed.V)
	}
	if !s.Exact {
		t.exact, t.method = false, s.Method
	}
}

// span builds the child of wait, which the transfer lies within: a transfer that
// does not was measured wrong, but for the microseconds between two stamps.
func (t *transfer) span(r *request, wait *trace.Span, sa attrs) (trace.Span, bool) {
	start, end := max(int64(t.start)+r.off, wait.Start), min(int64(t.end)+r.off, wait.End)
	const stamps = 1e6
	if end < start || int64(t.end)+r.off-end > stamps || start-int64(t.start)-r.off > stamps {
		return trace.Span{}, false
	}
	sa.put(semconv.AttrGenAIKVTransferDirection, "recv")
	putOpt(&sa, semconv.AttrGenAIKVTransferCachedTokens, t.tokens)
	putOpt(&sa, semconv.AttrGenAIKVTransferFailed, t.failed)
	if !t.exact {
		sa.put(semconv.AttrInferspanDerived, []string{spanStart, spanEnd})
	}
	return trace.Span{
		TraceID: wait.TraceID, SpanID: childID(wait.TraceID, wait.SpanID, semconv.NameKVTransfer), ParentID: wait.SpanID, TraceState: wait.TraceState,
		Name: semconv.NameKVTransfer, Kind: trace.KindInternal, Start: start, End: end, Attrs: sa, Resource: wait.Resource,
	}, true
}
