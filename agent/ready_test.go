package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"inferspan/bpf/event"
	"inferspan/probes/engine"
	"inferspan/probes/note"
	"inferspan/probes/python"
	"inferspan/probes/target"
)

// A run tells that the probes are in once, when no process that has got far enough is
// without, and before that what it waits for if that takes long.
func TestReadiness(t *testing.T) {
	core, front := &target.Process{PID: 7, Role: target.RoleCore}, &target.Process{PID: 8, Role: target.RoleAPIServer}
	for _, c := range []struct {
		name string
		do   map[time.Duration]func(*arrivals)
		want []string
	}{
		{"at once", map[time.Duration]func(*arrivals){
			20 * time.Millisecond: func(a *arrivals) { a.done(7); a.done(8) },
		}, []string{"20ms attached []"}},
		{"one after the other", map[time.Duration]func(*arrivals){
			20 * time.Millisecond:   func(a *arrivals) { a.done(7) },
			2000 * time.Millisecond: func(a *arrivals) { a.done(8) },
		}, []string{"1s waiting [process 8 (api_server)]", "2s attached []"}},
		{"one starts", map[time.Duration]func(*arrivals){
			40 * time.Millisecond: func(a *arrivals) { a.starting(7) },
			60 * time.Millisecond: func(a *arrivals) { a.done(8) },
			5 * time.Second:       func(a *arrivals) { a.done(7) },
		}, []string{"60ms attached [process 7 (engine_core)]"}},
		{"one starts, the other takes long", map[time.Duration]func(*arrivals){
			0:               func(a *arrivals) { a.starting(7) },
			3 * time.Second: func(a *arrivals) { a.done(8) },
		}, []string{"1s waiting [process 8 (api_server)]", "3s attached [process 7 (engine_core)]"}},
		{"not in time", nil, []string{"1s waiting [process 7 (engine_core) process 8 (api_server)]",
			"15s attached [process 7 (engine_core) process 8 (api_server)]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var (
				got []string
				at  time.Duration
				a   arrivals
				r   readiness
			)
			tell := func(what string) func([]Awaited) {
				return func(left []Awaited) { got = append(got, fmt.Sprint(at, " ", what, " ", left)) }
			}
			o := &LiveOptions{Waiting: tell("waiting"), Attached: tell("attached")}
			a.add(core)
			a.add(front)
			start := time.Unix(1000, 0)
			for ; at <= 20*time.Second; at += 20 * time.Millisecond {
				if f := c.do[at]; f != nil {
					f(&a)
				}
				r.look(&a, o, start.Add(at))
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("told %q, want %q", got, c.want)
			}
		})
	}
}

// pythonProcess runs an interpreter that waits.
func pythonProcess(t *testing.T) int {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	ready := filepath.Join(t.TempDir(), "ready")
	cmd := exec.Command(python, "-c", "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)", ready)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for range 200 {
		if _, err := os.Stat(ready); err == nil {
			return cmd.Process.Pid
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("python3 does not start")
	return 0
}

// What a process does not have yet holds nobody up; what cannot be looked at for a
// moment is no sign of that.
func TestOpenIn(t *testing.T) {
	pid := pythonProcess(t)
	tries := 0
	var a arrivals
	a.add(&target.Process{PID: pid, Role: target.RoleCore})
	ready := func() bool { _, ok := a.awaited(); return ok }
	_, x, err := openIn(t.Context(), &a, pid, func(*python.Interp) (int, error) {
		if ready() {
			t.Errorf("not waited for after %d tries", tries)
		}
		if tries++; tries <= startingTries+2 {
			return 0, fmt.Errorf("a look: %w", python.ErrUnstable)
		}
		return 5, nil
	})
	if err != nil || x != 5 {
		t.Fatalf("%d, %v", x, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	tries = 0
	_, _, err = openIn(ctx, &a, pid, func(*python.Interp) (int, error) {
		if tries++; tries > startingTries {
			cancel()
		}
		return 0, engine.ErrNoCore
	})
	if !errors.Is(err, context.Canceled) || !ready() {
		t.Errorf("%v, ready %v: want a process that starts and is not waited for", err, ready())
	}
}

// A configuration that could not be read whole is sent again when there is more, and
// then has all that was ever read.
func TestConfigureAgain(t *testing.T) {
	one, two, three := int64(1), int64(2), "three"
	readings := []note.Config{
		{MaxSeqs: &one, Missing: map[string]string{"block_size": "unstable", "policy": "unstable"}},
		{MaxSeqs: &one, Missing: map[string]string{"block_size": "unstable", "policy": "unstable"}},
		{BlockSize: &two, Missing: map[string]string{"max_seqs": "unstable", "policy": "unstable"}},
		{MaxSeqs: &two, BlockSize: &one, Policy: &three},
		{},
	}
	n := 0
	read := func() note.Config { n++; return readings[n-1] }
	p := &inside{notes: make(chan *event.Record, 10)}
	c := &configuring{inside: p, pid: 7, read: read, config: read()}
	c.send(t.Context())
	for range 10 {
		c.again(t.Context())
	}
	close(p.notes)
	var got []note.Config
	for r := range p.notes {
		v, err := note.Get[note.Config](r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v)
	}
	want := []note.Config{
		readings[0],
		{MaxSeqs: &one, BlockSize: &two, Missing: map[string]string{"policy": "unstable"}},
		{MaxSeqs: &one, BlockSize: &two, Policy: &three},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("notes %+v, want %+v", got, want)
	}
	if n != 4 {
		t.Errorf("read %d times, want 4", n)
	}
}
