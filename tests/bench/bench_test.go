// Package bench measures the pipeline as a whole: what one token costs from the
// kernel record to the finished span.
//
// A token record is one token of one request in one message of the engine: the
// unit in which the load grows with the number of requests running.
package bench

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"inferspan/agent"
	"inferspan/bpf/event"
	"inferspan/correlate/trace"
	"inferspan/probes/target"
	"inferspan/recording"
)

// BenchmarkReplay replays the recordings of tests/captures, file to spans, on one core.
func BenchmarkReplay(b *testing.B) {
	files, err := filepath.Glob("../captures/*.isr")
	if err != nil || len(files) == 0 {
		b.Fatalf("no recordings in tests/captures: %v", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(strings.TrimSuffix(filepath.Base(name), ".isr"), func(b *testing.B) {
			tokens := 0
			measure(b, func() {
				r, err := recording.NewReader(bytes.NewReader(data))
				if err != nil {
					b.Fatal(err)
				}
				p := agent.NewPipeline(agent.Options{Precision: 1}, func(t *trace.Tree) { tokens += tokensOf(t) })
				if _, err := agent.Replay(r, p); err != nil {
					b.Fatal(err)
				}
			})
			report(b, tokens)
		})
	}
}

// BenchmarkSteps feeds the steps of a busy engine, decoded records in memory:
// the requests of the burst recording over and over, without the file around them.
func BenchmarkSteps(b *testing.B) {
	engine, records := load(b, "../captures/burst.isr")
	tokens := 0
	p := agent.NewPipeline(agent.Options{Precision: 1}, func(t *trace.Tree) { tokens += tokensOf(t) })
	if err := p.Engine(engine); err != nil {
		b.Fatal(err)
	}
	measure(b, func() {
		for i := range records {
			if err := p.Record(&records[i]); err != nil {
				b.Fatal(err)
			}
		}
	})
	report(b, tokens)
}

// measure runs f b.N times on one processor, and counts allocations.
func measure(b *testing.B, f func()) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
}

// report adds figures per token record; tokens is the total of all iterations.
func report(b *testing.B, tokens int) {
	if tokens == 0 {
		b.Fatal("no tokens: the records were not understood")
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tokens), "ns/token")
}

// tokensOf returns how many tokens the engine requests of a tree got.
func tokensOf(t *trace.Tree) int {
	n := 0
	for i := range t.Spans {
		if v, ok := t.Spans[i].Attr("gen_ai.usage.completion_tokens").(int64); ok {
			n += int(v)
		}
	}
	return n
}

// load reads the records of a recording of one engine.
func load(b *testing.B, name string) (*target.Engine, []event.Record) {
	f, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	r, err := recording.NewReader(f)
	if err != nil {
		b.Fatal(err)
	}
	var (
		engine  *target.Engine
		records []event.Record
	)
	for {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			return engine, records
		}
		if err != nil {
			b.Fatal(err)
		}
		switch {
		case it.Engine != nil:
			engine = it.Engine
		case it.Record != nil:
			var rec event.Record
			if err := event.Decode(bytes.Clone(it.Record), &rec); err != nil {
				b.Fatal(err)
			}
			records = append(records, rec)
		}
	}
}
