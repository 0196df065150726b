package bpf

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"inferspan/bpf/event"
)

// needRoot skips a test that loads BPF programs where that is not allowed.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 || len(missingCapabilities()) > 0 {
		t.Skipf("needs root: loads BPF programs (missing: %s)", strings.Join(missingCapabilities(), ", "))
	}
}

func TestLoadNoBTF(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "absent")} {
		o, err := Load(Options{BTFPath: path})
		if o != nil || !errors.Is(err, ErrNoBTF) {
			t.Errorf("Load with BTF at %s: %v, %v, want ErrNoBTF", path, o, err)
		}
	}
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte("not BTF"), 0o600); err != nil {
		t.Fatal(err)
	}
	if o, err := Load(Options{BTFPath: junk}); o != nil || err == nil || !strings.Contains(err.Error(), junk) {
		t.Errorf("Load with junk for BTF: %v, %v, want an error that names the file", o, err)
	}
}

// TestLoadWithoutCapabilities drops capabilities of one thread, in a process of its
// own: package ebpf remembers what the kernel seemed not to support.
func TestLoadWithoutCapabilities(t *testing.T) {
	needRoot(t)
	const again = "INFERSPAN_TEST_WITHOUT_CAPABILITIES"
	if os.Getenv(again) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), again+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	if err := unix.Capget(&hdr, &all[0]); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		drop    []int
		missing string
	}{
		{"all", []int{unix.CAP_SYS_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}, "CAP_BPF, CAP_PERFMON"},
		{"perfmon", []int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}, "missing CAP_PERFMON"},
	} {
		less := all
		for _, c := range tt.drop {
			less[c/32].Effective &^= 1 << (c % 32)
		}
		if err := unix.Capset(&hdr, &less[0]); err != nil {
			t.Fatal(err)
		}
		o, err := Load(Options{})
		if err := unix.Capset(&hdr, &all[0]); err != nil {
			t.Fatal(err)
		}
		if o != nil || !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), tt.missing) {
			t.Errorf("%s: %v, %v, want ErrPermission and %q", tt.name, o, err, tt.missing)
		}
	}
}

func TestClose(t *testing.T) {
	needRoot(t)
	o, err := Load(Options{})
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		var rec event.Record
		read <- o.Reader().Read(&rec)
	}()
	time.Sleep(20 * time.Millisecond) // let Read block
	for range 2 {
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read during Close: %v, want ErrClosed", err)
	}
	if err := o.SetTarget(1, RoleCore); !errors.Is(err, os.ErrClosed) {
		t.Errorf("SetTarget after Close: %v, want ErrClosed", err)
	}
	if err := o.RemoveTarget(1); err != nil {
		t.Errorf("RemoveTarget after Close: %v", err)
	}
}

func TestDeadline(t *testing.T) {
	needRoot(t)
	o, err := Load(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	const wait = 120 * time.Millisecond
	start := time.Now()
	o.Reader().SetDeadline(start.Add(wait))
	var rec event.Record
	err = o.Reader().Read(&rec)
	if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took < wait || took > 10*wait {
		t.Errorf("Read of an empty ring: %v after %v, want the deadline at %v", err, took, wait)
	}
}

func TestSetTargetLimits(t *testing.T) {
	needRoot(t)
	o, err := Load(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := o.SetTarget(1<<22, RoleCore, make([]uint16, maxPorts+1)...); err == nil {
		t.Error("too many ports were taken")
	}
	limit := int(o.objs.Targets.MaxEntries())
	for i := range limit {
		if err := o.SetTarget(1<<22+i, RoleCore); err != nil {
			t.Fatalf("target %d of %d: %v", i, limit, err)
		}
	}
	if err := o.SetTarget(1<<22+limit, RoleCore); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("one target too many: %v", err)
	}
	if err := o.RemoveTarget(1 << 22); err != nil {
		t.Error(err)
	}
	if err := o.SetTarget(1<<22+limit, RoleCore); err != nil {
		t.Errorf("a target after one was removed: %v", err)
	}
}

// TestServers: what tells that a process is none that serves, or that a descriptor is no
// connection, is of the process that has the number now.
func TestServers(t *testing.T) {
	needRoot(t)
	o, err := Load(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	const one, two, alike = 1<<22 + 70, 1<<22 + 71, 1<<22 + 70 + 512 // the first and the last have a bit in common
	bits := func() (out tracerServerBits) {
		if err := o.objs.Servers.Lookup(uint32(0), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	noted := func(at uint32) (out tracerFdNote) {
		if err := o.objs.FdNotes.Lookup(at, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	note := func(at uint32, pid uint64) {
		if err := o.objs.FdNotes.Put(at, tracerFdNote{Fdkey: pid<<32 | 9, File: 1}); err != nil {
			t.Fatal(err)
		}
	}
	note(3, one)
	note(5, two)
	for i, c := range []struct {
		do   func() error
		word uint64
	}{
		{func() error { return o.SetTarget(one, RoleSend) }, 0},
		{func() error { return o.SetTarget(one, RoleHTTP) }, 1 << 6},
		{func() error { return o.SetTarget(alike, RoleHTTP|RoleSend) }, 1 << 6},
		{func() error { return o.SetTarget(one, 0) }, 1 << 6},
		{func() error { return o.RemoveTarget(alike) }, 0},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if w := bits().Words; w[1] != c.word || slices.ContainsFunc(append(w[:1:1], w[2:]...), func(x uint64) bool { return x != 0 }) {
			t.Errorf("step %d: bits %x, want %x", i, w, c.word)
		}
		if n := noted(3).Fdkey; (n == 0) != (i < 2) {
			t.Errorf("step %d: descriptor %x is noted", i, n)
		}
		if i == 1 { // what is noted while it is watched stays, whatever is looked at
			note(3, one)
		}
	}
	if noted(5).Fdkey == 0 {
		t.Error("a descriptor of another process was forgotten")
	}
}

// TestComplexity keeps the verifier's work far from the limit of a million
// instructions, which older kernels reach sooner since they prune less.
func TestComplexity(t *testing.T) {
	needRoot(t)
	const most = 20_000
	// py_hit interprets plans; its functions are verified once each.
	limits := map[string]uint32{"py_hit": 150_000}
	for _, ns := range []uint32{0, 1} { // in the initial PID namespace, in another
		spec, err := loadTracer()
		if err != nil {
			t.Fatal(err)
		}
		if err := spec.Variables["pidns_ino"].Set(ns); err != nil {
			t.Fatal(err)
		}
		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer coll.Close()
		for name, p := range coll.Programs {
			info, err := p.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, ok := info.VerifiedInstructions()
			if !ok {
				t.Skip("the kernel does not tell (5.16)")
			}
			t.Logf("namespace %d: %-22s %6d instructions verified", ns, name, n)
			limit := limits[name]
			if limit == 0 {
				limit = most
			}
			if n > limit {
				t.Errorf("namespace %d: program %s: %d instructions verified, want at most %d", ns, name, n, limit)
			}
		}
	}
}
