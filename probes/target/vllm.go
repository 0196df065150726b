package target

import (
	"path"
	"regexp"
	"strconv"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
)

// vllm is vLLM 0.6 to 0.33.
var vllm = engineKind{
	name: "vllm", title: "vLLM", modules: []string{"vllm"}, dist: "vllm",
	versions: []string{"vllm.version", "vllm._version", "vllm"},
	markers: []markerOf{
		{"EngineCoreProc.run_engine_core", "vllm/v1/engine/core.py", coreProc, RoleCore, inTree},
		{"WorkerProc.worker_main", "vllm/v1/executor/multiproc_executor.py", workerProc, RoleWorker, inTree},
		{"run_api_server_worker_proc", "vllm/v1/utils.py", apiWorkerProc, RoleAPIServer, inTree},
		{"run_api_server_worker_proc", "vllm/entrypoints/cli/serve.py", apiWorkerProc, RoleAPIServer, inTree},
		{"CoordinatorProc.run_coordinator", "vllm/v1/engine/coordinator.py", coordinator, RoleCoordinator, inTree},
		{"DPCoordinatorProc.run_coordinator", "vllm/v1/engine/coordinator.py", coordinator, RoleCoordinator, inTree},
		{"run_multi_api_server", "vllm/entrypoints/cli/serve.py", multiAPI, RoleLauncher, ownTree},
		{"run_headless", "vllm/entrypoints/cli/serve.py", headless, RoleLauncher, ownTree},
		{"run_dp_supervisor", "vllm/entrypoints/launchers/dp_supervisor.py", supervisor, RoleLauncher, manyTrees},
		{"run_mp_engine", "vllm/engine/multiprocessing/engine.py", v0Engine, RoleCore, inTree},
		{"ServeSubcommand.cmd", "vllm/entrypoints/cli/serve.py", serveCommand, RoleAPIServer, ownTree},
		{"serve", "vllm/scripts.py", serveCommand, RoleAPIServer, ownTree},
		{"<module>", "vllm/entrypoints/openai/api_server.py", apiModule, RoleAPIServer, ownTree},
	},
	byTitle: vllmByTitle, byCommand: vllmByCommand,
	byExe: func(exe string) (roleOf, bool) {
		// The front end of VLLM_USE_RUST_FRONTEND.
		return roleOf{role: RoleAPIServer}, path.Base(exe) == "vllm-rs"
	},
	shows:    func(maps []procfs.Mapping, _ []string) bool { return packageMapped(maps, "vllm") != "" },
	refine:   vllmIndex,
	byMemory: vllmInside,
	messages: messageClasses{
		structs: []structClass{
			{"vllm.v1.engine", "EngineCoreRequest"},
			{"vllm.v1.engine", "EngineCoreOutput"},
			{"vllm.v1.engine", "EngineCoreOutputs"},
			{"vllm.v1.engine", "EngineCoreEvent"},
			{"vllm.v1.engine", "UtilityOutput"},
			{"vllm.sampling_params", "SamplingParams"},
			{"vllm.pooling_params", "PoolingParams"},
		},
		needed: []string{"EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs"},
		// The others are arrays, which carry all fields.
		omitDefaults: []string{"SamplingParams"},
		enumModule:   "vllm.v1.engine",
		enums:        []string{"EngineCoreEventType", "FinishReason", "EngineCoreRequestType"},
	},
	config:    vllmConfigure,
	tokenizer: vllmTokenizer,
	problems:  vllmProblems,
	rules:     vllmCapabilities,
	noEngine:  "vllm is imported, but no engine core, API server or worker of its runs here (an engine inside the process, VLLM_ENABLE_V1_MULTIPROCESSING=0, was not found in it)",
}

// Markers of vLLM.
const (
	coreProc      marker = iota + 1
	coreInProc           // an engine core that is part of a program
	workerProc           //
	apiWorkerProc        // one of several API servers
	serveCommand         // "vllm serve": the API server, unless a launcher's function is further in
	apiModule            // python -m vllm.entrypoints.openai.api_server
	multiAPI             // starts several API servers
	headless             //
	supervisor           // starts whole engines
	coordinator          //
	v0Engine             //
)

// vllmTitle is what setproctitle leaves (vLLM 0.10.1 on). The prefix before "::" can
// be configured, the rest is fixed.
var vllmTitle = regexp.MustCompile(`^[^ ]*::(EngineCore|Worker|APIServer|DPCoordinator)(?:_DP(\d+))?(?:_PP\d+)?(?:_TP(\d+))?(?:_(\d+))?(?:[_ ]|$)`)

func vllmByTitle(cmdline []string) (roleOf, bool) {
	if len(cmdline) == 0 {
		return roleOf{}, false
	}
	m := vllmTitle.FindStringSubmatch(cmdline[0])
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

// vllmByCommand guesses from the arguments that a process was started with.
func vllmByCommand(cmdline []string) (roleOf, bool) {
	for i, a := range cmdline {
		switch {
		case i > 0 && a == "serve" && path.Base(cmdline[i-1]) == "vllm":
			return roleOf{role: RoleAPIServer, kind: serveCommand, tree: ownTree}, true
		case a == "vllm.entrypoints.openai.api_server":
			return roleOf{role: RoleAPIServer, kind: apiModule, tree: ownTree}, true
		}
	}
	return roleOf{}, false
}

// vllmIndex reads the number of the process among those of its role from the
// variables of the function that shows the role; the title is the fallback.
func vllmIndex(p *proc) {
	if t, ok := vllmByTitle(p.cmdline); ok && t.role == p.role {
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

// vllmInside finds an engine core that is part of a program.
func vllmInside(p *proc) {
	if core, err := coreInside(p.interp, p.frames); err == nil {
		p.roleOf, p.core, p.InProcess = roleOf{role: RoleCore, kind: coreInProc}, core, true
	}
}
