package correlate

import (
	"fmt"
	"testing"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

const batch = 32

// stepper returns a function that puts the n-th step of 32 running requests and
// its delivery.
func stepper(t testing.TB) func(n int) {
	t.Helper()
	c := New(NewOptions())
	sink := func(*trace.Tree) {}
	s := newScript()
	var outs []signal.Output
	for i := range batch {
		id := fmt.Sprintf("chatcmpl-%032x", i)
		s.add(1, 2, id)
		outs = append(outs, out(id, 1, started(2.5, 3)))
	}
	s.step(10, outs...)
	for _, x := range s.sig {
		c.Put(x, sink)
	}
	for i := range outs {
		outs[i].Events = nil
	}
	step := &signal.StepOutput{Core: testCore, Outputs: outs, Stats: &signal.SchedulerStats{Running: signal.Some[int64](batch)}}
	recv := &signal.Delivered{Engine: 1, PID: apiPID}
	iter := &signal.Step{Core: testCore, PreemptedKnown: true, Blocks: signal.Some[int64](1000), FreeAfter: signal.Some[int64](400)}
	for i := range outs {
		iter.Requests = append(iter.Requests, signal.StepRequest{ID: outs[i].ID, Tokens: 1, Computed: signal.Some[int64](20), Entry: signal.StepRunning, Phase: signal.StepDecode})
	}
	return func(n int) {
		k := uint64(n) + 100
		iter.Number, iter.Schedule, iter.Update = signal.Some(int64(n)), at(19.5+float64(n)), at(19.99+float64(n))
		c.Put(iter, sink)
		step.At, step.Stamp, step.Key = at(20+float64(n)), at(20+float64(n)), k
		c.Put(step, sink)
		recv.At, recv.Key = step.At+500_000, k
		c.Put(recv, sink)
	}
}

// BenchmarkStep measures the hot path: steps that give one token to each of 32
// requests. One iteration is one output.
func BenchmarkStep(b *testing.B) {
	step := stepper(b)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += batch {
		step(n / batch)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "outputs/s")
}

func TestStepDoesNotAllocate(t *testing.T) {
	step := stepper(t)
	n := 0
	if a := testing.AllocsPerRun(5000, func() { step(n); n++ }); a != 0 {
		t.Errorf("%v allocations per step", a)
	}
}

// BenchmarkRequest measures a whole short request.
func BenchmarkRequest(b *testing.B) {
	c := New(NewOptions())
	n := 0
	sink := func(*trace.Tree) { n++ }
	for _, x := range newScript().sig {
		c.Put(x, sink)
	}
	b.ReportAllocs()
	for i := range b.N {
		b.StopTimer()
		s := (&script{key: uint64(i) * 10}).chat(float64(i)*50, uint64(i), fmt.Sprintf("chatcmpl-%d", i))
		b.StartTimer()
		for _, x := range s.sig {
			c.Put(x, sink)
		}
	}
	if n != b.N {
		b.Fatalf("%d trees for %d requests", n, b.N)
	}
}

// BenchmarkSGLangStep is a step of 64 running requests: a message with their outputs,
// and a stage and a mark of each.
func BenchmarkSGLangStep(b *testing.B) {
	const running = 64
	s := newSGLang()
	c := New(NewOptions())
	sink := func(*trace.Tree) {}
	for _, x := range s.sig {
		c.Put(x, sink)
	}
	ids := make([]string, running)
	msg := &signal.StepOutput{Core: sglCore, Client: -1, Outputs: make([]signal.Output, running)}
	for i := range ids {
		ids[i] = fmt.Sprintf("%032x", i)
		msg.Outputs[i] = signal.Output{ID: []byte(ids[i]), NumTokens: 1}
		c.Put(&signal.RequestAdded{At: 2, Core: sglCore, ID: ids[i], ExternalID: ids[i], ResponseID: ids[i], PID: tokPID, Known: true}, sink)
	}
	b.ReportAllocs()
	now := signal.Mono(10)
	st := &signal.Stage{Engine: 1, PID: schPID, Name: "decode_loop"}
	mk := &signal.Mark{Engine: 1, PID: schPID, Name: signal.MarkSchedule, Mode: "decode"}
	for b.Loop() {
		from := now
		now += ms
		for i := range ids {
			mk.At, mk.ID = from, ids[i]
			c.Put(mk, sink)
			st.At, st.ID, st.Start, st.End = now, ids[i], from, now
			c.Put(st, sink)
		}
		msg.At = now
		c.Put(msg, sink)
	}
	b.ReportMetric(float64(b.N*running)/b.Elapsed().Seconds(), "outputs/s")
}
