package httptap

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"inferspan/bpf/event"
)

// copied gives copies of the records to put, which may change them.
func copied(records []event.Record, put func(*event.Record)) []event.Record {
	out := make([]event.Record, len(records))
	for i, r := range records {
		r.Data = bytes.Clone(r.Data)
		put(&r)
		out[i] = r
	}
	return out
}

func scrub(records []event.Record) []event.Record { return copied(records, NewScrubber().Put) }

func joined(records []event.Record, dir uint8) string {
	var b strings.Builder
	for _, r := range records {
		if r.HTTP.Dir == dir {
			b.Write(r.Data)
		}
	}
	return b.String()
}

func TestScrub(t *testing.T) {
	const body = `{"messages":"Authorization: Bearer body\r\nAuthorization: kept\r\n"}`
	request := "POST /v1/chat/completions?api_key=abc&x=1&TOKEN=d%20e&keyword=k HTTP/1.1\r\nHost: h\r\nAUTHORIZATION: Bearer sk-1\r\n" +
		"Cookie:a=b; c=d\r\n folded\r\nX-Api-Key:\tk\r\napi-key : z\r\nProxy-Authorization: Basic Zm9v\r\nX-Author: keep\r\nX-Amz-Security-Token: t1\r\nOcp-Apim-Subscription-Key: k2\r\nEmpty:\r\n" +
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	scrubbed := "POST /v1/chat/completions?api_key=xxx&x=1&TOKEN=xxxxx&keyword=k HTTP/1.1\r\nHost: h\r\nAUTHORIZATION: xxxxxx xxxx\r\n" +
		"Cookie:xxxx xxx\r\n xxxxxx\r\nX-Api-Key:\tx\r\napi-key : x\r\nProxy-Authorization: xxxxx xxxx\r\nX-Author: keep\r\nX-Amz-Security-Token: xx\r\nOcp-Apim-Subscription-Key: xx\r\nEmpty:\r\n" +
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	response := withLength("HTTP/1.1 200 OK\r\nSet-Cookie: id=1; Path=/\r\nx: y\r\n", "Set-Cookie: kept")
	answered := withLength("HTTP/1.1 200 OK\r\nSet-Cookie: xxxxx xxxxxx\r\nx: y\r\n", "Set-Cookie: kept")
	w := &wire{conn: 1}
	w.read(1, request)
	w.write(2, "HTTP/1.1 100 Continue\r\nSet-Cookie: a=b\r\n\r\n")
	w.write(2, response)
	w.read(3, request+request)
	w.write(4, response+response)
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		got := scrub(split(rnd, w.out))
		if g, want := joined(got, event.HTTPRead), strings.Repeat(scrubbed, 3); g != want {
			t.Fatalf("got\n%s\nwant\n%s", g, want)
		}
		if g, want := joined(got, event.HTTPWrite), "HTTP/1.1 100 Continue\r\nSet-Cookie: xxx\r\n\r\n"+strings.Repeat(answered, 3); g != want {
			t.Fatalf("got\n%s\nwant\n%s", g, want)
		}
	}
}

// Heads that cannot be placed are scrubbed as well.
func TestScrubLost(t *testing.T) {
	const head = "GET /x HTTP/1.1\r\nAuthorization: Bearer s3cr3t\r\nHost: h\r\n\r\n"
	for _, c := range []struct {
		name string
		make func(w *wire)
	}{
		{"midstream, head in two reads", func(w *wire) {
			w.flags = event.HTTPMidstream
			w.read(1, head[:30])
			w.read(2, head[30:])
		}},
		{"beginning of the head lost", func(w *wire) {
			w.skip(event.HTTPRead, 10)
			w.read(1, head[10:])
		}},
		{"cut within the secret", func(w *wire) {
			w.read(1, head[:45])
			w.skip(event.HTTPRead, 1)
			w.read(2, head[46:])
		}},
		{"name lost", func(w *wire) {
			w.read(1, head[:20])
			w.skip(event.HTTPRead, 15)
			w.read(2, head[35:])
		}},
		{"not HTTP", func(w *wire) {
			w.read(1, "hello\r\n")
			w.read(2, head)
		}},
		{"after an upgrade", func(w *wire) {
			w.read(1, "GET / HTTP/1.1\r\n\r\n")
			w.write(2, "HTTP/1.1 101 Switching\r\n\r\n")
			w.read(3, head)
		}},
		{"after lost bytes of a chunked body", func(w *wire) {
			w.read(1, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
			w.skip(event.HTTPRead, 9)
			w.read(2, head)
		}},
		{"answer after lost bytes of a chunked answer", func(w *wire) {
			w.read(1, "GET / HTTP/1.1\r\n\r\n")
			w.write(2, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
			w.skip(event.HTTPWrite, 9)
			w.write(3, "HTTP/1.1 200 OK\r\nSet-Cookie: s3cr3t\r\n\r\n")
		}},
		{"name too long to compare", func(w *wire) {
			w.read(1, "GET / HTTP/1.1\r\n"+strings.Repeat("x", maxName)+"-Key: s3cr3t\r\n\r\n")
		}},
		{"trailer", func(w *wire) {
			w.read(1, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: s3cr3t\r\n\r\n")
		}},
	} {
		w := &wire{conn: 1}
		c.make(w)
		out := scrub(w.out)
		if got := joined(out, event.HTTPRead) + joined(out, event.HTTPWrite); strings.Contains(got, "3cr3") || strings.Contains(got, "r3t") {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// Secrets apart, scrubbing changes nothing: neither lengths nor signals.
func TestScrubKeepsSignals(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 2))
	for _, name := range transcripts(t) {
		records := split(rnd, transcript(t, name, 1))
		want := showAll(parse(newTestParser(Options{Content: true}), records))
		scrubbed := scrub(records)
		if got := showAll(parse(newTestParser(Options{Content: true}), scrubbed)); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
		if strings.Contains(joined(scrubbed, event.HTTPRead), "sk-not-a-real-key") {
			t.Errorf("%s: key left", name)
		}
	}
}
