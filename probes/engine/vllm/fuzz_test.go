package vllm_test

import (
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/wire"
)

// addSeeds adds messages of real engines and of every known version.
func addSeeds(f *testing.F) {
	add := func(recs []event.Record, every int) {
		n := 0
		for i := range recs {
			r := &recs[i]
			if r.Kind != event.KindFrame || r.Frame.Flags&event.FrameReceipt != 0 {
				continue
			}
			if n++; n%every != 0 && len(r.Data) < 1000 {
				continue
			}
			switch {
			case r.Frame.Dir == event.FrameSend && r.Frame.Part == 0:
				f.Add(uint8(0), uint16(0), r.Data)
			case r.Frame.Dir == event.FrameRecv && r.Frame.Part == 1:
				f.Add(uint8(1), uint16(0), r.Data)
				f.Add(uint8(2), uint16(0), r.Data)
				f.Add(uint8(1), uint16(len(r.Data)/2), r.Data)
			}
		}
	}
	for _, name := range []string{"0.32.0", "0.32.0-small", "0.32.0-ngram"} {
		run, err := vllmtest.Load(name)
		if err != nil {
			f.Fatal(err)
		}
		add(run.Records, 100)
	}
	all, err := vllmtest.AllSynthetic()
	if err != nil {
		f.Fatal(err)
	}
	for _, v := range all {
		add(v.Records, 1)
	}
}

// FuzzMessage decodes and redacts any bytes as each kind of message. A message
// gives a signal or is counted as one that gives none; no value is one that a
// request cannot have; and redaction changes nothing but values.
func FuzzMessage(f *testing.F) {
	addSeeds(f)
	e := vllmtest.SyntheticEngine("0.32.0")
	e.Structs, e.Enums = structs(f, "0.32.0"), map[string]map[int64]string{"FinishReason": {0: "STOP", 1: "LENGTH"}}
	f.Fuzz(func(t *testing.T, kind uint8, gap uint16, data []byte) {
		var recs []event.Record
		dir, part := uint8(event.FrameRecv), 1
		switch kind % 3 {
		case 0:
			dir, part = event.FrameSend, 0
		case 1, 2:
			recs = append(recs, vllmtest.Frame(1, core, core, 1, dir, 0, true, []byte{kind%3 - 1}))
		}
		r := vllmtest.Frame(2, core, core, 1, dir, part, false, data)
		if g := int(gap); g > 0 && g < len(data) {
			// Some bytes are missing in the middle.
			head, tail := r, r
			head.Frame.Size += 1000
			tail.Frame.Size += 1000
			head.Frame.Flags |= event.FrameCut
			tail.Frame.Flags |= event.FrameCut
			head.Data, tail.Data = data[:g], data[g:]
			tail.Frame.Off = uint32(g + 1000)
			recs = append(recs, head, tail)
		} else {
			recs = append(recs, r)
		}
		var sigs [2][]signal.Signal
		var stats [2]vllm.Stats
		for i, rs := range [][]event.Record{recs, redact(t, e, recs)} {
			d, _ := decode(t, e, vllm.Options{Tokens: true}, rs, func(s signal.Signal) { sigs[i] = append(sigs[i], s) })
			stats[i] = d.Stats()
			st := stats[i]
			if n := st.Requests + st.Aborts + st.Steps + st.Other + st.NotOurs + st.Broken; n != 1 {
				t.Fatalf("a message counts %d times: %+v", n, st)
			}
			if (st.Broken > 0) != (d.Problem() != nil) || st.Broken > 0 && len(sigs[i]) > 0 {
				t.Fatalf("broken and read: %+v, %v, %v", st, d.Problem(), sigs[i])
			}
		}
		for _, s := range sigs[0] {
			check(t, s, gap > 0)
		}
		if stats[0].Broken == 0 && stats[0] != stats[1] {
			t.Fatalf("redacted: totals %+v, were %+v", stats[1], stats[0])
		}
		a, b := withoutValues(sigs[0]), withoutValues(sigs[1])
		if len(a) != len(b) || len(a) > 0 && a[0] != b[0] {
			t.Fatalf("redacted:\n%s\nwas:\n%s", b, a)
		}
	})
}

// check fails if a signal says what cannot be.
func check(t *testing.T, s signal.Signal, gap bool) {
	count := func(what string, v signal.Opt[int64]) {
		if v.OK && v.V < 0 {
			t.Fatalf("%s is %d", what, v.V)
		}
	}
	switch s := s.(type) {
	case *signal.RequestAdded:
		if s.At <= 0 || s.Arrival < 0 || s.ID == "" || s.ExternalID == "" || s.Client < 0 || s.Child.OK && s.Child.V < 0 {
			t.Fatalf("request %+v", s)
		}
		count("prompt tokens", s.PromptTokens)
	case *signal.RequestAborted:
		if len(s.IDs) == 0 {
			t.Fatal("nothing aborted")
		}
	case *signal.StepOutput:
		if s.At <= 0 || s.Stamp < 0 || s.Key == 0 && !gap || len(s.Outputs) == 0 && s.Stats == nil {
			t.Fatalf("step %+v", s)
		}
		for _, o := range s.Outputs {
			if o.NumTokens < 0 || o.NumTokens != len(o.Tokens) || o.Logprobs != nil && len(o.Logprobs) != o.NumTokens || (o.Finish == signal.FinishNone) != (o.FinishReason == "") {
				t.Fatalf("output %+v", o)
			}
			count("cached tokens", o.CachedTokens)
			count("external tokens", o.ExternalTokens)
			count("prompt tokens", o.PromptTokens)
			for _, ev := range o.Events {
				if ev.At <= 0 || ev.Kind < signal.EventQueued || ev.Kind > signal.EventPreempted {
					t.Fatalf("event %+v", ev)
				}
			}
		}
		if st := s.Stats; st != nil {
			for what, v := range map[string]signal.Opt[int64]{"running": st.Running, "waiting": st.Waiting, "queries": st.PrefixQueries, "hits": st.PrefixHits, "drafts": st.SpecDrafts} {
				count(what, v)
			}
			if st.KVUsage.OK && !(st.KVUsage.V >= 0 && st.KVUsage.V <= 1) {
				t.Fatalf("usage %v", st.KVUsage)
			}
		}
	}
}

func benchmarkStep(b *testing.B, n int, opt vllm.Options) {
	d, err := vllm.NewDecoder(vllmtest.SyntheticEngine("0.32.0"), opt)
	if err != nil {
		b.Fatal(err)
	}
	data := stepMessage(n, nil)
	m := wire.Message{Begin: 1, End: 1, PID: core, Sock: 2, Dir: event.FrameSend, Parts: []wire.Part{{Size: uint32(len(data)), Head: data}}}
	outputs := 0
	emit := func(s signal.Signal) { outputs += len(s.(*signal.StepOutput).Outputs) }
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		m.TID++ // the same message by the same thread is the same send
		d.Message(&m, emit)
	}
	b.ReportMetric(float64(outputs)/b.Elapsed().Seconds(), "outputs/s")
}

func BenchmarkStep32(b *testing.B)       { benchmarkStep(b, 32, vllm.Options{}) }
func BenchmarkStep32Tokens(b *testing.B) { benchmarkStep(b, 32, vllm.Options{Tokens: true}) }
func BenchmarkStep1(b *testing.B)        { benchmarkStep(b, 1, vllm.Options{}) }

// BenchmarkRun decodes the records of a real run.
func BenchmarkRun(b *testing.B) {
	run, err := vllmtest.Load("0.32.0-small")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		d, err := vllm.NewDecoder(run.Engine, vllm.Options{})
		if err != nil {
			b.Fatal(err)
		}
		a := wire.NewAssembler(wire.Limits{}, false)
		emit := func(signal.Signal) {}
		message := func(m *wire.Message) { d.Message(m, emit) }
		for i := range run.Records {
			a.Put(&run.Records[i], message)
		}
	}
	b.ReportMetric(float64(len(run.Records)*b.N)/b.Elapsed().Seconds(), "records/s")
}

// TestAllocs checks that decoding a step allocates nothing once it has run.
func TestAllocs(t *testing.T) {
	for _, opt := range []vllm.Options{{}, {Tokens: true}} {
		d, err := vllm.NewDecoder(vllmtest.SyntheticEngine("0.32.0"), opt)
		if err != nil {
			t.Fatal(err)
		}
		data := stepMessage(32, nil)
		a := wire.NewAssembler(wire.Limits{}, false)
		r := send(data)
		n := 0
		emit := func(s signal.Signal) { n += len(s.(*signal.StepOutput).Outputs) }
		message := func(m *wire.Message) { d.Message(m, emit) }
		if allocs := testing.AllocsPerRun(100, func() { r.TID ^= 1; a.Put(&r, message) }); allocs != 0 || n != 32*101 {
			t.Errorf("%+v: %v allocations, %d outputs", opt, allocs, n)
		}
	}
}
