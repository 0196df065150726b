package attach

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf/link"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/probes/procfs"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// PythonTracer is the part of bpf.Objects that probes on an interpreter need.
type PythonTracer interface {
	Tracer
	SetInterpreter(pid int, p capture.Process) error
	RemoveInterpreter(pid int) error
	AddPlan(p *capture.Plan) (uint32, error)
	RemovePlan(id uint32)
	NewProbe() uint32
	SetProbe(pid int, addr uint64, probe, flags uint32) error
	RemoveProbe(pid int, addr uint64) error
	ProbeUse(pid int, addr uint64) (bpf.ProbeUse, error)
	Watch(pid int, probe uint32, code uint64, plans ...uint32) error
	Hits() ([]bpf.Hit, error)
}

// Interpreter is the interpreter of a process with its probes. Its methods may be
// called from several goroutines.
type Interpreter struct {
	pid    int
	tracer PythonTracer
	in     *python.Interp
	native bool // it knows the native ids of its threads
	target *target.Process
	proc   *Process // for its descriptor of the process
	done   chan struct{}

	mu     sync.Mutex
	probes []*pythonProbe
	closed bool
	err    error
}

// pythonProbe is a probe with its link.
type pythonProbe struct {
	spec    PythonProbe
	status  PythonStatus
	links   []io.Closer
	at      []uint64   // where these stand in the process: the returns first
	backs   int        // so many of them
	watched []*watched // as status.Watches
}

// returns are where it stands at returns.
func (p *pythonProbe) returns() []uint64 { return p.at[:min(p.backs, len(p.at))] }

type watched struct {
	spec Watch
	code *python.Code
	loaded
}

// AttachInterpreter puts probes on C functions that Python code of p calls. A probe,
// watch or plan that cannot be made is reported with the reason; an error is returned
// when nothing can be: it wraps ErrExited, python.ErrUnsupported, bpf.ErrPermission.
// The probes are taken out by Close, or when the process exits.
//
// in is the interpreter of p. It is read here, and again by Stale and Refresh.
func AttachInterpreter(t PythonTracer, p *target.Process, in *python.Interp, probes []PythonProbe) (_ *Interpreter, err error) {
	i := &Interpreter{pid: p.PID, tracer: t, in: in, target: p, proc: &Process{pid: p.PID}, done: make(chan struct{})}
	defer func() {
		if err == nil {
			return
		}
		if i.proc.gone() && !errors.Is(err, ErrExited) {
			err = fmt.Errorf("%w: %w", ErrExited, err)
		}
		err = fmt.Errorf("attaching to the interpreter of process %d: %w", p.PID, errors.Join(err, i.Close()))
	}()
	if err := i.proc.open(p); err != nil {
		return nil, err
	}
	layout, err := in.CaptureLayout()
	if err != nil {
		return nil, err
	}
	i.native = layout.ThreadNative >= 0
	if err := t.SetInterpreter(p.PID, layout); err != nil {
		return nil, err
	}
	maps, err := procfs.FS{}.Maps(p.PID)
	if err != nil {
		return nil, err
	}
	for _, spec := range probes {
		probe := &pythonProbe{spec: spec, status: PythonStatus{Callable: spec.String()}}
		i.probes = append(i.probes, probe)
		if err := i.attach(probe, maps); err != nil {
			probe.status.Reason = err.Error()
			if errors.Is(err, bpf.ErrPermission) || i.proc.gone() {
				return nil, err
			}
		}
	}
	if i.proc.gone() {
		return nil, ErrExited
	}
	go i.wait()
	return i, nil
}

// wait takes the probes out when the process exits. Close ends it.
func (i *Interpreter) wait() {
	defer close(i.done)
	conn, err := i.proc.pidfd.SyscallConn()
	if err != nil {
		return // closed
	}
	if conn.Read(readable) == nil {
		i.release()
	}
}

// attach resolves and attaches a probe that is not attached.
func (i *Interpreter) attach(p *pythonProbe, maps []procfs.Mapping) error {
	c, err := i.find(&p.spec, maps)
	if err != nil {
		return err
	}
	defer c.file.Close()
	exe, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", c.file.Fd()))
	if err != nil {
		return fmt.Errorf("reading %s: %w", c.path, err)
	}
	if p.status.Probe == 0 {
		p.status.Probe = i.tracer.NewProbe()
		for _, w := range p.spec.Watches {
			p.watched = append(p.watched, &watched{spec: w})
			p.status.Watches = append(p.status.Watches, WatchStatus{Caller: w.Caller.String()})
		}
		for n := range p.watched {
			i.watch(p, n)
		}
	}
	if p.spec.Off {
		p.status.Addr = c.addr
		return errOff
	}
	for _, other := range i.probes {
		if other != p && other.status.Attached && other.status.Addr == c.addr {
			return fmt.Errorf("%s is the C function of %s, which has a probe", p.spec, other.status.Callable)
		}
	}
	where, err := p.spec.points(c.file, c.off)
	p.status.Addr, p.status.Stepped, p.status.Shared = c.addr, where.stepped, p.spec.ZMQ != "" && where.entries[0] == c.off
	p.status.Returns, p.status.ReturnReason = len(where.returns), ""
	if err != nil {
		p.status.ReturnReason = err.Error()
		if p.spec.Timed {
			return err
		}
	}
	if p.spec.Timed && p.status.Overhead == 0 {
		if p.status.Overhead, err = timingOverhead(i.tracer, where.stepped); err != nil {
			return err
		}
	}
	// Returns first, so that each call that is seen to begin is seen to end.
	p.backs = len(where.returns)
	for n, at := range append(where.returns, where.entries...) {
		var flags uint32
		name := bpf.ProgPyHit
		if p.spec.ZMQ != "" {
			flags = bpf.ProbeUnlocked
		}
		if n < p.backs {
			flags |= event.CaptureReturn
		} else if p.spec.Timed {
			name = bpf.ProgPyEntry
		}
		prog := i.tracer.Program(name)
		if prog == nil {
			return errors.Join(fmt.Errorf("no BPF program %s", name), i.detach(p))
		}
		// Before the link: a hit without it would not be counted.
		if err := i.tracer.SetProbe(i.pid, c.addr+at-c.off, p.status.Probe, flags); err != nil {
			return errors.Join(err, i.detach(p))
		}
		p.at = append(p.at, c.addr+at-c.off)
		l, err := exe.Uprobe(c.name, prog, &link.UprobeOptions{Address: at, PID: i.pid})
		if err != nil {
			return errors.Join(explain(err), i.detach(p))
		}
		p.links = append(p.links, l)
	}
	p.status.Attached, p.status.Reason = true, ""
	return nil
}

// errOff is the reason of a probe that is off at first.
var errOff = errors.New("not in use")

// detach takes out what of a probe is attached.
func (i *Interpreter) detach(p *pythonProbe) error {
	errs := bpf.CloseAll(p.links)
	for _, at := range p.at {
		errs = append(errs, i.tracer.RemoveProbe(i.pid, at))
	}
	p.links, p.at = nil, nil
	p.status.Attached, p.status.Returns = false, 0
	return errors.Join(errs...)
}

// watch resolves watch n of a probe and has the kernel look for it, and undoes what an
// earlier call did.
func (i *Interpreter) watch(p *pythonProbe, n int) {
	w, s := p.watched[n], &p.status.Watches[n]
	i.unwatch(p, n)
	*s = WatchStatus{Caller: s.Caller}
	code, err := i.in.Code(w.spec.Caller.Module, w.spec.Caller.Path...)
	if err != nil {
		s.Reason = strings.TrimPrefix(err.Error(), "code of "+s.Caller+": ") // the caller stands beside it
		return
	}
	for other := range p.watched {
		if other != n && p.status.Watches[other].Code == code.Addr() {
			s.Reason = "its code is watched as that of " + p.status.Watches[other].Caller
			return
		}
	}
	l := i.load(&w.spec, p.status.Level)
	s.Plans, s.Level, w.loaded = l.status, l.level, l
	if len(w.ids) == 0 {
		s.Reason = "none of its plans can be used"
		return
	}
	if err := i.tracer.Watch(i.pid, p.status.Probe, code.Addr(), w.ids...); err != nil {
		s.Reason = err.Error()
		i.unwatch(p, n)
		return
	}
	w.code, s.Code = code, code.Addr()
}

func (i *Interpreter) unwatch(p *pythonProbe, n int) {
	w := p.watched[n]
	if w.code != nil {
		_ = i.tracer.Watch(i.pid, p.status.Probe, w.code.Addr())
	}
	for _, id := range w.ids {
		i.tracer.RemovePlan(id)
	}
	w.code, w.loaded = nil, loaded{}
}

// Report tells of each probe.
func (i *Interpreter) Report() []PythonStatus {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make([]PythonStatus, len(i.probes))
	for n, p := range i.probes {
		out[n] = p.status
		out[n].Watches = slices.Clone(p.status.Watches)
	}
	return out
}

// Detach takes probe n of the report out; its watches stay for Reattach. reason is
// what the report says from then on.
func (i *Interpreter) Detach(n int, reason string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return os.ErrClosed
	}
	p := i.probes[n]
	if p.links == nil {
		return nil
	}
	p.status.Reason = reason
	if err := i.detach(p); err != nil {
		return fmt.Errorf("detaching %s from process %d: %w", p.status.Callable, i.pid, err)
	}
	return nil
}

// Reattach attaches probe n of the report again; its count of hits begins at 0.
func (i *Interpreter) Reattach(n int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return os.ErrClosed
	}
	p := i.probes[n]
	if p.links != nil {
		return nil
	}
	p.spec.Off = false
	maps, err := procfs.FS{}.Maps(i.pid)
	if err == nil {
		err = i.attach(p, maps)
	}
	if err != nil {
		p.status.Reason = err.Error()
		return fmt.Errorf("attaching %s to process %d again: %w", p.status.Callable, i.pid, err)
	}
	return nil
}

// CodeName returns the qualified name and the file of a code object, for people:
// another one may be at its address by now.
func (i *Interpreter) CodeName(code uint64) (name, file string, err error) {
	c, err := i.in.CodeAt(code)
	if err != nil {
		return "", "", err
	}
	return c.Qualname, c.File, nil
}

// Stale returns what is no longer as it was resolved, with the reason: watched
// functions that run other code, and probed names that lead elsewhere. Refresh
// resolves them again. ErrExited if the process has ended.
func (i *Interpreter) Stale() (map[string]string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	stale := map[string]string{}
	for _, p := range i.probes {
		if p.status.Addr != 0 && p.spec.ZMQ == "" {
			c, err := i.in.Callable(p.spec.Callable.Module, p.spec.Callable.Path...)
			if errors.Is(err, python.ErrGone) {
				return nil, ErrExited
			}
			if err != nil {
				stale[p.status.Callable] = err.Error()
			} else if c.Addr != p.status.Addr {
				stale[p.status.Callable] = "calls another C function"
			}
		}
		for n, w := range p.watched {
			why, err := w.stale()
			if errors.Is(err, python.ErrGone) {
				return nil, ErrExited
			}
			if why != "" {
				stale[p.status.Watches[n].Caller] = why
			}
		}
	}
	return stale, nil
}

// stale says why the watch is to be resolved again, "" if it is not.
func (w *watched) stale() (string, error) {
	if w.code == nil {
		return "", nil
	}
	if err := w.code.Check(); err != nil {
		return err.Error(), err
	}
	for _, p := range w.programs {
		gone, err := p.Stale()
		if err != nil {
			return "", err
		}
		var all []string
		for fn, why := range gone {
			all = append(all, fn+": "+why)
		}
		if len(all) > 0 {
			slices.Sort(all)
			return strings.Join(all, "; "), nil
		}
	}
	return "", nil
}

// Refresh resolves again what is stale or was not found before: modules may have been
// loaded since. It returns whether the report has changed; the plans that are new
// there have new numbers.
func (i *Interpreter) Refresh() (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return false, os.ErrClosed
	}
	changed := false
	for _, p := range i.probes {
		for n, w := range p.watched {
			why, err := w.stale()
			if errors.Is(err, python.ErrGone) {
				return changed, ErrExited
			}
			if why == "" && w.code != nil {
				continue
			}
			before := p.status.Watches[n]
			i.watch(p, n)
			changed = changed || before.Code != p.status.Watches[n].Code || w.code != nil
		}
	}
	return changed, nil
}

// Done is closed after the process exited and its probes were taken out, or after Close.
func (i *Interpreter) Done() <-chan struct{} { return i.done }

// Close takes the probes out. Calls after the first do nothing.
func (i *Interpreter) Close() error {
	i.release()
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// release undoes everything, once.
func (i *Interpreter) release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return
	}
	i.closed = true
	var links []io.Closer
	for _, p := range i.probes {
		links = append(links, p.links...)
		p.links, p.at = nil, nil
		p.status.Attached = false
	}
	errs := bpf.CloseAll(links)
	errs = append(errs, i.tracer.RemoveInterpreter(i.pid))
	for _, p := range i.probes {
		for _, w := range p.watched {
			for _, id := range w.ids {
				i.tracer.RemovePlan(id)
			}
			w.ids = nil
		}
	}
	if i.proc.pidfd != nil {
		errs = append(errs, i.proc.pidfd.Close())
	}
	i.err = errors.Join(errs...)
}
