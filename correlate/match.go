package correlate

import (
	"slices"

	"inferspan/correlate/signal"
)

// How an engine request was matched with its exchange.
const (
	byResponseID = "id"
	byOrder      = "order"
)

// slack is how much two processes' records of one happening may differ in time.
const slack = signal.Mono(50e6)

func (c *Correlator) attach(x *exchange, r *request, how string) {
	r.ex, r.corr = x, how
	x.reqs = append(x.reqs, r)
	if how == byResponseID {
		x.eng.learnFront(r.client, x.key.PID)
	}
}

// claimByID looks for the exchange of a new request. Clients may use an
// x-request-id again, so the latest exchange that began before the request counts.
func (c *Correlator) claimByID(r *request) {
	var best *exchange
	for _, x := range r.core.eng.byID[r.resp] {
		if x.takes(r) && (best == nil || x.begin > best.begin) {
			best = x
		}
	}
	if best != nil {
		c.attach(best, r, byResponseID)
	}
}

// claimKnown gives x the requests with its response id.
func (c *Correlator) claimKnown(x *exchange, id string) {
	for _, r := range x.eng.byResp[id] {
		if r.ex == nil && x.takes(r) {
			c.attach(x, r, byResponseID)
		}
	}
}

// takes: r, which has x's id, can belong to x in time.
func (x *exchange) takes(r *request) bool {
	if !r.arrivalSeen || x.announced == "" {
		return true
	}
	return x.begin <= r.added+slack && (!x.ended || r.added <= x.endAt+abortWait)
}

// open: x may still turn out to be the exchange of a request without one.
func (x *exchange) open() bool { return x.resp == "" && len(x.reqs) == 0 && x.mayHaveRequests() }

// compatible: nothing that x's request says contradicts that r came from it.
func (x *exchange) compatible(r *request) bool {
	if x.eng != r.core.eng || x.op.pooling != r.pooling || !x.eng.isFront(r.client, x.key.PID) {
		return false
	}
	if r.pid != 0 && r.pid != x.key.PID {
		return false
	}
	if r.added < x.begin || (r.queued != 0 && r.queued < x.begin) {
		return false // it was there before
	}
	if r.arrival != 0 && x.offOK && int64(r.arrival) < int64(x.begin)+x.off {
		return false
	}
	if !x.body.Parsed || r.pooling {
		return true
	}
	// The front end lowers max_tokens to what fits the model, never raises it.
	if x.body.MaxTokens.OK && r.param.MaxTokens.OK && r.param.MaxTokens.V > x.body.MaxTokens.V {
		return false
	}
	return sameParam(x.body.Temperature, r.param.Temperature) && sameParam(x.body.TopP, r.param.TopP)
}

func sameParam(a, b signal.Opt[float64]) bool { return !a.OK || !b.OK || a.V == b.V }

// mayBeClaimed: an exchange whose response id, or of which nothing, is known yet may be r's.
func (c *Correlator) mayBeClaimed(r *request) bool {
	switch wait := c.now - r.doneAt; {
	case wait > claimWait:
		return false
	case wait <= beginWait && r.resp != "" && r.end == endFinished && r.core.eng.seen.Exchanges:
		return true
	}
	for x := c.exs.head; x != nil; x = x.next {
		if x.open() && x.compatible(r) {
			return true
		}
	}
	return false
}

// claimCutShort looks for the exchange of a request that was cut short before its
// response began: one whose client went away, or whose server exited, before.
// Not before the exchange's last chance is a request taken that may have met its
// stop string: most likely another exchange is about to deliver it.
func (c *Correlator) claimCutShort(r *request) {
	if c.maybeStop(r) {
		return
	}
	var cand []*exchange
	for _, x := range c.ended {
		if x.open() && (x.outcome == signal.OutcomeDisconnect || x.outcome == signal.OutcomeExit) && x.endAt <= r.endAt+slack && x.compatible(r) {
			cand = append(cand, x)
		}
	}
	if len(cand) == 0 {
		return
	}
	best := cand[0]
	if len(cand) > 1 {
		if x, _ := c.align(func(q *request, _ *exchange) bool { return q == r }, r.core.eng); slices.Contains(cand, x) {
			best = x
		} else {
			// The latest one begun before the request was stamped.
			for _, x := range cand {
				if x.begin > best.begin {
					best = x
				}
			}
		}
	}
	c.attachAll(best, r)
}

// claimByOrder looks for the requests of an exchange that ended without a
// response id having been seen. Not before the last chance is a request that
// finished, or may have, given to an exchange whose client went away: most likely
// another exchange is about to deliver it.
func (c *Correlator) claimByOrder(x *exchange, last bool) {
	if !x.open() || len(c.held) == 0 {
		return
	}
	fits := func(r *request) bool {
		return r.live && r.ex == nil && r.done && !r.waiting && x.compatible(r) && x.endsWith(r) &&
			(last || x.outcome != signal.OutcomeDisconnect || (r.end != endFinished && !c.maybeStop(r)))
	}
	var best *request
	n := 0
	for _, r := range c.held {
		if fits(r) {
			if n++; best == nil || r.added < best.added {
				best = r
			}
		}
	}
	if n > 1 {
		if _, r := c.align(func(_ *request, y *exchange) bool { return y == x }, x.eng); r != nil && fits(r) {
			best = r
		}
	}
	if best != nil {
		c.attachAll(x, best)
	}
}

// endsWith: r's end fits x's.
func (x *exchange) endsWith(r *request) bool {
	switch x.outcome {
	case signal.OutcomeDisconnect:
		return r.endAt >= x.endAt-slack
	case signal.OutcomeComplete:
		return r.endAt <= x.endAt+slack && (x.status >= 500) == (r.end == endExit || r.finish == signal.FinishError)
	}
	return true
}

// attachAll gives x the request and those of the same API request.
func (c *Correlator) attachAll(x *exchange, r *request) {
	c.attach(x, r, byOrder)
	if r.resp == "" {
		return
	}
	for _, s := range x.eng.byResp[r.resp] {
		if s.ex == nil {
			c.attach(x, s, byOrder)
		}
	}
}

// align pairs the requests without an exchange with the exchanges without a
// request, both in order of arrival, and returns the first pair that is wanted.
func (c *Correlator) align(want func(*request, *exchange) bool, e *engine) (*exchange, *request) {
	x := c.exs.head
	group := ""
	for q := c.reqs.head; q != nil && x != nil; q = q.next {
		if q.ex != nil || q.core.eng != e || (q.resp != "" && q.resp == group) {
			continue // the candidates of one API request count once
		}
		y := x
		for y != nil && !(y.open() && y.compatible(q)) {
			y = y.next
		}
		if y == nil {
			continue
		}
		if want(q, y) {
			return y, q
		}
		group, x = q.resp, y.next
	}
	return nil, nil
}
