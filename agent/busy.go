package agent

import (
	"context"
	"strings"
	"sync"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/engine"
	"inferspan/probes/note"
	"inferspan/probes/python/plan"
)

// A busy probe is in place until so many calls were timed, and then is left out for a
// while. Its calls are looked at this often, so that there are some more.
const (
	busyCalls = 256
	busyFirst = 32 // enough for a first result
	busyRest  = 10 * time.Second
	busyLook  = 50 * time.Millisecond
	// busyResult keeps apart the results of a probe that stays in place.
	busyResult = 500 * time.Millisecond
	// busyWindows is how many of the latest windows a result is of.
	busyWindows = 3
)

// A request that is looked at closely has ended when nothing was seen of it for so
// long, or nothing at all for so much longer.
const (
	closeQuiet  = 2 * time.Second
	closeAbsent = time.Minute
)

// timer is what busy needs of an attach.Interpreter.
type timer interface {
	ProbeTimes(n int) (calls, ns uint64, err error)
	Detach(n int, reason string) error
	Reattach(n int) error
}

// busy keeps the busy probe of a process in place as little as it can.
type busy struct {
	w        *watching
	timer    timer
	n        int // number of the probe
	detail   string
	overhead uint64 // of each call, ns

	on        bool
	next      time.Time // when to put it in again
	sent      time.Time // when the latest result was
	calls, ns uint64    // of the window so far
	early     bool      // a first result is out
	window    [busyWindows]note.Cost
	windows   int
	closer    *closer // nil: no request is looked at closely
}

// newBusy returns the busy probe of w, nil if there is none in place.
func newBusy(w *watching, every int) *busy {
	for n, s := range w.interp.Report() {
		if !w.probes[n].Busy || !s.Attached {
			continue
		}
		b := &busy{w: w, timer: w.interp, n: n, detail: w.probes[n].Detail, overhead: uint64(s.Overhead), on: true}
		if every > 0 {
			b.closer = w.inside.closers.add(w.pid, every, w.places())
		}
		return b
	}
	return nil
}

// look takes the probe out or puts it in. An error means that it is tried again.
func (b *busy) look(ctx context.Context, now time.Time) error {
	if !b.on {
		if b.closer == nil && now.Before(b.next) || b.closer != nil && !b.closer.due() {
			return nil
		}
		if err := b.timer.Reattach(b.n); err != nil {
			return err
		}
		b.on, b.w.resting, b.calls, b.ns = true, false, 0, 0
		if b.closer != nil {
			b.closer.arm()
		}
		return nil
	}
	calls, ns, err := b.timer.ProbeTimes(b.n)
	if err != nil {
		return err
	}
	if calls < b.calls { // it was taken out and put in again meanwhile
		b.calls, b.ns = 0, 0
	}
	full := calls-b.calls >= busyCalls && now.Sub(b.sent) >= busyResult
	if full || !b.early && calls-b.calls >= busyFirst {
		b.result(ctx, calls-b.calls, ns-b.ns, full)
		b.sent = now
	}
	if full {
		b.calls, b.ns = calls, ns
	}
	switch {
	case b.closer == nil && full, b.closer != nil && b.closer.over(now):
		if err := b.timer.Detach(b.n, "between samples"); err != nil {
			return err
		}
		b.on, b.w.resting, b.next = false, true, now.Add(busyRest)
	}
	return nil
}

// result sends what calls cost on average in the latest windows.
func (b *busy) result(ctx context.Context, calls, ns uint64, full bool) {
	c := note.Cost{Detail: b.detail, Calls: int64(calls), Time: int64(ns - min(b.overhead*calls, ns))}
	b.early = true
	sum := c
	for _, x := range b.window[:min(b.windows, busyWindows)] {
		sum.Calls, sum.Time = sum.Calls+x.Calls, sum.Time+x.Time
	}
	if full {
		if b.windows >= busyWindows { // the oldest one's place is taken
			old := b.window[b.windows%busyWindows]
			sum.Calls, sum.Time = sum.Calls-old.Calls, sum.Time-old.Time
		}
		b.window[b.windows%busyWindows] = c
		b.windows++
	}
	b.w.inside.send(ctx)(note.Put(note.KindCost, b.w.pid, bpf.Monotonic(), sum))
}

// places tells where captures have what a closer needs, by plan.
func (w *watching) places() map[uint32]place {
	out := make(map[uint32]place)
	for _, s := range w.interp.Report() {
		for _, x := range s.Watches {
			for _, p := range x.Plans {
				for n, slot := range p.Slots {
					if slot == engine.SlotID && p.Plan != 0 && (p.Name == engine.PlanInput || p.Name == engine.PlanDecode) {
						out[p.Plan] = place{p.Name == engine.PlanInput, n}
					}
				}
			}
		}
	}
	return out
}

// place is where a capture has the id of its request, and whether it is of one that
// begins.
type place struct {
	begins bool
	slot   int
}

// closers are the processes in which requests are looked at closely.
type closers struct {
	mu sync.Mutex
	of map[uint32]*closer
}

func (c *closers) add(pid uint32, every int, places map[uint32]place) *closer {
	x := &closer{every: every, places: places, armed: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[uint32]*closer)
	}
	c.of[pid] = x
	return x
}

// keep reports whether a capture is to be handed over.
func (c *closers) keep(r *event.Record, now time.Time) bool {
	c.mu.Lock()
	x := c.of[r.PID]
	c.mu.Unlock()
	return x == nil || x.keep(r, now)
}

// closer chooses the requests of which each token is looked at: while the probe is in
// place the first one to begin, and then again after every so many. What is seen of
// the others meanwhile is only a part, and is left out.
type closer struct {
	every int

	mu      sync.Mutex
	places  map[uint32]place
	armed   bool
	id      string // the request, "" if none was chosen
	seen    bool   // in a call of the probed function
	last    time.Time
	begun   int // requests since one was chosen
	capture plan.Capture
}

func (c *closer) keep(r *event.Record, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.places[r.Capture.Plan]
	if !ok || c.every == 1 {
		return true
	}
	if c.capture.Decode(r) != nil {
		return true // the decoder says why
	}
	v := c.capture.Slot(p.slot)
	if v == nil || !v.IsStr() {
		return true
	}
	if p.begins {
		c.begun++
		if c.armed && c.id == "" {
			c.id, c.seen, c.last, c.begun = v.Str, false, now, 0
		}
		return true
	}
	// The engine adds to the id that the front end gave.
	if c.id == "" || !strings.Contains(v.Str, c.id) {
		return false
	}
	c.seen, c.last = true, now
	return true
}

// learn takes in where captures have what is needed.
func (c *closer) learn(places map[uint32]place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places = places
}

// arm has the next request chosen.
func (c *closer) arm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed, c.id = true, ""
}

// over reports whether the request that was chosen has ended. Another one is chosen
// after arm.
func (c *closer) over(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	quiet := closeAbsent
	if c.seen {
		quiet = closeQuiet
	}
	if c.every == 1 || c.id == "" || now.Sub(c.last) < quiet {
		return false
	}
	c.armed, c.id = false, ""
	return true
}

// due reports whether it is time to choose a request again: the next is one in so many.
func (c *closer) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun >= c.every-1
}
