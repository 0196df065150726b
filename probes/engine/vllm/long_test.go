package vllm_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
)

// prompt is how the prompt of the synthetic requests is encoded.
var prompt = []byte{0x94, 0x0b, 0x16, 0x21, 0x2c}

// longPrompt encodes n tokens, each given by next.
func longPrompt(n int, next func() int) []byte {
	b := msgp.AppendArrayHeader(nil, uint32(n))
	for range n {
		b = msgp.AppendInt(b, next())
	}
	return b
}

// lengthen replaces the prompt of a synthetic request by a longer one.
func lengthen(t testing.TB, recs []event.Record, long []byte) []event.Record {
	t.Helper()
	var out []event.Record
	for _, r := range recs {
		if i := bytes.Index(r.Data, prompt); i >= 0 && r.Kind == event.KindFrame {
			data := bytes.Join([][]byte{r.Data[:i], long, r.Data[i+len(prompt):]}, nil)
			f := r.Frame
			out = append(out, vllmtest.Chunks(int64(r.Time), int(r.PID), int(r.TID), f.Sock, f.Dir, int(f.Part), f.Flags&event.FrameMore != 0, data)...)
			continue
		}
		out = append(out, r)
	}
	return out
}

// TestLongRequest checks requests of which the middle is missing: all but the
// tokens themselves must still be known, whatever the tokens look like.
func TestLongRequest(t *testing.T) {
	all, err := vllmtest.AllSynthetic()
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	constant := func(v int) func() int { return func() int { return v } }
	// Bytes that look like the beginning of the fields after the prompt: nil,
	// short lists and maps, floats, strings.
	odd := []byte{0xc0, 0x90, 0x91, 0x80, 0x81, 0x82, 0xcb, 0xa0, 0xa1, 0xc2, 0x00, 0xde, 0xdc}
	for _, v := range all {
		for name, next := range map[string]func() int{
			"random": func() int { return rnd.IntN(152_000) },
			"small":  func() int { return rnd.IntN(128) },
			"nil":    constant(0xc0c0),
			"list":   constant(0x9191),
			"map":    constant(0x8181),
			"float":  constant(0xcbcb),
			"zero":   constant(0),
			"odd":    func() int { return int(odd[rnd.IntN(len(odd))])<<8 | int(odd[rnd.IntN(len(odd))]) },
		} {
			for _, n := range []int{8_000, 300_000} {
				if n == 8_000 && name != "random" { // not cut
					continue
				}
				t.Run(fmt.Sprint(v.Version, "/", name, "/", n), func(t *testing.T) {
					recs := lengthen(t, v.Records, longPrompt(n, next))
					var got []*signal.RequestAdded
					d, _ := decode(t, v.Engine, vllm.Options{}, recs, func(s signal.Signal) {
						if s, ok := s.(*signal.RequestAdded); ok {
							got = append(got, s)
						}
					})
					if st := d.Stats(); st.Broken != 0 || len(got) != 1 {
						t.Fatalf("%d requests, totals %+v, %v", len(got), st, d.Problem())
					}
					var want *signal.RequestAdded
					decode(t, v.Engine, vllm.Options{}, v.Records, func(s signal.Signal) {
						if s, ok := s.(*signal.RequestAdded); ok {
							want = s
						}
					})
					want.PromptTokens = signal.Some(int64(n))
					if *got[0] != *want {
						t.Errorf("got  %+v\nwant %+v", *got[0], *want)
					}
				})
			}
		}
	}
}

// TestLongRequestRedacted checks that redaction of a request with a missing
// middle changes nothing but the tokens.
func TestLongRequestRedacted(t *testing.T) {
	all, err := vllmtest.AllSynthetic()
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, v := range all {
		token := 1_000 + rnd.IntN(60_000)
		recs := lengthen(t, v.Records, longPrompt(300_000, func() int { return token }))
		red := compareRedacted(t, v.Engine, recs)
		for i := range red {
			a, b := recs[i].Data, red[i].Data
			// A token is three bytes, 0xcd and its number: none may be left.
			for k := 0; k+2 < len(b); k++ {
				if b[k] == 0xcd && int(b[k+1])<<8|int(b[k+2]) == token {
					t.Fatalf("%s: record %d has the token at %d", v.Version, i, k)
				}
			}
			if len(a) != len(b) {
				t.Fatalf("%s: record %d changes its length", v.Version, i)
			}
		}
	}
}

// TestLongOutputs checks a step with so many outputs that the middle of its
// message is missing.
func TestLongOutputs(t *testing.T) {
	e := vllmtest.SyntheticEngine("0.32.0")
	const n = 6000
	data := stepMessage(n, nil)
	if len(data) < 300_000 {
		t.Fatalf("message of %d bytes is too short", len(data))
	}
	recs := vllmtest.Chunks(5_000_000_000, vllmtest.SyntheticCore, 2, 9, event.FrameSend, 0, false, data)
	recs = append(recs, vllmtest.Receipt(5_000_100_000, vllmtest.SyntheticServer, 1, false, data))
	var step *signal.StepOutput
	var del *signal.Delivered
	d, _ := decode(t, e, vllm.Options{}, recs, func(s signal.Signal) {
		switch s := s.(type) {
		case *signal.StepOutput:
			step = s
		case *signal.Delivered:
			del = s
		}
	})
	if st := d.Stats(); st.Truncated != 1 || st.Broken != 0 || step == nil {
		t.Fatalf("totals %+v: %v", st, d.Problem())
	}
	if step.Stamp != 4_999_999_000 || len(step.Outputs) == 0 || len(step.Outputs) >= n || step.Key == 0 || del.Key != step.Key {
		t.Errorf("stamp %d, %d outputs, key %x", step.Stamp, len(step.Outputs), step.Key)
	}
	for i, o := range step.Outputs {
		if string(o.ID) != stepID(i) || o.NumTokens != 1 {
			t.Fatalf("output %d: %+v", i, o)
		}
	}
	compareRedacted(t, e, recs)
}

func stepID(i int) string { return fmt.Sprintf("chatcmpl-%016x-%08x", i*7919, i) }

// stepMessage encodes a step of vLLM 0.32.0 with n outputs of one token each.
// finish, if not nil, tells which outputs are the last of their request.
func stepMessage(n int, finish func(i int) bool) []byte {
	b := msgp.AppendArrayHeader(nil, 9)
	b = msgp.AppendInt(b, 0)
	b = msgp.AppendArrayHeader(b, uint32(n))
	for i := range n {
		b = msgp.AppendArrayHeader(b, 18)
		b = msgp.AppendString(b, stepID(i))
		b = msgp.AppendArrayHeader(b, 1)
		b = msgp.AppendInt(b, 300+i%100_000)
		for k := 2; k < 18; k++ {
			switch {
			case k == 13: // num_nans_in_logits
				b = msgp.AppendInt(b, 0)
			case k == 5 && finish != nil && finish(i):
				b = msgp.AppendInt(b, 1)
			default:
				b = msgp.AppendNil(b)
			}
		}
	}
	b = msgp.AppendMapHeader(b, 3)
	b = msgp.AppendString(b, "num_running_reqs")
	b = msgp.AppendInt(b, n)
	b = msgp.AppendString(b, "num_waiting_reqs")
	b = msgp.AppendInt(b, 0)
	b = msgp.AppendString(b, "kv_cache_usage")
	b = msgp.AppendFloat64(b, 0.5)
	b = msgp.AppendFloat64(b, 4.999999)
	for range 5 {
		b = msgp.AppendNil(b)
	}
	return b
}
