package host

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const childEnv = "INFERSPAN_TEST_DROP_CAPS"

// TestMain is also the child that looks at the host without some capabilities: a
// hexadecimal mask in the environment says which it keeps.
func TestMain(m *testing.M) {
	mask := os.Getenv(childEnv)
	if mask == "" {
		os.Exit(m.Run())
	}
	var keep uint64
	for _, c := range mask {
		keep = keep<<4 | uint64(strings.IndexRune("0123456789abcdef", c))
	}
	if err := dropCaps(keep); err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(Check(context.Background())); err != nil {
		panic(err)
	}
	os.Exit(0)
}

func dropCaps(keep uint64) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	for i := range data {
		part := uint32(keep >> (32 * i))
		data[i].Effective &= part
		data[i].Permitted &= part
	}
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func checkWith(t *testing.T, keep string) Report {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to drop capabilities")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+keep)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func state(t *testing.T, r *Report, name string, want State, detail string) {
	t.Helper()
	it := r.Item(name)
	if it == nil {
		t.Errorf("no item %q", name)
		return
	}
	if it.State != want || !strings.Contains(it.Detail+" "+it.Fix, detail) {
		t.Errorf("%s is %s (%s; %s), want %s with %q", name, it.State, it.Detail, it.Fix, want, detail)
	}
}

func TestWithoutCapabilities(t *testing.T) {
	// Items that do not hold for the whole process would be wrong here.
	all := Check(context.Background())
	if !all.Usable() {
		t.Skipf("this host is not usable even with all capabilities: %+v", all.Items)
	}
	t.Run("none", func(t *testing.T) {
		r := checkWith(t, "0")
		for _, name := range []string{"CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"} {
			state(t, &r, name, Missing, "grant "+name)
		}
		for _, name := range []string{"CAP_CHECKPOINT_RESTORE", "CAP_DAC_READ_SEARCH"} {
			state(t, &r, name, Degraded, "grant "+name)
		}
		state(t, &r, Uprobe, Missing, "not permitted")
		state(t, &r, Uprobe, Missing, "CAP_BPF")
		state(t, &r, Syscalls, Missing, "")
		if r.Usable() {
			t.Error("the host is said to be usable without capabilities")
		}
	})
	t.Run("admin stands in", func(t *testing.T) {
		// CAP_SYS_ADMIN (21), CAP_SYS_PTRACE (19), CAP_DAC_OVERRIDE (1)
		r := checkWith(t, "280002")
		state(t, &r, "CAP_BPF", OK, "stands in")
		state(t, &r, "CAP_PERFMON", OK, "stands in")
		state(t, &r, "CAP_SYS_PTRACE", OK, "")
		state(t, &r, Uprobe, OK, "")
		if !r.Usable() {
			t.Errorf("not usable: %+v", r.Items)
		}
	})
	t.Run("without admin", func(t *testing.T) {
		r := checkWith(t, "1ffffdfffff")
		if r.OK(Uprobe) {
			state(t, &r, "CAP_SYS_ADMIN", OK, "not needed")
			return
		}
		state(t, &r, "CAP_SYS_ADMIN", Missing, "grant CAP_SYS_ADMIN")
		state(t, &r, Uprobe, Missing, "not permitted")
		state(t, &r, Uprobe, Missing, "with CAP_SYS_ADMIN")
	})
	t.Run("without ptrace", func(t *testing.T) {
		r := checkWith(t, "1fffff7ffff")
		state(t, &r, "CAP_SYS_PTRACE", Missing, "grant CAP_SYS_PTRACE")
		state(t, &r, Uprobe, OK, "")
		if r.Usable() {
			t.Error("the host is said to be usable without CAP_SYS_PTRACE")
		}
	})
}

// fake is a host of files.
type fake struct {
	t    *testing.T
	root string
}

func (f fake) write(name, text string) {
	f.t.Helper()
	p := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f fake) check() Report {
	return Checker{Proc: filepath.Join(f.root, "proc"), Sys: filepath.Join(f.root, "sys"), Root: f.root, Passive: true}.Check(context.Background())
}

func TestFakeHost(t *testing.T) {
	f := fake{t, t.TempDir()}
	f.write("proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n")
	f.write("proc/self/mountinfo", "")
	f.write("proc/sys/kernel/unprivileged_bpf_disabled", "2\n")
	f.write("proc/sys/kernel/perf_event_paranoid", "4\n")
	f.write("proc/sys/kernel/yama/ptrace_scope", "3\n")
	f.write("sys/kernel/security/lockdown", "none integrity [confidentiality]\n")
	if err := os.MkdirAll(filepath.Join(f.root, "proc/self/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("pid:[4026532000]", filepath.Join(f.root, "proc/self/ns/pid")); err != nil {
		t.Fatal(err)
	}
	r := f.check()
	state(t, &r, BTF, Missing, "CONFIG_DEBUG_INFO_BTF")
	state(t, &r, TraceFS, Missing, "mount -t tracefs")
	state(t, &r, BPFFS, Degraded, "not mounted")
	state(t, &r, PIDNamespace, Degraded, "hostPID")
	state(t, &r, Lockdown, Missing, "lockdown=integrity")
	state(t, &r, Unprivileged, Degraded, "2")
	state(t, &r, Paranoid, Degraded, "4")
	state(t, &r, Yama, Missing, "reboot")
	state(t, &r, NVML, Missing, "not found")
	state(t, &r, "CAP_BPF", Missing, "grant")
	if r.Item(Uprobe) != nil {
		t.Error("a passive check tried a uprobe")
	}
	if r.Usable() || r.OK(BTF) || !r.OK("no such item") {
		t.Error("Usable or OK is wrong")
	}

	trace := filepath.Join(f.root, "trace fs")
	f.write("trace fs/events/header", "")
	f.write("proc/self/status", "CapEff:\t000001ffffffffff\n")
	f.write("proc/self/mountinfo", "31 1 0:1 / /sys/fs/bpf rw - bpf bpf rw\n32 1 0:2 / "+strings.ReplaceAll(trace, " ", `\040`)+" rw,relatime shared:1 - tracefs tracefs rw\n")
	f.write("sys/kernel/btf/vmlinux", "btf")
	f.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
	f.write("usr/lib64/libnvidia-ml.so.1", "")
	r = f.check()
	state(t, &r, BTF, OK, "vmlinux")
	state(t, &r, TraceFS, OK, trace)
	state(t, &r, BPFFS, OK, "/sys/fs/bpf")
	state(t, &r, Lockdown, Degraded, "integrity")
	state(t, &r, Paranoid, OK, "4")
	state(t, &r, NVML, Degraded, "/dev/nvidiactl")
	state(t, &r, "CAP_BPF", OK, "")
	f.write("dev/nvidiactl", "")
	r = f.check()
	state(t, &r, NVML, OK, "libnvidia-ml.so.1")
}

func TestCheckKernel(t *testing.T) {
	for release, want := range map[string]State{
		"6.18.44-fc": OK, "5.10.0-28-amd64": OK, "5.9.16": Missing, "5.8.0": Missing, "4.18.0-553.el8": Missing, "garbage": Degraded, "": Degraded,
	} {
		if it := checkKernel(release); it.State != want || it.State == Missing && it.Fix == "" {
			t.Errorf("kernel %q: %+v, want %s", release, it, want)
		}
	}
}

func TestCheckStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r := Check(ctx); len(r.Items) != 0 {
		t.Errorf("%d items after the context ended", len(r.Items))
	}
}

func TestWithin(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	if err, done := within(time.Millisecond, func() error { <-block; return nil }); done || err != nil {
		t.Errorf("within = %v, %v", err, done)
	}
	if err, done := within(time.Minute, func() error { return unix.EPERM }); !done || err != unix.EPERM {
		t.Errorf("within = %v, %v", err, done)
	}
}
