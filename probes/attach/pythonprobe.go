package attach

import (
	"os"
	"slices"
	"time"

	"inferspan/probes/python/plan"
)

// PythonProbe is a C function that Python code calls, and what is to be read when
// watched code calls it. Calls from other code are counted only.
type PythonProbe struct {
	Callable plan.Function // as Python finds it: plan.Func("time", "monotonic")
	// ZMQ is a function of libzmq instead that Attach probes at its entry, too: a second
	// look at the same trap. pyzmq calls it without the interpreter's lock, so that plans
	// are to read only what no other thread changes.
	ZMQ string
	// Behind has the look at a function of libzmq taken when that has done its work, before
	// it returns, so that who gets the message does not wait for it. That is a trap of its
	// own; where it would not be a cheap one the look stays at the entry.
	Behind bool
	// Returns has the same read once more when the function returns; these captures
	// have the flag event.CaptureReturn. It costs a second trap per call.
	Returns bool
	// Timed has it measured how long the calls take. Objects are read when the function
	// returns, not at its entry, and these captures say how long it ran. Without probes
	// on all of its returns there is none at all.
	Timed bool
	// Off has it put in place by Reattach only.
	Off     bool
	Watches []Watch
}

func (p PythonProbe) String() string {
	if p.ZMQ != "" {
		return "libzmq:" + p.ZMQ
	}
	return p.Callable.String()
}

// Watch is code whose calls are captured: of the plans the first one whose function is
// among the innermost frames.
type Watch struct {
	Caller plan.Function
	Plans  []*plan.Plan
	// Lighter are plans to use instead where these cost too much, each lighter than the one
	// before, see Interpreter.Lighten.
	Lighter [][]*plan.Plan
}

// at returns the plans of a level, which may be lighter than there is.
func (w *Watch) at(level int) (plans []*plan.Plan, of int) {
	if of = min(level, len(w.Lighter)); of > 0 {
		return w.Lighter[of-1], of
	}
	return w.Plans, 0
}

// PythonStatus tells of one probe on an interpreter.
type PythonStatus struct {
	Callable string `json:"callable"`
	Probe    uint32 `json:"probe"` // number in captures and hits
	Addr     uint64 `json:"addr"`  // of the C function in the process, 0 if not found
	Attached bool   `json:"attached"`
	Reason   string `json:"reason,omitempty"` // why not attached
	// Returns is how many return instructions are probed, and ReturnReason why none is
	// though that was asked for.
	Returns      int    `json:"returns,omitempty"`
	ReturnReason string `json:"return_reason,omitempty"`
	// Stepped: the kernel executes the instruction at the entry and traps again, as at
	// every return. Shared: the trap at the entry is that of another probe.
	Stepped bool `json:"stepped,omitempty"`
	Shared  bool `json:"shared,omitempty"`
	// Level is 0 if all is looked at, else how much less; Less is the reason that was given.
	Level int    `json:"level,omitempty"`
	Less  string `json:"less,omitempty"`
	// Overhead is what measuring adds to each duration of a timed probe.
	Overhead time.Duration `json:"overhead,omitempty"`
	// Watches are in the order of PythonProbe.
	Watches []WatchStatus `json:"watches,omitempty"`
}

// WatchStatus tells of watched code.
type WatchStatus struct {
	Caller string       `json:"caller"`
	Code   uint64       `json:"code"`             // address of its code object, 0 if not found
	Reason string       `json:"reason,omitempty"` // why it is not watched
	Level  int          `json:"level,omitempty"`  // which of the lighter plans these are, 0: all
	Plans  []PlanStatus `json:"plans,omitempty"`
}

// PlanStatus tells of a plan. By it a capture is understood: Plan is in its record,
// and its values have the indexes of Slots.
type PlanStatus struct {
	Plan     uint32            `json:"plan"` // number in captures, 0 if it was not loaded
	Name     string            `json:"name"`
	Function string            `json:"function"` // that it reads from
	Slots    []string          `json:"slots,omitempty"`
	Dropped  map[string]string `json:"dropped,omitempty"` // slots that captures do not have, and why
	Reason   string            `json:"reason,omitempty"`  // why it was not loaded
	Absent   bool              `json:"absent,omitempty"`  // since there is no such function, as of a plan for another version
}

// CodeHits counts the calls of a probed function from one code object.
type CodeHits struct {
	Probe   uint32
	Code    uint64 // address; 0: the calling frame was not found
	Watched bool
	Count   uint64
}

// Use is how a probe was used since it was attached; nothing while it is not.
type Use struct {
	Hits     uint64        // at entry and returns together
	Returns  uint64        // of these, at returns
	Captured time.Duration // the program was at captures
}

// Use returns how probe n of the report was used.
func (i *Interpreter) Use(n int) (u Use, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return Use{}, os.ErrClosed
	}
	returns := i.probes[n].returns()
	for _, addr := range i.probes[n].at {
		at, err := i.tracer.ProbeUse(i.pid, addr)
		if err != nil {
			return Use{}, err
		}
		u.Hits += at.Hits
		u.Captured += time.Duration(at.CapturedNS)
		if slices.Contains(returns, addr) {
			u.Returns += at.Hits
		}
	}
	return u, nil
}

// ProbeTimes returns how many calls of the function of probe n of the report, which is
// timed, have ended since the probe was attached, and how long they took in all, in
// ns; none while it is not attached. What measuring adds to each call is in it.
func (i *Interpreter) ProbeTimes(n int) (calls, ns uint64, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return 0, 0, os.ErrClosed
	}
	for _, addr := range i.probes[n].returns() {
		at, err := i.tracer.ProbeUse(i.pid, addr)
		if err != nil {
			return 0, 0, err
		}
		calls, ns = calls+at.Timed, ns+at.TimedNS
	}
	return calls, ns, nil
}

// Hits counts the hits by calling code since AttachInterpreter, the most frequent first;
// where returns are probed, a call counts twice. CodeName tells whose code it is.
func (i *Interpreter) Hits() ([]CodeHits, error) {
	hits, err := i.tracer.Hits()
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	watched := map[[2]uint64]bool{}
	for _, p := range i.probes {
		for _, w := range p.status.Watches {
			if w.Code != 0 {
				watched[[2]uint64{uint64(p.status.Probe), w.Code}] = true
			}
		}
	}
	var out []CodeHits
	for _, h := range hits {
		if h.PID == i.pid {
			out = append(out, CodeHits{Probe: h.Probe, Code: h.Code, Count: h.Count, Watched: watched[[2]uint64{uint64(h.Probe), h.Code}]})
		}
	}
	return out, nil
}
