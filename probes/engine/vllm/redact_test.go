package vllm_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/target"
)

// redact returns redacted copies of the records and checks that the originals
// are left alone.
func redact(t testing.TB, e *target.Engine, recs []event.Record) []event.Record {
	t.Helper()
	r, err := vllm.NewRedactor(e)
	if err != nil {
		t.Fatal(err)
	}
	var out []event.Record
	for i := range recs {
		before := bytes.Clone(recs[i].Data)
		r.Put(&recs[i], func(x *event.Record) {
			c := *x
			c.Data = bytes.Clone(x.Data)
			out = append(out, c)
		})
		if !bytes.Equal(before, recs[i].Data) {
			t.Fatalf("record %d was changed", i)
		}
	}
	return out
}

// withoutValues removes from signals what redaction takes away, and replaces
// keys by their order of appearance.
func withoutValues(sigs []signal.Signal) []string {
	keys := map[uint64]int{}
	key := func(k uint64) uint64 {
		if _, ok := keys[k]; !ok {
			keys[k] = len(keys) + 1
		}
		return uint64(keys[k])
	}
	var out []string
	for _, s := range sigs {
		switch s := s.(type) {
		case *signal.StepOutput:
			s.Key = key(s.Key)
			for i := range s.Outputs {
				o := &s.Outputs[i]
				clear(o.Tokens)
				clear(o.Logprobs)
				if o.StopReason != "" {
					o.StopReason = "some"
				}
			}
			stats := signal.SchedulerStats{}
			if s.Stats != nil {
				stats = *s.Stats
			}
			out = append(out, fmt.Sprintf("%+v %+v", *s, stats)[len("{"):])
			if i := strings.Index(out[len(out)-1], "Stats:0x"); i >= 0 { // an address
				j := strings.IndexByte(out[len(out)-1][i:], '}')
				out[len(out)-1] = out[len(out)-1][:i] + out[len(out)-1][i+j:]
			}
		case *signal.Delivered:
			s.Key = key(s.Key)
			out = append(out, fmt.Sprintf("delivered %+v", *s))
		default:
			out = append(out, fmt.Sprintf("%T %+v", s, s))
		}
	}
	return out
}

func compareRedacted(t *testing.T, e *target.Engine, recs []event.Record) []event.Record {
	t.Helper()
	red := redact(t, e, recs)
	if len(red) != len(recs) {
		t.Errorf("%d records became %d", len(recs), len(red))
	}
	opt := vllm.Options{Tokens: true}
	var sigs [2][]signal.Signal
	var stats [2]vllm.Stats
	for i, rs := range [][]event.Record{recs, red} {
		d, _ := decode(t, e, opt, rs, func(s signal.Signal) { sigs[i] = append(sigs[i], s) })
		stats[i] = d.Stats()
	}
	if stats[0] != stats[1] {
		t.Errorf("totals differ:\n%+v\n%+v", stats[0], stats[1])
	}
	for _, s := range sigs[1] {
		if s, ok := s.(*signal.StepOutput); ok {
			for _, o := range s.Outputs {
				for _, id := range o.Tokens {
					if id != 0 {
						t.Errorf("%s still has token %d", o.ID, id)
					}
				}
				for _, v := range o.Logprobs {
					if v != 0 {
						t.Errorf("%s still has log-probability %v", o.ID, v)
					}
				}
				if strings.Trim(o.StopReason, "x0") != "" {
					t.Errorf("%s still has stop reason %q", o.ID, o.StopReason)
				}
			}
		}
	}
	a, b := withoutValues(sigs[0]), withoutValues(sigs[1])
	if len(a) == 0 {
		t.Error("no signals")
	}
	if !slices.Equal(a, b) {
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("signal %d differs:\n%s\n%s", i, a[i], b[i])
			}
		}
		t.Fatalf("%d signals, redacted %d", len(a), len(b))
	}
	return red
}

func TestRedactRuns(t *testing.T) {
	for _, name := range vllmtest.Names() {
		t.Run(name, func(t *testing.T) {
			run, err := vllmtest.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			red := compareRedacted(t, run.Engine, run.Records)
			for i := range red {
				a, b := run.Records[i], red[i]
				if a.Header != b.Header || a.Frame != b.Frame || len(a.Data) != len(b.Data) {
					t.Fatalf("record %d differs in more than its bytes", i)
				}
			}
			prompts := prompts(t, run.Records)
			if len(prompts) == 0 {
				t.Fatal("no prompts")
			}
			for _, p := range prompts {
				if contains(red, p) {
					t.Errorf("prompt %x left", p)
				}
			}
		})
	}
}

// prompts gives the encoded token ids of the requests in the records.
func prompts(t *testing.T, recs []event.Record) [][]byte {
	var out [][]byte
	for i := range recs {
		if r := &recs[i]; i > 0 && r.Frame.Dir == event.FrameRecv && r.Frame.Part == 1 && len(r.Data) > 40 && bytes.Equal(recs[i-1].Data, []byte{0}) {
			_, b, err := msgp.ReadArrayHeaderBytes(r.Data)
			if err == nil {
				_, b, err = msgp.ReadStringZC(b) // id
			}
			if err != nil {
				t.Fatal(err)
			}
			rest, err := msgp.Skip(b)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, b[:len(b)-len(rest)])
		}
	}
	return out
}

func contains(recs []event.Record, b []byte) bool {
	return slices.ContainsFunc(recs, func(r event.Record) bool { return bytes.Contains(r.Data, b) })
}

func TestRedactSynthetic(t *testing.T) {
	all, err := vllmtest.AllSynthetic()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		t.Run(v.Version, func(t *testing.T) {
			red := compareRedacted(t, v.Engine, v.Records)
			for _, secret := range []string{"\x94\x0b\x16\x21\x2c", "\xa2zz", "\x93\x01\x02\x03", "\xcd\x02\x2e"} { // prompt, stop string, outputs
				if !contains(v.Records, []byte(secret)) {
					t.Errorf("%x is not in the original records", secret)
				}
				if contains(red, []byte(secret)) {
					t.Errorf("%x is left", secret)
				}
			}
			if v.Version == "0.7.3" && (!contains(v.Records, []byte("hello")) || contains(red, []byte("hello"))) {
				t.Error("prompt text left")
			}
		})
	}
}
