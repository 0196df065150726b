package target

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/probes/python"
)

func TestVLLMTitles(t *testing.T) {
	for _, c := range []struct {
		title string
		role  Role
		index int
	}{
		{"VLLM::EngineCore", RoleCore, 0},
		{"VLLM::EngineCore_DP1", RoleCore, 1},
		{"my-prefix::EngineCore_DP12", RoleCore, 12},
		{"VLLM::Worker", RoleWorker, 0},
		{"VLLM::Worker_TP3", RoleWorker, 3},
		{"VLLM::Worker_DP1_PP0_TP2", RoleWorker, 2},
		{"VLLM::Worker_TP1_EP1", RoleWorker, 1},
		{"VLLM::APIServer", RoleAPIServer, 0},
		{"VLLM::APIServer_1", RoleAPIServer, 1},
		{"VLLM::DPCoordinator", RoleCoordinator, 0},
		{"VLLM::EngineCoreX", "", 0},
		{"sglang::scheduler", "", 0},
		{"/usr/bin/python3", "", 0},
		{"", "", 0},
	} {
		got, ok := vllmByTitle([]string{c.title})
		if got.role != c.role || got.index != c.index || ok != (c.role != "") {
			t.Errorf("%q: %s %d, %v; want %s %d", c.title, got.role, got.index, ok, c.role, c.index)
		}
	}
}

// framesOf gives the frames of a stack written name@file, innermost first. Files that are
// not absolute are those of packages.
func framesOf(stack string) (frames []python.Frame) {
	for _, f := range strings.Fields(stack) {
		name, file, _ := strings.Cut(f, "@")
		if !strings.HasPrefix(file, "/") {
			file = "/venv/lib/python3.12/site-packages/" + file
		}
		frames = append(frames, python.Frame{Name: name, File: file})
	}
	return frames
}

func TestVLLMStacks(t *testing.T) {
	for _, c := range []struct {
		name  string
		stack string // as framesOf takes it
		role  Role
		kind  marker
	}{
		{"core", "wait@/usr/lib/threading.py EngineCoreProc.run_busy_loop@vllm/v1/engine/core.py EngineCoreProc.run_engine_core@vllm/v1/engine/core.py spawn_main@/usr/lib/spawn.py", RoleCore, coreProc},
		{"forked core", "EngineCoreProc.run_engine_core@vllm/v1/engine/core.py run@/usr/lib/process.py run_multi_api_server@vllm/entrypoints/cli/serve.py ServeSubcommand.cmd@vllm/entrypoints/cli/serve.py", RoleCore, coreProc},
		{"core before 3.11", "run_engine_core@vllm/v1/engine/core.py", RoleCore, coreProc},
		{"worker", "WorkerProc.worker_main@vllm/v1/executor/multiproc_executor.py", RoleWorker, workerProc},
		{"API server", "Runner.run@/usr/lib/asyncio/runners.py ServeSubcommand.cmd@vllm/entrypoints/cli/serve.py main@vllm/entrypoints/cli/main.py", RoleAPIServer, serveCommand},
		{"API server of several", "run_api_server_worker_proc@vllm/v1/utils.py", RoleAPIServer, apiWorkerProc},
		{"API server as a module", "run@uvloop/__init__.py <module>@vllm/entrypoints/openai/api_server.py", RoleAPIServer, apiModule},
		{"child that imports the main module", "<module>@vllm/entrypoints/openai/api_server.py _main@/usr/lib/multiprocessing/spawn.py spawn_main@/usr/lib/multiprocessing/spawn.py", "", noMarker},
		{"launcher", "wait@/usr/lib/connection.py run_multi_api_server@vllm/entrypoints/cli/serve.py ServeSubcommand.cmd@vllm/entrypoints/cli/serve.py", RoleLauncher, multiAPI},
		{"coordinator", "DPCoordinatorProc.run_coordinator@vllm/v1/engine/coordinator.py", RoleCoordinator, coordinator},
		{"V0 engine", "run_mp_engine@vllm/engine/multiprocessing/engine.py", RoleCore, v0Engine},
		{"function of the same name elsewhere", "run_api_server_worker_proc@mine/utils.py cmd@mine/serve.py", "", noMarker},
		{"offline", "LLM.generate@vllm/entrypoints/llm.py <module>@/home/me/run.py", "", noMarker},
	} {
		got, ok := vllm.roleByStack(framesOf(c.stack))
		if got.role != c.role || got.kind != c.kind || ok != (c.role != "") {
			t.Errorf("%s: %q (%d), %v; want %q (%d)", c.name, got.role, got.kind, ok, c.role, c.kind)
		}
	}
}

// TestGroups builds process trees: "pid<parent kind", and expects groups of
// "pid:role" in order.
func TestGroups(t *testing.T) {
	kinds := map[string]struct {
		eng  *engineKind
		tree lineage
		role Role
	}{
		"core": {&vllm, inTree, RoleCore}, "worker": {&vllm, inTree, RoleWorker}, "api": {&vllm, ownTree, RoleAPIServer},
		"apiN": {&vllm, inTree, RoleAPIServer}, "launcher": {&vllm, ownTree, RoleLauncher}, "coord": {&vllm, inTree, RoleCoordinator},
		"supervisor": {&vllm, manyTrees, RoleLauncher}, "program": {&vllm, inTree, ""},
		"server": {&sglang, ownTree, RoleAPIServer}, "sched": {&sglang, inTree, RoleCore}, "detok": {&sglang, inTree, RoleDetokenizer},
		"ctrl": {&sglang, inTree, RoleController}, "gate": {&sglang, manyTrees, RoleGateway}, "script": {&sglang, inTree, ""},
	}
	for _, c := range []struct{ name, tree, want string }{
		{"serve", "10<1 api, 11<10 -, 12<10 core, 13<12 worker", "10:api_server 12:engine_core 13:worker"},
		{"two servers", "20<1 api, 22<20 core, 10<1 api, 12<10 core", "10:api_server 12:engine_core | 20:api_server 22:engine_core"},
		{"several API servers", "10<1 launcher, 11<10 apiN, 12<10 apiN, 13<10 core, 14<10 core, 15<10 coord", "10:launcher 11:api_server 12:api_server 15:dp_coordinator 13:engine_core 14:engine_core"},
		{"fork server between", "10<1 api, 11<10 -, 12<11 core", "10:api_server 12:engine_core"},
		{"offline", "10<1 program, 12<10 core, 13<12 worker", "10:offline 12:engine_core 13:worker"},
		{"imported only", "10<1 program", "10:other"},
		{"test program that starts a server", "10<1 program, 11<10 api, 12<11 core", "10:other | 11:api_server 12:engine_core"},
		{"test program with an engine of its own and a server", "10<1 program, 12<10 core, 20<10 api, 22<20 core", "10:offline 12:engine_core | 20:api_server 22:engine_core"},
		{"supervisor", "5<1 supervisor, 10<5 api, 12<10 core, 20<5 api, 22<20 core", "5:launcher | 10:api_server 12:engine_core | 20:api_server 22:engine_core"},
		{"core whose parent ended", "12<1 core, 13<12 worker", "12:engine_core 13:worker"},
		{"SGLang", "10<1 server, 11<10 -, 12<10 detok, 13<10 sched", "10:api_server 13:engine_core 12:detokenizer"},
		{"SGLang, data parallel", "10<1 server, 11<10 ctrl, 13<11 sched, 14<11 sched, 12<10 detok", "10:api_server 11:dp_controller 13:engine_core 14:engine_core 12:detokenizer"},
		{"SGLang offline", "10<1 script, 13<10 sched, 12<10 detok", "10:offline 13:engine_core 12:detokenizer"},
		{"gateway that starts servers", "5<1 gate, 10<5 server, 13<10 sched, 20<5 server, 23<20 sched", "5:gateway | 10:api_server 13:engine_core | 20:api_server 23:engine_core"},
		{"engines of two kinds from one program", "10<1 program, 12<10 core, 20<10 server, 23<20 sched", "10:offline 12:engine_core | 20:api_server 23:engine_core"},
		{"loop of parents", "10<11 core, 11<10 core", "10:engine_core | 11:engine_core"},
	} {
		s := &scan{procs: make(map[int]*proc), parent: make(map[int]int)}
		for _, one := range strings.Split(c.tree, ", ") {
			var pid, parent int
			var kind string
			if _, err := fmt.Sscanf(one, "%d<%d %s", &pid, &parent, &kind); err != nil {
				t.Fatal(err)
			}
			s.parent[pid] = parent
			if kind == "-" {
				continue
			}
			k := kinds[kind]
			p := &proc{eng: k.eng, roleOf: roleOf{role: k.role, tree: k.tree}}
			p.PID, p.PPID, p.Role, p.Start = pid, parent, p.role, uint64(pid)
			s.procs[pid] = p
		}
		var groups []string
		for _, g := range s.groups() {
			var ps []string
			for _, p := range g {
				ps = append(ps, fmt.Sprintf("%d:%s", p.PID, p.Role))
			}
			groups = append(groups, strings.Join(ps, " "))
		}
		if c.name == "loop of parents" {
			// Any grouping will do, as long as it ends and loses nobody.
			all := strings.Join(groups, " ")
			if !strings.Contains(all, "10:") || !strings.Contains(all, "11:") {
				t.Errorf("%s: %s", c.name, all)
			}
			continue
		}
		if got := strings.Join(groups, " | "); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestAncestorEnds(t *testing.T) {
	s := &scan{procs: map[int]*proc{}, parent: map[int]int{5: 6, 6: 5}}
	if a := s.ancestor(5); a != 0 {
		t.Errorf("ancestor = %d", a)
	}
	if len(s.groups()) != 0 {
		t.Error("groups of nothing")
	}
}
