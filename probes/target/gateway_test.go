package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"inferspan/probes/procfs"
	"inferspan/probes/python"
	"inferspan/tests/child"
	"inferspan/tests/pythons"
)

// TestGatewayConnected: nothing but its connection says which engine a gateway is in
// front of.
func TestGatewayConnected(t *testing.T) {
	const loopback, other = "0100007F", "0700000A"
	v6 := "0000000000000000FFFF0000" + loopback
	port := func(n int) string { return fmt.Sprintf("%04X", n) }
	line := func(local, remote string, state string, inode int) string {
		return fmt.Sprintf("0: %s %s %s 0:0 00:0 0 0 0 %d 1\n", local, remote, state, inode)
	}
	client, server := loopback+":"+port(45000), loopback+":"+port(30000)
	for _, c := range []struct {
		name     string
		tcp, v6  string
		separate bool // network namespaces
		want     bool
	}{
		{"connected", line(client, server, "01", 301) + line(server, client, "01", 101), "", false, true},
		{"the server's socket is of IPv6", line(client, server, "01", 301), line(v6+":"+port(30000), v6+":"+port(45000), "01", 101), false, true},
		{"to another port of the server", line(client, loopback+":"+port(30001), "01", 301) + line(loopback+":"+port(30001), client, "01", 101), "", false, false},
		{"another process has the other end", line(client, server, "01", 301) + line(server, client, "01", 999), "", false, false},
		{"from the server", line(server, client, "01", 301) + line(client, server, "01", 101), "", false, false},
		{"about to close", line(client, server, "08", 301) + line(server, client, "04", 101), "", false, false},
		{"to another host", line(client, other+":"+port(30000), "01", 301), "", false, false},
		{"of another namespace", line(client, server, "01", 301) + line(server, client, "01", 101), "", true, false},
	} {
		tr := newTree(t)
		tr.add(made{pid: 100, ppid: 1, comm: "python", args: "/venv/bin/python -m sglang.launch_server --model-path /m", maps: sglangMaps, ports: map[int]uint64{30000: 100}})
		tr.add(made{pid: 103, ppid: 100, comm: "sglang::schedul", args: "sglang::scheduler", maps: sglangMaps})
		tr.add(made{pid: 300, ppid: 1, comm: "sglang::router", args: "sglang::router", maps: sglangMaps})
		for pid, inode := range map[int]int{100: 101, 300: 301} {
			tr.link(fmt.Sprintf("%d/fd/%d", pid, inode), fmt.Sprintf("socket:[%d]", inode))
			tr.write(fmt.Sprintf("%d/net/tcp", pid), "sl\n"+line("00000000:"+port(30000), "00000000:0000", "0A", 100)+c.tcp)
			tr.write(fmt.Sprintf("%d/net/tcp6", pid), "sl\n"+c.v6)
			if !c.separate {
				ns := fmt.Sprintf("%d/ns/net", pid)
				if err := os.Remove(filepath.Join(tr.root, ns)); err != nil {
					t.Fatal(err)
				}
				tr.link(ns, "net:[1]")
			}
		}
		engines, skipped, err := tr.finder().Find(context.Background())
		if err != nil || len(engines) != 1 {
			t.Fatalf("%s: %d engines, %v", c.name, len(engines), err)
		}
		if got := engines[0].Processes[0].PID == 300; got != c.want || (len(skipped) == 0) != c.want {
			t.Errorf("%s: listed with its engine: %v, want %v; skipped %v", c.name, got, c.want, skipped)
		}
	}
}

// router is a gateway as that of SGLang is: its title takes the place of its command line,
// and it stays in one call, with the global lock.
const router = `import ctypes, sys

class RouterArgs:
    pass

def retitle(title):
    start, end = (int(n) for n in open("/proc/self/stat").read().rpartition(")")[2].split()[45:47])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(title.encode().ljust(end - start, b"\0"))

def launch_router(router_args):
    retitle("sglang::router")
    print("up", flush=True)
    ctypes.PyDLL(None).pause()

args = RouterArgs()
args.worker_urls, args.prefill_urls, args.decode_urls = [], [("http://127.0.0.1:30001", None)], ["http://127.0.0.1:30002"]
launch_router(args)
`

// TestGatewayArguments: those of a gateway are read in its interpreter.
func TestGatewayArguments(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sglang_router", "launch_router.py")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(router), 0o644); err != nil {
		t.Fatal(err)
	}
	pythons.Each(t, func(t *testing.T, paths []string) {
		cmd := exec.Command(paths[0], "-m", "sglang_router.launch_router", "--worker-urls", "http://127.0.0.1:30000")
		cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
		gateway := child.Start(t, cmd)
		gateway.Expect("up")
		pid := gateway.PID()
		var p *proc
		var err error
		for range 500 { // until it is in the call
			s := &scan{opener: python.NewOpener(procfs.FS{}), listen: map[string]map[uint64]int{}}
			if p, err = s.inspect(pid); errors.Is(err, os.ErrPermission) {
				t.Skipf("not allowed to read a child: %v", err)
			}
			if _, asleep := s.fs.Asleep(pid, pid); asleep {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil || p.Role != RoleGateway || !slices.Equal(p.cmdline[:1], []string{"sglang::router"}) {
			t.Fatalf("gateway: %+v, %v", p, err)
		}
		for port, want := range map[int]bool{30000: true, 30001: true, 30002: true, 30003: false} {
			server := &proc{eng: &sglang}
			server.Role, server.Ports = RoleAPIServer, []int{port}
			// The id of a thread is not known in Python 3.10, and so not that it sleeps.
			if got := names(p.addresses(), []*proc{server}); got != (want && p.Python.Version >= "3.11") {
				t.Errorf("port %d: %v, want %v (Python %s)", port, got, want, p.Python.Version)
			}
		}
	})
}
