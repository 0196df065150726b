package sglang

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inferspan/probes/pickle"
	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// sample is a frame that SGLang's own code made, with what is in it.
type sample struct {
	Version string
	Name    string
	Codec   string
	Frame   []byte
	Want    map[string]any
}

func (s *sample) String() string { return s.Version + "/" + s.Codec + "/" + s.Name }

func samples(tb testing.TB) []sample { return load(tb, "testdata/frames-*.jsonl") }

func load(tb testing.TB, pattern string) []sample {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		tb.Fatal("no samples", err)
	}
	var out []sample
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		sc := bufio.NewScanner(bytes.NewReader(b))
		sc.Buffer(nil, 1<<24)
		for sc.Scan() {
			var s sample
			if err := json.Unmarshal(sc.Bytes(), &s); err != nil {
				tb.Fatal(err)
			}
			z, err := zlib.NewReader(bytes.NewReader(s.Frame))
			if err != nil {
				tb.Fatal(err)
			}
			if s.Frame, err = io.ReadAll(z); err != nil {
				tb.Fatal(err)
			}
			out = append(out, s)
		}
	}
	return out
}

// whole is a frame of which all bytes are there.
func whole(b []byte) *wire.Part { return &wire.Part{Size: uint32(len(b)), Head: b} }

// cut is a frame as the kernel side copies it: the first and the last bytes.
func cut(b []byte, head, tail int) *wire.Part {
	if head+tail >= len(b) {
		return whole(b)
	}
	return &wire.Part{Size: uint32(len(b)), Head: b[:head], Tail: b[len(b)-tail:]}
}

// shown is a message as plain data, with its token ids.
func shown(tb testing.TB, m *Message) map[string]any {
	b, err := json.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(b, &out); err != nil {
		tb.Fatal(err)
	}
	for i := range m.Requests {
		if ids, ok := m.Requests[i].AppendPrompt(nil); ok && len(ids) < 100 {
			out["Requests"].([]any)[i].(map[string]any)["prompt"] = floats(ids)
		}
	}
	for i := range m.Outputs {
		o := out["Outputs"].([]any)[i].(map[string]any)
		o["id"] = string(m.Outputs[i].ID)
		if ids, ok := m.Outputs[i].AppendTokens(nil); ok {
			o["tokens"] = floats(ids)
		}
		if l, ok := m.Outputs[i].AppendLogprobs(nil); ok {
			o["logprobs"] = floats(l)
		}
	}
	return out
}

func floats[T int64 | float64](in []T) []any {
	out := []any{}
	for _, v := range in {
		out = append(out, float64(v))
	}
	return out
}

// differs says where got lacks something of want.
func differs(path string, want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: got %v, want %v", path, got, want)
		}
		for k, v := range w {
			if d := differs(path+"."+k, v, g[k]); d != "" {
				return d
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s: got %v, want %v", path, got, want)
		}
		for i := range w {
			if d := differs(fmt.Sprintf("%s[%d]", path, i), w[i], g[i]); d != "" {
				return d
			}
		}
	default:
		if want != got {
			return fmt.Sprintf("%s: got %v, want %v", path, got, want)
		}
	}
	return ""
}

func codec(tb testing.TB, version string) *Codec {
	c, err := NewCodec(&target.Engine{Version: version})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestMessages(t *testing.T) {
	for _, s := range samples(t) {
		c := codec(t, s.Version)
		for range 2 { // memory is used again
			m, err := c.Decode(whole(s.Frame))
			if err != nil {
				t.Errorf("%s: %v", &s, err)
				break
			}
			if d := differs("message", s.Want, shown(t, m)); d != "" || m.Partial {
				t.Errorf("%s: %s, partial %v", &s, d, m.Partial)
			}
		}
	}
}

// TestVersions: pickles need no knowledge of the version, MessagePack does.
func TestVersions(t *testing.T) {
	for _, s := range samples(t) {
		c := codec(t, "9.9.9")
		m, err := c.Decode(whole(s.Frame))
		switch {
		case s.Codec == "msgpack" && !errors.Is(err, ErrVersion):
			t.Errorf("%s: %v", &s, err)
		case s.Codec == "pickle" && err != nil:
			t.Errorf("%s: %v", &s, err)
		case s.Codec == "pickle":
			if d := differs("message", s.Want, shown(t, m)); d != "" {
				t.Errorf("%s: %s", &s, d)
			}
		}
	}
	if table, err := fieldsOf("0.5.23+cpu"); err != nil || table["BatchTokenIDOutput"][0] != "rids" {
		t.Error(table, err)
	}
	// What was read from the process is what counts.
	live := &target.Engine{Version: "9.9.9", Structs: map[string][]string{}}
	known, err := fieldsOf("0.5.23")
	if err != nil {
		t.Fatal(err)
	}
	for class, fields := range known {
		live.Structs[class] = fields
	}
	fromLive, err := NewCodec(live)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range samples(t) {
		m, err := fromLive.Decode(whole(s.Frame))
		if err != nil {
			t.Errorf("%s: %v", &s, err)
		} else if d := differs("message", s.Want, shown(t, m)); d != "" {
			t.Errorf("%s: %s", &s, d)
		}
	}
	// Fewer fields than the other: the frame has some that the version does not.
	c := codec(t, "0.5.15")
	for _, s := range samples(t) {
		if s.Codec == "msgpack" && s.Name == "tokens" {
			if _, err := c.Decode(whole(s.Frame)); !errors.Is(err, ErrFields) {
				t.Errorf("%s read as another version: %v", &s, err)
			}
		}
	}
}

// TestReal reads frames of real servers.
func TestReal(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.pkl")
	if len(files) != 14 {
		t.Fatal(files)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := codec(t, "").Decode(whole(b))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		base := filepath.Base(name)
		version, rest, _ := strings.Cut(base, "_")
		rid := "90141151d0714fd8b1f7cda630913249"
		if version == "055" {
			rid = "46cdf56b3e2c4cb49d50ac37f365e45d"
		}
		if strings.HasPrefix(rest, "tokmgr") {
			r := m.Requests[0]
			if r.ID != rid || r.PromptTokens.V != 3 || !r.Stream.V || r.Param.MaxTokens.V != 3 || m.Kind != KindGenerate {
				t.Errorf("%s: %+v", name, r)
			}
			if want := "00-000000000000000035701206c6a8d504-89fe7e61e3e6e885-01"; version == "055" && r.TraceParent != want {
				t.Errorf("%s: traceparent %q", name, r.TraceParent)
			}
			continue
		}
		var i int64
		if _, err := fmt.Sscanf(rest[strings.LastIndexByte(rest, '_')+1:], "%d.pkl", &i); err != nil {
			t.Fatal(err)
		}
		o := m.Outputs[0]
		if string(o.ID) != rid || o.PromptTokens.V != 3 || o.CompletionTokens.V != i+1 || o.NumTokens.V != 1 || (o.Finish != nil) != (i == 2) {
			t.Errorf("%s: %+v", name, o)
		}
		if i == 2 && (o.Finish.Type != "length" || o.Finish.Length.V != 3) {
			t.Errorf("%s: %+v", name, o.Finish)
		}
		if version == "0523" && (o.Times.ForwardEntry == 0 || o.Times.QueueDuration.V == 0) || version == "055" && o.ForwardEntry != 3081047214572 {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// TestCut: of frames with bytes missing what is there is right, and what is not
// is unknown; never is it something else.
func TestCut(t *testing.T) {
	for _, s := range samples(t) {
		c := codec(t, s.Version)
		m, err := c.Decode(whole(s.Frame))
		if err != nil {
			t.Fatal(err)
		}
		full := shown(t, m)
		if len(s.Frame) > 10_000 {
			continue
		}
		step := max(1, len(s.Frame)/50)
		for head := 16; head < len(s.Frame); head += step {
			for _, tail := range []int{0, 200, len(s.Frame) / 2, (len(s.Frame) - head) * 9 / 10} {
				m, err := c.Decode(cut(s.Frame, head, tail))
				if err != nil {
					if !errors.Is(err, pickle.ErrTruncated) && !errors.Is(err, ErrFrame) && !errors.Is(err, pickle.ErrMalformed) {
						t.Fatalf("%s: cut to %d and %d: %v", &s, head, tail, err)
					}
					continue
				}
				if d := contradicts("message", shown(t, m), full); d != "" {
					t.Fatalf("%s: cut to %d and %d of %d: %s", &s, head, tail, len(s.Frame), d)
				}
			}
		}
	}
}

// contradicts says where got says something else than full; unknown is nothing else.
func contradicts(path string, got, full any) string {
	switch g := got.(type) {
	case map[string]any:
		if known, is := g["OK"]; is && known == false {
			return ""
		}
		f, ok := full.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: got %v, want %v", path, got, full)
		}
		for k, v := range g {
			if k == "Partial" {
				continue
			}
			if d := contradicts(path+"."+k, v, f[k]); d != "" {
				return d
			}
		}
	case []any:
		f, ok := full.([]any)
		if !ok || len(g) > len(f) {
			return fmt.Sprintf("%s: got %v, want %v", path, got, full)
		}
		for i := range g {
			if d := contradicts(fmt.Sprintf("%s[%d]", path, i), g[i], f[i]); d != "" {
				return d
			}
		}
	default:
		if got != full && got != nil && got != "" && got != false && got != 0.0 {
			return fmt.Sprintf("%s: got %v, want %v", path, got, full)
		}
	}
	return ""
}

// TestLong: a prompt that does not fit into what the kernel side copies is counted
// where the engine sends an array, and what is behind it is read in any case.
func TestLong(t *testing.T) {
	for _, s := range samples(t) {
		if s.Name != "generate-long" {
			continue
		}
		m, err := codec(t, s.Version).Decode(cut(s.Frame, 64<<10, 32<<10))
		if err != nil {
			t.Fatal(err)
		}
		r := m.Requests[0]
		if r.ID != "request-1" || !r.Stream.V || r.Param.MaxTokens.V != 17 || !r.Param.Logprobs {
			t.Errorf("%s: %+v", &s, r)
		}
		list := s.Version == "0.5.5"
		if r.PromptTokens.OK == list || !list && (r.PromptTokens.V != 100_000 || m.Partial) {
			t.Errorf("%s: %+v prompt tokens, partial %v", &s, r.PromptTokens, m.Partial)
		}
		if _, ok := r.AppendPrompt(nil); ok {
			t.Errorf("%s: token ids that are not there", &s)
		}
	}
}

// TestWrapper: messages of several tokenizer workers in the versions that wrap them.
func TestWrapper(t *testing.T) {
	inner, err := os.ReadFile("testdata/055_tokmgr_0.pkl")
	if err != nil {
		t.Fatal(err)
	}
	const frame = 11 // PROTO and FRAME
	b := []byte("\x80\x04\x8c\x01m\x94\x8c\x15MultiTokenizerWrapper\x94\x93\x94)\x81\x94}\x94(\x8c\x09worker_id\x94K\x07\x8c\x03obj\x94")
	// The inner pickle's memo indices move by those before it.
	b = append(b, shifted(inner[frame:len(inner)-1], 7)...)
	b = append(b, "ub."...)
	m, err := codec(t, "0.5.3").Decode(whole(b))
	if err != nil {
		t.Fatal(err)
	}
	if m.Kind != KindGenerate || m.Requests[0].ID != "46cdf56b3e2c4cb49d50ac37f365e45d" {
		t.Errorf("%+v", m)
	}
}

// shifted adds to the indices of BINGET, which only stand where no payload does in
// this sample.
func shifted(b []byte, by byte) []byte {
	b = slices.Clone(b)
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case 0x8c:
			i += 1 + int(b[i+1])
		case 'h':
			b[i+1] += by
			i++
		case 'K':
			i++
		case 'M':
			i += 2
		case 'J':
			i += 4
		case 'G':
			i += 8
		}
	}
	return b
}

func FuzzMessage(f *testing.F) {
	for _, s := range append(samples(f), load(f, "testdata/real-*.jsonl")...) {
		if len(s.Frame) < 10_000 {
			f.Add(s.Frame, uint16(0), uint16(0))
			f.Add(s.Frame, uint16(len(s.Frame)/2), uint16(len(s.Frame)/4))
		}
	}
	c := codec(f, "0.5.23")
	r, err := NewRedactor(&target.Engine{Version: "0.5.23"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, head, tail uint16) {
		p := whole(b)
		if head > 0 {
			p = cut(b, int(head), int(tail))
		}
		m, err := c.Decode(p)
		var kind Kind
		var n int
		if err == nil {
			kind, n = m.Kind, len(m.Outputs)
			shown(t, m)
			if kind == KindOther && n+len(m.Requests) > 0 {
				t.Fatal("requests of no known kind")
			}
			for _, r := range m.Requests {
				if r.ID == "" || r.PromptTokens.V < 0 {
					t.Fatalf("%+v", r)
				}
			}
		}
		q := cut(slices.Clone(b), len(p.Head), len(p.Tail))
		if p.Whole() {
			q = whole(slices.Clone(b))
		}
		r.message(&wire.Message{Parts: []wire.Part{*q}})
		if m, err2 := c.Decode(q); err == nil && (err2 != nil || m.Kind != kind || len(m.Outputs) != n) {
			t.Fatalf("redacted: %v, was %v with %d outputs", err2, kind, n)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, s := range samples(b) {
		if s.Name != "tokens-256" && s.Name != "generate-long" && s.Name != "tokens" {
			continue
		}
		b.Run(s.String(), func(b *testing.B) {
			c := codec(b, s.Version)
			p := whole(s.Frame)
			b.SetBytes(int64(len(s.Frame)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Decode(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
