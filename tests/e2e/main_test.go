package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// helperEnv makes the test program change its own surroundings and then become
// the program under test, so that a host that lacks something can be tried.
const helperEnv = "INFERSPAN_E2E_HELPER"

func TestMain(m *testing.M) {
	if how := os.Getenv(helperEnv); how != "" {
		runtime.LockOSThread()
		fmt.Fprintf(os.Stderr, "helper %s: %v\n", how, become(how, os.Args[1:]))
		os.Exit(99)
	}
	os.Exit(m.Run())
}

func become(how string, args []string) error {
	switch how {
	case "no-capabilities":
		for c := range unix.CAP_LAST_CAP + 1 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
				return fmt.Errorf("dropping capability %d: %w", c, err)
			}
		}
	case "no-btf":
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("making a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("making mounts private: %w", err)
		}
		for _, dir := range []string{"/sys/kernel/btf", "/boot"} {
			if _, err := os.Stat(dir); err != nil {
				continue
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
				return fmt.Errorf("hiding %s: %w", dir, err)
			}
		}
	default:
		return fmt.Errorf("no such helper")
	}
	env := os.Environ()
	for i, e := range env {
		if e == helperEnv+"="+how {
			env = append(env[:i], env[i+1:]...)
			break
		}
	}
	return syscall.Exec(args[0], args, env)
}

// need skips the test, with the reason, where it cannot run.
func need(t *testing.T) {
	t.Helper()
	if os.Getenv("INFERSPAN_E2E") != "1" {
		t.Skip("INFERSPAN_E2E=1 is not set: this test starts a real engine")
	}
	if os.Getuid() != 0 {
		t.Skip("not root: probes cannot be attached")
	}
	for _, f := range []string{binary, workloadBinary} {
		if _, err := os.Stat(f); err != nil {
			t.Fatalf("%v: run \"make build\" first", err)
		}
	}
}

// faults reports what is wrong, the first ones in full and the rest by number: one
// cause often breaks every request.
type faults struct {
	t *testing.T
	n int
}

const maxFaults = 15

func (f *faults) add(format string, args ...any) {
	f.t.Helper()
	f.n++
	if f.n <= maxFaults {
		f.t.Errorf(format, args...)
	}
}

func (f *faults) end(what string) {
	f.t.Helper()
	if f.n > maxFaults {
		f.t.Errorf("%s: %d faults, the first %d above", what, f.n, maxFaults)
	}
}

// lookPath skips the test when a program of the host is missing.
func lookPath(t *testing.T, name, pkg string) string {
	t.Helper()
	p, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian package %s)", name, pkg)
	}
	return p
}
