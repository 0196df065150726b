package term

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"inferspan/correlate"
)

func TestKernelTables(t *testing.T) {
	k := correlate.EngineKernels{Model: "m", Launches: 1000, Unnamed: 300, Steps: 50, Beyond: 20, Reused: 10, Unnoted: 3, Kernels: []correlate.KernelCount{
		{Name: "unknown (handle 0x7f00)", Launches: 300},
		{Name: "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long>, std::array<char*, 1ul> >", Launches: 200},
	}}
	for i := range 20 {
		k.Kernels = append(k.Kernels, correlate.KernelCount{Name: fmt.Sprint("k", i), Launches: 20})
	}
	k.Together, k.Ranks = correlate.StepKernels{Steps: 4, Kernels: 497}, []correlate.StepKernels{{Rank: 0, Steps: 5, Kernels: 310}, {Rank: 1, Steps: 1, Kernels: 62}}
	s := NewSummary(Options{Width: 80})
	s.SetKernels([]correlate.EngineKernels{k})
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`
TOP KERNELS                                           launches   share  per step
unknown (handle 0x7f00)                                    300   30.0%      6.00
void at::native::vectorized_ele~ay<char*, 1ul> >           200   20.0%      4.00
k0                                                          20    2.0%      0.40
`, `
k12                                                         20    2.0%      0.40
7 other kernels                                            140   14.0%      2.80
not told apart, for lack of room                            20    2.0%      0.40
of handles that changed their kernel                        10    1.0%      0.20
1,000 launches of 22 kernels, as the host called for them; the mean is over
  the 50 steps that began while they were counted; 124.25 in a step by all
  workers (mean of 4 steps); 62.00 by rank 0 (5 steps); 62.00 by rank 1 (1
  step); without a name: 30.0%; 3 names came too fast to be noted
`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got\n%s\nwant\n%s", &b, want)
		}
	}
}

func TestGraphKernelTables(t *testing.T) {
	k := correlate.EngineKernels{Model: "m", Launches: 100, InGraphs: 300, Graphs: 50, GraphsUnseen: 7, GraphsChanged: 2, ReusedInGraphs: 20, Kernels: []correlate.KernelCount{
		{Name: "gemm", InGraphs: 200}, {Name: "attention", Launches: 100, InGraphs: 80},
	}}
	s := NewSummary(Options{Width: 80})
	s.SetKernels([]correlate.EngineKernels{k})
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := `
TOP KERNELS                                        launches    in graphs   share
gemm                                                      0          200   50.0%
attention                                               100           80   45.0%
of handles that changed their kernel                      0           20    5.0%
400 launches of 2 kernels, as the host called for them (100) and as nodes of
  graphs that it called for (300, in 50 launches of graphs); what 9 launches of
  graphs launched is not known, and left out: 7 of graphs not seen being made, 2
  of graphs made or changed node by node
`; !strings.Contains(b.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", &b, want)
	}
}
