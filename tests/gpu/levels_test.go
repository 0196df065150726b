package gpu

import (
	"fmt"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/gpu/cuda"
)

// steps has apps/steps.c make its steps.
func (l *launcher) steps() {
	l.t.Helper()
	if s := l.Do(""); s != "done" {
		l.t.Fatalf("steps says %q", s)
	}
}

// work is what the kernel sent of a number of steps.
type work struct {
	waits           map[event.GPUWhat]int
	known           int // waits for events of which the record was seen
	graphs, records uint64
}

// seen reads what is on the ring since what was counted then.
func seen(t *testing.T, objs *bpf.Objects, last *event.GPU) work {
	t.Helper()
	w := work{waits: make(map[event.GPUWhat]int)}
	before := *last
	rd := objs.Reader()
	rd.SetDeadline(time.Now().Add(300 * time.Millisecond))
	var r event.Record
	for rd.Read(&r) == nil {
		if r.Kind != event.KindGPU {
			continue
		}
		w.waits[r.GPU.What]++
		if r.GPU.What == event.GPUSyncEvent && r.GPU.Recorded != 0 {
			w.known++
		}
		*last = r.GPU
	}
	w.graphs, w.records = last.Counts[event.GPUGraphs]-before.Counts[event.GPUGraphs], last.Counts[event.GPURecords]-before.Counts[event.GPURecords]
	return w
}

// TestGraphLevels: where the driver's functions for graphs, events and waits are reached by
// others than it exports, they are seen at the runtime, and what is missing then is said;
// where not, the comparison ends and costs no more.
func TestGraphLevels(t *testing.T) {
	const n = 300
	for _, alias := range []bool{false, true} {
		t.Run(fmt.Sprintf("alias %v", alias), func(t *testing.T) {
			var env []string
			if alias {
				env = []string{"FAKE_CUDA_ALIAS=2"}
			}
			l := startApp(t, "steps", n, env...)
			objs, p := attached(t, l.PID(), cuda.Graph)
			if says, err := p.Settle(); len(says) > 0 || err != nil {
				t.Errorf("before any step: %q, %v", says, err)
			}
			whole := work{map[event.GPUWhat]int{event.GPUSyncEvent: n, event.GPUSyncStream: n / 10, event.GPUSyncContext: n / 10}, n, n, n}
			var last event.GPU
			l.steps()
			if got, none := seen(t, objs, &last), (work{map[event.GPUWhat]int{}, 0, 0, 0}); fmt.Sprint(got) != fmt.Sprint(map[bool]work{false: whole, true: none}[alias]) {
				t.Errorf("before it is settled: %+v", got)
			}
			says, err := p.Settle()
			// Launches of graphs, records, waits for events, streams and all.
			if err != nil || alias && len(says) != 5 || !alias && len(says) > 0 || len(p.Lacks()) != len(says) {
				t.Errorf("settled: %q, %v", says, err)
			}
			last = event.GPU{}
			if !alias {
				last.Counts[event.GPUGraphs], last.Counts[event.GPURecords] = n, n
			}
			before, err := p.Hits()
			if err != nil {
				t.Fatal(err)
			}
			l.steps()
			if got := seen(t, objs, &last); fmt.Sprint(got) != fmt.Sprint(whole) {
				t.Errorf("after that: %+v, want %+v", got, whole)
			}
			after, err := p.Hits()
			if err != nil {
				t.Fatal(err)
			}
			// A step's are those of the graph, the record and the wait, which has a return
			// too. Of the waits for streams and all there were too few to be settled, unless
			// they were missed.
			hits, want := after.Emulated+after.Stepped-before.Emulated-before.Stepped, uint64(4*n+2*2*n/10)
			if !alias {
				want += 2 * n / 10
			}
			if hits != want {
				t.Errorf("%d hits in %d steps, want %d", hits, n, want)
			}
			if says, err := p.Settle(); len(says) > 0 || err != nil {
				t.Errorf("again: %q, %v", says, err)
			}
		})
	}
}
