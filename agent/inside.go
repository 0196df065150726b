package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/gpu/cuda"
	"inferspan/probes/attach"
	"inferspan/probes/engine"
	"inferspan/probes/engine/sglang"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/note"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// stateEvery is how often the state of a core is read.
const stateEvery = time.Second

// requestsEvery is how often new requests are looked for in a core that is part of a
// program. One that ends sooner is known by its steps only.
const requestsEvery = 50 * time.Millisecond

// checkEvery is how often watched functions are looked at: a module that is loaded
// again has others.
const checkEvery = 10 * time.Second

// startWait is how long a core or a front end that starts is looked for.
const startWait = 10 * time.Minute

// configTries is how often a configuration is read again that could not be read whole,
// stateEvery apart: what changes while it is looked at settles.
const configTries = 10

// configAtOnce is how often it is read again at once, some milliseconds each.
const configAtOnce = 3

// requestTries is how often requests are read again at once that change meanwhile.
const requestTries = 5

// maxNotes bounds the notes that wait to be handed over.
const maxNotes = 256

// opener finds the engine core in a process. The error wraps engine.ErrNoCore or
// python.ErrGone, or says why the process cannot be looked at.
type opener func(*python.Interp) (engine.Peeker, error)

// peekers by kind of engine.
var peekers = map[string]opener{
	"vllm":   func(in *python.Interp) (engine.Peeker, error) { return vllm.NewPeeker(in) },
	"sglang": func(in *python.Interp) (engine.Peeker, error) { return sglang.NewPeeker(in) },
}

// frontOpener finds what there is to see in a process of the engine that is not a core.
// The error wraps engine.ErrNoFront or python.ErrGone, or says why the process cannot be
// looked at.
type frontOpener func(*python.Interp) (engine.Front, error)

// fronts by kind of engine and role of the process.
var fronts = map[string]map[target.Role]frontOpener{
	"vllm": {
		target.RoleAPIServer: func(in *python.Interp) (engine.Front, error) { return vllm.NewFront(in) },
		target.RoleOffline:   func(in *python.Interp) (engine.Front, error) { return vllm.NewFront(in) },
	},
	"sglang": {
		target.RoleAPIServer:  func(in *python.Interp) (engine.Front, error) { return sglang.NewFront(in) },
		target.RoleOffline:    func(in *python.Interp) (engine.Front, error) { return sglang.NewFront(in) },
		target.RoleController: func(in *python.Interp) (engine.Front, error) { return sglang.NewController(in) },
	},
}

// insideTracer is the part of bpf.Objects that is needed.
type insideTracer interface {
	attach.PythonTracer
	cuda.Tracer
}

// inside looks into the engine cores of an engine, and has the kernel do so. What
// it sees are notes, which the run hands over between the records of the kernel.
type inside struct {
	tracer  insideTracer
	ctx     context.Context
	stop    context.CancelFunc
	done    sync.WaitGroup
	notes   chan *event.Record
	hold    holder
	opt     LiveOptions
	trap    trap
	closers closers
	first   arrivals
	awaited []*event.Record // of cores that are going to be looked into, not handed over yet
	order   order
	workers atomic.Bool // there are processes that work for the cores

	mu     sync.Mutex
	states probeStates
}

// lookInside begins to look into the cores and front ends of an engine, whose other
// probes are in place: what a request does after the first look is seen by them.
func lookInside(ctx context.Context, t insideTracer, e *target.Engine, probes map[uint32]process, o LiveOptions) *inside {
	ctx, stop := context.WithCancel(ctx)
	p := &inside{tracer: t, ctx: ctx, stop: stop, notes: make(chan *event.Record, maxNotes), opt: o}
	for i := range e.Processes {
		q := &e.Processes[i]
		p.join(e, q, probes[uint32(q.PID)])
	}
	return p
}

// join begins to look into one process of e. tap is its other probes, nil if it has none.
func (p *inside) join(e *target.Engine, q *target.Process, tap process) {
	if q.Role == target.RoleWorker {
		p.workers.Store(true)
	}
	core, front, worker := peekers[e.Kind], fronts[e.Kind][q.Role], workers[e.Kind]
	if core == nil || e.Generation == "V0" || q.Python.Problem != "" {
		return
	}
	var look func()
	switch {
	case q.Role == target.RoleCore:
		if r, err := note.Put(note.KindLook, uint32(q.PID), bpf.Monotonic(), note.Look{}); err == nil {
			p.awaited = append(p.awaited, r)
		}
		look = func() { p.core(p.ctx, q, core) }
	case front != nil:
		look = func() { p.front(p.ctx, q, tap, front) }
	case q.Role == target.RoleWorker && worker != nil && p.opt.CUDA != cuda.Off:
		// Those that do not call the CUDA driver get no probe.
		look = func() { p.worker(p.ctx, q, worker) }
	default:
		return
	}
	p.first.add(q)
	p.done.Go(look)
}

// end stops looking and takes the probes out.
func (p *inside) end() {
	p.stop()
	p.done.Wait()
}

// take hands over the notes that are there, and the captures that waited for them. The
// kernel's records have been handed over up to the time seen: what a core's state was later
// waits until they have come that far, as all that is held in order.
func (p *inside) take(put func(*event.Record) error, seen uint64) error {
	for ; len(p.awaited) > 0; p.awaited = p.awaited[1:] {
		if err := put(p.awaited[0]); err != nil {
			return err
		}
	}
	if err := p.order.take(put, seen); err != nil {
		return err
	}
	return takeNotes(p.notes, func(r *event.Record) error {
		if note.Kind(r.Note) == note.KindState && (r.Time > seen || len(p.order.records) > 0) {
			return p.order.hold(r)
		}
		if err := put(r); err != nil {
			return err
		}
		return p.hold.note(r, put)
	})
}

// core looks into one core until ctx ends or the process is gone.
func (p *inside) core(ctx context.Context, proc *target.Process, open opener) {
	pid := uint32(proc.PID)
	defer p.first.done(proc.PID)
	work := p.gpuWork(proc)
	defer work.close()
	in, pk, err := openIn(ctx, &p.first, proc.PID, func(in *python.Interp) (engine.Peeker, error) {
		pk, err := open(in)
		if errors.Is(err, engine.ErrNoCore) {
			work.start(ctx) // it loads its kernels and makes its graphs, maybe
		}
		return pk, err
	})
	if ctx.Err() != nil {
		return
	}
	p.probe(ctx, pid, note.Probe{Detail: signal.DetailPeeks, Active: err == nil, Reason: text(err)})
	if err != nil {
		return
	}
	// Before the probes: spans have the configuration, and steps that are made until the
	// probes are in are known to be missing by the number of the latest one.
	config := p.configure(ctx, pid, pk)
	if s, err := pk.State(); err == nil {
		p.send(ctx)(note.Put(note.KindState, pid, bpf.Monotonic(), s))
	}
	if proc.InProcess {
		// Steps that are seen before the next look are of these.
		p.requests(ctx, pid, outlines(pk.Requests))
	}
	w := p.attach(ctx, proc, in, pk.Probes())
	defer w.close()
	work.govern(w.governor)
	work.look(ctx)
	looked := p.requests(ctx, pid, pk.Requests)
	p.first.done(proc.PID)
	// A core in a program sends no messages: its requests are seen only by looking.
	look := make(<-chan time.Time)
	if proc.InProcess {
		t := time.NewTicker(requestsEvery)
		defer t.Stop()
		look = t.C
	}
	state, check := time.NewTicker(stateEvery), time.NewTicker(checkEvery)
	defer state.Stop()
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look:
			p.requests(ctx, pid, pk.NewRequests)
		case <-check.C:
			w.refresh(ctx)
		case <-state.C:
			w.tick(ctx)
			work.look(ctx)
			config.again(ctx)
			if !looked {
				looked = p.requests(ctx, pid, pk.Requests)
			}
			s, err := pk.State()
			if errors.Is(err, python.ErrGone) {
				return
			}
			if err == nil {
				p.send(ctx)(note.Put(note.KindState, pid, bpf.Monotonic(), s))
			}
		}
	}
}

// configuring is the configuration of a core as far as it has been read.
type configuring struct {
	inside *inside
	pid    uint32
	read   func() note.Config
	config note.Config
	tries  int
}

// configure sends the configuration of a core.
func (p *inside) configure(ctx context.Context, pid uint32, pk engine.Peeker) *configuring {
	c := &configuring{inside: p, pid: pid, read: pk.Config, config: pk.Config()}
	for range configAtOnce {
		if len(c.config.Missing) > 0 {
			c.config.Complete(pk.Config())
		}
	}
	c.send(ctx)
	return c
}

func (c *configuring) send(ctx context.Context) {
	c.inside.send(ctx)(note.Put(note.KindConfig, c.pid, bpf.Monotonic(), c.config))
}

// again reads what could not be read before, and sends another note if there is more.
func (c *configuring) again(ctx context.Context) {
	if len(c.config.Missing) == 0 || c.tries >= configTries {
		return
	}
	c.tries++
	if c.config.Complete(c.read()) {
		c.send(ctx)
	}
}

// lookAt reads requests, as Requests of an engine.Peeker does.
type lookAt func(now func() uint64) ([]note.Request, uint64, error)

// outlines gives what does not change of requests. Counts before the probes are in would
// be taken for those that outputs add up to: some may come in between.
func outlines(read lookAt) lookAt {
	return func(now func() uint64) ([]note.Request, uint64, error) {
		reqs, at, err := read(now)
		for i := range reqs {
			r := &reqs[i]
			r.Computed, r.Output, r.Cached, r.Preemptions, r.Events = nil, nil, nil, nil, nil
		}
		return reqs, at, err
	}
}

// requests sends notes of requests. It reports false if they could not be read: a core
// that adds many at once changes where they are faster than they can be read.
func (p *inside) requests(ctx context.Context, pid uint32, read lookAt) bool {
	reqs, at, err := read(bpf.Monotonic)
	for range requestTries {
		if err == nil || errors.Is(err, python.ErrGone) {
			break
		}
		reqs, at, err = read(bpf.Monotonic)
	}
	if err != nil {
		return false
	}
	records, err := note.PutRequests(pid, at, reqs)
	if err != nil {
		return false
	}
	for _, r := range records {
		p.send(ctx)(r, nil)
	}
	return true
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// probeStates returns what became of the probes.
func (p *inside) probeStates() []target.ProbeState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.states)
}

// probe sends a note about probes.
func (p *inside) probe(ctx context.Context, pid uint32, n note.Probe) {
	if s, ok := stateOf(pid, n.Detail, n.Active, n.Reason, n.Less, n.Why); ok {
		p.mu.Lock()
		p.states.put(s)
		p.mu.Unlock()
	}
	p.send(ctx)(note.Put(note.KindProbe, pid, bpf.Monotonic(), n))
}

// send takes the result of making a note. One that cannot be made is left out.
func (p *inside) send(ctx context.Context) func(*event.Record, error) {
	return func(r *event.Record, err error) { sendNote(ctx, p.notes, r, err) }
}

// sendNote hands a note to the run, or its making's error, which leaves it out.
func sendNote(ctx context.Context, to chan<- *event.Record, r *event.Record, err error) {
	if err != nil {
		return
	}
	select {
	case to <- r:
	case <-ctx.Done():
	}
}

// takeNotes hands over the notes that are there.
func takeNotes(from <-chan *event.Record, put func(*event.Record) error) error {
	for {
		select {
		case r := <-from:
			if err := put(r); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}
