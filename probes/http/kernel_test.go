package httptap

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

// kernel does to the records of a connection what the BPF program does: writes
// that begin after the first 1 KiB of a response are held back, the last four of
// them by their last 1 KiB, and sent when the response ends.
func kernel(records []event.Record) []event.Record {
	const head, slots, tail = 1024, 4, 1024
	var out, held []event.Record
	var skipped uint32
	var skippedLast uint64
	resp, writing := 0, false
	flush := func() {
		for _, r := range held {
			r.HTTP.Skipped, r.HTTP.SkippedLast = skipped, skippedLast
			skipped, skippedLast = 0, 0
			if n := len(r.Data) - tail; n > 0 {
				r.Data = r.Data[n:]
				r.HTTP.Off += uint64(n)
				r.HTTP.Size -= uint32(n)
			}
			out = append(out, r)
		}
		held = nil
	}
	written := uint64(0)
	for _, r := range records {
		switch r.HTTP.Dir {
		case event.HTTPRead:
			if writing {
				flush()
				resp, writing = 0, false
			}
			out = append(out, r)
		case event.HTTPClose:
			flush()
			r.HTTP.Off, r.HTTP.Skipped, r.HTTP.SkippedLast = written, skipped, skippedLast
			skipped, skippedLast = 0, 0
			out = append(out, r)
		case event.HTTPWrite:
			writing = true
			written += uint64(len(r.Data))
			if resp > 0 && bytes.HasPrefix(r.Data, []byte("HTTP/1.")) {
				flush()
				resp = 0
			}
			if resp < head {
				out = append(out, r)
			} else {
				if len(held) == slots {
					skipped++
					skippedLast = held[0].Time
					held = held[1:]
				}
				held = append(held, r)
			}
			resp += len(r.Data)
			if bytes.HasSuffix(r.Data, []byte("0\r\n\r\n")) {
				flush()
				resp = 0
			}
		}
	}
	return out
}

// With the middle of streams counted only, everything but the contents and the
// tool calls of chats and messages is what it is with all bytes.
func TestHeldWrites(t *testing.T) {
	gaps := 0
	for _, name := range transcripts(t) {
		records := transcript(t, name, 3)
		want := parse(newTestParser(Options{}), records)
		got := parse(newTestParser(Options{}), kernel(records))
		if len(got) != len(want) {
			t.Fatalf("%s: %d signals, want %d", name, len(got), len(want))
		}
		for i := range want {
			g, ok := got[i].(*signal.ExchangeEnd)
			if ok && g.Gap {
				gaps++
				w := want[i].(*signal.ExchangeEnd)
				g.Gap = false
				if !g.ToolCalls.OK {
					w.ToolCalls.OK = false
				}
				// Why a response is incomplete stands at the beginning of its last event.
				if len(w.FinishReasons) > 0 && w.FinishReasons[0] == "max_output_tokens" {
					w.FinishReasons = nil
				}
				// The finish reason of a choice whose last chunk was not among the
				// last four writes is not seen.
				if len(w.FinishReasons) == 2 && len(g.FinishReasons) == 1 {
					w.FinishReasons = w.FinishReasons[1:]
				}
			}
			if show(got[i]) != show(want[i]) {
				t.Errorf("%s: got\n%s\nwant\n%s", name, show(got[i]), show(want[i]))
			}
		}
	}
	if gaps < 5 {
		t.Errorf("only %d responses with gaps: nothing was tested", gaps)
	}
}

// A redacted recording keeps what is seen of streams with gaps, but for what is
// read from the end of a cut event.
func TestHeldWritesRedacted(t *testing.T) {
	for _, name := range transcripts(t) {
		if strings.Contains(name, "responses") {
			continue // usage is in an event longer than 1 KiB
		}
		records := kernel(transcript(t, name, 3))
		plain, redacted := parse(newTestParser(Options{}), records), parse(newTestParser(Options{}), redact(records))
		for _, s := range slices.Concat(plain, redacted) {
			blankCalls(s)
		}
		want := strings.ReplaceAll(showAll(plain), `User="u-1"`, `User="xxx"`)
		if got := showAll(redacted); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestSuffix(t *testing.T) {
	event := func(rest string) string {
		return `{"response":{"id":"resp_1","status":"in_progress","output":[{"type":"message","content":[{"text":"` +
			strings.Repeat("z", 2000) + rest
	}
	usage := `"usage":{"input_tokens":14,"input_tokens_details":{"cached_tokens":2},"output_tokens":60}`
	for _, c := range []struct {
		name   string
		api    api
		stream bool
		doc    string
		want   string
	}{
		{"responses", apiResponses, true, event(`"}]}],` + usage + `,"user":null},"type":"response.completed"}`), "14 60 2 []"},
		{"status", apiResponses, true, event(`","status":"no"}]}],"status":"completed",` + usage + `,"user":null},"type":"response.completed"}`), "14 60 2 [completed]"},
		{"incomplete", apiResponses, true, event(`"}]}],"status":"incomplete",` + usage + `},"type":"response.completed"}`), "14 60 2 []"},
		{"text that looks like usage", apiResponses, true, event(`\"usage\":{\"input_tokens\":1}"}]}],` + usage + `},"type":"response.completed"}`), "14 60 2 []"},
		{"usage elsewhere only", apiResponses, true, event(`"}],"usage":{"input_tokens":1}}]},"type":"response.completed"}`), "- - - []"},
		{"usage elsewhere first", apiResponses, true, event(`"}],"usage":{"input_tokens":1}}],` + usage + `},"type":"response.completed"}`), "14 60 2 []"},
		{"not the last event", apiResponses, true, event(`"}]}],` + usage + `},"type":"response.in_progress"}`), "14 60 2 []"},
		{"cut end", apiResponses, true, event(`"}]}],` + usage + `,"user":null},"type":"response.comp`), "- - - []"},
		{"body", apiResponses, false, strings.TrimPrefix(event(`"}]}],`+usage+`,"user":null}`), `{"response":`), "14 60 2 []"},
		{"chat", apiChat, false, `{"choices":[{"message":{"content":"` + strings.Repeat("z", 2000) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`, "3 4 - [stop]"},
		{"chunk", apiChat, true, `{"choices":[{"logprobs":"` + strings.Repeat("z", 2000) + `","finish_reason":"stop","stop_reason":null}]}`, "- - - [stop]"},
		{"per choice", apiChat, true, `{"choices":[{"logprobs":"` + strings.Repeat("z", 2000) + `","finish_reason":"stop"}],"usage":{"prompt_tokens":3}}`, "- - - [stop]"},
	} {
		var r responseFields
		r.reset(c.api, c.stream)
		r.single = true
		r.suffix(new(scanner), []byte(c.doc[len(c.doc)-min(len(c.doc), 1000):]))
		var b strings.Builder
		for _, o := range []signal.Opt[int64]{r.input, r.output, r.cached} {
			if o.OK {
				fmt.Fprintf(&b, "%d ", o.V)
			} else {
				b.WriteString("- ")
			}
		}
		var reasons []string
		for _, f := range r.finish {
			reasons = append(reasons, f.reason)
		}
		if got := fmt.Sprint(b.String(), reasons); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
