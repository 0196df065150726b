package gpu

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"inferspan/tests/gpu/rig"
)

// operation is a line of the log (rig/README.md).
type operation struct {
	Op     string
	Name   string
	Sid    int
	Tid    int
	Corr   int64
	Graph  int64
	Nodes  int
	Grid   [3]int
	Block  [3]int
	Bytes  int
	Enq    int64
	Start  int64
	End    int64
	Stream string
	Exec   string `json:"graph_exec"`
}

const loops = 20

// calls runs apps/calls.c on the rig and returns the log.
func calls(t *testing.T, env ...string) []operation {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	run := callsCommand(t, log, env...)
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("running calls: %v\n%s", err, out)
	}
	return operations(t, log)
}

// callsCommand builds apps/calls.c and makes the command that runs it on the rig.
func callsCommand(t testing.TB, log string, env ...string) *exec.Cmd {
	t.Helper()
	run := rig.Command(t, "calls", "FAKE_CUDA_LOG="+log, "FAKE_CUDA_KERNEL_NS=20000", "FAKE_CUDA_KERNEL_MAP=attention=300000")
	run.Args, run.Env = append(run.Args, fmt.Sprint(loops)), append(run.Env, env...)
	return run
}

// operations reads the log.
func operations(t testing.TB, log string) []operation {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var ops []operation
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		var o operation
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			t.Fatalf("log line %q: %v", lines.Bytes(), err)
		}
		ops = append(ops, o)
	}
	return ops
}

func TestLog(t *testing.T) {
	ops := calls(t)
	count := map[string]int{}
	lastEnd := map[int]int64{} // of each stream
	for _, o := range ops {
		what := o.Op
		if o.Op == "kernel" {
			what = o.Name
		}
		if o.Graph != 0 {
			what = "node " + what
		}
		count[what]++
		if o.Start != 0 && (o.Enq > o.Start || o.Start > o.End) {
			t.Errorf("%+v: times are not in order", o)
		}
		// A graph ends after its nodes and began before them.
		if o.Op != "graph" && o.Start != 0 && o.Start < lastEnd[o.Sid] {
			t.Errorf("%+v began before the operation before it in its stream ended, at %d", o, lastEnd[o.Sid])
		}
		lastEnd[o.Sid] = o.End
		switch {
		case o.Name == "attention" && (o.Grid != [3]int{3, 2, 1} || o.Block != [3]int{128, 1, 1} || o.End-o.Start < 300000):
			t.Errorf("%+v: not as launched", o)
		case o.Name == "gemm" && (o.Grid != [3]int{8, 1, 1} || o.Block != [3]int{256, 1, 1}):
			t.Errorf("%+v: not as launched", o)
		case o.Op == "graph" && o.Nodes != 8:
			t.Errorf("%+v: not the graph", o)
		}
	}
	want := map[string]int{
		"attention": loops + 1, "gemm": loops + 2, "event_record": loops, "memset": loops, "memcpy": 1,
		"graph": loops, "node gemm": 4 * loops, "node attention": 2 * loops, "node memcpy": loops, "node event_record": loops,
	}
	for what, n := range want {
		if count[what] != n {
			t.Errorf("%d of %s, want %d", count[what], what, n)
		}
	}
	if len(count) != len(want) {
		t.Errorf("operations %v, want %v", count, want)
	}
}

// TestDefaultStream: of the last two kernels that of the default stream waits for that of
// another one. Where the caller was kept from running in between there was nothing to wait for.
func TestDefaultStream(t *testing.T) {
	const tries = 20
	for range tries {
		var kernels []operation
		for _, o := range calls(t) {
			if o.Op == "kernel" {
				kernels = append(kernels, o)
			}
		}
		first, second := kernels[len(kernels)-2], kernels[len(kernels)-1]
		if first.Name != "attention" || second.Name != "gemm" || first.Sid == second.Sid || second.Start < first.End {
			t.Fatalf("the default stream did not wait for another: %+v, then %+v", first, second)
		}
		if second.Enq <= first.End {
			return
		}
	}
	t.Errorf("in none of %d runs the last kernel was called for before the one before had ended", tries)
}

// TestWaitForEvent: each memset comes after the event that its stream waits for.
func TestWaitForEvent(t *testing.T) {
	var events, memsets []operation
	for _, o := range calls(t) {
		switch {
		case o.Op == "event_record" && o.Graph == 0:
			events = append(events, o)
		case o.Op == "memset":
			memsets = append(memsets, o)
		}
	}
	if len(events) != loops || len(memsets) != loops {
		t.Fatalf("%d events and %d memsets, want %d", len(events), len(memsets), loops)
	}
	for i, m := range memsets {
		if m.Start < events[i].End {
			t.Errorf("memset %d began at %d, its event came at %d", i, m.Start, events[i].End)
		}
	}
}

// TestAlias: the program runs the same when the driver hands out another entry.
func TestAlias(t *testing.T) {
	n := 0
	for _, o := range calls(t, "FAKE_CUDA_ALIAS=1") {
		if o.Name == "attention" && o.Graph == 0 {
			n++
		}
	}
	if n != loops+1 {
		t.Errorf("%d launches, want %d", n, loops+1)
	}
}
