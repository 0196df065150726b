package correlate

import (
	"cmp"
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// transfer is what a request waited for KV blocks from another node. A load that
// was tried again before the request ran counts as one from its first beginning to
// its last end, with the time of all.
type transfer struct {
	loads  []kvLoad // in order of time, at most maxKVLoads
	ns     int64
	unseen bool // the beginning of one was not seen
	exact  bool
	method string
}

// kvLoad is one load.
type kvLoad struct {
	start, end signal.Mono
	tokens     signal.Opt[int64]
	failed     signal.Opt[bool]
}

// maxKVLoads bounds the loads of one request: each try is one, and each return after
// a preemption.
const maxKVLoads = 16

func (c *Correlator) kvTransfer(s *signal.KVTransfer) {
	e := c.engine(s.Core.Engine)
	e.seen.Transfers = true
	r := e.core(s.Core).find(s.ID)
	if r == nil || s.Start < 0 || s.End < s.Start || (r.done && s.End > r.endAt) {
		return
	}
	if r.kv == nil {
		r.kv = &transfer{exact: true}
	}
	t := r.kv
	if s.Start == 0 {
		t.unseen = true
		return
	}
	if len(t.loads) < maxKVLoads {
		t.loads = append(t.loads, kvLoad{start: s.Start, end: s.End, tokens: s.Tokens, failed: s.Failed})
		slices.SortStableFunc(t.loads, func(a, b kvLoad) int { return cmp.Compare(a.start, b.start) })
	}
	t.ns += int64(s.End - s.Start)
	if !s.Exact {
		t.exact, t.method = false, s.Method
	}
}

// span builds the child of wait, which the transfer lies within: a transfer that
// does not was measured wrong, but for the microseconds between two stamps. Those
// after the wait, when the request was preempted, are not part of it.
func (t *transfer) span(r *request, wait *trace.Span, sa attrs) (trace.Span, bool) {
	var all kvLoad
	for _, l := range t.loads {
		if int64(l.start)+r.off >= wait.End && all.start != 0 {
			break
		}
		if all.start == 0 {
			all.start = l.start
		}
		all.end = max(all.end, l.end)
		if l.tokens.OK && l.tokens.V >= 0 {
			all.tokens = l.tokens
		}
		if l.failed.OK {
			all.failed = signal.Some(l.failed.V || all.failed.V)
		}
	}
	if all.start == 0 || t.unseen {
		return trace.Span{}, false
	}
	// A load has tokens: none means that they were looked for again, in vain.
	if !all.tokens.OK && r.loaded.OK && r.loaded.V > 0 {
		all.tokens = r.loaded
	}
	start, end := max(int64(all.start)+r.off, wait.Start), min(int64(all.end)+r.off, wait.End)
	const stamps = 1e6
	if end < start || int64(all.end)+r.off-end > stamps || start-int64(all.start)-r.off > stamps {
		return trace.Span{}, false
	}
	sa.put(semconv.AttrGenAIKVTransferDirection, "recv")
	putOpt(&sa, semconv.AttrGenAIKVTransferCachedTokens, all.tokens)
	putOpt(&sa, semconv.AttrGenAIKVTransferFailed, all.failed)
	if !t.exact {
		sa.put(semconv.AttrInferspanDerived, []string{spanStart, spanEnd})
	}
	return trace.Span{
		TraceID: wait.TraceID, SpanID: childID(wait.TraceID, wait.SpanID, semconv.NameKVTransfer), ParentID: wait.SpanID, TraceState: wait.TraceState,
		Name: semconv.NameKVTransfer, Kind: trace.KindInternal, Start: start, End: end, Attrs: sa, Resource: wait.Resource,
	}, true
}
