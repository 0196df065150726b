package cuda

import (
	"maps"
	"testing"

	"inferspan/bpf"
)

// TestGraphs: what is launched by graphs in graphs, as captures come: those of a look
// together, in no order.
func TestGraphs(t *testing.T) {
	g := make(graphs)
	const a, b = 0xa0, 0xb0
	g.add([]bpf.CUDANode{
		{Graph: 30, Function: 20, Child: true, Count: 2},
		{Graph: 30, Function: a, Count: 1},
		{Graph: 20, Function: 10, Child: true, Count: 3},
		{Graph: 20, Function: a, Count: 5},
		{Graph: 20, Function: a, Runtime: true, Count: 7},
		{Graph: 10, Function: b, Count: 1},
		{Graph: 10, Function: 5, Child: true, Count: 1}, // it has no kernels
		{Graph: 15, Function: 15, Child: true, Count: 1},
	})
	g.add([]bpf.CUDANode{{Graph: 40, Function: 30, Child: true, Count: 1}, {Graph: 40, Function: b, Count: 100}})
	for _, tt := range []struct {
		of   []bpf.CUDAGraph
		want map[node]uint64
	}{
		{nil, map[node]uint64{}},
		{[]bpf.CUDAGraph{{ID: 10}, {ID: 15, Launches: 4}, {ID: 5, Launches: 9}}, map[node]uint64{}},
		{[]bpf.CUDAGraph{{ID: 10, Launches: 2}}, map[node]uint64{{b, false}: 2}},
		{[]bpf.CUDAGraph{{ID: 20, Launches: 1}, {ID: 10, Launches: 1}}, map[node]uint64{{a, false}: 5, {a, true}: 7, {b, false}: 4}},
		{[]bpf.CUDAGraph{{ID: 30, Launches: 10}}, map[node]uint64{{a, false}: 110, {a, true}: 140, {b, false}: 60}},
		{[]bpf.CUDAGraph{{ID: 40, Launches: 1}}, map[node]uint64{{a, false}: 11, {a, true}: 14, {b, false}: 106}},
	} {
		if got := g.launches(tt.of); !maps.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.of, got, tt.want)
		}
	}
}
