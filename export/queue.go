package export

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
)

// Reason says why something was not delivered.
type Reason string

// Reasons.
const (
	QueueFull Reason = "queue_full" // the sink is slower than the tracer
	Refused   Reason = "refused"    // the receiver, or the file, did not take it
	Timeout   Reason = "timeout"    // no delivery within the deadline, retries included
	Shutdown  Reason = "shutdown"   // not delivered before the queue closed
)

// Reasons lists every Reason, in the order of Stats.Dropped.
var Reasons = [...]Reason{QueueFull, Refused, Timeout, Shutdown}

// QueueOptions sets up a Queue. The zero value takes the defaults.
type QueueOptions struct {
	// Name tells the sink's statistics apart, e.g. "otlp".
	Name string

	// MaxSpans and MaxBytes (by Size) bound what waits and what is being
	// delivered together. Defaults: 16384 spans, 16 MiB. A tree beyond a bound
	// is dropped whole.
	MaxSpans int
	MaxBytes int64

	// Steps says that the sink takes the steps of engine cores too. Otherwise the
	// queue passes over the trees that hold them. A step counts as a span in the
	// bounds and the batches.
	Steps bool

	// A batch goes out when it has BatchSpans spans (default 512) or BatchBytes
	// bytes (default 1 MiB), or BatchWait (default 1 s) after its first tree
	// came. Trees are not split: a batch may pass the limits by one tree.
	BatchSpans int
	BatchBytes int64
	BatchWait  time.Duration

	// Deadline bounds the delivery of one batch with its retries (default 30 s).
	Deadline time.Duration
	// Backoff is the pause before the first retry (default 250 ms); it doubles
	// up to MaxBackoff (default 5 s), with up to half of it added at random.
	Backoff, MaxBackoff time.Duration
	// CloseWait bounds Close when its context has no deadline (default 5 s).
	CloseWait time.Duration

	// OnLoss is told about failed deliveries, by the queue's goroutine: the
	// first one after a success, then at most one every 30 s. It may be nil.
	OnLoss func(reason Reason, spans int, err error)
}

func (o *QueueOptions) defaults() {
	def(&o.MaxSpans, 16384)
	def(&o.MaxBytes, 16<<20)
	def(&o.BatchSpans, 512)
	def(&o.BatchBytes, 1<<20)
	def(&o.BatchWait, time.Second)
	def(&o.Deadline, 30*time.Second)
	def(&o.Backoff, 250*time.Millisecond)
	def(&o.MaxBackoff, 5*time.Second)
	def(&o.CloseWait, 5*time.Second)
}

func def[T int | int64 | time.Duration](p *T, v T) {
	if *p <= 0 {
		*p = v
	}
}

// Count counts spans, log events and steps.
type Count struct{ Spans, Logs, Steps uint64 }

func (c *Count) add(d Count) {
	c.Spans += d.Spans
	c.Logs += d.Logs
	c.Steps += d.Steps
}

func (c *Count) sub(d Count) {
	c.Spans -= d.Spans
	c.Logs -= d.Logs
	c.Steps -= d.Steps
}

// weight is what the bounds and the batches go by.
func (c *Count) weight() int { return int(c.Spans + c.Steps) }

// Stats is the state of a Queue. At every moment
// Offered = Exported + the sum of Dropped + Waiting.
type Stats struct {
	Name     string
	Offered  Count
	Exported Count
	Dropped  [len(Reasons)]Count // by Reasons
	Waiting  Count               // waiting or being delivered
	Bytes    int64               // estimated size of Waiting
	Retries  uint64              // deliveries tried again
	Batches  uint64              // batches settled, delivered or not

	Snapshots       uint64 // metric states delivered
	FailedSnapshots uint64 // metric states not delivered; the next one holds the same totals
}

// Lost returns the sum of Dropped.
func (s *Stats) Lost() Count {
	var c Count
	for _, d := range s.Dropped {
		c.add(d)
	}
	return c
}

// Queue hands trees and metric states to a Sink in a goroutine of its own. All
// methods may be called from any goroutine.
type Queue struct {
	sink Sink
	opt  QueueOptions

	wake chan struct{} // something for the goroutine to look at
	done chan struct{} // the goroutine has ended and the sink is closed

	ctx    context.Context // ends when Close gives up
	cancel context.CancelFunc

	mu       sync.Mutex
	trees    []item
	first    time.Time // when trees[0] came
	spans    int       // of trees, by weight
	bytes    int64     // of trees
	flight   Count     // of the batch being delivered
	flightB  int64
	snapshot *metric.Snapshot
	closing  bool
	gaveUp   bool // Close counted the batch in flight as dropped
	stats    Stats
	closeErr error

	// Used by the goroutine only.
	lastLoss    time.Time // last call of OnLoss; zero after a success
	metricsLast bool      // the last thing delivered was a metric state
}

type item struct {
	tree  trace.Tree
	n     Count
	bytes int64
}

// NewQueue starts a queue in front of s. The queue owns s and closes it.
func NewQueue(s Sink, o QueueOptions) *Queue {
	o.defaults()
	q := &Queue{sink: s, opt: o, wake: make(chan struct{}, 1), done: make(chan struct{})}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	q.stats.Name = o.Name
	go q.run()
	return q
}

// Add offers a tree and never waits. It reports whether the tree was taken; if
// not, it is counted as dropped. The caller must not change the tree afterwards.
func (q *Queue) Add(t trace.Tree) bool {
	if !q.opt.Steps && len(t.Steps) > 0 {
		if t.Steps = nil; len(t.Spans) == 0 && len(t.Logs) == 0 {
			return true
		}
	}
	it := item{tree: t, n: Count{uint64(len(t.Spans)), uint64(len(t.Logs)), uint64(len(t.Steps))}, bytes: Size(&t)}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stats.Offered.add(it.n)
	switch {
	case q.closing:
		q.drop(Shutdown, it.n)
		return false
	case q.spans+q.flight.weight()+it.n.weight() > q.opt.MaxSpans, q.bytes+q.flightB+it.bytes > q.opt.MaxBytes:
		q.drop(QueueFull, it.n)
		return false
	}
	if len(q.trees) == 0 {
		q.first = time.Now()
	}
	q.trees = append(q.trees, it)
	q.spans += it.n.weight()
	q.bytes += it.bytes
	q.stats.Waiting.add(it.n)
	q.stats.Bytes += it.bytes
	if len(q.trees) == 1 || q.ready() {
		q.poke()
	}
	return true
}

// Metrics offers a metric state and never waits. Totals are cumulative, so a
// newer state replaces one that still waits.
func (q *Queue) Metrics(s *metric.Snapshot) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closing {
		q.stats.FailedSnapshots++
		return
	}
	q.snapshot = s
	q.poke()
}

// Stats returns the present state.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stats
}

// Close delivers what waits and closes the sink, until ctx ends or, if ctx has
// no deadline, for QueueOptions.CloseWait. What is left then is dropped as
// Shutdown. Later calls wait for the first one and return its error.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	q.closing = true
	q.mu.Unlock()
	q.poke()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.opt.CloseWait)
		defer cancel()
	}
	select {
	case <-q.done:
		return q.closeErr
	case <-ctx.Done():
	}
	q.cancel()
	// A sink that heeds its context returns at once; another one is left behind.
	const grace = 200 * time.Millisecond
	select {
	case <-q.done:
		return q.closeErr
	case <-time.After(grace):
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.gaveUp {
		q.gaveUp = true
		q.drop(Shutdown, q.stats.Waiting)
		q.stats.Waiting, q.stats.Bytes = Count{}, 0
		q.trees, q.snapshot = nil, nil
	}
	return fmt.Errorf("closing %s: the sink does not return: %w", q.opt.Name, ctx.Err())
}

func (q *Queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *Queue) ready() bool {
	return q.spans >= q.opt.BatchSpans || q.bytes >= q.opt.BatchBytes
}

func (q *Queue) drop(r Reason, n Count) {
	for i := range Reasons {
		if Reasons[i] == r {
			q.stats.Dropped[i].add(n)
		}
	}
}

func (q *Queue) run() {
	defer close(q.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		batch, snap, wait, end := q.next()
		switch {
		case snap != nil:
			q.deliverMetrics(snap)
		case batch != nil:
			q.deliver(batch)
		case end:
			ctx := q.ctx
			if ctx.Err() != nil { // the sink still gets to flush its own buffers
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
				defer cancel()
			}
			q.closeErr = q.closeSink(ctx)
			q.cancel()
			return
		case wait > 0:
			timer.Reset(wait)
			select {
			case <-q.wake:
			case <-timer.C:
			}
		default:
			<-q.wake
		}
	}
}

func (q *Queue) closeSink(ctx context.Context) error {
	err := q.sink.Close(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, r := range Reasons {
		if n := q.stats.Dropped[i].Spans; r == Shutdown && n > 0 {
			err = errors.Join(err, fmt.Errorf("%d spans were not delivered in time", n))
		}
	}
	if err != nil {
		return fmt.Errorf("closing %s: %w", q.opt.Name, err)
	}
	return nil
}

// next returns what to do: a snapshot, a batch, the end, or how long to wait (0: until woken).
func (q *Queue) next() (batch []item, snap *metric.Snapshot, wait time.Duration, end bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	age := time.Since(q.first)
	due := len(q.trees) > 0 && (q.closing || q.ready() || age >= q.opt.BatchWait)
	// A due batch goes before a second metric state in a row, so that a receiver
	// that lets metrics time out does not starve the spans, and before the last
	// metric state of all.
	if q.snapshot != nil && !(due && (q.metricsLast || q.closing)) {
		snap, q.snapshot = q.snapshot, nil
		q.metricsLast = true
		return nil, snap, 0, false
	}
	switch {
	case len(q.trees) == 0:
		return nil, nil, 0, q.closing
	case !due:
		return nil, nil, q.opt.BatchWait - age, false
	}
	q.metricsLast = false
	n := 0
	for n < len(q.trees) && q.flight.weight() < q.opt.BatchSpans && q.flightB < q.opt.BatchBytes {
		it := &q.trees[n]
		q.flight.add(it.n)
		q.flightB += it.bytes
		n++
	}
	batch = q.trees[:n:n]
	// A new slice, so that delivered trees can be freed.
	q.trees = append([]item(nil), q.trees[n:]...)
	q.spans -= q.flight.weight()
	q.bytes -= q.flightB
	q.first = time.Now()
	return batch, nil, 0, false
}

func (q *Queue) deliver(batch []item) {
	trees := make([]trace.Tree, len(batch))
	for i := range batch {
		trees[i] = batch[i].tree
	}
	ctx, cancel := context.WithTimeout(q.ctx, q.opt.Deadline)
	defer cancel()
	err, late := q.retry(ctx, func() error { return q.sink.Export(ctx, trees) })

	q.mu.Lock()
	all := q.flight
	var lost Count
	reason := Refused
	var part *PartialError
	switch {
	case err == nil:
	case errors.As(err, &part):
		lost = Count{Spans: min(uint64(max(part.Spans, 0)), all.Spans), Logs: min(uint64(max(part.Logs, 0)), all.Logs)}
	case q.ctx.Err() != nil:
		reason, lost = Shutdown, all
	case late || ctx.Err() != nil:
		reason, lost = Timeout, all
	default:
		lost = all
	}
	if !q.gaveUp {
		q.drop(reason, lost)
		q.stats.Waiting.sub(all)
		all.sub(lost)
		q.stats.Exported.add(all)
		q.stats.Bytes -= q.flightB
		q.stats.Batches++
	}
	q.flight, q.flightB = Count{}, 0
	q.mu.Unlock()
	q.report(reason, int(lost.Spans), err)
}

func (q *Queue) deliverMetrics(s *metric.Snapshot) {
	// No retries of our own: the next snapshot says the same and more.
	ctx, cancel := context.WithTimeout(q.ctx, min(q.opt.Deadline, 10*time.Second))
	defer cancel()
	err := q.sink.Metrics(ctx, s)
	q.mu.Lock()
	if err == nil {
		q.stats.Snapshots++
	} else {
		q.stats.FailedSnapshots++
	}
	q.mu.Unlock()
	if err != nil {
		q.report(Refused, 0, fmt.Errorf("exporting metrics: %w", err))
	}
}

// retry calls f until it neither fails nor asks for another try. late: it gave
// up because the deadline leaves no time for another one.
func (q *Queue) retry(ctx context.Context, f func() error) (err error, late bool) {
	pause := q.opt.Backoff
	for {
		err := f()
		var re *RetryError
		if err == nil || !errors.As(err, &re) {
			return err, false
		}
		d := max(pause+rand.N(pause/2+1), re.After)
		pause = min(2*pause, q.opt.MaxBackoff)
		if dl, ok := ctx.Deadline(); ok && time.Now().Add(d).After(dl) {
			return err, true
		}
		t := time.NewTimer(d)
		select {
		case <-ctx.Done():
			t.Stop()
			return err, true
		case <-t.C:
		}
		q.mu.Lock()
		q.stats.Retries++
		q.mu.Unlock()
	}
}

func (q *Queue) report(r Reason, spans int, err error) {
	if err == nil {
		q.lastLoss = time.Time{}
		return
	}
	const every = 30 * time.Second
	if q.opt.OnLoss == nil || time.Since(q.lastLoss) < every {
		return
	}
	q.lastLoss = time.Now()
	q.opt.OnLoss(r, spans, err)
}
