package target

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
)

// proc is a process that runs vLLM code, while it is looked at.
type proc struct {
	Process
	cmdline []string // not blanked
	interp  *python.Interp
	pyErr   error          // why interp is nil
	roleOf                 // by its stack or title
	frames  []python.Frame // of the main thread, innermost first
	v0      bool
	core    python.Value // of coreInProc
}

// roleOf says what a process does and how that is known.
type roleOf struct {
	role  Role
	index int
	frame python.Frame // that shows the role; zero if the title or nothing does
	kind  marker
}

// marker is a function that only processes of one role run for good.
type marker uint8

const (
	noMarker marker = iota
	coreProc
	coreInProc // an engine core that is part of a program
	workerProc
	apiWorkerProc // one of several API servers
	serveCommand  // "vllm serve": the API server, unless a launcher's function is further in
	apiModule     // python -m vllm.entrypoints.openai.api_server
	multiAPI      // starts several API servers
	headless
	supervisor // starts whole engines
	coordinator
	v0Engine
)

// markers are the functions by which roles are known: qualified name (after the
// last dot before Python 3.11) and the end of the file's path. Where files
// moved, all places are listed (vLLM 0.6 to 0.33).
var markers = []struct {
	name, file string
	kind       marker
	role       Role
}{
	{"EngineCoreProc.run_engine_core", "vllm/v1/engine/core.py", coreProc, RoleCore},
	{"WorkerProc.worker_main", "vllm/v1/executor/multiproc_executor.py", workerProc, RoleWorker},
	{"run_api_server_worker_proc", "vllm/v1/utils.py", apiWorkerProc, RoleAPIServer},
	{"run_api_server_worker_proc", "vllm/entrypoints/cli/serve.py", apiWorkerProc, RoleAPIServer},
	{"CoordinatorProc.run_coordinator", "vllm/v1/engine/coordinator.py", coordinator, RoleCoordinator},
	{"DPCoordinatorProc.run_coordinator", "vllm/v1/engine/coordinator.py", coordinator, RoleCoordinator},
	{"run_multi_api_server", "vllm/entrypoints/cli/serve.py", multiAPI, RoleLauncher},
	{"run_headless", "vllm/entrypoints/cli/serve.py", headless, RoleLauncher},
	{"run_dp_supervisor", "vllm/entrypoints/launchers/dp_supervisor.py", supervisor, RoleLauncher},
	{"run_mp_engine", "vllm/engine/multiprocessing/engine.py", v0Engine, RoleCore},
	{"ServeSubcommand.cmd", "vllm/entrypoints/cli/serve.py", serveCommand, RoleAPIServer},
	{"serve", "vllm/scripts.py", serveCommand, RoleAPIServer},
	{"<module>", "vllm/entrypoints/openai/api_server.py", apiModule, RoleAPIServer},
}

// roleByStack finds the role in the frames of the main thread, innermost first:
// a forked child still has its parent's frames further out.
func roleByStack(frames []python.Frame) (roleOf, bool) {
	for i, f := range frames {
		if !strings.Contains(f.File, "vllm/") {
			continue
		}
		for _, m := range markers {
			if m.kind == apiModule && spawned(frames[i:]) {
				continue // a child imports its parent's main module
			}
			if (f.Name == m.name || f.Name == m.name[strings.LastIndexByte(m.name, '.')+1:]) && strings.HasSuffix(f.File, "/"+m.file) {
				return roleOf{role: m.role, frame: f, kind: m.kind}, true
			}
		}
	}
	return roleOf{}, false
}

// spawned reports whether a stack is that of a child started by multiprocessing.
func spawned(frames []python.Frame) bool {
	return slices.ContainsFunc(frames, func(f python.Frame) bool {
		return f.Name == "spawn_main" && strings.HasSuffix(f.File, "/multiprocessing/spawn.py")
	})
}

// title is what setproctitle leaves (vLLM 0.10.1 on). The prefix before "::" can
// be configured, the rest is fixed.
var title = regexp.MustCompile(`^[^ ]*::(EngineCore|Worker|APIServer|DPCoordinator)(?:_DP(\d+))?(?:_PP\d+)?(?:_TP(\d+))?(?:_(\d+))?(?:[_ ]|$)`)

func roleByTitle(cmdline []string) (roleOf, bool) {
	if len(cmdline) == 0 {
		return roleOf{}, false
	}
	m := title.FindStringSubmatch(cmdline[0])
	if m == nil {
		return roleOf{}, false
	}
	num := func(s string) int { n, _ := strconv.Atoi(s); return n }
	switch m[1] {
	case "EngineCore":
		return roleOf{role: RoleCore, index: num(m[2]), kind: coreProc}, true
	case "Worker":
		return roleOf{role: RoleWorker, index: num(m[3]), kind: workerProc}, true
	case "APIServer":
		return roleOf{role: RoleAPIServer, index: num(m[4]), kind: apiWorkerProc}, true
	}
	return roleOf{role: RoleCoordinator, kind: coordinator}, true
}

// roleByCommand guesses from the arguments that a process was started with.
func roleByCommand(cmdline []string) (roleOf, bool) {
	for i, a := range cmdline {
		switch {
		case i > 0 && a == "serve" && path.Base(cmdline[i-1]) == "vllm":
			return roleOf{role: RoleAPIServer, kind: serveCommand}, true
		case a == "vllm.entrypoints.openai.api_server":
			return roleOf{role: RoleAPIServer, kind: apiModule}, true
		}
	}
	return roleOf{}, false
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

// errNoVLLM says that a Python process has not imported vLLM.
var errNoVLLM = errors.New("vllm is not imported")

// errUnread says that a Python process, in which nothing of vLLM is mapped, could not be read.
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

// mapsVLLM reports whether a library of the vllm package is mapped.
func mapsVLLM(maps []procfs.Mapping) bool {
	for _, m := range maps {
		if strings.HasSuffix(m.Path, ".so") && strings.HasSuffix(path.Dir(m.Path), "/vllm") {
			return true
		}
	}
	return false
}

// inspect looks at one process. Errors: ErrGone, python.ErrNotPython, errNoVLLM,
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
	exe, _ := os.Readlink(s.fs.Path(pid, "exe"))
	rust := path.Base(exe) == "vllm-rs" // the front end of VLLM_USE_RUST_FRONTEND
	if !rust && !mayBePython(maps) {
		return nil, fmt.Errorf("process %d: %w", pid, python.ErrNotPython)
	}
	p := new(proc)
	p.PID, p.PPID, p.Start, p.Comm = pid, st.PPID, st.Start, st.Comm
	if rust {
		p.roleOf = roleOf{role: RoleAPIServer}
		p.Role = p.role
		return p, s.describe(p, maps)
	}
	p.interp, p.pyErr = s.opener.Open(pid, maps)
	switch {
	case errors.Is(p.pyErr, ErrGone):
		return nil, p.pyErr
	case p.pyErr != nil && !mapsVLLM(maps):
		if !errors.Is(p.pyErr, python.ErrNotPython) {
			p.pyErr = fmt.Errorf("%w: %w", errUnread, p.pyErr)
		}
		return nil, p.pyErr
	case p.pyErr == nil:
		p.Python = Python{Version: p.interp.Version, Linkage: "static", Stripped: p.interp.Stripped, Path: p.interp.Info.Path}
		if p.interp.Shared {
			p.Python.Linkage = "shared"
		}
		if _, err := p.interp.Module("vllm"); err != nil {
			if errors.Is(err, python.ErrNotFound) {
				return nil, fmt.Errorf("process %d (%s, Python %s): %w", pid, st.Comm, p.Python.Version, errNoVLLM)
			}
			return nil, err
		}
	default:
		p.Python.Problem = p.pyErr.Error()
	}
	if err := s.describe(p, maps); err != nil {
		return nil, err
	}
	s.findRole(p)
	return p, nil
}

// findRole says what the process does, by its stack first.
func (s *scan) findRole(p *proc) {
	ok := false
	if p.interp != nil {
		if frames, err := p.interp.MainFrames(); err == nil {
			p.frames = frames
			p.roleOf, ok = roleByStack(frames)
		}
	}
	if ok {
		p.liveIndex()
	} else if p.roleOf, ok = roleByTitle(p.cmdline); !ok {
		p.roleOf, _ = roleByCommand(p.cmdline)
	}
	if p.role == "" && p.interp != nil {
		if core, err := coreInside(p.interp, p.frames); err == nil {
			p.roleOf, p.core, p.InProcess = roleOf{role: RoleCore, kind: coreInProc}, core, true
		}
	}
	p.v0 = p.kind == v0Engine
	p.Role, p.Index = p.role, p.index
}

// liveIndex reads the number of the process among those of its role from the
// variables of the function that shows the role; the title is the fallback.
func (p *proc) liveIndex() {
	if t, ok := roleByTitle(p.cmdline); ok && t.role == p.role {
		p.index = t.index
	}
	read := func(v python.Value, err error) {
		if err == nil {
			if n, err := v.Int(); err == nil && n >= 0 && n < 1<<20 {
				p.index = int(n)
			}
		}
	}
	switch p.kind {
	case coreProc:
		read(p.frame.Local("dp_rank"))
	case apiWorkerProc:
		read(p.frame.Local("server_index"))
	case workerProc:
		if w, err := p.frame.Local("worker"); err == nil {
			read(w.Attr("rank"))
		}
	}
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
