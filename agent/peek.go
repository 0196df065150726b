package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/note"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// stateEvery is how often the state of a core is read.
const stateEvery = time.Second

// coreTries is how long a core that starts is waited for, in states.
const coreTries = 600

// maxNotes bounds the notes that wait to be handed over.
const maxNotes = 256

// peeker looks into the memory of a process that runs an engine core. It is used
// by one goroutine.
type peeker interface {
	Config() note.Config
	// Requests returns the requests in the core and the CLOCK_MONOTONIC time, in
	// ns, to which their counts belong.
	Requests(now func() uint64) ([]note.Request, uint64, error)
	State() (note.State, error)
}

// peekers by kind of engine. The error wraps vllm.ErrNoCore or python.ErrGone, or
// says why the process cannot be looked at.
var peekers = map[string]func(*python.Interp) (peeker, error){
	"vllm": func(in *python.Interp) (peeker, error) { return vllm.NewPeeker(in) },
}

// peeking is the looks at all cores of an engine. They make notes, which the run
// hands over between the records of the kernel.
type peeking struct {
	stop  context.CancelFunc
	done  sync.WaitGroup
	notes chan *event.Record
}

// startPeeking begins to look at the cores of an engine, whose probes are in place:
// what comes after the first look is seen by them.
func startPeeking(ctx context.Context, e *target.Engine) *peeking {
	ctx, stop := context.WithCancel(ctx)
	p := &peeking{stop: stop, notes: make(chan *event.Record, maxNotes)}
	open := peekers[e.Kind]
	if open == nil || e.Generation == "V0" {
		return p
	}
	for i := range e.Processes {
		if q := &e.Processes[i]; q.Role == target.RoleCore && q.Python.Problem == "" {
			p.done.Go(func() { p.core(ctx, q.PID, open) })
		}
	}
	return p
}

// end stops looking and waits until no look is under way.
func (p *peeking) end() {
	p.stop()
	p.done.Wait()
}

// take hands over the notes that are there.
func (p *peeking) take(put func(*event.Record) error) error {
	for {
		select {
		case r := <-p.notes:
			if err := put(r); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// core looks at one core until ctx ends or the process is gone.
func (p *peeking) core(ctx context.Context, pid int, open func(*python.Interp) (peeker, error)) {
	id := uint32(pid)
	pk, err := p.open(ctx, pid, open)
	if ctx.Err() != nil {
		return
	}
	state := note.Probe{Detail: "peeks", Active: err == nil}
	if err != nil {
		state.Reason = err.Error()
	}
	p.send(ctx)(note.Put(note.KindProbe, id, bpf.Monotonic(), state))
	if err != nil {
		return
	}
	p.send(ctx)(note.Put(note.KindConfig, id, bpf.Monotonic(), pk.Config()))
	if reqs, at, err := pk.Requests(bpf.Monotonic); err == nil {
		records, err := note.PutRequests(id, at, reqs)
		if err == nil {
			for _, r := range records {
				p.send(ctx)(r, nil)
			}
		}
	}
	t := time.NewTicker(stateEvery)
	defer t.Stop()
	for {
		s, err := pk.State()
		if errors.Is(err, python.ErrGone) {
			return
		}
		if err == nil {
			p.send(ctx)(note.Put(note.KindState, id, bpf.Monotonic(), s))
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// open opens the core of a process, which may still have to be made.
func (p *peeking) open(ctx context.Context, pid int, open func(*python.Interp) (peeker, error)) (peeker, error) {
	t := time.NewTicker(stateEvery)
	defer t.Stop()
	var last error
	for range coreTries {
		in, err := python.Open(pid)
		if err == nil {
			var pk peeker
			if pk, err = open(in); err == nil {
				return pk, nil
			}
		}
		if last = err; errors.Is(err, python.ErrGone) || errors.Is(err, python.ErrNotPython) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.C:
		}
	}
	return nil, last
}

// send takes the result of making a note. One that cannot be made is left out.
func (p *peeking) send(ctx context.Context) func(*event.Record, error) {
	return func(r *event.Record, err error) {
		if err != nil {
			return
		}
		select {
		case p.notes <- r:
		case <-ctx.Done():
		}
	}
}
