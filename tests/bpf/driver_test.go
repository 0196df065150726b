package bpf_test

import (
	"os/exec"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/attach"
	"inferspan/probes/target"
	"inferspan/tests/bpftest"
)

type driver = bpftest.Driver

func startDriver(t testing.TB, path string) *driver {
	t.Helper()
	return bpftest.Start(t, exec.Command(path))
}

func startDriverCommand(t testing.TB, cmd *exec.Cmd) *driver {
	t.Helper()
	return bpftest.Start(t, cmd)
}

func pattern(size, seed int) []byte { return bpftest.Pattern(size, seed) }

func process(t testing.TB, pid int, role target.Role) *target.Process {
	t.Helper()
	return bpftest.Process(t, pid, role)
}

const flushInterval = bpftest.FlushInterval

func load(t testing.TB, opts bpf.Options) *bpf.Objects {
	t.Helper()
	needRoot(t)
	return bpftest.Load(t, opts)
}

func attachTo(t testing.TB, o *bpf.Objects, p *target.Process) *attach.Process {
	t.Helper()
	return bpftest.Attach(t, o, p)
}

// records reads all records that are on the ring, at least n of them, within a second.
func records(t testing.TB, o *bpf.Objects, n int) []event.Record {
	t.Helper()
	return bpftest.Patience{For: time.Second, Quiet: 3 * flushInterval}.Records(t, o, n)
}

func losses(t testing.TB, o *bpf.Objects) [event.LossReasons]uint64 {
	t.Helper()
	return bpftest.Losses(t, o)
}
