package workload

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
)

// Options say how a scenario is played.
type Options struct {
	BaseURL     string // "http://127.0.0.1:8000"
	Seed        uint64
	Count       int  // requests, 0: the scenario's default
	Concurrency int  // connections at a time, 0: the scenario's default
	Trace       bool // every request carries a traceparent of its own
	Plain       bool // no request carries traceparent or x-request-id
}

// Run plays the scenario and returns one entry per request of the plan, in the
// order of the plan. It returns an error for a base URL it cannot use and when ctx
// ends; what was logged until then is returned with it. What goes wrong with one
// request is in its entry's Fault.
func Run(ctx context.Context, s *Scenario, o Options) ([]Entry, error) {
	u, err := url.Parse(o.BaseURL)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("base URL %q is not http://host:port", o.BaseURL)
	}
	plan := s.Plan(o.Seed, o.Count)
	stamp(plan, s.Name, o)
	var log []Entry
	starts := make([]int, len(plan))
	for i, session := range plan {
		starts[i] = len(log)
		for j := range session.Requests {
			log = append(log, entry(s, &session.Requests[j], len(log), i, j))
		}
	}
	n := o.Concurrency
	if n <= 0 {
		n = s.Concurrency
	}
	next := make(chan int)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for i := range next {
				play(ctx, u.Host, plan[i], log[starts[i]:starts[i]+len(plan[i].Requests)])
			}
		})
	}
	for i := range plan {
		next <- i
	}
	close(next)
	wg.Wait()
	return log, ctx.Err()
}

// stamp applies Trace and Plain to a plan.
func stamp(plan []Session, name string, o Options) {
	g := &gen{Rand: newRand(o.Seed, "stamp "+name)}
	for i := range plan {
		for j := range plan[i].Requests {
			r := &plan[i].Requests[j]
			if o.Plain {
				var kept [][2]string
				for _, h := range r.Header {
					if !strings.EqualFold(h[0], "traceparent") && !strings.EqualFold(h[0], "x-request-id") {
						kept = append(kept, h)
					}
				}
				r.Header, r.Marks, r.Key = kept, "", ""
			}
			if o.Trace {
				g.trace(r)
			}
		}
	}
}

func entry(s *Scenario, r *Request, index, conn, seq int) Entry {
	e := Entry{
		Scenario: s.Name, Index: index, Conn: conn, ConnSeq: seq,
		Method: r.Method, Path: r.Path, RequestID: r.Key, Model: r.Model, Stream: r.Stream, N: r.N, Inputs: r.Inputs,
		MaxTokens: r.Max, BodyBytes: len(r.Body), WantStatus: r.Want, Plan: r.Leave,
	}
	e.TraceID, e.ParentID, _ = strings.Cut(r.Marks, "/")
	return e
}

// Check returns what did not go as the plan wants, one line per request. It is
// empty when the server behaved: only then is a log fit to judge a tracer by.
func Check(log []Entry) []string {
	var bad []string
	for i := range log {
		e := &log[i]
		what := ""
		switch {
		case e.Fault != "":
			what = e.Fault
		case e.Plan != Stay:
			if e.LeftMono == 0 {
				what = "the response ended before the client left"
			}
		case !e.Complete:
			what = "not sent"
		case e.WantStatus != 0 && e.Status != e.WantStatus:
			what = fmt.Sprintf("status %d, want %d", e.Status, e.WantStatus)
		case e.WantStatus == 200 && e.Inference() && e.ErrorType != "":
			what = "error of type " + e.ErrorType + " in the body"
		}
		if what != "" {
			bad = append(bad, fmt.Sprintf("%s %d: %s %s: %s", e.Scenario, e.Index, e.Method, e.Path, what))
		}
	}
	return bad
}
