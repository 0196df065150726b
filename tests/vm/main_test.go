package vm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// guestEnv says that the tests run in a guest.
	guestEnv = "INFERSPAN_VM_GUEST"
	// helperEnv names what the binary does instead of testing.
	helperEnv = "INFERSPAN_VM_HELPER"
	// nestedEnv says that the process is the first of a PID namespace.
	nestedEnv = "INFERSPAN_VM_NESTED"
)

// Places in the guest; run.sh puts the files there.
const (
	stubDir    = "/stub" // the stand-in for libzmq with its driver
	objectFile = "/tracer.o"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(helperEnv) == "server":
		server()
		return
	case os.Getenv(nestedEnv) != "":
		if err := mountProc(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case os.Getpid() == 1:
		guest()
		return
	}
	os.Exit(m.Run())
}

// needGuest skips a test outside of a guest.
func needGuest(t *testing.T) {
	t.Helper()
	if os.Getenv(guestEnv) == "" {
		t.Skip("runs in an emulated machine, see run.sh")
	}
}

// mountProc gives a new PID namespace its own /proc.
func mountProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	return nil
}

// guest is the init process of the guest: it runs the tests and powers the machine
// off. run.sh reads the lines that begin with "vm:", and those of the test runner.
func guest() {
	if err := setUp(); err != nil {
		fmt.Printf("vm: setting up: %v\n", err)
	} else {
		fmt.Printf("vm: kernel %s\n", kernelRelease())
		cmd := exec.Command("/proc/self/exe", "-test.v", "-test.timeout=20m")
		cmd.Env = append(os.Environ(), guestEnv+"=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			fmt.Printf("vm: running the tests: %v\n", err)
		}
		for _, line := range kernelFaults() {
			fmt.Printf("vm: fault: %s\n", line)
		}
		fmt.Printf("vm: end %d\n", cmd.ProcessState.ExitCode())
	}
	// Time for the serial line to drain.
	time.Sleep(200 * time.Millisecond)
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Printf("vm: powering off: %v\n", err)
	}
	select {}
}

// setUp mounts what the tests and the tracer need and brings the loopback device up.
func setUp() error {
	for _, m := range []struct{ fs, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"tracefs", "/sys/kernel/tracing"}, {"bpf", "/sys/fs/bpf"},
		{"devtmpfs", "/dev"}, {"tmpfs", "/tmp"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, m.at, m.fs, 0, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m.fs, err)
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	return nil
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// kernelFaults returns the lines of the kernel's log that tell of a fault in it:
// warnings with a stack, bugs, oopses, stalls.
func kernelFaults() []string {
	const readAll = 3 // SYSLOG_ACTION_READ_ALL
	buf := make([]byte, 1<<20)
	n, err := unix.Klogctl(readAll, buf)
	if err != nil {
		return []string{fmt.Sprintf("reading the kernel's log: %v", err)}
	}
	var faults []string
	for line := range bytes.Lines(buf[:n]) {
		s := strings.TrimSpace(string(line))
		for _, sign := range []string{"WARNING: CPU", "BUG: ", "Oops", "general protection", "rcu_sched detected", "rcu_preempt detected"} {
			if strings.Contains(s, sign) {
				faults = append(faults, s)
				break
			}
		}
	}
	return faults
}

// again runs tests of this binary in a process with other attributes and returns
// what they print.
func again(t *testing.T, tests string, attr *syscall.SysProcAttr, env ...string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run", tests)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		// Indented, so that run.sh does not take the results for its own.
		t.Errorf("%v\n  %s", err, bytes.ReplaceAll(bytes.TrimSpace(out), []byte("\n"), []byte("\n  ")))
	}
	return string(out)
}
