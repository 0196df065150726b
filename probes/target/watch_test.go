package target

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

const (
	tokenizerWorker = "sglang::tokenizer_worker:"
	spawnMain       = "python3 -c from_multiprocessing.spawn_import_spawn_main"
)

// sglangTree is an SGLang server with two tokenizer workers.
func sglangTree(t *testing.T) *tree {
	tr := newTree(t)
	libs := []string{"/usr/bin/python3.12", site + "/sgl_kernel/common_ops.so", site + "/pyzmq.libs/libzmq-2f02442c.so.5.2.5"}
	tr.add(made{pid: 1, comm: "init", maps: []string{"/sbin/init"}})
	tr.add(made{pid: 100, ppid: 1, comm: "sglang", args: "python3 -m sglang.launch_server --tokenizer-worker-num 2", maps: libs, ports: map[int]uint64{30000: 70}})
	tr.add(made{pid: 101, ppid: 100, comm: "sglang", args: "sglang::scheduler", maps: libs})
	tr.add(made{pid: 102, ppid: 100, comm: "sglang", args: "sglang::detokenizer", maps: libs})
	for _, pid := range []int{110, 111} {
		tr.add(made{pid: pid, ppid: 100, comm: "sglang", args: fmt.Sprint(tokenizerWorker, pid), maps: libs, ports: map[int]uint64{30000: uint64(pid)}})
	}
	return tr
}

func (tr *tree) end(pid int) {
	if err := os.RemoveAll(filepath.Join(tr.root, fmt.Sprint(pid))); err != nil {
		tr.t.Fatal(err)
	}
}

// What an engine starts is found when it has its role, and what it serves with, for good,
// once; what others start, and what never gets a role, is not.
func TestWatch(t *testing.T) {
	libs := []string{"/usr/bin/python3.12", site + "/sgl_kernel/common_ops.so"}
	all := append(slices.Clone(libs), site+"/pyzmq.libs/libzmq-2f02442c.so.5.2.5")
	worker := func(pid, ppid int, maps []string, ports map[int]uint64) made {
		return made{pid: pid, ppid: ppid, comm: "sglang", args: fmt.Sprint(tokenizerWorker, pid), maps: maps, ports: ports}
	}
	port := map[int]uint64{30000: 99}
	for _, c := range []struct {
		name  string
		looks []func(*tree) // what happens before each look, a second apart
		want  map[int][]int // found by look
	}{
		{"a worker that is started again", []func(*tree){
			func(tr *tree) { tr.end(110) },
			func(tr *tree) {
				tr.add(made{pid: 120, ppid: 100, comm: "python3", args: spawnMain, maps: []string{"/usr/bin/python3.12"}})
			},
			nil,
			func(tr *tree) { tr.end(120); tr.add(worker(120, 100, libs, port)) },
			func(tr *tree) { tr.end(120); tr.add(worker(120, 100, all, nil)) },
			nil,
			func(tr *tree) { tr.end(120); tr.add(worker(120, 100, all, port)) },
			nil, nil,
		}, map[int][]int{6: {120}}},
		{"one that is complete at once", []func(*tree){
			func(tr *tree) { tr.add(worker(120, 100, all, port)) }, nil, nil,
		}, map[int][]int{1: {120}}},
		{"one between fork and exec", []func(*tree){
			func(tr *tree) { tr.add(worker(120, 110, all, port)) },
			func(tr *tree) {
				tr.end(120)
				tr.add(made{pid: 120, ppid: 110, comm: "git", maps: []string{"/usr/bin/git"}})
			},
			nil, nil,
		}, nil},
		{"below a process that is no part of it", []func(*tree){
			func(tr *tree) { tr.add(made{pid: 119, ppid: 100, comm: "sh", maps: []string{"/bin/sh"}}) },
			func(tr *tree) { tr.add(worker(120, 119, all, port)) }, nil, nil,
		}, map[int][]int{2: {120}}},
		{"what another program starts", []func(*tree){
			func(tr *tree) { tr.add(worker(120, 1, all, port)) }, nil, nil,
		}, nil},
		{"another engine that it starts", []func(*tree){
			func(tr *tree) {
				tr.add(made{pid: 120, ppid: 100, comm: "sglang", args: "python3 -m sglang.launch_server", maps: all, ports: map[int]uint64{30001: 98}})
			}, nil, nil,
		}, nil},
		{"two at once", []func(*tree){
			func(tr *tree) { tr.end(110); tr.end(111) },
			func(tr *tree) { tr.add(worker(120, 100, all, port)); tr.add(worker(121, 100, all, port)) }, nil, nil,
		}, map[int][]int{2: {120, 121}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := sglangTree(t)
			now := time.Unix(1000, 0)
			e, w := watched(t, tr, &now)
			for i, do := range c.looks {
				if do != nil {
					do(tr)
				}
				facts, fresh, err := w.Look(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				var got []int
				for _, p := range fresh {
					got = append(got, p.PID)
					if p.Role != RoleAPIServer || p.ZMQ == nil || !slices.Equal(p.Ports, []int{30000}) {
						t.Errorf("look %d: %+v", i, p)
					}
				}
				if !slices.Equal(got, c.want[i]) {
					t.Errorf("look %d: found %v, want %v", i, got, c.want[i])
				}
				if len(got) > 0 {
					joined := e.Joined(facts, fresh)
					if n := len(joined.Processes); n != len(e.Processes)+len(fresh) || joined.ID != e.ID || joined.Kind != "sglang" {
						t.Errorf("look %d: %d processes, want %d and those found: %+v", i, n, len(e.Processes), joined)
					}
				}
				now = now.Add(time.Second)
			}
		})
	}
}

// watched finds the engine of a tree and watches it, by the time that now has.
func watched(t *testing.T, tr *tree, now *time.Time) (*Engine, *Watch) {
	t.Helper()
	e, err := tr.finder().ByPID(context.Background(), 100)
	if err != nil {
		t.Fatal(err)
	}
	w, err := tr.finder().Watch(e)
	if err != nil {
		t.Fatal(err)
	}
	w.now = func() time.Time { return *now }
	return e, w
}

// A front end that never gets what it serves with is found without it in the end.
func TestWatchGivesUpWaiting(t *testing.T) {
	tr := sglangTree(t)
	start := time.Unix(1000, 0)
	now := start
	_, w := watched(t, tr, &now)
	tr.add(made{pid: 120, ppid: 100, comm: "sglang", args: tokenizerWorker + "120", maps: []string{"/usr/bin/python3.12", site + "/sgl_kernel/common_ops.so"}})
	for ; now.Sub(start) < 2*fullWait; now = now.Add(time.Second) {
		_, fresh, err := w.Look(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if len(fresh) > 0 {
			if took := now.Sub(start); took != fullWait {
				t.Errorf("found after %v, want %v", took, fullWait)
			}
			return
		}
	}
	t.Error("not found")
}

// Processes that have ended stay in the facts, but not all of them for ever.
func TestJoinedForgets(t *testing.T) {
	process := func(pid int, r Role) Process { return Process{PID: pid, Start: uint64(pid), Role: r} }
	e := &Engine{ID: 3, Kind: "sglang", FactSource: sourceLive, Version: "1", Processes: []Process{process(1, RoleLauncher), process(2, RoleCore), process(10, RoleAPIServer)}}
	now := &Engine{Kind: "sglang", Version: "2", Problems: []string{"p"}}
	for pid := 11; pid < 60; pid++ {
		fresh := []Process{process(pid, RoleAPIServer)}
		now.Processes = append([]Process{process(1, RoleLauncher), process(2, RoleCore)}, fresh...)
		e = e.Joined(now, fresh)
	}
	var pids []int
	for _, p := range e.Processes {
		pids = append(pids, p.PID)
	}
	want := []int{1}
	for pid := 60 - 1 - maxGone; pid < 60; pid++ {
		want = append(want, pid)
	}
	if want = append(want, 2); !slices.Equal(pids, want) {
		t.Errorf("processes %v, want %v", pids, want)
	}
	if e.ID != 3 || e.Version != "1" || !slices.Equal(e.Problems, []string{"p"}) {
		t.Errorf("facts %+v", e)
	}
	// The number of one that has ended is another's now.
	fresh := []Process{{PID: 59, Start: 1000, Role: RoleAPIServer}}
	if e = e.Joined(now, fresh); e.Processes[slices.IndexFunc(e.Processes, func(p Process) bool { return p.PID == 59 })].Start != 1000 {
		t.Errorf("processes %+v", e.Processes)
	}
}

// What never gets a role is looked at less and less often.
func TestWatchLosesInterest(t *testing.T) {
	tr := sglangTree(t)
	start := time.Unix(1000, 0)
	now := start
	_, w := watched(t, tr, &now)
	tr.add(made{pid: 120, ppid: 100, comm: "python3", args: "python3 -c helper", maps: []string{"/usr/bin/python3.12"}})
	var looks []time.Duration
	for ; now.Sub(start) < time.Hour; now = now.Add(time.Second) {
		due := w.coming[120] == nil || !now.Before(w.coming[120].next)
		if _, fresh, err := w.Look(context.Background()); err != nil || len(fresh) > 0 {
			t.Fatalf("found %v, %v", fresh, err)
		}
		if due {
			looks = append(looks, now.Sub(start))
		}
	}
	if n := len(looks); n < 120 || n > 160 || looks[8] != 8*time.Second || looks[n-1]-looks[n-2] != lateLook {
		t.Errorf("%d looks in an hour: %v", n, looks)
	}
}
