package target

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
)

// proc is a process that runs code of an engine, while it is looked at.
type proc struct {
	Process
	eng     *engineKind
	cmdline []string // not blanked
	interp  *python.Interp
	pyErr   error          // why interp is nil
	roleOf                 // by its stack or title
	frames  []python.Frame // of the main thread, innermost first
	v0      bool           // vLLM's former engine
	core    python.Value   // of coreInProc
}

// roleByStack finds the role in the frames of the main thread, innermost first:
// a forked child still has its parent's frames further out.
func (k *engineKind) roleByStack(frames []python.Frame) (roleOf, bool) {
	for i, f := range frames {
		for _, m := range k.markers {
			if m.name == mainModule && spawned(frames[i:]) {
				continue // a child imports its parent's main module
			}
			if (f.Name == m.name || f.Name == plainName(m.name)) && strings.HasSuffix(f.File, "/"+m.file) {
				return roleOf{role: m.role, frame: f, kind: m.kind, tree: m.tree}, true
			}
		}
	}
	return roleOf{}, false
}

// mainModule is the name of the code of a module, which ends soon in all but the main one.
const mainModule = "<module>"

// spawned reports whether a stack is that of a child started by multiprocessing.
func spawned(frames []python.Frame) bool {
	return slices.ContainsFunc(frames, func(f python.Frame) bool {
		return f.Name == "spawn_main" && strings.HasSuffix(f.File, "/multiprocessing/spawn.py")
	})
}

// Errors of ByPID, besides ErrGone.
var (
	// ErrNoProcess says that there is no process with the PID.
	ErrNoProcess = errors.New("no such process")
	// ErrNotEngine says that the process does not belong to an engine.
	ErrNotEngine = errors.New("not an engine")
	// ErrGone says that a process ended while it was looked at.
	ErrGone = procfs.ErrGone
)

// errNoEngine says that a Python process has imported no engine.
var errNoEngine = errors.New("no engine is imported")

// errUnread says that a Python process, in which nothing shows an engine, could not be read.
var errUnread = errors.New("a Python process whose interpreter cannot be read")

// mayBePython reports whether a process maps anything of a Python interpreter:
// libpython, a python executable or an extension module.
func mayBePython(maps []procfs.Mapping) bool {
	for _, m := range maps {
		if m.Ino != 0 && strings.Contains(path.Base(m.Path), "python") {
			return true
		}
	}
	return false
}

// packageMapped returns the folder of a package of which a library is mapped, "" if
// there is none.
func packageMapped(maps []procfs.Mapping, name string) string {
	for _, m := range maps {
		if d := path.Dir(m.Path); strings.HasSuffix(m.Path, ".so") && path.Base(d) == name {
			return d
		}
	}
	return ""
}

// inspect looks at one process. Errors: ErrGone, python.ErrNotPython, errNoEngine,
// or that the process may not be looked at.
func (s *scan) inspect(pid int) (*proc, error) {
	st, err := s.fs.Stat(pid)
	if err != nil {
		return nil, err
	}
	maps, err := s.fs.Maps(pid)
	if err != nil {
		return nil, err
	}
	p := new(proc)
	p.PID, p.PPID, p.Start, p.Comm = pid, st.PPID, st.Start, st.Comm
	exe, _ := os.Readlink(s.fs.Path(pid, "exe"))
	for _, k := range kinds {
		if k.byExe == nil {
			continue
		}
		if role, ok := k.byExe(exe); ok {
			p.eng, p.roleOf, p.Role = k, role, role.role
			return p, s.describe(p, maps)
		}
	}
	if !mayBePython(maps) {
		return nil, fmt.Errorf("process %d: %w", pid, python.ErrNotPython)
	}
	var of []*engineKind
	p.interp, p.pyErr = s.opener.Open(pid, maps)
	switch {
	case errors.Is(p.pyErr, ErrGone):
		return nil, p.pyErr
	case p.pyErr != nil:
		cmdline, err := s.fs.Cmdline(pid)
		if err != nil {
			return nil, err
		}
		if of = unread(maps, cmdline); len(of) == 0 {
			if !errors.Is(p.pyErr, python.ErrNotPython) {
				p.pyErr = fmt.Errorf("%w: %w", errUnread, p.pyErr)
			}
			return nil, p.pyErr
		}
		p.Python.Problem = p.pyErr.Error()
	default:
		p.Python = Python{Version: p.interp.Version, Linkage: "static", Stripped: p.interp.Stripped, Path: p.interp.Info.Path}
		if p.interp.Shared {
			p.Python.Linkage = "shared"
		}
		if of, err = imports(p.interp); err != nil {
			return nil, err
		}
		if len(of) == 0 {
			return nil, fmt.Errorf("process %d (%s, Python %s): %w", pid, st.Comm, p.Python.Version, errNoEngine)
		}
	}
	if err := s.describe(p, maps); err != nil {
		return nil, err
	}
	p.findRole(of)
	return p, nil
}

// stackTries is how often the stack of a process that says it has a role is read until
// it shows one, stackPause apart: that of a loop that never waits changes while it is read.
const (
	stackTries = 50
	stackPause = time.Millisecond
)

// readFrames reads the stack of the main thread.
func (p *proc) readFrames(of []*engineKind) {
	if p.interp == nil {
		return
	}
	role := false
	for _, k := range of {
		_, title := k.byTitle(p.cmdline)
		_, command := k.byCommand(p.cmdline)
		role = role || title || command
	}
	for n := range stackTries {
		if n > 0 {
			time.Sleep(stackPause)
		}
		if frames, err := p.interp.MainFrames(); err == nil {
			p.frames = frames
		}
		for _, k := range of {
			if _, ok := k.roleByStack(p.frames); ok {
				return
			}
		}
		if !role {
			return
		}
	}
}

// findRole says what the process does, by its stack first. of are the engines whose
// code it may run: the one that shows a role is it.
func (p *proc) findRole(of []*engineKind) {
	p.readFrames(of)
	found := func(by func(*engineKind) (roleOf, bool)) bool {
		for _, k := range of {
			if r, ok := by(k); ok {
				p.eng, p.roleOf = k, r
				return true
			}
		}
		return false
	}
	switch {
	case found(func(k *engineKind) (roleOf, bool) { return k.roleByStack(p.frames) }):
		if p.eng.refine != nil {
			p.eng.refine(p)
		}
	case found(func(k *engineKind) (roleOf, bool) { return k.byTitle(p.cmdline) }):
	case found(func(k *engineKind) (roleOf, bool) { return k.byCommand(p.cmdline) }):
	default:
		p.eng = of[0]
		for _, k := range of {
			if p.interp == nil || k.byMemory == nil {
				continue
			}
			if k.byMemory(p); p.role != "" {
				p.eng = k
				break
			}
		}
	}
	p.Role, p.Index, p.Ranks = p.role, p.index, p.ranks
}

// describe fills in what /proc says.
func (s *scan) describe(p *proc, maps []procfs.Mapping) error {
	status, err := s.fs.Status(p.PID)
	if err != nil {
		return err
	}
	p.NSPID, p.Seccomp = status.NSPID, status.Seccomp != 0
	if p.cmdline, err = s.fs.Cmdline(p.PID); err != nil {
		return err
	}
	p.Cmdline = Blank(p.cmdline)
	// The rest may be forbidden: then it is left out.
	if p.ContainerID, err = s.fs.ContainerID(p.PID); errors.Is(err, ErrGone) {
		return err
	}
	if p.Ports, err = s.ports(p.PID); errors.Is(err, ErrGone) {
		return err
	}
	if env, err := s.fs.Env(p.PID, "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"); err == nil {
		p.ServiceName, p.ResourceEnv = env["OTEL_SERVICE_NAME"], env["OTEL_RESOURCE_ATTRIBUTES"]
	}
	p.ZMQ = s.zmq(p.PID, maps)
	return nil
}

// zmq finds the libzmq that the process runs.
func (s *scan) zmq(pid int, maps []procfs.Mapping) *Library {
	for _, m := range maps {
		if !m.Exec() || m.Ino == 0 || !strings.Contains(path.Base(m.Path), "libzmq") {
			continue
		}
		lib := &Library{Path: m.Path, MapFile: s.fs.MapFile(pid, m), Dev: m.Dev, Ino: m.Ino}
		if f, p, err := s.fs.OpenMapped(pid, m); err == nil {
			lib.MapFile = p
			// On overlayfs and btrfs the numbers in maps are not those of stat.
			if st, err := f.Stat(); err == nil {
				if sys, ok := st.Sys().(*syscall.Stat_t); ok {
					lib.Dev, lib.Ino = uint64(sys.Dev), sys.Ino
				}
			}
			f.Close()
		}
		return lib
	}
	return nil
}

// ports returns the TCP ports on which a process listens. The table of a network
// namespace, which may be long, is read once.
func (s *scan) ports(pid int) ([]int, error) {
	ns, err := s.fs.NetNS(pid)
	if err != nil {
		return nil, err
	}
	if s.listen[ns] == nil {
		if s.listen[ns], err = s.fs.Listening(pid); err != nil {
			return nil, err
		}
	}
	return s.fs.Ports(pid, s.listen[ns])
}
