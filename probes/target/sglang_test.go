package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"inferspan/probes/procfs"
)

// ranks prints ranks as "DP0 PP1 TP2".
func ranks(r Ranks) string {
	var out []string
	for _, x := range []struct {
		name string
		n    *int
	}{{"DP", r.DP}, {"PP", r.PP}, {"TP", r.TP}} {
		if x.n != nil {
			out = append(out, fmt.Sprintf("%s%d", x.name, *x.n))
		}
	}
	return strings.Join(out, " ")
}

func TestSGLangTitles(t *testing.T) {
	for _, c := range []struct {
		title string
		role  Role
		index int
		ranks string
	}{
		{"sglang::scheduler", RoleCore, 0, ""},
		{"sglang::scheduler_DP1", RoleCore, 1, "DP1"},
		{"sglang::scheduler_TP1", RoleCore, 0, "TP1"},
		{"sglang::scheduler_DP1_PP0_TP3_EP3", RoleCore, 1, "DP1 PP0 TP3"},
		{"sglang::scheduler_ATTN_CP1_MOE_DP2_TP0", RoleCore, 0, "TP0"},
		{"sglang::scheduler  ", RoleCore, 0, ""},
		{"sglang::detokenizer", RoleDetokenizer, 0, ""},
		{"sglang::detokenizer_router", RoleRouter, 0, ""},
		{"sglang::data_parallel_controller", RoleController, 0, ""},
		{"sglang::tokenizer_worker:4711", RoleAPIServer, 0, ""},
		{"sglang::server", RoleAPIServer, 0, ""},
		{"sglang::router", RoleGateway, 0, ""},
		{"sglang::schedulers", "", 0, ""},
		{"my sglang::scheduler", "", 0, ""},
		{"VLLM::EngineCore", "", 0, ""},
		{"", "", 0, ""},
	} {
		got, ok := sglangByTitle([]string{c.title})
		if got.role != c.role || got.index != c.index || ranks(got.ranks) != c.ranks || ok != (c.role != "") {
			t.Errorf("%q: %s %d %q, %v; want %s %d %q", c.title, got.role, got.index, ranks(got.ranks), ok, c.role, c.index, c.ranks)
		}
	}
}

func TestSGLangStacks(t *testing.T) {
	const spawn = " _main@/usr/lib/multiprocessing/spawn.py spawn_main@/usr/lib/multiprocessing/spawn.py <module>@<string>"
	for _, c := range []struct {
		name  string
		stack string // as framesOf takes it
		role  Role
		tree  lineage
	}{
		// As 0.5.23 has them.
		{"server", "Runner.run@/usr/lib/asyncio/runners.py Server.run@uvicorn/server.py _setup_and_run_http_server@sglang/srt/entrypoints/http_server.py launch_server@sglang/srt/entrypoints/http_server.py run_server@sglang/launch_server.py <module>@sglang/launch_server.py", RoleAPIServer, ownTree},
		{"server that starts", "recv@/usr/lib/connection.py Engine._launch_subprocesses@sglang/srt/entrypoints/engine.py launch_server@sglang/srt/entrypoints/http_server.py run_server@sglang/launch_server.py", RoleAPIServer, ownTree},
		{"scheduler", "Scheduler.event_loop_overlap@sglang/srt/managers/scheduler.py Scheduler.run_event_loop@sglang/srt/managers/scheduler.py run_scheduler_process@sglang/srt/managers/scheduler.py BaseProcess.run@/usr/lib/multiprocessing/process.py" + spawn, RoleCore, inTree},
		{"detokenizer", "Socket.recv_pyobj@zmq/sugar/socket.py DetokenizerManager.event_loop@sglang/srt/managers/detokenizer_manager.py run_detokenizer_process@sglang/srt/managers/detokenizer_manager.py" + spawn, RoleDetokenizer, inTree},
		{"DP controller", "DataParallelController.event_loop@sglang/srt/managers/data_parallel_controller.py run_data_parallel_controller_process@sglang/srt/managers/data_parallel_controller.py" + spawn, RoleController, inTree},
		{"detokenizer router", "MultiDetokenizerRouter.event_loop@sglang/srt/managers/multi_tokenizer_mixin.py run_multi_detokenizer_router_process@sglang/srt/managers/multi_tokenizer_mixin.py" + spawn, RoleRouter, inTree},
		{"gRPC server", "Runner.run@/usr/lib/asyncio/runners.py serve_grpc@sglang/srt/entrypoints/grpc_server.py run_server@sglang/launch_server.py", RoleAPIServer, ownTree},
		{"child that imports the main module", "<module>@sglang/launch_server.py" + spawn, "", inTree},
		{"gateway", "launch_router@sglang_router/launch_router.py main@sglang_router/launch_router.py", RoleGateway, manyTrees},
		{"offline", "Engine.generate@sglang/srt/entrypoints/engine.py <module>@/home/me/run.py", "", inTree},
		{"function of the same name elsewhere", "launch_server@mine/http_server.py", "", inTree},
	} {
		got, ok := sglang.roleByStack(framesOf(c.stack))
		if got.role != c.role || got.tree != c.tree || ok != (c.role != "") {
			t.Errorf("%s: %q (%d), %v; want %q (%d)", c.name, got.role, got.tree, ok, c.role, c.tree)
		}
	}
}

// sglangMaps is what its processes map on a host without a GPU.
var sglangMaps = []string{"/usr/bin/python3.12", site + "/pyzmq.libs/libzmq-2f02442c.so.5.2.5", site + "/torch/lib/libtorch_cpu.so"}

// TestFindSGLang has the processes of three engines and a gateway, whose interpreters
// cannot be read.
func TestFindSGLang(t *testing.T) {
	tr := newTree(t)
	add := func(pid, ppid int, comm, args string, ports ...int) {
		m := made{pid: pid, ppid: ppid, comm: comm, args: args, maps: sglangMaps, ports: map[int]uint64{}}
		for _, p := range ports {
			m.ports[p] = uint64(p)
		}
		tr.add(m)
	}
	const python = "/venv/bin/python "
	add(100, 1, "python", python+"-m sglang.launch_server --model-path org/model --served-model-name front --disaggregation-mode prefill --dp-size 2", 30000)
	add(101, 100, "sglang::data_pa", "sglang::data_parallel_controller")
	add(102, 101, "sglang::schedul", "sglang::scheduler_DP1_TP0")
	add(103, 101, "sglang::schedul", "sglang::scheduler_DP0_TP1")
	add(104, 101, "sglang::schedul", "sglang::scheduler_DP0_TP0")
	add(105, 100, "sglang::detoken", "sglang::detokenizer")
	add(200, 1, "sglang", python+"/venv/bin/sglang serve /m --tokenizer-worker-num=2 --ssl-certfile c --ssl-keyfile k", 30001)
	add(201, 200, "sglang::tokeniz", "sglang::tokenizer_worker:201", 30001)
	add(202, 200, "sglang::tokeniz", "sglang::tokenizer_worker:202", 30001)
	add(203, 200, "sglang::schedul", "sglang::scheduler")
	add(300, 1, "python", python+"-m sglang_router.launch_router --worker-urls http://127.0.0.1:30000 http://10.0.0.7:30001 --port 30100", 30100)
	tr.write("200/root/m/tokenizer.json", "{}")
	tr.write("100/root"+site+"/sglang-0.5.23.dist-info/METADATA", "")
	tr.write("100/root"+site+"/sglang_router-0.3.2.dist-info/METADATA", "")
	tr.write("100/root/etc/machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda4\n")

	engines, skipped, err := tr.finder().Find(context.Background())
	if err != nil || len(engines) != 2 {
		t.Fatalf("%d engines, %v, skipped %+v", len(engines), err, skipped)
	}
	list := func(e *Engine) (out []string) {
		for _, p := range e.Processes {
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%d:%s:%s", p.PID, RoleName(e.Kind, p.Role), ranks(p.Ranks)), ":"))
		}
		return out
	}
	first, second := &engines[0], &engines[1]
	if got, want := list(first), []string{"300:gateway", "100:api_server", "101:dp_controller", "104:scheduler:DP0 TP0", "103:scheduler:DP0 TP1", "102:scheduler:DP1 TP0", "105:detokenizer"}; !slices.Equal(got, want) {
		t.Errorf("processes %v, want %v", got, want)
	}
	if first.Kind != "sglang" || first.Version != "0.5.23" || first.Model != "org/model" || !slices.Equal(first.ServedNames, []string{"front"}) ||
		first.PDRole != "producer" || first.HostID != "3d1219c7c4c5404aaa1f6d2a48adfda4" || first.Generation != "" {
		t.Errorf("engine %+v", first)
	}
	if p := first.Processes[1]; p.ZMQ == nil || p.ZMQ.Path != sglangMaps[1] || !slices.Equal(p.Ports, []int{30000}) {
		t.Errorf("API server %+v", p)
	}
	if got, want := list(second), []string{"200:launcher", "201:api_server", "202:api_server", "203:scheduler"}; !slices.Equal(got, want) {
		t.Errorf("processes %v, want %v", got, want)
	}
	if second.Model != "/m" || second.PDRole != "none" || second.HostID != "" || !second.Processes[1].TLS {
		t.Errorf("engine %+v", second)
	}
	if want := tr.root + "/200/root/m/tokenizer.json"; second.Tokenizer != want {
		t.Errorf("tokenizer %q, want %q", second.Tokenizer, want)
	}
	if len(skipped) != 0 {
		t.Errorf("skipped %+v", skipped)
	}
	if _, err := tr.finder().ByPID(context.Background(), 300); !errors.Is(err, ErrNotEngine) || !strings.Contains(err.Error(), "listed by themselves") {
		t.Errorf("ByPID(300): %v", err)
	}
	if got, err := tr.finder().ByPID(context.Background(), 203); err != nil || got.Processes[0].PID != 200 {
		t.Errorf("ByPID(203) = %v, %v", got, err)
	}
}

func TestGateways(t *testing.T) {
	server := &proc{eng: &sglang}
	server.PID, server.PPID, server.Role, server.Ports = 10, 5, RoleAPIServer, []int{30000}
	core := &proc{eng: &sglang}
	core.PID, core.PPID, core.Role, core.Ports = 11, 10, RoleCore, []int{40000}
	for _, c := range []struct {
		name, args string
		pid        int
		want       bool
	}{
		{"address", "x --worker-urls http://127.0.0.1:30000", 20, true},
		{"name of the host itself", "x --worker-urls http://localhost:30000/", 20, true},
		{"gRPC", "x --worker-urls grpc://127.0.0.1:30000", 20, true},
		{"another port", "x --worker-urls http://127.0.0.1:30001", 20, false},
		{"port of a scheduler", "x --worker-urls http://127.0.0.1:40000", 20, false},
		{"another host", "x --worker-urls http://10.1.2.3:30000", 20, false},
		{"prefill and decode", "x --prefill http://127.0.0.1:1 9001 --decode http://127.0.0.1:30000", 20, true},
		{"no address", "x --host 0.0.0.0 --port 30000", 20, false},
		{"it started the server", "x --dp-size 2", 5, true},
	} {
		gate := &proc{eng: &sglang, cmdline: strings.Fields(c.args)}
		gate.PID, gate.Role = c.pid, RoleGateway
		s := &scan{fs: procfs.FS{Root: t.TempDir()}, procs: map[int]*proc{c.pid: gate, 10: server, 11: core}, parent: map[int]int{10: 5, 5: 1, 11: 10, 20: 1}}
		if got := len(s.gatewaysOf([]*proc{server, core})) == 1; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestSettings(t *testing.T) {
	e := &Engine{Settings: map[string]any{"whole": int64(3), "json": 15.0, "half": 0.5, "text": "3"}}
	for name, want := range map[string]int64{"whole": 3, "json": 15} {
		if n, ok := e.Setting(name); !ok || n != want {
			t.Errorf("%s: %d, %v", name, n, ok)
		}
	}
	for _, name := range []string{"half", "text", "missing"} {
		if n, ok := e.Setting(name); ok {
			t.Errorf("%s: %d", name, n)
		}
	}
}
