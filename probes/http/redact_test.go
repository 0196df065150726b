package httptap

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

func redact(records []event.Record) []event.Record { return copied(records, NewRedactor().Put) }

// leaks looks for traces of secrets: their text, and the token ids 7741...
func leaks(records []event.Record) string {
	var all [4][]byte
	for _, r := range records {
		all[r.HTTP.Dir] = append(all[r.HTTP.Dir], r.Data...)
	}
	for _, b := range all {
		for _, s := range []string{secret, "s3cr", "cr3t", "3tq", "7741"} {
			if i := bytes.Index(b, []byte(s)); i >= 0 {
				return string(b[max(0, i-200):min(len(b), i+100)])
			}
		}
	}
	return ""
}

func TestRedactorNeverLeaks(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		records := split(rnd, traffic(rnd, 1))
		if seed%2 == 0 {
			records = lossy(rnd, records, 2+rnd.IntN(8))
		}
		if seed%7 == 0 {
			for i := range records {
				records[i].HTTP.Flags |= event.HTTPMidstream
			}
		}
		if l := leaks(redact(records)); l != "" {
			t.Fatalf("seed %d leaks: ...%s...", seed, l)
		}
	}
}

// Of heads only what decoding needs and what describes the software is kept.
func TestRedactorHeads(t *testing.T) {
	const (
		request = "POST /v1/completions?user=ann&x= HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 10.1.2.3\r\nX-User-Email: ann@example.org\r\n" +
			"Referer: http://intra/ann\r\nContent-Type: application/json\r\nContent-Length: 2\r\nTraceParent: 00-a\r\n\r\n{}"
		kept = "POST /v1/completions?user=xxx&x= HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: xxxxxxxx\r\nX-User-Email: xxxxxxxxxxxxxxx\r\n" +
			"Referer: xxxxxxxxxxxxxxxx\r\nContent-Type: application/json\r\nContent-Length: 2\r\nTraceParent: 00-a\r\n\r\n{}"
		answer     = "HTTP/1.1 200 OK\r\nServer: uvicorn\r\nX-Trace-User: ann\r\nContent-Length: 0\r\n\r\n"
		answerKept = "HTTP/1.1 200 OK\r\nServer: uvicorn\r\nX-Trace-User: xxx\r\nContent-Length: 0\r\n\r\n"
	)
	w := &wire{conn: 1}
	for i := range uint64(3) {
		w.read(2*i+1, request)
		w.write(2*i+2, answer)
	}
	rnd := rand.New(rand.NewPCG(10, 10))
	for range 100 {
		out := redact(split(rnd, w.out))
		if got := joined(out, event.HTTPRead); got != strings.Repeat(kept, 3) {
			t.Fatalf("got\n%s", got)
		}
		if got := joined(out, event.HTTPWrite); got != strings.Repeat(answerKept, 3) {
			t.Fatalf("got\n%s", got)
		}
	}
}

// blankCalls takes out the names of tools, which redaction blanks.
func blankCalls(s signal.Signal) {
	if e, ok := s.(*signal.ExchangeEnd); ok {
		for i := range e.Calls {
			e.Calls[i].Name = "x"
		}
	}
}

// Without gaps a redacted recording says the same, but for the contents.
func TestRedactorKeepsSignals(t *testing.T) {
	same := func(t *testing.T, name string, records []event.Record) {
		t.Helper()
		want := parse(newTestParser(Options{}), records)
		got := parse(newTestParser(Options{}), redact(records))
		if len(got) != len(want) {
			t.Fatalf("%s: %d signals, want %d", name, len(got), len(want))
		}
		for i := range want {
			for _, s := range []signal.Signal{got[i], want[i]} {
				if b, ok := s.(*signal.ExchangeBegin); ok && b.Body.User.OK {
					b.Body.User.V = "user"
				}
			}
			blankCalls(got[i])
			blankCalls(want[i])
			if show(got[i]) != show(want[i]) {
				t.Fatalf("%s: got\n%s\nwant\n%s", name, show(got[i]), show(want[i]))
			}
		}
	}
	rnd := rand.New(rand.NewPCG(6, 7))
	for _, name := range transcripts(t) {
		same(t, name, split(rnd, transcript(t, name, 1)))
	}
	for seed := range uint64(1500) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		same(t, fmt.Sprint("seed ", seed), split(rnd, traffic(rnd, 1)))
	}
}

// Redaction does not depend on how the streams are cut into records.
func TestRedactorSplitInvariance(t *testing.T) {
	streams := func(records []event.Record) (out [4][]byte) {
		for _, r := range records {
			out[r.HTTP.Dir] = append(out[r.HTTP.Dir], r.Data...)
		}
		return out
	}
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		records := traffic(rnd, 1)
		want, got := streams(redact(records)), streams(redact(split(rnd, records)))
		for d := range want {
			if !bytes.Equal(want[d], got[d]) {
				t.Fatalf("seed %d: %q, want %q", seed, got[d], want[d])
			}
		}
	}
}
