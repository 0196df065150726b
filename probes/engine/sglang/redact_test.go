package sglang

import (
	"bytes"
	"slices"
	"testing"

	"inferspan/probes/target"
	"inferspan/probes/wire"
)

func TestRedact(t *testing.T) {
	for _, s := range samples(t) {
		c := codec(t, s.Version)
		for _, p := range []struct{ head, tail int }{{len(s.Frame), 0}, {len(s.Frame) / 2, len(s.Frame) / 4}, {len(s.Frame) - 60, 30}, {len(s.Frame) / 3, 0}} {
			if p.head < 16 {
				continue
			}
			before, err := c.Decode(cut(s.Frame, p.head, p.tail))
			if err != nil {
				continue
			}
			want := blanked(shown(t, before))
			part := cut(slices.Clone(s.Frame), p.head, p.tail)
			r, err := NewRedactor(&target.Engine{Version: s.Version})
			if err != nil {
				t.Fatal(err)
			}
			r.message(&wire.Message{Parts: []wire.Part{*part}})
			for _, b := range [][]byte{part.Head, part.Tail} {
				if bytes.Contains(b, []byte("secret")) {
					t.Errorf("%s, %v: a text stayed", &s, p)
				}
			}
			after, err := c.Decode(part)
			if err != nil {
				t.Errorf("%s, %v: redacted: %v", &s, p, err)
				continue
			}
			got := shown(t, after)
			if d := differs("message", want, got); d != "" {
				t.Errorf("%s, %v: %s", &s, p, d)
			}
			for i := range after.Outputs {
				ids, _ := after.Outputs[i].AppendTokens(nil)
				l, _ := after.Outputs[i].AppendLogprobs(nil)
				if slices.ContainsFunc(ids, func(i int64) bool { return i != 0 }) || slices.ContainsFunc(l, func(f float64) bool { return f != 0 }) {
					t.Errorf("%s, %v: tokens %v, log-probabilities %v stayed", &s, p, ids, l)
				}
			}
			for i := range after.Requests {
				if ids, _ := after.Requests[i].AppendPrompt(nil); slices.ContainsFunc(ids, func(i int64) bool { return i != 0 }) {
					t.Errorf("%s, %v: the prompt stayed", &s, p)
				}
			}
		}
	}
}

// blanked is a message without the values that redaction takes.
func blanked(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range []string{"prompt", "tokens", "logprobs", "MatchedToken", "MatchedText", "Message"} {
			delete(v, k)
		}
		for k := range v {
			v[k] = blanked(v[k])
		}
	case []any:
		for i := range v {
			v[i] = blanked(v[i])
		}
	}
	return v
}
