package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/gpu/cuda"
	"inferspan/gpu/nvml"
	"inferspan/probes/attach"
	"inferspan/probes/attach/governor"
	"inferspan/probes/decode"
	httptap "inferspan/probes/http"
	"inferspan/probes/target"
)

// Consumer takes what a run sees, in order: facts before the records that need
// them. Records are valid only during the call.
type Consumer interface {
	// Engine announces facts. An error stops nothing: it says that the engine's
	// messages cannot be read.
	Engine(*target.Engine) error
	// Record takes one record. An error ends the run.
	Record(*event.Record) error
}

// ErrEngineExited is returned by Live.Run when the engine's processes are gone.
var ErrEngineExited = errors.New("the engine exited")

// clockEvery is how often the wall clock is compared with the monotonic one. A
// step of the wall clock shows in spans for at most this long.
const clockEvery = time.Second

// lossEvery is how often the kernel's loss counters are looked at.
const lossEvery = 50 * time.Millisecond

// answer is how long the end of the context may go unnoticed.
const answer = 100 * time.Millisecond

// answerFirst is how long it may go unnoticed that the probes are in.
const answerFirst = 10 * time.Millisecond

// LiveOptions are options of Open.
type LiveOptions struct {
	Content bool // copy whole responses
	// DetokenizeSample has it measured for one request in so many how long each of its
	// tokens took to become text, at the price of two traps for each token of all
	// requests that run meanwhile. 0: for none; the time is then worked out from what a
	// token costs on average.
	DetokenizeSample int
	// StepSource is how the steps of the scheduler are to be seen: SourceClock,
	// SourceDispatch, or SourceAuto, "" being the same: where workers are processes of
	// their own by dispatch, else by the clock.
	StepSource string
	// Budget is what probes on interpreters and on the CUDA driver may cost each process;
	// the zero value is governor.DefaultBudget.
	Budget governor.Budget
	// CUDA is the most that is looked at of what cores have their GPUs do, as far as Budget
	// allows; "" is cuda.Graph.
	CUDA cuda.Mode
	// GPUInterval is how often the GPUs of the host are read; 0: DefaultGPUInterval, less: never.
	GPUInterval time.Duration
	// GPUs opens NVML, nil being nvml.Open.
	GPUs func() (nvml.Library, error)
	// Run calls Attached once, when each interpreter has its probes or will have none, or
	// has not got them in time; the argument tells those that are still without. If that
	// takes long, it calls Waiting before, with those that it waits for. Nil is none.
	Attached, Waiting func([]Awaited)
	// Joined is called by Run for each process that the engine starts meanwhile and that
	// gets probes. Nil is none.
	Joined func(Joined)
}

// Live is an engine with probes attached. It is for one goroutine; Run may be called
// once.
type Live struct {
	// Engine is another value when the engine has started processes.
	Engine *target.Engine
	objs   *bpf.Objects
	probes map[uint32]process
	scrub  *httptap.Scrubber
	opt    LiveOptions
	inside *inside // while Run runs
	gpus   *gpus   // the same
	late   *late   // the same
	ready  readiness
	bad    uint64            // records that did not decode
	ended  map[uint32]uint64 // when processes were seen to have ended whose exit records were not seen yet
	lost   [event.LossReasons]uint64
}

// process is what is needed of an attach.Process.
type process interface {
	Report() []attach.Status
	DetachReceipts() error
	AttachReceipts() error
	Done() <-chan struct{}
	Close() error
}

// Open finds the engine that process pid belongs to and attaches to it. Errors
// wrap target's, attach's and bpf's sentinels. Close must be called.
func Open(ctx context.Context, pid int, o LiveOptions) (*Live, error) {
	e, err := target.Finder{}.ByPID(ctx, pid)
	if err != nil {
		return nil, err
	}
	objs, err := bpf.Load(bpf.Options{CaptureContent: o.Content})
	if err != nil {
		return nil, err
	}
	if o.Budget == (governor.Budget{}) {
		o.Budget = governor.DefaultBudget
	}
	l := &Live{Engine: e, objs: objs, opt: o, probes: make(map[uint32]process), scrub: httptap.NewScrubber(), ended: make(map[uint32]uint64)}
	if err := l.attach(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// attach puts probes into every process that has something to see, into all at once: the
// first messages of one are then seen in the other too. Without an engine core or an API
// server attached there is nothing to report.
func (l *Live) attach() error {
	n := len(l.Engine.Processes)
	made, errs := make([]*attach.Process, n), make([]error, n)
	var all sync.WaitGroup
	for i := range l.Engine.Processes {
		all.Go(func() { made[i], errs[i] = attach.Attach(l.objs, l.Engine.Kind, &l.Engine.Processes[i]) })
	}
	all.Wait()
	for i, a := range made {
		if a != nil {
			l.probes[uint32(l.Engine.Processes[i].PID)] = a
		}
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, attach.ErrNothing) {
			return err
		}
	}
	if len(l.probes) == 0 {
		return fmt.Errorf("attaching to process %d: %w", l.Engine.Processes[0].PID, attach.ErrNothing)
	}
	return nil
}

// Attached tells whether a process has probes.
func (l *Live) Attached(pid int) bool {
	_, ok := l.probes[uint32(pid)]
	return ok
}

// Probes tells how attaching went, as capability reports need it. What became of the
// probes on interpreters is known when Run has put them in, and changes with them.
func (l *Live) Probes() []target.ProbeState {
	var out []target.ProbeState
	for i := range l.Engine.Processes {
		p := &l.Engine.Processes[i]
		a := l.probes[uint32(p.PID)]
		if a == nil {
			continue
		}
		state := make(map[target.Tap]target.ProbeState)
		for _, s := range a.Report() {
			tap := s.Probe.Tap
			if have, ok := state[tap]; !ok || have.Attached {
				state[tap] = target.ProbeState{PID: p.PID, Tap: tap, Attached: s.Attached, Reason: s.Reason}
			}
		}
		if _, role := attach.Plan(l.Engine.Kind, p); role&bpf.RoleHTTP != 0 {
			state[target.TapHTTP] = target.ProbeState{PID: p.PID, Tap: target.TapHTTP, Attached: true}
		}
		for _, tap := range slices.Sorted(maps.Keys(state)) {
			out = append(out, state[tap])
		}
	}
	if l.inside != nil {
		out = append(out, l.inside.probeStates()...)
	}
	return out
}

// Run hands facts and records to the consumers until ctx ends (nil), the engine
// exits (ErrEngineExited) or a consumer fails. On return the probes are out of
// the engine and every record that was on the ring has been handed over.
func (l *Live) Run(ctx context.Context, consumers ...Consumer) error {
	for _, c := range consumers {
		if err := c.Engine(l.Engine); err != nil {
			l.Engine.Problems = append(l.Engine.Problems, err.Error())
		}
	}
	put := func(r *event.Record) error {
		for _, c := range consumers {
			if err := c.Record(r); err != nil {
				return err
			}
		}
		return nil
	}
	if err := put(clockRecord()); err != nil {
		return err
	}
	l.inside = lookInside(ctx, l.objs, l.Engine, l.probes, l.opt)
	l.gpus = watchGPUs(ctx, l.Engine, l.opt)
	l.late = watchLate(ctx, l.objs, l.Engine)
	err := l.read(ctx, put, func() { l.joined(consumers) })
	l.late.end()
	l.inside.end()
	l.gpus.end()
	return errors.Join(err, l.inside.take(put, 0), l.gpus.take(l.inside.order.hold), l.drain(put), l.inside.take(put, math.MaxUint64))
}

// read reads until ctx ends or nothing is attached any more. joined is to take in what
// the engine has started.
func (l *Live) read(ctx context.Context, put func(*event.Record) error, joined func()) error {
	var rec event.Record
	rd := l.objs.Reader()
	nextClock := bpf.Monotonic() + uint64(clockEvery)
	var nextLoss uint64
	for ctx.Err() == nil {
		wait := answer
		if !l.ready.end {
			wait = answerFirst
		}
		rd.SetDeadline(time.Now().Add(wait))
		var now uint64
		err := rd.Read(&rec)
		switch {
		case err == nil:
			if err := l.inside.take(put, rec.Time); err != nil {
				return err
			}
			if err := l.take(&rec, put); err != nil {
				return err
			}
			now = rec.Time
		case errors.Is(err, os.ErrDeadlineExceeded):
			now = bpf.Monotonic()
		case errors.Is(err, event.ErrMalformed):
			l.bad++
		default:
			return fmt.Errorf("reading kernel records: %w", err)
		}
		if err := l.inside.take(put, now); err != nil {
			return err
		}
		if err := l.gpus.take(l.inside.order.hold); err != nil {
			return err
		}
		joined()
		l.ready.look(&l.inside.first, &l.opt, time.Now())
		if now >= nextClock {
			nextClock, nextLoss = now+uint64(clockEvery), now+uint64(lossEvery)
			if err := l.tick(put); err != nil {
				return err
			}
			if err := l.exits(put, now); err != nil {
				return err
			}
		}
		// A request must not end as if nothing had been lost before.
		if now >= nextLoss {
			nextLoss = now + uint64(lossEvery)
			if err := l.losses(put, false); err != nil {
				return err
			}
		}
		if len(l.probes) == 0 {
			return ErrEngineExited
		}
	}
	return nil
}

// exitWait is how long the record of a process's end may be on its way.
const exitWait = time.Second

// unknownCode stands for the wait status of a process whose exit record was lost.
const unknownCode = math.MaxUint32

// exits makes exit records for processes that ended without one: it found no room
// on the ring. The kernel's records have been handed over up to seen: one that is on its way
// has a second to arrive.
func (l *Live) exits(put func(*event.Record) error, seen uint64) error {
	for _, pid := range slices.Sorted(maps.Keys(l.probes)) {
		select {
		case <-l.probes[pid].Done():
		default:
			continue
		}
		if at, known := l.ended[pid]; !known {
			l.ended[pid] = bpf.Monotonic()
			continue
		} else if seen < at+uint64(exitWait) {
			continue
		}
		r := event.Record{Header: event.Header{Time: seen, Kind: event.KindExit, PID: pid}, Code: unknownCode}
		if err := l.take(&r, put); err != nil {
			return err
		}
	}
	return nil
}

// drain takes the probes out and hands over what is still on the ring.
func (l *Live) drain(put func(*event.Record) error) error {
	for _, a := range l.probes {
		a.Close()
	}
	var rec event.Record
	rd := l.objs.Reader()
	rd.SetDeadline(time.Unix(1, 0))
	for {
		err := rd.Read(&rec)
		if errors.Is(err, event.ErrMalformed) {
			l.bad++
			continue
		}
		if err != nil {
			break
		}
		if err := l.take(&rec, put); err != nil {
			return err
		}
	}
	return l.tick(put)
}

func (l *Live) take(rec *event.Record, put func(*event.Record) error) error {
	l.scrub.Put(rec)
	if rec.Kind == event.KindExit {
		if a := l.probes[rec.PID]; a != nil {
			a.Close()
			delete(l.probes, rec.PID)
		}
	}
	if rec.Kind == event.KindCapture {
		if !l.inside.closers.keep(rec, time.Now()) {
			return nil
		}
		return l.inside.hold.capture(rec, put)
	}
	if rec.Kind == event.KindGPU && rec.GPU.What == event.GPUMark {
		return l.inside.hold.capture(rec, put)
	}
	return put(rec)
}

// tick hands over the clocks and the totals of losses.
func (l *Live) tick(put func(*event.Record) error) error {
	if err := l.inside.order.hold(clockRecord()); err != nil {
		return err
	}
	return l.losses(put, true)
}

// losses hands over the totals of losses if one has moved, or always.
func (l *Live) losses(put func(*event.Record) error, always bool) error {
	lost, err := l.objs.Losses()
	if err != nil {
		return fmt.Errorf("reading loss counters: %w", err)
	}
	if !always && lost == l.lost {
		return nil
	}
	l.lost = lost
	return put(&event.Record{Header: event.Header{Time: bpf.Monotonic(), Kind: event.KindLoss}, Lost: lost})
}

// clockRecord reads both clocks. The monotonic clock is read on both sides of the
// other, a few times: where the two are nearest to each other, the middle between
// them is the same moment to within half of their distance.
func clockRecord() *event.Record {
	const tries = 5
	var r event.Record
	best := uint64(math.MaxUint64)
	for range tries {
		before := bpf.Monotonic()
		wall := time.Now().UnixNano()
		if d := bpf.Monotonic() - before; d < best {
			best = d
			r = event.Record{Header: event.Header{Time: before + d/2, Kind: event.KindClock}, Wall: uint64(wall)}
		}
	}
	return &r
}

// Losses returns what the kernel side lost so far, by reason.
func (l *Live) Losses() []signal.LossCount {
	lost, err := l.objs.Losses()
	if err != nil {
		return nil
	}
	return append(decode.KernelLosses(nil, lost), signal.LossCount{Reason: "malformed", N: l.bad})
}

// Traps returns how often each BPF program ran; counting needs bpf.EnableStats.
func (l *Live) Traps() (map[string]bpf.ProgramStats, error) { return l.objs.Stats() }

// Close takes all probes out of the engine. Calls after the first do nothing.
func (l *Live) Close() error {
	var errs []error
	for _, a := range l.probes {
		errs = append(errs, a.Close())
	}
	return errors.Join(append(errs, l.objs.Close())...)
}
