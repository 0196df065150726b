package httptap

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

const (
	chatHead = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
	okHead   = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
	sseHead  = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)

func withLength(head, body string) string {
	return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
}

func chunkEvent(id, rest string) string {
	return chunked(`data: {"id":"` + id + `","object":"chat.completion.chunk","model":"m",` + rest + "}\n\n")
}

// summary prints the parts of signals that the tables below are about.
func summary(s []signal.Signal) string {
	var b strings.Builder
	for _, x := range s {
		switch x := x.(type) {
		case *signal.ExchangeBegin:
			fmt.Fprintf(&b, "begin#%d@%d-%d %s %s %d\n", x.Exchange.Seq, x.At, x.Done, x.Method, x.Path, x.BodyBytes)
		case *signal.ExchangeFirst:
			fmt.Fprintf(&b, "first#%d@%d %d %s\n", x.Exchange.Seq, x.At, x.Status, x.ResponseID)
		case *signal.ExchangeEnd:
			gap := ""
			if x.Gap {
				gap = " gap"
			}
			fmt.Fprintf(&b, "end#%d@%d %d %s chunks=%d%s\n", x.Exchange.Seq, x.At, x.Status,
				[]string{"", "complete", "disconnect", "closed", "exit", "detached"}[x.Outcome], x.Chunks, gap)
		}
	}
	return b.String()
}

func TestExchanges(t *testing.T) {
	body := `{"model":"m","messages":[]}`
	request := withLength(chatHead, body)
	get := "GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
	answer := withLength(okHead, `{"id":"a"}`)
	begin := "begin#0@1-1 POST /v1/chat/completions 27\n"
	for _, c := range []struct {
		name string
		make func(w *wire)
		want string
	}{
		{"no answer needed body", func(w *wire) {
			w.read(1, get)
			w.write(2, "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n")
			w.read(3, "HEAD /x?token=1 HTTP/1.1\r\n\r\n")
			w.write(4, "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n")
			w.read(5, get)
			w.write(6, "HTTP/1.1 304 Not Modified\r\n\r\n")
		}, "begin#0@1-1 GET /health 0\nfirst#0@2 204 \nend#0@2 204 complete chunks=0\n" +
			"begin#1@3-3 HEAD /x 0\nfirst#1@4 200 \nend#1@4 200 complete chunks=0\n" +
			"begin#2@5-5 GET /health 0\nfirst#2@6 304 \nend#2@6 304 complete chunks=0\n"},
		{"empty lines before a request", func(w *wire) {
			w.read(1, "\r\n\r\n"+get)
			w.write(2, answer)
		}, "begin#0@1-1 GET /health 0\nfirst#0@2 200 \nend#0@2 200 complete chunks=1\n"},
		{"interim response", func(w *wire) {
			w.read(1, fmt.Sprintf("%sExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", chatHead, len(body)))
			w.write(2, "HTTP/1.1 100 Continue\r\n\r\n")
			w.read(3, body)
			w.write(4, "HTTP/1.1 102 Processing\r\n\r\n")
			w.write(5, answer)
		}, "begin#0@1-3 POST /v1/chat/completions 27\nfirst#0@5 200 a\nend#0@5 200 complete chunks=1\n"},
		{"answer before the body", func(w *wire) {
			w.read(1, chatHead+"Content-Length: 100\r\n\r\n"+body)
			w.write(2, withLength("HTTP/1.1 413 Too Large\r\n", "no"))
			w.read(3, strings.Repeat(" ", 73))
			w.read(4, get)
			w.write(5, answer)
		}, "begin#0@1-0 POST /v1/chat/completions 27\nfirst#0@2 413 \nend#0@2 413 complete chunks=1\n" +
			"begin#1@4-4 GET /health 0\nfirst#1@5 200 \nend#1@5 200 complete chunks=1\n"},
		{"client leaves while it sends", func(w *wire) {
			w.read(1, chatHead+"Content-Length: 100\r\n\r\n"+body)
			w.close(2, event.HTTPEOF)
		}, "begin#0@1-0 POST /v1/chat/completions 27\nend#0@2 0 disconnect chunks=0\n"},
		{"client leaves within the head", func(w *wire) {
			w.read(1, chatHead)
			w.close(2, event.HTTPReset)
		}, ""},
		{"client resets in mid-stream", func(w *wire) {
			w.read(1, request)
			w.write(2, sseHead)
			w.write(3, chunkEvent("a", `"choices":[]`))
			w.close(4, event.HTTPReset)
			w.close(5, 0)
		}, begin + "first#0@2 200 a\nend#0@4 200 disconnect chunks=1\n"},
		{"server closes in mid-stream", func(w *wire) {
			w.read(1, request)
			w.write(2, sseHead)
			w.write(3, chunkEvent("a", `"choices":[]`))
			w.close(4, 0)
		}, begin + "first#0@2 200 a\nend#0@4 200 closed chunks=1\n"},
		{"server closes to end the body", func(w *wire) {
			w.read(1, request)
			w.write(2, okHead+"\r\n")
			w.write(3, `{"id":`)
			w.write(4, `"a"}`)
			w.close(5, 0)
		}, begin + "first#0@2 200 a\nend#0@5 200 complete chunks=2\n"},
		{"client closes before the body ended", func(w *wire) {
			w.read(1, request)
			w.write(2, okHead+"\r\n"+`{"id":"a"`)
			w.close(5, event.HTTPEOF)
		}, begin + "first#0@2 200 a\nend#0@5 200 disconnect chunks=1\n"},
		{"server closes without an answer", func(w *wire) {
			w.read(1, request)
			w.close(2, 0)
		}, begin + "end#0@2 0 closed chunks=0\n"},
		{"upgrade", func(w *wire) {
			w.read(1, "GET /v1/realtime HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
			w.write(2, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello")
			w.read(3, "\x81\x85....GET / HTTP/1.1\r\n\r\n")
			w.read(4, get)
			w.close(5, 0)
		}, "begin#0@1-1 GET /v1/realtime 0\nfirst#0@2 101 \nend#0@2 101 complete chunks=0\n"},
		{"pipelined", func(w *wire) {
			w.read(1, get+request+get)
			w.write(2, answer+answer[:len(answer)-3])
			w.write(3, answer[len(answer)-3:])
			w.close(4, event.HTTPEOF)
		}, "begin#0@1-1 GET /health 0\nbegin#1@1-1 POST /v1/chat/completions 27\nbegin#2@1-1 GET /health 0\n" +
			"first#0@2 200 \nend#0@2 200 complete chunks=1\nfirst#1@2 200 a\nend#1@3 200 complete chunks=2\nend#2@4 0 disconnect chunks=0\n"},
		{"chunked request with extensions and trailers", func(w *wire) {
			w.read(1, chatHead+"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\n{\"mod\r\n")
			w.read(2, "16\r\nel\":\"m\",\"messages\":[]}\r\n0\r\nX-Sum: 1\r\n\r\n"+get)
			w.write(3, answer+answer)
		}, "begin#0@1-2 POST /v1/chat/completions 27\nbegin#1@2-2 GET /health 0\nfirst#0@3 200 a\nend#0@3 200 complete chunks=1\n" +
			"first#1@3 200 \nend#1@3 200 complete chunks=1\n"},
		{"TLS", func(w *wire) {
			w.read(1, "\x16\x03\x01\x00\x05hello")
			w.write(2, "\x16\x03\x03")
			w.read(3, get)
		}, ""},
		{"speaks HTTP only later", func(w *wire) {
			w.read(1, "hello\r\n")
			w.read(2, get)
			w.write(3, answer)
		}, ""},
		{"malformed head", func(w *wire) {
			w.read(1, "GET /a b HTTP/1.1\r\n\r\n")
			w.write(2, "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
			w.read(3, get)
		}, ""},
		{"two lengths", func(w *wire) {
			w.read(1, "POST /x HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd")
		}, ""},
		{"server speaks first", func(w *wire) {
			w.write(1, "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
			w.read(2, get)
			w.write(3, answer)
		}, "begin#0@2-2 GET /health 0\nfirst#0@3 200 \nend#0@3 200 complete chunks=1\n"},
		{"midstream", func(w *wire) {
			w.flags = event.HTTPMidstream
			w.off = [4]uint64{0, 5000, 7000, 0}
			w.write(1, chunkEvent("old", `"choices":[]`))
			w.read(2, "he rest of a body")
			w.write(3, "0\r\n\r\n")
			w.read(4, get)
			w.write(5, answer)
		}, "begin#0@4-4 GET /health 0\nfirst#0@5 200 \nend#0@5 200 complete chunks=1\n"},
		{"beginning lost", func(w *wire) {
			w.off = [4]uint64{0, 5000, 7000, 0}
			w.write(1, "0\r\n\r\n")
			w.read(4, get)
			w.write(5, answer)
		}, "begin#0@4-4 GET /health 0\nfirst#0@5 200 \nend#0@5 200 complete chunks=1\n"},
		{"request body cut", func(w *wire) {
			w.read(1, chatHead+"Content-Length: 1000\r\n\r\n"+body)
			w.out[0].HTTP.Size += 973
			w.out[0].HTTP.Flags |= event.HTTPCut
			w.skip(event.HTTPRead, 973)
			w.write(2, answer)
		}, "begin#0@1-1 POST /v1/chat/completions 1000\nfirst#0@2 200 a\nend#0@2 200 complete chunks=1\n"},
		{"request body not copied", func(w *wire) {
			w.read(1, chatHead+"Content-Length: 1000\r\n\r\n"+body)
			w.skip(event.HTTPRead, 973)
			w.write(3, answer)
			w.read(4, get)
			w.out[len(w.out)-1].HTTP.SkippedLast = 2
			w.write(5, answer)
		}, "begin#0@1-0 POST /v1/chat/completions 27\nfirst#0@3 200 a\nend#0@3 200 complete chunks=1\n" +
			"begin#1@4-4 GET /health 0\nfirst#1@5 200 \nend#1@5 200 complete chunks=1\n"},
		{"request lost", func(w *wire) {
			w.read(1, get)
			w.write(2, answer)
			w.skip(event.HTTPRead, uint64(len(request)))
			w.write(4, answer)
			w.read(5, get)
			w.write(6, answer)
		}, "begin#0@1-1 GET /health 0\nfirst#0@2 200 \nend#0@2 200 complete chunks=1\n" +
			"begin#1@5-5 GET /health 0\nfirst#1@6 200 \nend#1@6 200 complete chunks=1\n"},
		{"answer lost", func(w *wire) {
			w.read(1, request)
			w.skip(event.HTTPWrite, uint64(len(answer)))
			w.read(3, get)
			w.write(4, answer)
			w.close(5, 0)
		}, begin + "begin#1@3-3 GET /health 0\nfirst#0@4 200 a\nend#0@4 200 complete chunks=1 gap\nend#1@5 0 closed chunks=0\n"},
		{"end of an answer lost", func(w *wire) {
			w.read(1, request)
			w.write(2, sseHead)
			w.write(3, chunkEvent("a", `"choices":[]`))
			w.skip(event.HTTPWrite, 500)
			w.read(5, get)
			w.write(6, answer)
		}, begin + "first#0@2 200 a\nbegin#1@5-5 GET /health 0\nend#0@3 200 complete chunks=1 gap\nfirst#1@6 200 \nend#1@6 200 complete chunks=1\n"},
		{"middle of a stream counted", func(w *wire) {
			w.read(1, request)
			w.write(2, sseHead)
			w.write(3, chunkEvent("a", `"choices":[]`))
			w.skip(event.HTTPWrite, 5000)
			w.write(9, chunkEvent("a", `"choices":[{"index":0,"finish_reason":"stop"}]`))
			w.out[len(w.out)-1].HTTP.Skipped = 20
			w.out[len(w.out)-1].HTTP.SkippedLast = 8
			w.write(10, chunked("data: [DONE]\n\n"))
			w.write(11, "0\r\n\r\n")
		}, begin + "first#0@2 200 a\nend#0@11 200 complete chunks=23 gap\n"},
		{"another answer after a gap", func(w *wire) {
			w.read(1, request)
			w.write(2, sseHead)
			w.write(3, chunkEvent("a", `"choices":[]`))
			w.skip(event.HTTPWrite, 5000)
			w.skip(event.HTTPRead, uint64(len(request)))
			w.write(9, chunkEvent("b", `"choices":[{"index":0,"finish_reason":"stop"}]`))
			w.write(10, chunked("data: [DONE]\n\n"))
			w.write(11, "0\r\n\r\n")
		}, begin + "first#0@2 200 a\nend#0@3 200 complete chunks=1 gap\n"},
		{"another choice after a gap", func(w *wire) {
			w.read(1, withLength(chatHead, `{"model":"m","n":3,"messages":[]}`))
			w.write(2, sseHead)
			w.write(3, chunkEvent("a", `"choices":[]`)+chunkEvent("b", `"choices":[]`))
			w.skip(event.HTTPWrite, 5000)
			w.write(9, chunkEvent("c", `"choices":[{"index":2,"finish_reason":"stop"}]`))
			w.out[len(w.out)-1].HTTP.Skipped = 20
			w.out[len(w.out)-1].HTTP.SkippedLast = 8
			w.write(10, chunked("data: [DONE]\n\n"))
			w.write(11, "0\r\n\r\n")
		}, "begin#0@1-1 POST /v1/chat/completions 33\nfirst#0@2 200 a\nend#0@11 200 complete chunks=23 gap\n"},
		{"another answer after a gap, and all choices are known", func(w *wire) {
			w.read(1, withLength(chatHead, `{"model":"m","n":2,"messages":[]}`))
			w.write(2, sseHead)
			w.write(3, chunkEvent("a", `"choices":[]`)+chunkEvent("b", `"choices":[]`))
			w.skip(event.HTTPWrite, 5000)
			w.write(9, chunkEvent("c", `"choices":[{"index":0,"finish_reason":"stop"}]`))
			w.write(11, "0\r\n\r\n")
		}, "begin#0@1-1 POST /v1/chat/completions 33\nfirst#0@2 200 a\nend#0@3 200 complete chunks=1 gap\n"},
		{"another answer after a gap, where choices share their id", func(w *wire) {
			w.read(1, withLength(chatHead, `{"model":"m","n":3,"messages":[]}`))
			w.write(2, sseHead)
			w.write(3, chunkEvent("chatcmpl-a", `"choices":[]`))
			w.skip(event.HTTPWrite, 5000)
			w.write(9, chunkEvent("chatcmpl-b", `"choices":[{"index":0,"finish_reason":"stop"}]`))
			w.write(11, "0\r\n\r\n")
		}, "begin#0@1-1 POST /v1/chat/completions 33\nfirst#0@2 200 chatcmpl-a\nend#0@3 200 complete chunks=1 gap\n"},
		{"counted to the close", func(w *wire) {
			w.read(1, request)
			w.write(2, sseHead)
			w.write(3, chunkEvent("a", `"choices":[]`))
			w.skip(event.HTTPWrite, 5000)
			w.close(9, event.HTTPEOF)
			r := &w.out[len(w.out)-1]
			r.HTTP.Off, r.HTTP.Skipped, r.HTTP.SkippedLast = w.off[event.HTTPWrite], 20, 8
		}, begin + "first#0@2 200 a\nend#0@9 200 disconnect chunks=21 gap\n"},
		{"offset goes back", func(w *wire) {
			w.read(1, request)
			w.write(2, sseHead)
			w.off[event.HTTPWrite] = 3
			w.write(3, chunkEvent("a", `"choices":[]`))
			w.read(4, get)
			w.write(5, answer)
		}, begin + "begin#1@4-4 GET /health 0\nfirst#0@2 200 \nend#0@2 200 complete chunks=0 gap\nfirst#1@5 200 \nend#1@5 200 complete chunks=1\n"},
	} {
		w := &wire{conn: 1}
		c.make(w)
		p := newTestParser(Options{})
		got := parse(p, w.out)
		check(t, got)
		if s := summary(got); s != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.name, s, c.want)
		}
	}
}

func TestProcessExit(t *testing.T) {
	w := &wire{conn: 1}
	w.read(1, withLength(chatHead, "{}"))
	w.out = append(w.out, event.Record{Header: event.Header{Time: 5, Kind: event.KindExit, PID: testPID + 1}},
		event.Record{Header: event.Header{Time: 6, Kind: event.KindExit, PID: testPID}})
	got := parse(newTestParser(Options{}), w.out)
	if s := summary(got); !strings.HasSuffix(s, "end#0@6 0 exit chunks=0\n") || len(got) != 2 {
		t.Error(s)
	}
}

func TestDetach(t *testing.T) {
	p := newTestParser(Options{})
	for _, id := range []uint64{3, 1, 2} {
		w := &wire{conn: id}
		w.read(id, withLength(chatHead, "{}"))
		parse(p, w.out)
	}
	var got []signal.Signal
	p.Detach(9, func(s signal.Signal) { got = append(got, clone(s)) })
	if want := strings.Repeat("end#0@9 0 detached chunks=0\n", 3); summary(got) != want {
		t.Error(summary(got))
	}
	if exchangeOf(got[0]).Conn != 3 || exchangeOf(got[2]).Conn != 2 {
		t.Error("not in the order of use")
	}
}

func TestUnknownProcess(t *testing.T) {
	p := New(Options{}, func(uint32) (signal.EngineID, bool) { return 0, false })
	w := &wire{conn: 1}
	w.read(1, withLength(chatHead, "{}"))
	w.close(2, 0)
	if got := parse(p, w.out); len(got) != 0 {
		t.Error(summary(got))
	}
	if d := p.Dropped(); len(d) != 1 || d[0] != (signal.LossCount{Reason: "http_unknown_process", N: 1}) {
		t.Error(d)
	}
}

func TestDropped(t *testing.T) {
	for _, c := range []struct {
		reason string
		make   func(w *wire)
	}{
		{"http_tls", func(w *wire) { w.read(1, "\x16\x03\x01") }},
		{"http_http2", func(w *wire) { w.read(1, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") }},
		{"http_not_http", func(w *wire) { w.read(1, "SSH-2.0-x\r\n") }},
		{"http_not_http", func(w *wire) { w.read(1, "\xff\x00") }},
		{"http_bad_head", func(w *wire) { w.read(1, "GET / HTTP/3\r\n\r\n") }},
		{"http_bad_head", func(w *wire) { w.read(1, "P"); w.read(2, "assword: x") }},
		{"http_bad_head", func(w *wire) {
			for i := range 40 {
				w.read(uint64(i+1), []string{"GET /", strings.Repeat("x", 2000)}[min(i, 1)])
			}
		}},
		{"http_upgraded", func(w *wire) { w.read(1, "CONNECT a:1 HTTP/1.1\r\n\r\n"); w.write(2, "HTTP/1.1 200 OK\r\n\r\n") }},
		{"http_pipeline_full", func(w *wire) { w.read(1, strings.Repeat("GET / HTTP/1.1\r\n\r\n", maxOpen+1)) }},
		{"http_orphan_response", func(w *wire) { w.write(1, "HTTP/1.1 200 OK\r\n\r\n") }},
	} {
		p := newTestParser(Options{})
		w := &wire{conn: 1}
		c.make(w)
		check(t, parse(p, w.out))
		if d := p.Dropped(); len(d) != 1 || d[0].Reason != c.reason || d[0].N != 1 {
			t.Errorf("%s: %v", c.reason, d)
		}
	}
}

// Memory is bounded: by the number of connections, by the length of a head, and
// by the contents held.
func TestBounds(t *testing.T) {
	p := newTestParser(Options{Content: true})
	var got []signal.Signal
	emit := func(s signal.Signal) { got = append(got, clone(s)) }
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 20000)
	conns := maxConns + 100
	for i := range conns {
		w := &wire{conn: uint64(i + 1)}
		w.read(uint64(i+1), fmt.Sprintf("%sContent-Length: 30000\r\n\r\n%s", chatHead, body))
		for j := range w.out {
			p.Put(&w.out[j], emit)
		}
		if p.contents.held > maxContent {
			t.Fatalf("%d bytes of contents held", p.contents.held)
		}
	}
	check(t, got)
	if len(p.tap.conns) != maxConns {
		t.Errorf("%d connections followed", len(p.tap.conns))
	}
	if n := strings.Count(summary(got), "detached"); n != 100 {
		t.Errorf("%d exchanges ended for lack of room", n)
	}
	p.Detach(1e9, emit)
	if p.contents.held != 0 || len(p.tap.conns) != 0 {
		t.Errorf("%d bytes and %d connections left", p.contents.held, len(p.tap.conns))
	}
	check(t, got)
}

func TestMaxBody(t *testing.T) {
	pad := strings.Repeat("x", 5000)
	body := `{"model":"m","n":2,"user":"u","prompt":"` + pad + `","max_tokens":7}`
	w := &wire{conn: 1}
	w.read(1, withLength(strings.Replace(chatHead, "chat/", "", 1), body))
	w.write(2, withLength(okHead, `{"id":"cmpl-1","model":"m","choices":[{"text":"`+pad+`","index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":6}}`))
	got := parse(newTestParser(Options{MaxBody: 1000, Content: true}), w.out)
	if len(got) != 3 {
		t.Fatal(summary(got))
	}
	b, e := got[0].(*signal.ExchangeBegin), got[2].(*signal.ExchangeEnd)
	if !b.Body.Truncated || b.Body.Parsed || b.Body.Messages != "" || b.Body.MaxTokens.OK || b.Body.N.V != 2 || b.Body.Model.V != "m" || b.BodyBytes != int64(len(body)) {
		t.Errorf("%s", show(b))
	}
	// Usage is found at the end of the body; which choice the finish reason
	// belongs to is not known, since n is not certain.
	if e.ResponseID != "cmpl-1" || e.InputTokens.V != 5 || e.OutputTokens.V != 6 || e.FinishReasons != nil || e.Content != "" {
		t.Errorf("%s", show(e))
	}
}

func TestContent(t *testing.T) {
	for _, c := range []struct {
		api     api
		in, out string
	}{
		{apiChat, `{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a\nb"},{"type":"image_url","image_url":{"url":"data:..."}}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"r"}]}`,
			`[{"role":"system","parts":[{"type":"text","content":"s"}]},{"role":"user","parts":[{"type":"text","content":"a\nb"},{"type":"image_url"}]},{"role":"assistant","parts":[{"type":"tool_call","id":"c1","name":"f","arguments":"{}"}]},{"role":"tool","parts":[{"type":"tool_call_response","id":"c1","response":"r"}]}]`},
		{apiChat, `{"messages":[{"role":"user","content":7}]}`, ``},
		{apiChat, `{"messages":[{"role":"user","content":"<&>\u2028"}]}`, `[{"role":"user","parts":[{"type":"text","content":"<&>\u2028"}]}]`},
		{apiCompletions, `{"prompt":["a","b"]}`, `[{"role":"user","parts":[{"type":"text","content":"a"}]},{"role":"user","parts":[{"type":"text","content":"b"}]}]`},
		{apiCompletions, `{"prompt":[1,2]}`, ``},
		{apiResponses, `{"instructions":"i","input":[{"role":"user","content":[{"type":"input_text","text":"q"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"o"}]}`,
			`[{"role":"system","parts":[{"type":"text","content":"i"}]},{"role":"user","parts":[{"type":"text","content":"q"}]},{"role":"assistant","parts":[{"type":"tool_call","id":"c","name":"f","arguments":"{}"}]},{"role":"tool","parts":[{"type":"tool_call_response","id":"c","response":"o"}]}]`},
		{apiMessages, `{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"}]}],"system":[{"type":"text","text":"s"}]}`,
			`[{"role":"system","parts":[{"type":"text","content":"s"}]},{"role":"user","parts":[{"type":"tool_call_response","id":"t","response":"r"}]}]`},
		{apiRerank, `{"query":"q","documents":["d"]}`, `[{"role":"user","parts":[{"type":"text","content":"q"}]},{"role":"user","parts":[{"type":"text","content":"d"}]}]`},
	} {
		if got := inputMessages(c.api, []byte(c.in)); got != c.out {
			t.Errorf("%s:\ngot  %s\nwant %s", c.in, got, c.out)
		}
	}
}

// Without Content nothing of a prompt or an answer stays in memory.
func TestNoContentKept(t *testing.T) {
	p := newTestParser(Options{})
	w := &wire{conn: 1}
	prompt := strings.Repeat("s3cret ", 3000)
	w.read(1, withLength(chatHead, `{"model":"m","messages":[{"role":"user","content":"`+prompt+`"}]}`))
	w.write(2, sseHead)
	w.write(3, chunkEvent("a", `"choices":[{"index":0,"delta":{"content":"s3cret answer"}}]`))
	for _, s := range parse(p, w.out) {
		if strings.Contains(fmt.Sprintf("%+v", s), "s3cret") {
			t.Error(show(s))
		}
	}
	x := p.tap.conns[connKey{testPID, 1}].pending[0].parsed
	for name, b := range map[string][]byte{"scanner": x.json.buf, "request": x.text.b,
		"answer's scanner": x.answer.json.buf, "word": x.answer.fields.word.b, "tail": x.answer.tail, "answer": x.answer.text.b} {
		if strings.Contains(string(b[:cap(b)]), "s3cret") {
			t.Errorf("%s holds content", name)
		}
	}
}
