package export

import (
	"context"
	"sync/atomic"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
)

// fake is a Sink whose answers are scripted.
type fake struct {
	export  func(ctx context.Context, trees []trace.Tree) error
	metrics func(ctx context.Context, s *metric.Snapshot) error
	closed  atomic.Int32
	busy    atomic.Int32 // calls under way: never more than one
}

func (f *fake) enter(t *testing.T) func() {
	if f.busy.Add(1) != 1 {
		t.Error("two calls of the sink at once")
	}
	return func() { f.busy.Add(-1) }
}

type checked struct {
	*fake
	t *testing.T
}

func (c checked) Export(ctx context.Context, trees []trace.Tree) error {
	defer c.enter(c.t)()
	if c.closed.Load() > 0 {
		c.t.Error("Export after Close")
	}
	if c.fake.export == nil {
		return nil
	}
	return c.fake.export(ctx, trees)
}

func (c checked) Metrics(ctx context.Context, s *metric.Snapshot) error {
	defer c.enter(c.t)()
	if c.fake.metrics == nil {
		return nil
	}
	return c.fake.metrics(ctx, s)
}

func (c checked) Close(context.Context) error {
	defer c.enter(c.t)()
	c.closed.Add(1)
	return nil
}

func tree(spans, logs int) trace.Tree {
	return trace.Tree{Spans: make([]trace.Span, spans), Logs: make([]trace.Log, logs)}
}

func count(trees []trace.Tree) (spans, logs int) {
	for i := range trees {
		spans += len(trees[i].Spans)
		logs += len(trees[i].Logs)
	}
	return
}

func checkSum(t *testing.T, s Stats) {
	t.Helper()
	lost := s.Lost()
	if got := s.Exported.Spans + lost.Spans + s.Waiting.Spans; got != s.Offered.Spans {
		t.Errorf("spans: exported + dropped + waiting = %d, offered %d: %+v", got, s.Offered.Spans, s)
	}
	if got := s.Exported.Logs + lost.Logs + s.Waiting.Logs; got != s.Offered.Logs {
		t.Errorf("logs: exported + dropped + waiting = %d, offered %d: %+v", got, s.Offered.Logs, s)
	}
}

func (s *Stats) dropped(r Reason) Count {
	for i := range Reasons {
		if Reasons[i] == r {
			return s.Dropped[i]
		}
	}
	panic("no such reason")
}
