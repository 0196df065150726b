// Package bpf_test tests the BPF programs in the kernel: real processes, real
// sockets, and a stand-in for libzmq compiled on the spot.
package bpf_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helpers are what the test binary does instead of testing when helperEnv names
// one: the processes that tests watch.
var helpers = map[string]func(){
	"httpserver": httpServer,
	"rawserver":  rawServer,
	"httpalone":  httpAlone,
}

const helperEnv = "INFERSPAN_TEST_HELPER"

func TestMain(m *testing.M) {
	if h := helpers[os.Getenv(helperEnv)]; h != nil {
		h()
		return
	}
	before := descriptors()
	code := m.Run()
	if code == 0 {
		// Processes and goroutines end a little after what waits for them.
		var left []string
		for range 50 {
			if left = leaked(before); len(left) == 0 && runtime.NumGoroutine() <= 2 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if len(left) > 0 {
			fmt.Fprintf(os.Stderr, "descriptors left open (links, programs, maps are among them): %s\n", strings.Join(left, ", "))
			code = 1
		}
		if n := runtime.NumGoroutine(); n > 2 {
			buf := make([]byte, 1<<16)
			fmt.Fprintf(os.Stderr, "%d goroutines left:\n%s\n", n, buf[:runtime.Stack(buf, true)])
			code = 1
		}
	}
	os.Exit(code)
}

// descriptors lists the open descriptors with what they refer to.
func descriptors() map[string]string {
	fds := map[string]string{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fds
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			fds[e.Name()] = to
		}
	}
	return fds
}

// leaked lists descriptors that were not there before. The runtime's own, opened
// at first use and kept, do not count.
func leaked(before map[string]string) []string {
	var out []string
	for fd, to := range descriptors() {
		if _, was := before[fd]; !was && to != "anon_inode:[eventpoll]" && to != "anon_inode:[eventfd]" {
			out = append(out, fd+" -> "+to)
		}
	}
	return out
}

// needRoot skips a test where BPF programs cannot be loaded.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs")
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
	if data[unix.CAP_SYS_ADMIN/32].Effective&(1<<(unix.CAP_SYS_ADMIN%32)) == 0 {
		t.Skip("needs CAP_SYS_ADMIN")
	}
}

// helperCommand starts the test binary as one of the helpers.
func helperCommand(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// compileStub builds the stand-in for libzmq and its driver.
func compileStub(t testing.TB, flags ...string) (driver string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler: builds a stand-in for libzmq")
	}
	dir := t.TempDir()
	lib := filepath.Join(dir, "libzmq.so")
	driver = filepath.Join(dir, "driver")
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
			t.Fatalf("cc %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run(append([]string{"-O2", "-Wall", "-Werror", "-fPIC", "-shared", "-o", lib, "testdata/zmqstub.c"}, flags...)...)
	run("-O2", "-Wall", "-Werror", "-o", driver, "testdata/driver.c", lib, "-Wl,-rpath,"+dir)
	return driver
}
