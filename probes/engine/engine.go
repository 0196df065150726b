// Package engine says what a run needs to know of an engine to look into its
// processes. Packages below it know one engine each.
package engine

import (
	"errors"

	"inferspan/probes/note"
	"inferspan/probes/python/plan"
)

// ErrNoCore says that a process has no engine core, or not yet.
var ErrNoCore = errors.New("no engine core")

// ErrNoFront says that a process has no front end of the engine, or not yet.
var ErrNoFront = errors.New("no front end")

// Peeker looks into the memory of a process that runs an engine core, without
// stopping it. It must be used by one goroutine at a time.
type Peeker interface {
	// Config reads what the core was configured with.
	Config() note.Config
	// Requests returns the requests in the core. now reads CLOCK_MONOTONIC in ns; at
	// is the moment to which their counts of output tokens belong.
	Requests(now func() uint64) (reqs []note.Request, at uint64, err error)
	// NewRequests returns those that neither of the two returned before.
	NewRequests(now func() uint64) (reqs []note.Request, at uint64, err error)
	// State reads the state of the core.
	State() (note.State, error)
	// Probes returns what to put into the process to see more of it.
	Probes() []Probe
}

// Front looks into a process that runs a front end, or something else of the engine
// that is not a core. It must be used by one goroutine
// at a time.
type Front interface {
	// Probes returns what to put into the process to see more of it.
	Probes() []Probe
}

// Requester is a Front that can tell which requests its process has.
type Requester interface {
	// Requests is as that of a Peeker.
	Requests(now func() uint64) (reqs []note.Request, at uint64, err error)
}

// Names that a run knows in the plans of front ends: a request is about to be sent to
// the core, one of its tokens has become text, and the slot of both with its id. The
// latter may have more in it than the former's.
const (
	PlanInput  = "input"
	PlanDecode = "decode"
	SlotID     = "id"
)

// Ways to see the steps of a scheduler, Probe.Source.
const (
	SourceClock    = "clock"    // reads of the clock at both ends of a step
	SourceDispatch = "dispatch" // the message by which workers are told of a step
)

// Probe is a C function that Python code calls, and what to read when it does.
type Probe struct {
	Detail   string // what it is for, as in notes
	Callable plan.Function
	// ZMQ is a function of libzmq instead, and Behind says that it may have done its work
	// when objects are read, see attach.PythonProbe.
	ZMQ    string
	Behind bool
	// Source names one of several ways to the detail, of which one is in place at a time;
	// the earlier is better. Lacks says what it does not tell that another one does.
	Source  string
	Lacks   string
	Watches []Watch
	// Timed has it measured how long the calls take; captures are made when they end.
	Timed bool
	// Busy: calls are so many that the probe is in place for short times only, to note
	// what calls cost on average, and for the requests that are to be looked at closely.
	Busy bool
	// Waiting is code that calls the function only while it waits, and PerTurn how often
	// it does so in one turn of its loop; 0 is once.
	Waiting []Code
	PerTurn int
}

// Code names a function by its qualified name and the end of its file's path.
type Code struct{ Name, File string }

// Watch is code whose calls of a probed function are captured, by the first plan
// that applies.
type Watch struct {
	Detail string // "" is that of the probe
	Caller plan.Function
	Plans  []*plan.Plan
	// Lighter is what to look at instead where that costs too much, each lighter than the
	// one before.
	Lighter []Lighter
}

// Lighter is plans that look at less.
type Lighter struct {
	Plans []*plan.Plan
	Lacks []string // what they do not show: names of stages or attributes, or in words
}

// Levels is how many lighter things there are to look at.
func (p *Probe) Levels() (n int) {
	for i := range p.Watches {
		n = max(n, len(p.Watches[i].Lighter))
	}
	return n
}
