package gpu

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/gpu/cuda"
	"inferspan/tests/child"
	"inferspan/tests/gpu/rig"
)

// TestGraphNames: of graphs that were captured before our eyes, what they launch is what the
// log has, by name; of others it is said why that is not known.
func TestGraphNames(t *testing.T) {
	const times = 3 // of each graph, for a line of input
	// What is not known, and why.
	unnamed := map[string]bpf.CUDAReason{
		"old": bpf.CUDAUnseen, "bare": bpf.CUDAUnseen,
		"built": bpf.CUDAChanged, "added": bpf.CUDAChanged, "inside": bpf.CUDAChanged, "into": bpf.CUDAChanged, "template": bpf.CUDAChanged,
		"updated": bpf.CUDAChanged, "disabled": bpf.CUDAChanged, "holds": bpf.CUDAChanged, "child": bpf.CUDAChanged,
	}
	log := filepath.Join(t.TempDir(), "log")
	cmd := rig.Traced(t, "graphs", "FAKE_CUDA_LOG="+log, "FAKE_CUDA_KERNEL_NS=100")
	cmd.Args = append(cmd.Args, "3")
	app := child.Start(t, cmd)
	app.Expect("ready")
	objs, p := attached(t, app.PID(), cuda.All)
	graphs := map[string]string{} // by handle
	for _, f := range strings.Fields(app.Do(""))[1:] {
		name, handle, _ := strings.Cut(f, "=")
		graphs[handle] = name
	}
	if len(graphs) != 18 {
		t.Fatalf("graphs %v", graphs)
	}
	var last cuda.Kernels
	check := func() {
		t.Helper()
		if s := app.Do(""); s != "done" {
			t.Fatalf("graphs says %q", s)
		}
		k, err := p.Kernels(nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ops := operations(t, log)
		of := map[int64]string{} // graph by launch; of those in others it is the outer one
		for _, o := range ops {
			if o.Op == "graph" {
				of[o.Corr] = graphs[o.Exec]
			}
		}
		launched := map[string]bool{}
		want, got := map[string]uint64{}, map[string]uint64{}
		for _, o := range ops {
			name := of[o.Graph]
			launched[name] = true
			if _, un := unnamed[name]; o.Op == "kernel" && o.Graph != 0 && !un {
				want[o.Name]++
			}
		}
		for _, one := range k.Kernels {
			if one.Launches != 0 {
				t.Errorf("%+v: launched by the host", one)
			}
			if one.InGraphs != 0 {
				got[one.Name] += one.InGraphs
			}
		}
		if !maps.Equal(got, want) || len(want) != 4 {
			t.Errorf("in graphs %v, the log has %v", got, want)
		}
		if n := k.Graphs - last.Graphs; n != times*uint64(len(graphs)-len(unnamed)) {
			t.Errorf("%d launches of graphs with names", n)
		}
		wantUn := last.Uncounted
		for name, why := range unnamed {
			if !launched[name] && name != "bare" {
				t.Errorf("%s was not launched", name)
			}
			wantUn.Graphs[why] += times
		}
		if k.Uncounted != wantUn {
			t.Errorf("not counted: %+v, want %+v", k.Uncounted, wantUn)
		}
		t.Logf("in graphs: %v; launches of graphs without names: %v", got, k.Uncounted.Graphs)
		last = k
	}
	check()
	check()
	// While launches are not counted, those of graphs are not either, and what they are
	// made of is known still.
	if err := p.Launches(false); err != nil {
		t.Fatal(err)
	}
	app.Do("")
	k, err := p.Kernels(nil, 0)
	if err != nil || k.Graphs != last.Graphs || k.Uncounted != last.Uncounted {
		t.Errorf("launches of graphs are counted where those of kernels are not: %+v, %v", k, err)
	}
	if err := p.Launches(true); err != nil {
		t.Fatal(err)
	}
	app.Do("")
	again, err := p.Kernels(nil, 0)
	if err != nil || again.Graphs-last.Graphs != times*uint64(len(graphs)-len(unnamed)) {
		t.Errorf("%d launches of graphs when launches are counted again, %d before; %v", again.Graphs, last.Graphs, err)
	}
	lost, err := objs.Losses()
	if err != nil || lost != [event.LossReasons]uint64{} {
		t.Errorf("lost %v, %v", lost, err)
	}
}
