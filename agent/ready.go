package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"inferspan/probes/engine"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// Awaited is a process whose interpreter has no probes yet.
type Awaited struct {
	PID  int
	Role target.Role
	// Starting: it has no engine core, or front end, yet; it gets its probes when it has.
	Starting bool
}

func (a Awaited) String() string { return fmt.Sprintf("process %d (%s)", a.PID, a.Role) }

// A run waits this long for the first probes on interpreters until it says what it
// waits for, and until it goes on without. They take some 0.2 s, on a busy host a
// second or two.
const (
	sayAfter   = time.Second
	attachWait = 15 * time.Second
)

// A process that has no core or front end when it is looked at this often, quickTry
// apart, starts. Objects that change while they are looked at may hide one.
const (
	startingTries = 3
	quickTry      = 50 * time.Millisecond
)

// arrivals follows the first look into each process. Its methods may be called from
// several goroutines.
type arrivals struct {
	mu   sync.Mutex
	left []Awaited
}

func (a *arrivals) add(p *target.Process) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = append(a.left, Awaited{PID: p.PID, Role: p.Role})
}

// starting notes that a process has not got far enough to be looked at.
func (a *arrivals) starting(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.left {
		if a.left[i].PID == pid {
			a.left[i].Starting = true
		}
	}
}

// done notes that a process has its probes, or will have none.
func (a *arrivals) done(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = slices.DeleteFunc(a.left, func(x Awaited) bool { return x.PID == pid })
}

// awaited returns what is outstanding, and whether all of it only starts.
func (a *arrivals) awaited() (left []Awaited, ready bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.left), !slices.ContainsFunc(a.left, func(x Awaited) bool { return !x.Starting })
}

// readiness tells a run's user when the probes are in.
type readiness struct {
	began        time.Time
	waiting, end bool // told
}

// look is to be called now and then.
func (r *readiness) look(a *arrivals, o *LiveOptions, now time.Time) {
	if r.end {
		return
	}
	if r.began.IsZero() {
		r.began = now
	}
	left, ready := a.awaited()
	switch took := now.Sub(r.began); {
	case ready || took >= attachWait:
		r.end = true
		if o.Attached != nil {
			o.Attached(left)
		}
	case took >= sayAfter && !r.waiting:
		r.waiting = true
		if o.Waiting != nil {
			o.Waiting(slices.DeleteFunc(left, func(x Awaited) bool { return x.Starting }))
		}
	}
}

// openIn finds something in the interpreter of a process, which may still have to be
// made. The error is that of the last try, or of ctx.
func openIn[T any](ctx context.Context, first *arrivals, pid int, open func(*python.Interp) (T, error)) (*python.Interp, T, error) {
	var none T
	var last error
	pause := quickTry
	absent := 0
	for began := time.Now(); ; {
		in, err := python.Open(pid)
		if err == nil {
			var x T
			if x, err = open(in); err == nil {
				return in, x, nil
			}
		}
		if last = err; errors.Is(err, python.ErrGone) || errors.Is(err, python.ErrNotPython) {
			return nil, none, last
		}
		if errors.Is(err, engine.ErrNoCore) || errors.Is(err, engine.ErrNoFront) {
			absent++
		} else {
			absent = 0
		}
		switch waited := time.Since(began); {
		case waited > startWait:
			return nil, none, last
		case absent >= startingTries:
			first.starting(pid)
			pause = stateEvery
		case waited > attachWait:
			pause = stateEvery
		}
		select {
		case <-ctx.Done():
			return nil, none, ctx.Err()
		case <-time.After(pause):
		}
	}
}
