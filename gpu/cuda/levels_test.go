package cuda

import (
	"testing"

	"inferspan/bpf"
)

// counts is a tracer that has counted.
type counts struct {
	Tracer // of which nothing else is called
	bpf.CUDAState
}

func (c *counts) CUDA(int) (s bpf.CUDAState, _ error) { return c.CUDAState, nil }

// A process that makes steps without a call of the driver is one of which nothing is seen;
// one that makes none may yet call.
func TestSilent(t *testing.T) {
	for _, c := range []struct {
		name  string
		marks uint64
		hits  map[bpf.CUDAHit]uint64
		want  bool
	}{
		{"no steps", 0, nil, false},
		{"a few", enoughMarks - 1, nil, false},
		{"steps without a call", enoughMarks, nil, true},
		{"the runtime alone", enoughMarks, map[bpf.CUDAHit]uint64{bpf.CUDAHitCompare: 100}, true},
		{"a call", 1000, map[bpf.CUDAHit]uint64{bpf.CUDAHitRecord: 1}, false},
	} {
		s := &counts{CUDAState: bpf.CUDAState{Marks: c.marks}}
		for h, n := range c.hits {
			s.Hits[h] = n
		}
		if got, err := (&Probes{tracer: s}).Silent(); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

// Hits add up by what their trap is, also when the kernel counts anew.
func TestHits(t *testing.T) {
	s := &counts{}
	a := &Probes{tracer: s}
	a.stepped[bpf.CUDAHitRecord] = true
	for _, c := range []struct {
		graphs, records uint64
		want            Hits
	}{{3, 5, Hits{3, 5}}, {4, 5, Hits{4, 5}}, {1, 0, Hits{5, 5}}, {1, 7, Hits{5, 12}}} {
		s.Hits[bpf.CUDAHitGraph], s.Hits[bpf.CUDAHitRecord] = c.graphs, c.records
		if got, err := a.Hits(); got != c.want || err != nil {
			t.Errorf("%d and %d: %+v, %v, want %+v", c.graphs, c.records, got, err, c.want)
		}
	}
}
