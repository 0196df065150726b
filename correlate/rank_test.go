package correlate

import (
	"slices"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// TestRanks: a rank that launches the same steps by itself, later than the first one. A step
// has its pass when it has waited for it, or is seen to have gone on without.
func TestRanks(t *testing.T) {
	const follower = 8
	type lost struct{ number, mark, wait bool }
	for _, tt := range []struct {
		name string
		lost lost
		more bool
		want []int // passes of each step
	}{
		{"all is seen", lost{}, false, []int{0, 2, 2, 2}},
		{"it was not seen to wait for step 12", lost{wait: true}, false, []int{0, 2, 2, 2}},
		{"its launch of step 12 was not read", lost{number: true}, false, []int{0, 2, 1, 2}},
		{"a mark was lost before step 12", lost{mark: true}, false, []int{0, 2, 1, 2}},
		{"it launched some of step 12 behind its mark", lost{}, true, []int{0, 2, 1, 1}},
	} {
		s := newScript()
		for _, x := range s.sig {
			if e, ok := x.(*signal.Engine); ok {
				e.Process[1].TensorRank = signal.Some[int64](0)
				e.Process = append(e.Process, signal.Process{PID: follower, Role: "engine_core", TensorRank: signal.Some[int64](1)})
			}
		}
		lead, rank := newGPU(s), newGPU(s)
		rank.point.PID, rank.point.TID = follower, follower
		launched := func(number int64, schedule, done float64) {
			lead.launch(40, 1, schedule+1, done-1)
			lead.marked(done, signal.StepLaunched)
			rank.launch(30, 1, schedule+2, done)
			if number == 12 && tt.lost.mark {
				rank.point.Marks++
			}
			rank.marked(done+1, signal.StepLaunched)
			if number != 12 || !tt.lost.number {
				s.put(&signal.RankLaunched{At: at(done + 1), Engine: 1, PID: follower, Core: testCore, Number: number, Schedule: at(schedule + 1), More: number == 12 && tt.more})
			}
		}
		step := func(number int64, schedule, done, update float64) {
			s.iterate(number, schedule, update, reqs(in("a", 1, 0, signal.StepRunning, signal.StepDecode)), func(st *signal.Step) { st.Launched = at(done) })
		}
		launched(10, 90, 95)
		for i := range 3 {
			number, at := int64(11+i), 100+20*float64(i)
			launched(number, at, at+5)
			lead.wait(at-15.5, at+7, at+8).mark(at+9, false)
			step(number-1, at-20, at-15, at+9)
			if number != 13 || !tt.lost.wait {
				rank.wait(at-14.5, at+10, at+11)
			}
		}
		launched(14, 160, 165)
		lead.wait(144.5, 167, 168).mark(169, false)
		step(13, 140, 145, 169)
		rank.wait(145.5, 170, 171)
		if tt.name == "all is seen" {
			c := New(Options{EventLimit: 1})
			for _, x := range append(s.sig, &signal.GPUKernels{At: at(180), Engine: 1, PID: corePID, Kernels: []signal.GPUKernel{kernel(1, 200, "a")}}) {
				c.Put(x, func(*trace.Tree) {})
			}
			got, want := c.Kernels(), []StepKernels{{Rank: 0, Steps: 3, Kernels: 120}, {Rank: 1, Steps: 3, Kernels: 90}}
			if len(got) != 1 || got[0].Steps != 0 || got[0].Together != (StepKernels{Steps: 3, Kernels: 210}) || !slices.Equal(got[0].Ranks, want) {
				t.Errorf("kernels of ranks: %+v", got)
			}
		}
		trees, _ := run(t, Options{StepRecords: true, EventLimit: 1}, s.sig)
		got := steps(trees)
		if len(got) != len(tt.want) {
			t.Fatalf("%s: %d steps", tt.name, len(got))
		}
		for i, n := range tt.want {
			number, begin := int64(10+i), 80+20*float64(i)
			if got[i].Number != num(number) || len(got[i].Forward) != n {
				t.Errorf("%s: step %v has %d passes, want %d", tt.name, got[i].Number, len(got[i].Forward), n)
				continue
			}
			for k, p := range got[i].Forward {
				if want := int64(40 - 10*k); p.Rank != num(int64(k)) || p.Kernels != num(want) || p.Begin != wall(begin+float64(k)) || p.First != wall(begin+1+float64(k)) {
					t.Errorf("%s: step %d: pass %+v", tt.name, number, p)
				}
				if waited := p.Done != 0; waited != (k == 0 || number != 12 || !tt.lost.wait) {
					t.Errorf("%s: step %d, rank %d: waited %v", tt.name, number, k, waited)
				}
			}
		}
	}
}
