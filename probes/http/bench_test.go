package httptap

import (
	"fmt"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

func noEmit(signal.Signal) {}

// BenchmarkEvent parses one server-sent event that was written, as vLLM writes
// them, in the middle of a stream.
func BenchmarkEvent(b *testing.B) {
	for _, content := range []bool{false, true} {
		b.Run(fmt.Sprintf("content=%v", content), func(b *testing.B) {
			p := newTestParser(Options{Content: content, MaxBody: 1 << 30})
			w := &wire{conn: 1}
			w.read(1, withLength(chatHead, `{"model":"tiny","messages":[]}`))
			w.write(2, sseHead)
			for i := range w.out {
				p.Put(&w.out[i], noEmit)
			}
			data := chunked(`data: {"id":"chatcmpl-8b4facdf7c8f8d21","object":"chat.completion.chunk","created":1795961948,"model":"tiny","choices":[{"index":0,"delta":{"content":" binary"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
			r := *w.record(3, event.HTTPWrite, []byte(data))
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				p.Put(&r, noEmit)
				r.HTTP.Off += uint64(len(data))
				r.Time++
				if x := p.tap.conns[connKey{testPID, 1}].pending[0].parsed; content && x.answer.out.size > 1<<20 {
					p.contents.held -= x.answer.out.size
					x.answer.out = output{}
				}
			}
		})
	}
}

// BenchmarkRequest parses a request and its answer: without streaming, and a
// stream of which the kernel kept the ends.
func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct{ name, file string }{
		{"json", "conn_close"}, {"stream", "chat_long"},
	} {
		records := kernel(transcript(b, "testdata/vllm-0.32.0/"+c.file+".txt", 1))
		for _, stage := range []string{"parse", "scrub"} {
			b.Run(c.name+"/"+stage, func(b *testing.B) {
				p, s := newTestParser(Options{}), NewScrubber()
				b.ReportAllocs()
				for b.Loop() {
					for i := range records {
						if stage == "parse" {
							p.Put(&records[i], noEmit)
						} else {
							s.Put(&records[i])
						}
					}
				}
				b.ReportMetric(float64(len(records)), "records/op")
			})
		}
	}
}

// BenchmarkPrompt parses a request with a prompt of 100 kB.
func BenchmarkPrompt(b *testing.B) {
	text := make([]byte, 100_000)
	for i := range text {
		text[i] = "the quick brown fox "[i%20]
	}
	w := &wire{conn: 1}
	w.read(1, withLength(chatHead, `{"model":"tiny","messages":[{"role":"user","content":"`+string(text)+`"}]}`))
	w.close(2, event.HTTPEOF)
	p := newTestParser(Options{})
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		for i := range w.out {
			p.Put(&w.out[i], noEmit)
		}
	}
}
