package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/attach"
	"inferspan/probes/target"
	"inferspan/tests/bpftest"
)

// patience is how long an emulated machine on a busy host may take for what a
// real one does at once.
const patience = 60 * time.Second

type driver = bpftest.Driver

// startDriver starts a driver with one of the builds of the library: "ret", whose
// functions have return instructions, or "tail", whose receive ends in a jump.
func startDriver(t *testing.T, build string) *driver {
	t.Helper()
	needGuest(t)
	cmd := exec.Command(filepath.Join(stubDir, build, "driver"))
	cmd.Stderr = os.Stderr
	return bpftest.Start(t, cmd)
}

// process describes a driver as the target package would an engine core.
func process(t *testing.T, d *driver) *target.Process {
	t.Helper()
	return bpftest.Process(t, d.PID(), target.RoleCore)
}

func load(t *testing.T, opts bpf.Options) *bpf.Objects {
	t.Helper()
	needGuest(t)
	return bpftest.Load(t, opts)
}

func attachTo(t *testing.T, o *bpf.Objects, p *target.Process) *attach.Process {
	t.Helper()
	return bpftest.Attach(t, o, p)
}

// records reads from the ring until it is quiet, but waits for n records.
func records(t *testing.T, o *bpf.Objects, n int) []event.Record {
	t.Helper()
	return bpftest.Patience{For: patience, Quiet: 50 * time.Millisecond}.Records(t, o, n)
}

func pattern(size, seed int) []byte { return bpftest.Pattern(size, seed) }

func wantLosses(t *testing.T, o *bpf.Objects, want [event.LossReasons]uint64) {
	t.Helper()
	if got := bpftest.Losses(t, o); got != want {
		t.Errorf("losses %v, want %v", got, want)
	}
}
