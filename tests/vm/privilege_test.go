package vm

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"inferspan/bpf"
	"inferspan/probes/attach"
)

// withoutAdminEnv says that the process lacks CAP_SYS_ADMIN.
const withoutAdminEnv = "INFERSPAN_VM_WITHOUT_ADMIN"

// withCapabilities runs tests of this binary as root with these capabilities only.
func withCapabilities(t *testing.T, keep []int, tests string, env ...string) (out string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A thread passes its bounding set to the processes it starts. It is not
		// unlocked: it ends with this goroutine.
		runtime.LockOSThread()
		for c := range unix.CAP_LAST_CAP + 1 {
			if slices.Contains(keep, c) {
				continue
			}
			// A kernel that does not know the capability answers EINVAL.
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				t.Errorf("dropping capability %d: %v", c, err)
				return
			}
		}
		out = again(t, tests, nil, env...)
	}()
	<-done
	return out
}

// TestCapabilities runs tests with few capabilities. CAP_SYS_RESOURCE lifts the
// limit against which maps count before 5.11.
func TestCapabilities(t *testing.T) {
	needGuest(t)
	withCapabilities(t, []int{unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE}, "^Test(Attach|HTTP|Exit)$")

	// What CAP_BPF and CAP_PERFMON are enough for depends on the kernel: it is
	// reported, and has to be a clear error where it is not enough.
	const paranoid = "/proc/sys/kernel/perf_event_paranoid"
	was, err := os.ReadFile(paranoid)
	if err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(paranoid, was, 0)
	for _, level := range []string{strings.TrimSpace(string(was)), "2"} {
		if err := os.WriteFile(paranoid, []byte(level), 0); err != nil {
			t.Fatal(err)
		}
		out := withCapabilities(t, []int{unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_RESOURCE, unix.CAP_CHECKPOINT_RESTORE},
			"^TestWithoutAdmin$", withoutAdminEnv+"=1")
		_, result, _ := strings.Cut(out, "result: ")
		result, _, _ = strings.Cut(result, "\n")
		t.Logf("vm: CAP_BPF and CAP_PERFMON without CAP_SYS_ADMIN, perf_event_paranoid %s: %s", level, result)
	}
}

// TestWithoutAdmin is the inner part of TestCapabilities.
func TestWithoutAdmin(t *testing.T) {
	if os.Getenv(withoutAdminEnv) == "" {
		t.Skip("part of TestCapabilities")
	}
	o, err := bpf.Load(bpf.Options{})
	if err != nil {
		if !errors.Is(err, bpf.ErrPermission) {
			t.Errorf("Load: %v, want ErrPermission", err)
		}
		t.Logf("result: loading is denied: %v", err)
		return
	}
	defer o.Close()
	a, err := attach.Attach(o, "vllm", process(t, startDriver(t, "ret")))
	if err != nil {
		if !errors.Is(err, bpf.ErrPermission) {
			t.Errorf("Attach: %v, want ErrPermission", err)
		}
		t.Logf("result: loads, but attaching is denied: %v", err)
		return
	}
	defer a.Close()
	t.Log("result: loads and attaches")
}
