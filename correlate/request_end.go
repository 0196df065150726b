package correlate

import (
	"slices"

	"inferspan/correlate/signal"
)

// endKind says what ended a request in the engine.
type endKind uint8

const (
	endNone     endKind = iota
	endFinished         // an output with a finish reason
	endAborted          // an abort by the front end
	endExit             // the core's process ended
	endDetached         // we stopped looking
	endLost             // its end was not seen
	endEvicted          // a bound on state was reached
	endStepped          // the scheduler has it no more; how it ended was not seen
)

func (c *Correlator) requestAborted(s *signal.RequestAborted) {
	e := c.engine(s.Core.Engine)
	co := e.core(s.Core)
	for _, id := range s.IDs {
		r := e.running(co, id)
		if r == nil {
			co.gone.add(id) // its outputs may still come
			continue
		}
		if !e.rules.abortEnds() {
			c.closing = append(c.closing, closing{r, s.At, endAborted})
			continue
		}
		at := s.At
		if s.Late {
			r.endedLate = true
			at = min(at, r.lastSeen())
		}
		c.endRequest(r, endAborted, at)
	}
}

// endRequest ends a request in the engine. Its tree may have to wait.
func (c *Correlator) endRequest(r *request, kind endKind, at signal.Mono) {
	if r.done && !r.waiting {
		return
	}
	co := r.core
	if co.reqs[r.id] == r {
		delete(co.reqs, r.id)
	}
	co.gone.add(r.id)
	if r.end == endNone {
		r.end, r.endAt = kind, at
		if r.live {
			co.over[r.id] = r
		}
		if r.steps != nil {
			r.steps.endHoles = co.steps.holes
			r.endBySteps()
		}
	}
	r.done, r.doneAt, r.waiting = true, c.now, false
	if kind == endFinished {
		if m := co.eng.msgs.get(r.lastMsg); m != nil {
			if m.recv.at == 0 {
				m.waiters = append(m.waiters, r)
				r.waiting = true
				c.waiting = append(c.waiting, r)
				return
			}
			c.requestDelivered(r, r.lastMsg, m.recv)
		}
	}
	work := (kind == endFinished || kind == endStepped) && r.awaitsWork()
	if kind == endFinished && !co.eng.rules.settled(r) || work {
		r.waiting, r.forWork, r.settleFrom = true, work, c.now
		c.waiting = append(c.waiting, r)
		return
	}
	c.requestDone(r)
}

// requestDelivered: the message of that number, with r's first or last output, has arrived.
func (c *Correlator) requestDelivered(r *request, seq uint64, at receipt) {
	if !r.live {
		return
	}
	if seq == r.firstMsg && r.firstRecv.at == 0 {
		r.firstRecv = at
		c.countFirst(r)
	}
	if r.done && seq == r.lastMsg && r.lastRecv.at == 0 {
		r.lastRecv = at
	}
	if r.waiting && seq == r.lastMsg {
		c.settle(r)
	}
}

// requestUndelivered: a message with r's first or last output left the window.
func (c *Correlator) requestUndelivered(r *request) {
	if r.live && r.waiting {
		c.settle(r)
	}
}

// requestDone: all that will be known of r inside the engine is known.
func (c *Correlator) requestDone(r *request) {
	if !r.live {
		return
	}
	c.countFirst(r)
	// Of one with stop strings the response may say that it ended before.
	if r.end == endFinished && !(r.param.HasStop && r.finish == signal.FinishLength) || r.end == endStepped {
		c.countFinished(r)
	}
	if r.ex != nil {
		c.tryEmit(r.ex)
		return
	}
	if r.end == endAborted || r.end == endExit {
		c.claimCutShort(r)
		if r.ex != nil {
			c.tryEmit(r.ex)
			return
		}
	}
	if c.mayBeClaimed(r) || c.awaitsText(r) {
		c.held = append(c.held, r)
		return
	}
	c.emitAlone(r)
}

// releaseHeld exports the requests that no exchange can claim any more.
func (c *Correlator) releaseHeld() {
	if len(c.held) == 0 {
		return
	}
	held := c.held
	c.held = nil
	for _, r := range held {
		switch {
		case !r.live || r.ex != nil:
		case c.mayBeClaimed(r) || c.awaitsText(r):
			c.held = append(c.held, r)
		default:
			c.emitAlone(r)
		}
	}
}

// release exports r now, with its exchange if that is over too.
func (c *Correlator) release(r *request) {
	if !r.live {
		return
	}
	if r.ex != nil {
		if r.ex.ended {
			c.emitExchange(r.ex)
			return
		}
		// The exchange goes on: it keeps its identity, the request leaves first.
		r.ex.left++
		i := slices.Index(r.ex.reqs, r)
		r.ex.reqs = slices.Delete(r.ex.reqs, i, i+1)
	}
	c.emitAlone(r)
}

// forget drops r from all state.
func (c *Correlator) forget(r *request) {
	c.reqs.remove(r)
	if r.way != nil {
		c.kept -= r.way.kept
		r.way.kept = 0
	}
	e := r.core.eng
	if r.core.reqs[r.id] == r {
		delete(r.core.reqs, r.id)
	}
	if r.core.over[r.id] == r {
		delete(r.core.over, r.id)
	}
	e.unindex(r)
}

func (e *engine) unindex(r *request) {
	if r.resp == "" {
		return
	}
	list := e.byResp[r.resp]
	if i := slices.Index(list, r); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) == 0 {
		delete(e.byResp, r.resp)
	} else {
		e.byResp[r.resp] = list
	}
}
