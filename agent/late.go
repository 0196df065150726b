package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"inferspan/bpf"
	"inferspan/probes/attach"
	"inferspan/probes/target"
)

// lateEvery is how often new processes of the engine are looked for.
const lateEvery = time.Second

// late finds processes that the engine starts while it is traced, and attaches to them. The
// run is told first, so that consumers know a process before its records come.
type late struct {
	found chan found
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// found is what the run is told of new processes.
type found struct {
	engine *target.Engine  // facts with the new processes; nil: they have been told
	told   chan<- struct{} // closed when consumers know
	proc   *target.Process // has been attached to, or could not be
	probes *attach.Process // nil: nothing is to be seen in its messages and sockets
	err    error           // why, but for attach.ErrNothing
}

// watchLate begins to look for processes that e starts.
func watchLate(ctx context.Context, objs *bpf.Objects, e *target.Engine) *late {
	ctx, stop := context.WithCancel(ctx)
	l := &late{found: make(chan found), stop: stop}
	w, err := target.Finder{}.Watch(e)
	if err != nil {
		return l // without /proc nothing else would be there either
	}
	l.done.Go(func() {
		t := time.NewTicker(lateEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			now, fresh, err := w.Look(ctx)
			if err != nil || len(fresh) == 0 {
				continue
			}
			e = e.Joined(now, fresh)
			if !l.attach(ctx, objs, e, fresh) {
				return
			}
		}
	})
	return l
}

// attach tells the run of new processes, attaches to them and hands over what that gave.
// False: the run ends.
func (l *late) attach(ctx context.Context, objs *bpf.Objects, e *target.Engine, fresh []target.Process) bool {
	told := make(chan struct{})
	if !l.send(ctx, found{engine: e, told: told}) {
		return false
	}
	select {
	case <-told:
	case <-ctx.Done():
		return false
	}
	for i := range fresh {
		f := found{proc: &fresh[i]}
		f.probes, f.err = attach.Attach(objs, e.Kind, f.proc)
		if errors.Is(f.err, attach.ErrNothing) {
			f.err = nil
		}
		if !l.send(ctx, f) {
			if f.probes != nil {
				f.probes.Close()
			}
			return false
		}
	}
	return true
}

func (l *late) send(ctx context.Context, f found) bool {
	select {
	case l.found <- f:
		return true
	case <-ctx.Done():
		return false
	}
}

// end stops looking.
func (l *late) end() {
	l.stop()
	l.done.Wait()
}

// joined takes in what is new of the engine's processes.
func (l *Live) joined(consumers []Consumer) {
	for {
		select {
		case f := <-l.late.found:
			l.join(f, consumers)
		default:
			return
		}
	}
}

func (l *Live) join(f found, consumers []Consumer) {
	if f.engine != nil {
		l.Engine = f.engine
		for _, c := range consumers {
			if err := c.Engine(f.engine); err != nil {
				f.engine.Problems = append(f.engine.Problems, err.Error())
			}
		}
		close(f.told)
		return
	}
	var tap process
	if f.probes != nil {
		tap = f.probes
		l.probes[uint32(f.proc.PID)] = tap
		delete(l.ended, uint32(f.proc.PID))
	}
	if l.opt.Joined != nil {
		l.opt.Joined(Joined{PID: f.proc.PID, Role: f.proc.Role, Err: f.err})
	}
	if errors.Is(f.err, attach.ErrExited) {
		return
	}
	l.inside.join(l.Engine, f.proc, tap)
	l.gpus.join(f.proc.PID)
}

// Joined is a process that the engine started while it was traced.
type Joined struct {
	PID  int
	Role target.Role
	Err  error // why nothing is seen of its messages and sockets; nil: it is, or there is nothing to see
}
