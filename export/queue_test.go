package export

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
)

// Whatever the sink does, every span is exported or dropped for one reason, and
// the queue's count of exported spans is the sink's.
func TestEverySpanAccounted(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 7))
				var mu sync.Mutex
				var took Count
				f := &fake{}
				f.export = func(ctx context.Context, trees []trace.Tree) error {
					spans, logs := count(trees)
					mu.Lock()
					defer mu.Unlock()
					switch rng.IntN(8) {
					case 0:
						return errors.New("no")
					case 1:
						return &RetryError{Err: errors.New("later"), After: time.Duration(rng.IntN(3)) * time.Second}
					case 2:
						n := rng.IntN(spans + 1)
						took.add(Count{Spans: uint64(spans - n), Logs: uint64(logs)})
						return &PartialError{Spans: n, Err: errors.New("some")}
					case 3:
						mu.Unlock()
						select {
						case <-ctx.Done():
						case <-time.After(time.Duration(rng.IntN(40)) * time.Second):
						}
						mu.Lock()
						if ctx.Err() != nil {
							return ctx.Err()
						}
					}
					took.add(Count{Spans: uint64(spans), Logs: uint64(logs)})
					return nil
				}
				q := NewQueue(checked{f, t}, QueueOptions{
					Name: "x", MaxSpans: 20 + rng.IntN(200), MaxBytes: int64(20000 + rng.IntN(100000)),
					BatchSpans: 1 + rng.IntN(50), Deadline: time.Duration(1+rng.IntN(20)) * time.Second,
				})
				var wg sync.WaitGroup
				for g := range 3 {
					r := rand.New(rand.NewPCG(seed, uint64(g)))
					wg.Go(func() {
						for range 100 {
							q.Add(tree(r.IntN(8), r.IntN(3)))
							if r.IntN(10) == 0 {
								q.Metrics(&metric.Snapshot{})
							}
							time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
						}
					})
				}
				wg.Go(func() {
					for range 50 {
						checkSum(t, q.Stats())
						time.Sleep(time.Second)
					}
				})
				if seed%3 == 0 { // close while others still add
					time.Sleep(20 * time.Second)
					_ = q.Close(context.Background())
				}
				wg.Wait()
				_ = q.Close(context.Background())
				s := q.Stats()
				checkSum(t, s)
				mu.Lock()
				defer mu.Unlock()
				if s.Waiting != (Count{}) || s.Bytes != 0 || s.Exported != took {
					t.Errorf("after close: %+v; the sink took %+v", s, took)
				}
				if f.closed.Load() != 1 {
					t.Errorf("sink closed %d times", f.closed.Load())
				}
			})
		})
	}
}

func TestBatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		type batch struct {
			spans int
			at    time.Duration
		}
		var got []batch
		f := &fake{export: func(_ context.Context, trees []trace.Tree) error {
			n, _ := count(trees)
			got = append(got, batch{n, time.Since(start)})
			return nil
		}}
		q := NewQueue(checked{f, t}, QueueOptions{BatchSpans: 10, BatchWait: time.Second})
		q.Add(tree(4, 0))
		time.Sleep(5 * time.Second) // time: after BatchWait
		for range 5 {
			q.Add(tree(4, 0)) // size: the third tree fills a batch
		}
		synctest.Wait()
		if err := q.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		want := []batch{{4, time.Second}, {12, 5 * time.Second}, {8, 5 * time.Second}}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("batches %v, want %v", got, want)
		}
	})
}

func TestSlowSinkDoesNotBlockAndMemoryIsBounded(t *testing.T) {
	release := make(chan struct{})
	f := &fake{export: func(context.Context, []trace.Tree) error { <-release; return nil }}
	q := NewQueue(checked{f, t}, QueueOptions{MaxSpans: 100, BatchSpans: 10, BatchWait: time.Millisecond})
	begin := time.Now()
	for range 20000 {
		q.Add(tree(5, 1))
	}
	if d := time.Since(begin); d > 2*time.Second {
		t.Errorf("20000 calls took %v with a stuck sink", d)
	}
	s := q.Stats()
	checkSum(t, s)
	if s.Waiting.Spans != 100 || s.dropped(QueueFull).Spans != 20000*5-100 {
		t.Errorf("got %+v", s)
	}
	close(release)
	if err := q.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s := q.Stats(); s.Exported.Spans != 100 {
		t.Errorf("got %+v", s)
	}
}

func TestBytesBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(checked{&fake{}, t}, QueueOptions{MaxBytes: 10_000})
		big := trace.Tree{Spans: []trace.Span{{Attrs: []trace.Attr{{Key: "k", Value: strings.Repeat("x", 20_000)}}}}}
		if q.Add(big) {
			t.Error("a tree of 20 kB was taken by a queue of 10 kB")
		}
		if !q.Add(tree(1, 0)) {
			t.Error("a small one was not")
		}
		_ = q.Close(context.Background())
		if s := q.Stats(); s.dropped(QueueFull).Spans != 1 || s.Exported.Spans != 1 {
			t.Errorf("got %+v", s)
		}
	})
}

// Steps go to the sinks that take them only, and are counted apart from spans.
func TestSteps(t *testing.T) {
	for _, takes := range []bool{false, true} {
		got := Count{}
		f := &fake{export: func(_ context.Context, trees []trace.Tree) error {
			for i := range trees {
				got.add(Count{Spans: uint64(len(trees[i].Spans)), Steps: uint64(len(trees[i].Steps))})
			}
			return nil
		}}
		q := NewQueue(checked{f, t}, QueueOptions{Steps: takes, MaxSpans: 10})
		q.Add(tree(2, 0))
		full := false
		for range 20 {
			full = !q.Add(trace.Tree{Steps: make([]trace.Step, 1)}) || full
		}
		if err := q.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		s := q.Stats()
		want := Count{Spans: 2}
		if takes {
			want.Steps = 8
		}
		if got != want || s.Exported != want || full != takes || s.Waiting != (Count{}) {
			t.Errorf("steps taken %v: got %+v, stats %+v", takes, got, s)
		}
		if takes && (s.Offered.Steps != 20 || s.Lost().Steps != 12 || s.Dropped[0].Steps != 12) {
			t.Errorf("stats %+v", s)
		}
	}
}

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		f := &fake{export: func(context.Context, []trace.Tree) error {
			at = append(at, time.Since(start))
			if len(at) < 4 {
				after := time.Duration(0)
				if len(at) == 3 {
					after = 7 * time.Second
				}
				return &RetryError{Err: errors.New("not now"), After: after}
			}
			return nil
		}}
		q := NewQueue(checked{f, t}, QueueOptions{BatchSpans: 1, Backoff: time.Second, MaxBackoff: time.Minute})
		q.Add(tree(3, 0))
		time.Sleep(time.Minute)
		_ = q.Close(context.Background())
		if len(at) != 4 {
			t.Fatalf("%d tries, want 4", len(at))
		}
		for i, min := range []time.Duration{time.Second, 2 * time.Second, 7 * time.Second} {
			if d := at[i+1] - at[i]; d < min || d > min*3/2 {
				t.Errorf("pause %d is %v, want %v and up to half more", i, d, min)
			}
		}
		if s := q.Stats(); s.Exported.Spans != 3 || s.Retries != 3 || s.Batches != 1 {
			t.Errorf("got %+v", s)
		}
	})
}

func TestReasons(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    func(ctx context.Context) error
		reason Reason
		lost   uint64
	}{
		{"refused", func(context.Context) error { return errors.New("400") }, Refused, 10},
		{"partly refused", func(context.Context) error { return &PartialError{Spans: 4, Err: errors.New("too old")} }, Refused, 4},
		{"partial beyond the batch", func(context.Context) error { return &PartialError{Spans: 99, Err: errors.New("?")} }, Refused, 10},
		{"never reachable", func(context.Context) error { return &RetryError{Err: errors.New("connection refused")} }, Timeout, 10},
		{"asked to wait beyond the deadline", func(context.Context) error {
			return &RetryError{Err: errors.New("busy"), After: time.Hour}
		}, Timeout, 10},
		{"hangs", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, Timeout, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				type loss struct {
					r     Reason
					spans int
				}
				var told []loss
				f := &fake{export: func(ctx context.Context, _ []trace.Tree) error { return c.err(ctx) }}
				q := NewQueue(checked{f, t}, QueueOptions{BatchSpans: 10, OnLoss: func(r Reason, n int, err error) {
					if err == nil {
						t.Error("loss without an error")
					}
					told = append(told, loss{r, n})
				}})
				q.Add(tree(10, 0))
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				s := q.Stats()
				if s.dropped(c.reason).Spans != c.lost || s.Lost().Spans != c.lost {
					t.Errorf("got %+v", s)
				}
				if len(told) != 1 || told[0] != (loss{c.reason, int(c.lost)}) {
					t.Errorf("told %v", told)
				}
				_ = q.Close(context.Background())
			})
		})
	}
}

func TestLossIsNotToldTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		bad := true
		f := &fake{export: func(context.Context, []trace.Tree) error {
			if bad {
				return errors.New("no")
			}
			return nil
		}}
		q := NewQueue(checked{f, t}, QueueOptions{BatchSpans: 1, OnLoss: func(Reason, int, error) { told++ }})
		one := func() { q.Add(tree(1, 0)); time.Sleep(2 * time.Second); synctest.Wait() }
		for range 20 { // 40 s
			one()
		}
		if told != 2 {
			t.Errorf("told %d times in 40 s, want 2", told)
		}
		bad = false
		one()
		bad = true
		one()
		if told != 3 {
			t.Errorf("told %d times after a success between, want 3", told)
		}
		_ = q.Close(context.Background())
	})
}

func TestCloseDeadline(t *testing.T) {
	t.Run("sink heeds its context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{export: func(ctx context.Context, _ []trace.Tree) error { <-ctx.Done(); return ctx.Err() }}
			q := NewQueue(checked{f, t}, QueueOptions{Name: "slow", BatchSpans: 5})
			for range 4 {
				q.Add(tree(5, 1))
			}
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			begin := time.Now()
			err := q.Close(ctx)
			if d := time.Since(begin); d < 3*time.Second || d > 4*time.Second {
				t.Errorf("close took %v, want 3 s", d)
			}
			if err == nil || err.Error() != "closing slow: 20 spans were not delivered in time" {
				t.Errorf("close: %v", err)
			}
			s := q.Stats()
			checkSum(t, s)
			if s.dropped(Shutdown) != (Count{Spans: 20, Logs: 4}) || f.closed.Load() != 1 {
				t.Errorf("got %+v, sink closed %d times", s, f.closed.Load())
			}
		})
	})
	t.Run("sink does not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			f := &fake{export: func(context.Context, []trace.Tree) error { <-release; return nil }}
			q := NewQueue(checked{f, t}, QueueOptions{Name: "stuck", BatchSpans: 5})
			q.Add(tree(5, 0))
			q.Add(tree(5, 0))
			begin := time.Now()
			err := q.Close(context.Background())
			if d := time.Since(begin); d < 5*time.Second || d > 6*time.Second {
				t.Errorf("close took %v, want CloseWait", d)
			}
			if err == nil {
				t.Error("close of a stuck sink gave no error")
			}
			s := q.Stats()
			checkSum(t, s)
			if s.dropped(Shutdown).Spans != 10 || s.Waiting.Spans != 0 {
				t.Errorf("got %+v", s)
			}
			close(release) // the sink comes back: nothing is counted twice
			synctest.Wait()
			if again := q.Stats(); again != s {
				t.Errorf("counts changed after close: %+v", again)
			}
		})
	})
	t.Run("twice and after", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			q := NewQueue(checked{f, t}, QueueOptions{})
			q.Add(tree(2, 0))
			for range 3 {
				if err := q.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			if q.Add(tree(2, 0)) {
				t.Error("taken after close")
			}
			q.Metrics(&metric.Snapshot{})
			s := q.Stats()
			checkSum(t, s)
			if s.Exported.Spans != 2 || s.dropped(Shutdown).Spans != 2 || s.FailedSnapshots != 1 || f.closed.Load() != 1 {
				t.Errorf("got %+v, closed %d times", s, f.closed.Load())
			}
		})
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		f := &fake{
			export: func(_ context.Context, trees []trace.Tree) error { order = append(order, "trees"); return nil },
			metrics: func(ctx context.Context, s *metric.Snapshot) error {
				order = append(order, fmt.Sprint(s.Time))
				if s.Time == 3 {
					<-ctx.Done() // a receiver that takes no metrics
					return ctx.Err()
				}
				return nil
			},
		}
		q := NewQueue(checked{f, t}, QueueOptions{BatchWait: time.Second})
		q.Metrics(&metric.Snapshot{Time: 1})
		synctest.Wait()
		q.Metrics(&metric.Snapshot{Time: 3})
		synctest.Wait() // in the sink, for 10 s
		q.Metrics(&metric.Snapshot{Time: 4})
		q.Metrics(&metric.Snapshot{Time: 5})
		q.Add(tree(1, 0))
		time.Sleep(20 * time.Second)
		q.Add(tree(1, 0))
		q.Metrics(&metric.Snapshot{Time: 6})
		if err := q.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		// 4 was replaced by 5; trees are not starved by metrics; the last state comes last
		// unless it was already taken.
		if got := strings.Join(order, " "); got != "1 3 trees 5 trees 6" && got != "1 3 trees 5 6 trees" {
			t.Errorf("order %s", got)
		}
		if s := q.Stats(); s.Snapshots != 3 || s.FailedSnapshots != 1 {
			t.Errorf("got %+v", s)
		}
	})
}

func TestNoGoroutineLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		q := NewQueue(checked{&fake{}, t}, QueueOptions{})
		q.Add(tree(1, 0))
		if err := q.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

func BenchmarkAdd(b *testing.B) {
	q := NewQueue(checked{&fake{}, nil}, QueueOptions{MaxSpans: 1 << 30, MaxBytes: 1 << 40})
	tr := tree(5, 0)
	b.ReportAllocs()
	for b.Loop() {
		q.Add(tr)
	}
	_ = q.Close(context.Background())
}
