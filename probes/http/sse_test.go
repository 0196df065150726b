package httptap

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"inferspan/correlate/signal"
)

// events collects what an sse hands on.
type events struct {
	out  []string
	data bytes.Buffer
	tail bytes.Buffer
}

func (e *events) eventData(b []byte) { e.data.Write(b) }
func (e *events) eventTail(b []byte) { e.tail.Write(b) }
func (e *events) eventBroken()       { e.data.Reset(); e.tail.Reset() }
func (e *events) eventEnd(done bool) {
	e.out = append(e.out, fmt.Sprintf("%v:%s", done, e.data.String()))
	e.data.Reset()
}
func (e *events) eventTailEnd() {
	e.out = append(e.out, "tail:"+e.tail.String())
	e.tail.Reset()
}

func TestSSE(t *testing.T) {
	const gap = "\x00" // stands for missing bytes
	for _, c := range []struct{ in, want string }{
		{"data: a\n\n", "false:a"},
		{"data:a\n\ndata: b\n\n", "false:a|false:b"},
		{"data: [DONE]\n\n", "true:[DONE]"},
		{"data: [DONE] \n\n", "false:[DONE] "},
		{"data: a\ndata: b\n\n", "false:a\nb"},
		{"event: x\r\ndata: a\r\n\r\ndata: b\r\n\r\n", "false:a|false:b"},
		{"data: a\r\rdata: b\r\r", "false:a|false:b"},
		{"data:  a\n\n", "false: a"},
		{"data:\n\n", "false:"},
		{": comment\nid: 1\nretry: 5\ndatax: y\ndat\ndata: a\n\n", "false:a"},
		{"\n\n\ndata: a\n\n\n\n", "false:a"},
		{"data: a", ""},
		{"data: a\n", ""},
		{"data: a" + gap + "b\n\ndata: c\n\n", "tail:b|false:c"},
		{"data: a\n\n" + gap + "data: c\n\n", "false:a|false:c"},
		{"data: a\n" + gap + "\n\ndata: c\n\n", "false:c"},
		{"x" + gap + "da}\n\ndata: c\n\n", "tail:da}|false:c"},
		{"x" + gap + "data\n\n", ""},
		{gap + gap + "}]}\r\n\r\n1a\r\ndata: c\r\n\r\n", "tail:}]}|false:c"},
	} {
		for _, cut := range []func(int) int{whole, bytewise} {
			var s sse
			var e events
			for i, part := range strings.Split(c.in, gap) {
				if i > 0 {
					s.lose(&e)
				}
				for b := []byte(part); len(b) > 0; {
					n := cut(len(b))
					s.feed(b[:n], &e)
					b = b[n:]
				}
			}
			if got := strings.Join(e.out, "|"); got != c.want {
				t.Errorf("%q: %q, want %q", c.in, got, c.want)
			}
		}
	}
}

func FuzzSSE(f *testing.F) {
	f.Add([]byte("event: a\r\ndata: {\"id\":1}\r\n\r\ndata: [DONE]\n\n"), uint64(3))
	f.Add([]byte(": x\ndata:\ndata: y\r\rid\n"), uint64(4))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		run := func(cut func(int) int) []string {
			var s sse
			var e events
			for b := bytes.Clone(b); len(b) > 0; {
				n := cut(len(b))
				s.feed(b[:n], &e)
				b = b[n:]
			}
			return e.out
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		one := run(whole)
		if two := run(func(n int) int { return 1 + rnd.IntN(n) }); fmt.Sprint(one) != fmt.Sprint(two) {
			t.Fatalf("events depend on the split: %q, %q", one, two)
		}
		for _, e := range one {
			if _, data, _ := strings.Cut(e, ":"); len(data) > len(b) || strings.Contains(data, "\r") {
				t.Fatalf("not from the stream: %q", e)
			}
		}
	})
}

// After a gap events count only if they can be told to be of this response.
func TestEventsAfterGap(t *testing.T) {
	stream := func(api, first, later string, skipped uint32) *signal.ExchangeEnd {
		w := &wire{conn: 1}
		w.read(1, withLength("POST "+api+" HTTP/1.1\r\nContent-Type: application/json\r\n", `{"model":"m"}`))
		w.write(2, sseHead)
		if first != "" {
			w.write(3, chunked("data: "+first+"\n\n"))
		}
		w.skip(2, 999)
		w.write(9, chunked("data: "+later+"\n\n"))
		w.out[len(w.out)-1].HTTP.Skipped = skipped
		w.write(10, "0\r\n\r\n")
		got := parse(newTestParser(Options{}), w.out)
		return got[len(got)-1].(*signal.ExchangeEnd)
	}
	start := `{"type":"message_start","message":{"id":"a","model":"m","usage":{"input_tokens":3,"output_tokens":0}}}`
	delta := `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":3,"output_tokens":9}}`
	for _, c := range []struct {
		name, api, first, later string
		skipped                 uint32
		want                    string
	}{
		{"counted", "/v1/messages", start, delta, 5, "a 3 9 [end_turn]"},
		{"lost", "/v1/messages", start, delta, 0, "a 3 - []"},
		{"no id yet", "/v1/chat/completions", "", `{"id":"b","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, 5, " - - []"},
		{"same id", "/v1/chat/completions", `{"id":"a","choices":[]}`, `{"id":"a","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, 0, "a 1 2 []"},
		{"other id", "/v1/chat/completions", `{"id":"a","choices":[]}`, `{"id":"b","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, 0, "a - - []"},
	} {
		e := stream(c.api, c.first, c.later, c.skipped)
		num := func(o signal.Opt[int64]) string {
			if !o.OK {
				return "-"
			}
			return fmt.Sprint(o.V)
		}
		if got := fmt.Sprint(e.ResponseID, " ", num(e.InputTokens), " ", num(e.OutputTokens), " ", e.FinishReasons); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
