package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"inferspan/correlate/signal"
	"inferspan/probes/procfs"
	"inferspan/probes/python"
)

// Skipped is a process that looked like part of an engine and is not listed as one.
type Skipped struct {
	PID    int
	Comm   string
	Reason string
}

// Finder finds engines below a proc mount; the zero value uses /proc.
type Finder struct{ Proc procfs.FS }

// Find lists the engines on the host in the order in which they were started,
// with ids from 1 on. Processes that end meanwhile are left out. The error is
// that of listing the processes, or ctx's.
func Find(ctx context.Context) ([]Engine, []Skipped, error) { return Finder{}.Find(ctx) }

// ByPID returns the engine that a process belongs to, with the id 1. Any process
// of the engine will do, also one that only descends from it. Errors: ErrNoProcess,
// ErrNotEngine, ErrGone, os.ErrPermission; each reads as one clear line.
func ByPID(pid int) (*Engine, error) { return Finder{}.ByPID(context.Background(), pid) }

// scan is one look at the host.
type scan struct {
	fs      procfs.FS
	opener  *python.Opener
	procs   map[int]*proc             // that run code of an engine
	parent  map[int]int               // of all processes
	listen  map[string]map[uint64]int // listening sockets by network namespace
	conns   map[string]map[uint64]procfs.Conn
	skipped []Skipped
}

func (f Finder) scan(ctx context.Context) (*scan, error) {
	s := &scan{fs: f.Proc, opener: python.NewOpener(f.Proc), procs: make(map[int]*proc), parent: make(map[int]int), listen: make(map[string]map[uint64]int), conns: make(map[string]map[uint64]procfs.Conn)}
	pids, err := s.fs.PIDs()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if st, err := s.fs.Stat(pid); err == nil {
			s.parent[pid] = st.PPID
		}
		p, err := s.inspect(pid)
		switch {
		case err == nil:
			s.procs[pid] = p
		case errors.Is(err, ErrGone), errors.Is(err, python.ErrNotPython), errors.Is(err, errNoEngine), errors.Is(err, errUnread):
			// Not an engine, or none that could be told from another program.
		case errors.Is(err, os.ErrPermission):
			// Without the capability every process of another user gives this.
		default:
			s.skipped = append(s.skipped, Skipped{PID: pid, Reason: err.Error()})
		}
	}
	return s, nil
}

// Find is the method form of the function Find.
func (f Finder) Find(ctx context.Context) ([]Engine, []Skipped, error) {
	s, err := f.scan(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("finding engines: %w", err)
	}
	var engines []Engine
	for _, g := range s.groups() {
		e, reason := s.engine(g)
		if e == nil {
			for _, p := range g {
				s.skipped = append(s.skipped, Skipped{PID: p.PID, Comm: p.Comm, Reason: reason})
			}
			continue
		}
		e.ID = signal.EngineID(len(engines) + 1)
		engines = append(engines, *e)
	}
	// A gateway is no engine, but is listed with those it serves.
	s.skipped = slices.DeleteFunc(s.skipped, func(k Skipped) bool {
		return slices.ContainsFunc(engines, func(e Engine) bool {
			return slices.ContainsFunc(e.Processes, func(p Process) bool { return p.PID == k.PID })
		})
	})
	slices.SortFunc(s.skipped, func(a, b Skipped) int { return cmp.Compare(a.PID, b.PID) })
	return engines, s.skipped, nil
}

// ByPID is the method form of the function ByPID.
func (f Finder) ByPID(ctx context.Context, pid int) (*Engine, error) {
	before, err := f.Proc.Stat(pid)
	if err != nil {
		if errors.Is(err, ErrGone) {
			return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
		}
		return nil, err
	}
	if before.State == 'Z' || before.State == 'X' {
		return nil, fmt.Errorf("process %d (%s) has ended and waits for its parent: %w", pid, before.Comm, ErrGone)
	}
	if st, err := f.Proc.Status(pid); err == nil && st.TGID != pid {
		pid = st.TGID // a thread was named
	}
	s, err := f.scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding the engine of process %d: %w", pid, err)
	}
	var reason string
	for _, g := range s.groups() {
		if !slices.ContainsFunc(g, func(p *proc) bool { return p.PID == pid || p.PID == s.ancestor(pid) }) {
			continue
		}
		e, why := s.engine(g)
		if e == nil {
			reason = why
			break
		}
		if err := f.alive(pid, before, e); err != nil {
			return nil, err
		}
		e.ID = 1
		return e, nil
	}
	now, err := f.Proc.Stat(pid)
	if err != nil || now.Start != before.Start || f.Proc.Exiting(pid) {
		return nil, fmt.Errorf("process %d (%s) ended while it was looked at: %w", pid, before.Comm, ErrGone)
	}
	if reason == "" {
		reason = s.why(pid)
		var perm *permission
		if errors.As(s.inspectErr(pid), &perm) {
			return nil, perm
		}
	}
	return nil, fmt.Errorf("process %d (%s): %w: %s", pid, before.Comm, ErrNotEngine, reason)
}

// alive checks that the process and the cores of its engine still run.
func (f Finder) alive(pid int, before procfs.Stat, e *Engine) error {
	check := func(pid int, start uint64, what string) error {
		st, err := f.Proc.Stat(pid)
		if err != nil || st.Start != start || st.State == 'Z' || st.State == 'X' {
			return fmt.Errorf("%s %d ended while it was looked at: %w", what, pid, ErrGone)
		}
		return nil
	}
	if err := check(pid, before.Start, "process"); err != nil {
		return err
	}
	for _, p := range e.Processes {
		if p.Role == RoleCore {
			if err := check(p.PID, p.Start, "engine core"); err != nil {
				return err
			}
		}
	}
	return nil
}

// permission is an os.ErrPermission with what to do about it.
type permission struct {
	pid int
	err error
}

func (e *permission) Error() string {
	return fmt.Sprintf("looking at process %d: %v (needs root, or CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH)", e.pid, e.err)
}

func (e *permission) Unwrap() error { return e.err }

func (s *scan) inspectErr(pid int) error {
	_, err := s.inspect(pid)
	if errors.Is(err, os.ErrPermission) {
		return &permission{pid, err}
	}
	return err
}

// why says in a few words why a process is no engine.
func (s *scan) why(pid int) string {
	err := s.inspectErr(pid)
	switch {
	case err == nil:
		if p := s.procs[s.ancestor(pid)]; p != nil {
			return p.eng.noEngine
		}
		return "not part of an engine"
	case errors.Is(err, errNoEngine):
		p, _, _ := s.open(pid)
		return "a Python " + p + " process that has imported no engine"
	case errors.Is(err, python.ErrNotPython):
		if maps, err := s.fs.Maps(pid); err == nil && len(maps) == 0 {
			return "a kernel thread"
		}
		return "no Python interpreter is mapped"
	}
	return err.Error()
}

// open returns the version of the interpreter of a process.
func (s *scan) open(pid int) (string, *python.Interp, error) {
	maps, err := s.fs.Maps(pid)
	if err != nil {
		return "", nil, err
	}
	in, err := s.opener.Open(pid, maps)
	if err != nil {
		return "", nil, err
	}
	return in.Version, in, nil
}
