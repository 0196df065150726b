package procfs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	rest := " S 41 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 38267 123 456"
	for _, c := range []struct {
		name, in string
		want     Stat
		ok       bool
	}{
		{"plain", "42 (vllm)" + rest, Stat{Comm: "vllm", State: 'S', PPID: 41, Start: 38267}, true},
		{"name with blanks and parentheses", "42 (a) b (c)" + rest, Stat{Comm: "a) b (c", State: 'S', PPID: 41, Start: 38267}, true},
		{"name with a newline", "42 (a\nb)" + rest, Stat{Comm: "a\nb", State: 'S', PPID: 41, Start: 38267}, true},
		{"empty name", "42 ()" + rest, Stat{State: 'S', PPID: 41, Start: 38267}, true},
		{"kernel thread", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 4 0 0", Stat{Comm: "kthreadd", State: 'S', Start: 4, Kernel: true}, true},
		{"no name", "42 vllm" + rest, Stat{}, false},
		{"cut", "42 (vllm) S 41 42", Stat{}, false},
		{"parent is no number", "42 (vllm) S x" + rest[5:], Stat{}, false},
		{"empty", "", Stat{}, false},
	} {
		got, err := parseStat([]byte(c.in))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestParseStatus(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     Status
		ok       bool
	}{
		{"host", "Name:\tx\nTgid:\t7\nNSpid:\t7\nUid:\t0\t1\t0\t0\nSeccomp:\t0\nCapEff:\t000001ffffffffff\n",
			Status{TGID: 7, NSPID: 7, UID: 1, CapEff: 0x1ffffffffff}, true},
		{"nested, with seccomp", "Tgid:\t700\nNSpid:\t700\t30\t7\nSeccomp:\t2\n", Status{TGID: 700, NSPID: 7, Nested: true, Seccomp: 2}, true},
		{"no namespaces", "Tgid:\t7\n", Status{TGID: 7, NSPID: 7}, true},
		{"no Tgid", "Name:\tx\n", Status{}, false},
		{"bad number", "Tgid:\tseven\n", Status{}, false},
	} {
		got, err := parseStatus([]byte(c.in))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestSplitNul(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"vllm\x00serve\x00m\x00", []string{"vllm", "serve", "m"}},
		{"python\x00-c\x00\x00x\x00", []string{"python", "-c", "", "x"}},
		{"VLLM::EngineCore" + strings.Repeat(" ", 90) + "\x00", []string{"VLLM::EngineCore"}},
		{"VLLM::Worker" + strings.Repeat("\x00", 90), []string{"VLLM::Worker"}},
		{"", nil},
	} {
		got := splitNul([]byte(c.in))
		if len(got) == 0 {
			got = nil
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("splitNul(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func TestParseMaps(t *testing.T) {
	in := `55c674aa6000-55c674aa7000 r--p 00000000 fe:00 73259                      /usr/bin/python3.12
7f7d00a54000-7f7d00ad3000 r-xp 0001c000 fe:00 999733                     /opt/a b/libzmq.so.5 (deleted)
7ffc1000-7ffc2000 rw-p 00000000 00:00 0                                  [stack]
7ffd1000-7ffd2000 rw-p 00000000 00:00 0
`
	got, err := ParseMaps(strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	dev := uint64(0xfe00)
	want := []Mapping{
		{Start: 0x55c674aa6000, End: 0x55c674aa7000, Perm: "r--p", Dev: dev, Ino: 73259, Path: "/usr/bin/python3.12"},
		{Start: 0x7f7d00a54000, End: 0x7f7d00ad3000, Perm: "r-xp", Offset: 0x1c000, Dev: dev, Ino: 999733, Path: "/opt/a b/libzmq.so.5", Deleted: true},
		{Start: 0x7ffc1000, End: 0x7ffc2000, Perm: "rw-p", Path: "[stack]"},
		{Start: 0x7ffd1000, End: 0x7ffd2000, Perm: "rw-p"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ParseMaps = %+v\nwant %+v", got, want)
	}
	if got[0].Exec() || !got[1].Exec() {
		t.Error("Exec is wrong")
	}
	if p := (FS{}).MapFile(7, got[1]); p != "/proc/7/map_files/7f7d00a54000-7f7d00ad3000" {
		t.Errorf("MapFile = %s", p)
	}
	for _, bad := range []string{"x", "1-2 r--p", "2-1 r--p 0 0:0 0", "1-2 r-- 0 0:0 0", "1-2 r--p z 0:0 0", "1-2 r--p 0 00 0", "1-2 r--p 0 0:0 x"} {
		if m, err := ParseMaps(strings.NewReader(bad)); err == nil {
			t.Errorf("ParseMaps(%q) = %+v, want an error", bad, m)
		}
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add("55c674aa6000-55c674aa7000 r--p 00000000 fe:00 73259    /usr/bin/python3.12\n")
	f.Add("7ffd1000-7ffd2000 rw-p 00000000 00:00 0\n")
	f.Fuzz(func(t *testing.T, in string) {
		maps, err := ParseMaps(strings.NewReader(in))
		if err != nil && maps != nil {
			t.Fatalf("%v and %v", maps, err)
		}
		for _, m := range maps {
			if m.End < m.Start || len(m.Perm) != 4 {
				t.Fatalf("mapping %+v", m)
			}
		}
	})
}

const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestContainerID(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"docker, v1", "9:name=systemd:/docker/" + id + "\n0::/\n", id},
		{"docker, systemd, v2", "0::/system.slice/docker-" + id + ".scope\n", id},
		{"containerd in Kubernetes, v2", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-" + id + ".scope\n", id},
		{"CRI-O with a child group", "0::/kubepods.slice/crio-" + id + ".scope/container\n", id},
		{"podman", "0::/machine.slice/libpod-" + id + ".scope/container\n", id},
		{"containerd, cgroupfs", "4:memory:/kubepods/besteffort/pod1/" + id + "\n", id},
		{"containerd, systemd driver of old", "1:name=systemd:/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:" + id + "\n", id},
		{"host", "0::/user.slice/user-1000.slice/session-3.scope\n", ""},
		{"short id", "4:memory:/process_api/b888d4928d632808816e49c08b8efc2a\n", ""},
		{"private namespace", "0::/\n", ""},
		{"upper case", "0::/docker/" + strings.ToUpper(id) + "\n", ""},
		{"empty", "", ""},
	} {
		if got := containerID([]byte(c.in)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestContainerIDFromMounts(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"docker", "715 711 254:1 /var/lib/docker/containers/" + id + "/hostname /etc/hostname rw - ext4 /dev/vda1 rw\n", id},
		{"podman", "715 711 0:24 /containers/overlay-containers/" + id + "/userdata/hosts /etc/hosts rw - tmpfs tmpfs rw\n", ""},
		{"pod, not container", "715 711 254:1 /var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/" + id + "/hostname /etc/hostname rw - ext4 /dev/vda1 rw\n", ""},
		{"host", "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n", ""},
	} {
		if got := containerIDFromMounts([]byte(c.in)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestListeners(t *testing.T) {
	table := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0000000000000000
   1: 0100007F:1F41 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 112 1 0000000000000000
   2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 113 1 0000000000000000
`
	root := t.TempDir()
	write(t, root, "5/net/tcp", table)
	write(t, root, "5/net/tcp6", "  sl\n   0: 00000000000000000000000000000000:1F42 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 114 1\n")
	if err := os.MkdirAll(filepath.Join(root, "5/fd"), 0o755); err != nil {
		t.Fatal(err)
	}
	for fd, to := range map[string]string{"0": "/dev/null", "3": "socket:[111]", "4": "socket:[112]", "5": "socket:[114]", "6": "socket:[111]"} {
		if err := os.Symlink(to, filepath.Join(root, "5/fd", fd)); err != nil {
			t.Fatal(err)
		}
	}
	f := FS{Root: root}
	listening, err := f.Listening(5)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Ports(5, listening)
	if want := []int{8000, 8002}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Ports = %v, %v; want %v", got, err, want)
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	p := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestResolve(t *testing.T) {
	proc := t.TempDir()
	write(t, proc, "5/root/blobs/abc", "blob")
	write(t, proc, "outside", "secret")
	link := func(name, to string) {
		t.Helper()
		p := filepath.Join(proc, "5/root", name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, p); err != nil {
			t.Fatal(err)
		}
	}
	link("snap/relative", "../blobs/abc")
	link("snap/absolute", "/blobs/abc")
	link("dir", "/snap")
	link("escape", "../../../outside")
	link("escape2", "/../../outside")
	link("loop", "loop")
	f := FS{Root: proc}
	for name, want := range map[string]string{
		"/blobs/abc": "/blobs/abc", "snap/relative": "/blobs/abc", "/snap/absolute": "/blobs/abc", "/dir/relative": "/blobs/abc",
		"/escape": "", "/escape2": "", "/loop": "", "/absent": "", "/blobs": "",
	} {
		got, err := f.Resolve(5, name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Resolve(%s) = %q, %v; want %q", name, got, err, want)
		}
	}
	if file, err := f.OpenInRoot(5, "/escape"); err == nil {
		t.Errorf("OpenInRoot opened %s", file.Name())
	}
	if file, err := f.OpenInRoot(5, "/snap/absolute"); err != nil {
		t.Error(err)
	} else {
		file.Close()
	}
}

func TestOpenMappedWithoutMapFiles(t *testing.T) {
	proc := t.TempDir()
	write(t, proc, "5/root/lib/a.so", "a")
	write(t, proc, "5/stat", "5 (x) S 1 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0")
	st, err := os.Stat(filepath.Join(proc, "5/root/lib/a.so"))
	if err != nil {
		t.Fatal(err)
	}
	f := FS{Root: proc}
	ino := inode(st)
	if file, p, err := f.OpenMapped(5, Mapping{Path: "/lib/a.so", Ino: ino}); err != nil || p != filepath.Join(proc, "5/root/lib/a.so") {
		t.Errorf("OpenMapped = %s, %v", p, err)
	} else {
		file.Close()
	}
	for what, m := range map[string]Mapping{"another inode": {Path: "/lib/a.so", Ino: ino + 1}, "no file": {Path: "/lib/b.so", Ino: ino}} {
		if _, _, err := f.OpenMapped(5, m); !errors.Is(err, ErrReplaced) || errors.Is(err, ErrGone) {
			t.Errorf("%s: %v, want %v", what, err, ErrReplaced)
		}
	}
	if _, _, err := f.OpenMapped(6, Mapping{Path: "/lib/a.so", Ino: ino}); !errors.Is(err, ErrGone) {
		t.Errorf("no process: %v, want %v", err, ErrGone)
	}
}

func TestGone(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Skip(err)
	}
	pid := cmd.Process.Pid
	f := FS{}
	_, e1 := f.Stat(pid)
	_, e2 := f.Maps(pid)
	_, e3 := f.Cmdline(pid)
	for _, err := range []error{e1, e2, e3} {
		if !errors.Is(err, ErrGone) {
			t.Errorf("%v, want %v", err, ErrGone)
		}
	}
}

func TestSelf(t *testing.T) {
	f := FS{}
	st, err := f.Stat(os.Getpid())
	if err != nil || st.PPID != os.Getppid() || st.Start == 0 {
		t.Errorf("Stat = %+v, %v", st, err)
	}
	maps, err := f.Maps(os.Getpid())
	if err != nil || len(maps) < 3 {
		t.Errorf("Maps = %d, %v", len(maps), err)
	}
	args, err := f.Cmdline(os.Getpid())
	if err != nil || !reflect.DeepEqual(args, os.Args) {
		t.Errorf("Cmdline = %q, %v; want %q", args, err, os.Args)
	}
	pids, err := f.PIDs()
	if err != nil || len(pids) == 0 {
		t.Errorf("PIDs = %v, %v", pids, err)
	}
}

func TestAsleep(t *testing.T) {
	for text, want := range map[string]struct {
		n  uint64
		ok bool
	}{
		"State:\tS (sleeping)\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n":   {7, true},
		"State:\tR (running)\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n":    {7, false},
		"State:\tD (disk sleep)\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n": {7, false},
		"State:\tS (sleeping)\nvoluntary_ctxt_switches:\t5\n":                                   {5, false},
		"State:\tS (sleeping)\nvoluntary_ctxt_switches:\tx\nnonvoluntary_ctxt_switches:\t2\n":   {0, false},
	} {
		if n, ok := parseAsleep([]byte(text)); n != want.n || ok != want.ok {
			t.Errorf("%q: %d, %v; want %+v", text, n, ok, want)
		}
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pid := cmd.Process.Pid
	st, err := FS{}.Status(pid)
	if err != nil {
		t.Fatal(err)
	}
	ok := false
	for range 500 {
		if _, ok = (FS{}).Asleep(pid, st.NSPID); ok {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	a, _ := (FS{}).Asleep(pid, st.NSPID)
	b, still := (FS{}).Asleep(pid, st.NSPID)
	if !ok || !still || a != b {
		t.Errorf("asleep %v, then %v after %d and %d switches", ok, still, a, b)
	}
	if _, ok := (FS{}).Asleep(pid, 1<<30); ok {
		t.Error("a thread that is not there sleeps")
	}
}

func TestParseConnections(t *testing.T) {
	got := map[uint64]Conn{}
	parseConnections([]byte("  sl  local_address rem_address   st\n"+
		"   0: 0100007F:7530 0100007F:AFC8 01 00000000:00000000 00:00000000 00000000     0        0 11 1\n"+
		"   1: 00000000:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1\n"+
		"   2: 0000000000000000FFFF00000100007F:7530 0000000000000000FFFF00000700000A:AFC8 01 0:0 00:0 0 0 0 13 1\n"+
		"   3: B80D0120000000000000000001000000:0050 B80D0120000000000000000002000000:0051 01 0:0 00:0 0 0 0 14 1\n"+
		"   4: 0100007F:7530 0100007F:AFC8 01 0:0 00:0 0 0 0 0 1\n"+
		"   5: 010000:7530 0100007F:AFC8 01 0:0 00:0 0 0 0 15 1\n"), got)
	want := map[uint64]string{11: "127.0.0.1:30000 127.0.0.1:45000", 13: "127.0.0.1:30000 10.0.0.7:45000", 14: "[2001:db8::1]:80 [2001:db8::2]:81"}
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for inode, text := range want {
		if c := got[inode]; c.Local.String()+" "+c.Remote.String() != text {
			t.Errorf("%d: %v, want %s", inode, c, text)
		}
	}
}
