package target

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
)

// Watch looks for processes that an engine starts while it runs, as a front end that
// its supervisor starts again. It is for one goroutine.
type Watch struct {
	fs     procfs.FS
	opener *python.Opener
	now    func() time.Time
	known  map[int]uint64     // processes of the engine that were found, with their start
	family map[int]bool       // those and all that descend from them
	listed map[int]bool       // processes of the host at the latest look
	coming map[int]*candidate // new descendants without a role, or not ready
}

// candidate is a process that may become one of the engine.
type candidate struct {
	start uint64
	role  Role      // at the latest look
	from  time.Time // it has that role
	first time.Time
	next  time.Time // when to look at it again
}

// A process that starts shows its role seconds before it has all that it serves with.
const (
	// fullWait is how long one with a role is waited for that has no libzmq or no port yet.
	fullWait = 30 * time.Second
	// One without a role is looked at again after this part of the time that it has been
	// there, at most so long: the older it is, the less it will get one.
	patience = 8
	lateLook = 30 * time.Second
)

// Watch begins to look for processes that e starts. Those that it has are known; others
// that descend from them may still get a role. The error is that of listing processes.
func (f Finder) Watch(e *Engine) (*Watch, error) {
	w := &Watch{fs: f.Proc, opener: python.NewOpener(f.Proc), now: time.Now, known: make(map[int]uint64), family: make(map[int]bool), listed: make(map[int]bool), coming: make(map[int]*candidate)}
	for i := range e.Processes {
		// What a gateway starts are engines of their own.
		if p := &e.Processes[i]; p.Role != RoleGateway {
			w.known[p.PID], w.family[p.PID] = p.Start, true
		}
	}
	if err := w.list(); err != nil {
		return nil, err
	}
	return w, nil
}

// list takes in which processes there are.
func (w *Watch) list() error {
	pids, err := w.fs.PIDs()
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	now := make(map[int]bool, len(pids))
	parent := make(map[int]procfs.Stat)
	for _, pid := range pids {
		now[pid] = true
		if w.listed[pid] {
			continue
		}
		if st, err := w.fs.Stat(pid); err == nil {
			parent[pid] = st
		}
	}
	for pid := range w.listed {
		if !now[pid] {
			delete(w.known, pid)
			delete(w.family, pid)
			delete(w.coming, pid)
		}
	}
	w.listed = now
	// Parents need not come before their children.
	for more := true; more; {
		more = false
		for pid, st := range parent {
			if w.family[pid] || !w.family[st.PPID] {
				continue
			}
			w.family[pid], more = true, true
			at := w.now()
			w.coming[pid] = &candidate{start: st.Start, first: at, next: at}
		}
	}
	return nil
}

// Look returns what the engine started since, once each: processes that have a role and
// what it takes to be attached to. With them come the facts of the engine as they are
// now, among them all of its processes that were found. It is to be called about once a
// second: a process has its role when two looks agree, since one that is about to run
// another program still looks like the one that it comes from.
func (w *Watch) Look(ctx context.Context) (*Engine, []Process, error) {
	if err := w.list(); err != nil {
		return nil, nil, err
	}
	s := &scan{fs: w.fs, opener: w.opener, procs: make(map[int]*proc), parent: make(map[int]int), listen: make(map[string]map[uint64]int)}
	ready := false
	for _, pid := range slices.Sorted(maps.Keys(w.coming)) {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		ready = w.coming[pid].look(s, pid, w.now()) || ready
	}
	if !ready {
		return nil, nil, nil
	}
	e := w.group(s)
	if e == nil {
		return nil, nil, nil
	}
	var fresh []Process
	for i := range e.Processes {
		p := &e.Processes[i]
		c := w.coming[p.PID]
		if c == nil || c.start != p.Start || !c.full(p, w.now()) {
			continue
		}
		fresh = append(fresh, *p)
		w.known[p.PID] = p.Start
		delete(w.coming, p.PID)
	}
	return e, fresh, nil
}

// look sees what a process has become, and reports whether it may be ready.
func (c *candidate) look(s *scan, pid int, now time.Time) bool {
	if now.Before(c.next) {
		return false
	}
	c.next = now.Add(min(now.Sub(c.first)/patience, lateLook))
	p, err := s.inspect(pid)
	if err != nil || p.Start != c.start {
		c.role = ""
		return false
	}
	s.procs[pid], s.parent[pid] = p, p.PPID
	if p.Role != "" && p.Role != RoleOther {
		c.next = now
	}
	if p.Role != c.role {
		c.role, c.from = p.Role, now
		return false
	}
	return c.full(&p.Process, now)
}

// full reports whether a process has its role for good, and what it serves with.
func (c *candidate) full(p *Process, now time.Time) bool {
	if p.Role == "" || p.Role == RoleOther || p.Role != c.role || !now.After(c.from) {
		return false
	}
	return p.ZMQ != nil && (p.Role != RoleAPIServer || len(p.Ports) > 0) || now.Sub(c.from) >= fullWait
}

// group looks at the processes of the engine once more, together with those that are
// new. nil if they are none any more.
func (w *Watch) group(s *scan) *Engine {
	for pid := range w.family {
		st, err := w.fs.Stat(pid)
		if err != nil {
			continue
		}
		s.parent[pid] = st.PPID
		if start, ok := w.known[pid]; s.procs[pid] != nil || !ok || start != st.Start {
			continue
		}
		if p, err := s.inspect(pid); err == nil {
			s.procs[pid] = p
		}
	}
	var best *Engine
	most := 0
	for _, g := range s.groups() {
		n := 0
		for _, p := range g {
			if start, ok := w.known[p.PID]; ok && start == p.Start {
				n++
			}
		}
		if n <= most {
			continue
		}
		if e, _ := s.engine(g); e != nil {
			best, most = e, n
		}
	}
	return best
}

// Joined returns e with processes that it has started, and those of its facts that it
// lacks from what it is now. Of the processes that have ended the latest stay, for what
// is still to be said of their requests.
func (e *Engine) Joined(now *Engine, fresh []Process) *Engine {
	id := e.ID
	out := *e
	if out.FactSource == "" && now.FactSource != "" {
		out = *now
		out.ID = id
	}
	out.Problems = now.Problems
	out.Processes = nil
	live := func(p *Process) bool {
		return p.Role == RoleGateway || slices.ContainsFunc(now.Processes, func(q Process) bool { return q.PID == p.PID && q.Start == p.Start })
	}
	gone := 0
	for i := range e.Processes {
		if !live(&e.Processes[i]) {
			gone++
		}
	}
	for i := range e.Processes {
		p := &e.Processes[i]
		if slices.ContainsFunc(fresh, func(q Process) bool { return q.PID == p.PID }) {
			continue // its number is that of another one now
		}
		if !live(p) {
			if gone--; gone >= maxGone {
				continue
			}
		}
		out.Processes = append(out.Processes, *p)
	}
	out.Processes = append(out.Processes, fresh...)
	slices.SortStableFunc(out.Processes, func(a, b Process) int { return cmp.Compare(rank(a.Role), rank(b.Role)) })
	return &out
}

// maxGone bounds the processes that have ended that an engine keeps.
const maxGone = 16
