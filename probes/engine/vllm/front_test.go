package vllm_test

import (
	"slices"
	"strconv"
	"testing"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
	"inferspan/probes/wire"
)

// Plans of a front end, with what measuring adds to durations.
const (
	stampPlan  = 21
	encodePlan = 22
	inputPlan  = 23
	decodePlan = 24
	overhead   = 700
)

var frontSlots = map[uint32][]string{
	stampPlan: {"stamp", "engine"}, encodePlan: {"texts", "text", "chars"}, inputPlan: {"id", "text", "prompt"}, decodePlan: {"id"},
}

// fronts feeds records of a front end and its core to a decoder.
type fronts struct {
	t   *testing.T
	d   *vllm.Decoder
	asm *wire.Assembler
	out []signal.Signal
}

func newFronts(t *testing.T) *fronts {
	d, err := vllm.NewDecoder(vllmtest.SyntheticEngine("0.32.0"), vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &fronts{t: t, d: d, asm: wire.NewAssembler(wire.Limits{}, false)}
	f.probe(signal.DetailStamps, true)
	return f
}

func (f *fronts) emit(s signal.Signal) { f.out = append(f.out, clone(s)) }

// probe notes that the probes of a detail are there, or not.
func (f *fronts) probe(detail string, active bool) {
	n := note.Probe{Detail: detail, Active: active, Overhead: overhead, Plans: map[uint32]note.Plan{}}
	for id, slots := range frontSlots {
		name := map[uint32]string{stampPlan: "stamp", encodePlan: "encode", inputPlan: "input", decodePlan: "decode"}[id]
		n.Plans[id] = note.Plan{Name: name, Slots: slots}
	}
	f.note(note.KindProbe, n)
}

func (f *fronts) note(k note.Kind, v any) {
	f.t.Helper()
	r, err := note.Put(k, server, 1, v)
	if err != nil {
		f.t.Fatal(err)
	}
	f.d.Note(r, f.emit)
}

func (f *fronts) frame(r event.Record) {
	f.asm.Put(&r, func(m *wire.Message) { f.d.Message(m, f.emit) })
}

func (f *fronts) capture(at uint64, plan uint32, values ...vllmtest.Slot) {
	r := vllmtest.Capture(at, server, plan, frontSlots[plan], values...)
	f.d.Capture(&r, f.emit)
}

// returned is a capture at the end of a call.
func (f *fronts) returned(at uint64, plan uint32, took uint32, values ...vllmtest.Slot) {
	r := vllmtest.Capture(at, server, plan, frontSlots[plan], values...)
	r.Capture.Flags, r.Capture.Took = event.CaptureReturn, took
	f.d.Capture(&r, f.emit)
}

// take returns the signals of a type since the last call.
func take[T signal.Signal](f *fronts) []T {
	var out []T
	for _, s := range f.out {
		if x, ok := s.(T); ok {
			out = append(out, x)
		}
	}
	f.out = nil
	return out
}

// messages are two messages with outputs of a core: frames and stamps.
func messages(t *testing.T) (sent, receipts []event.Record, stamps []float64, all []event.Record) {
	t.Helper()
	versions, err := vllmtest.AllSynthetic()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(versions, func(s vllmtest.Synthetic) bool { return s.Version == "0.32.0" })
	for _, r := range versions[i].Records {
		switch {
		case r.Kind != event.KindFrame:
		case r.Frame.Flags&event.FrameReceipt != 0:
			receipts = append(receipts, r)
		case r.Frame.Dir == event.FrameSend:
			sent = append(sent, r)
		}
	}
	x := versions[i].Expect
	return sent, receipts, []float64{x.Stamp1, x.Stamp2}, versions[i].Records
}

func stamp(s any, engine any) []vllmtest.Slot {
	return []vllmtest.Slot{val("stamp", s), val("engine", engine)}
}

func TestStamps(t *testing.T) {
	sent, receipts, stamps, _ := messages(t)
	f := newFronts(t)
	for _, r := range sent {
		f.frame(r)
	}
	keys := map[uint64]bool{}
	for _, m := range take[*signal.StepOutput](f) {
		keys[m.Key] = true
	}
	if len(sent) != 2 || len(keys) != 2 {
		t.Fatalf("%d messages with %d keys", len(sent), len(keys))
	}
	// Until the first stamp the receipt is all there is.
	f.frame(receipts[0])
	if got := take[*signal.Delivered](f); len(got) != 1 || got[0].Stamped || !keys[got[0].Key] {
		t.Errorf("receipt: %+v", got)
	}
	f.capture(900, stampPlan, stamp(stamps[0], 0)...)
	first := take[*signal.Delivered](f)
	if len(first) != 1 || !first[0].Stamped || first[0].At != 900 || first[0].PID != server || !keys[first[0].Key] {
		t.Fatalf("stamp: %+v", first)
	}
	f.frame(receipts[1])
	if got := take[*signal.Delivered](f); len(got) != 0 {
		t.Errorf("receipt of a message that will be stamped: %+v", got)
	}
	f.capture(1000, stampPlan, stamp(stamps[1], 0)...)
	if got := take[*signal.Delivered](f); len(got) != 1 || got[0].At != 1000 || got[0].Key == first[0].Key {
		t.Errorf("second stamp: %+v", got)
	}
	// Without the probe it is the receipts again.
	f.probe(signal.DetailStamps, false)
	f.frame(receipts[1])
	if got := take[*signal.Delivered](f); len(got) != 1 || got[0].Stamped {
		t.Errorf("receipt without the probe: %+v", got)
	}
	if s := f.d.Stats(); s.Stamps != 2 || s.Unstamped != 0 || s.Broken != 0 {
		t.Errorf("totals %+v", s)
	}
}

// TestStampsUnknown checks that what is no stamp of a known message says nothing.
func TestStampsUnknown(t *testing.T) {
	sent, _, stamps, _ := messages(t)
	for name, values := range map[string][]vllmtest.Slot{
		"another core":     stamp(stamps[0], 1),
		"another time":     stamp(stamps[0]+1e-6, 0),
		"an int":           stamp(int(stamps[0]), 0),
		"no time":          stamp(vllmtest.Missing(capture.MissingUnset), 0),
		"no core":          stamp(stamps[0], vllmtest.Missing(capture.MissingType)),
		"before the epoch": stamp(-stamps[0], 0),
		"negative core":    stamp(stamps[0], -1),
		"nothing":          nil,
	} {
		f := newFronts(t)
		f.frame(sent[0])
		f.capture(900, stampPlan, values...)
		if got := take[*signal.Delivered](f); len(got) != 0 || f.d.Stats().Unstamped != 1 {
			t.Errorf("%s: %+v, totals %+v", name, got, f.d.Stats())
		}
	}
	f := newFronts(t)
	f.frame(sent[0])
	f.capture(900, stampPlan, stamp(stamps[0], 0)...)
	f.capture(901, stampPlan, stamp(stamps[0], 0)...)
	if got := take[*signal.Delivered](f); len(got) != 1 {
		t.Errorf("the same stamp twice: %+v", got)
	}
}

func encode(texts int, text uint64, chars int) []vllmtest.Slot {
	return []vllmtest.Slot{val("texts", texts), val("text", vllmtest.Addr(text)), val("chars", chars)}
}

func prompted(id string, text uint64, tokens int) []vllmtest.Slot {
	return []vllmtest.Slot{val("id", id), val("text", vllmtest.Addr(text)), val("prompt", tokens)}
}

func TestTokenize(t *testing.T) {
	f := newFronts(t)
	f.returned(10, encodePlan, 5700, encode(1, 0xa0, 12)...)
	f.returned(20, encodePlan, 9700, encode(1, 0xb0, 12)...)
	if got := take[*signal.Tokenized](f); len(got) != 0 {
		t.Fatalf("before the requests: %+v", got)
	}
	f.capture(30, inputPlan, prompted("cmpl-b-0", 0xb0, 7)...)
	f.capture(40, inputPlan, prompted("chatcmpl-a", 0xa0, 5)...)
	want := []signal.Tokenized{
		{At: 20, Engine: 1, PID: server, ID: "cmpl-b-0", Duration: 9000, Inputs: 1, Tokens: signal.Some[int64](7)},
		{At: 10, Engine: 1, PID: server, ID: "chatcmpl-a", Duration: 5000, Inputs: 1, Tokens: signal.Some[int64](5)},
	}
	got := take[*signal.Tokenized](f)
	if len(got) != 2 || *got[0] != want[0] || *got[1] != want[1] {
		t.Errorf("%+v, want %+v", got, want)
	}
	// Another request with the tokens of the first.
	f.capture(50, inputPlan, prompted("cmpl-c-0", 0xa0, 5)...)
	// The str of a request that failed is gone, another one has its address.
	f.returned(60, encodePlan, 1700, encode(1, 0xa0, 12)...)
	f.returned(70, encodePlan, 2700, encode(1, 0xa0, 12)...)
	f.capture(80, inputPlan, prompted("cmpl-d-0", 0xa0, 5)...)
	f.capture(90, inputPlan, prompted("cmpl-e-0", 0xa0, 5)...)
	if got := take[*signal.Tokenized](f); len(got) != 1 || got[0].ID != "cmpl-d-0" || got[0].Duration != 2000 {
		t.Errorf("address used again: %+v", got)
	}
	// What has no address of its own, or is of several texts, is left to the order.
	f.returned(100, encodePlan, 1700, encode(1, 0xc0, 1)...)
	f.returned(110, encodePlan, 2700, encode(3, 0xd0, 9)...)
	f.capture(120, inputPlan, prompted("cmpl-f-0", 0xc0, 1)...)
	if got := take[*signal.Tokenized](f); len(got) != 2 || got[0].ID != "" || got[0].Inputs != 1 || got[1].ID != "" || got[1].Inputs != 3 || got[1].Duration != 2000 {
		t.Errorf("without an id: %+v", got)
	}
	// A duration that is not known, or longer than can be told, is none.
	for _, took := range []uint32{0, event.TookMax} {
		f.returned(130, encodePlan, took, encode(1, 0xe0, 12)...)
		f.capture(140, inputPlan, prompted("cmpl-g-0", 0xe0, 5)...)
	}
	f.capture(150, encodePlan, encode(1, 0xf0, 12)...) // not at the end of the call
	f.capture(160, inputPlan, prompted("cmpl-h-0", 0xf0, 5)...)
	f.capture(170, inputPlan, val("id", vllmtest.Missing(capture.MissingLimit)), val("text", vllmtest.Addr(0xf0)))
	f.capture(180, inputPlan, val("id", "x"), val("text", vllmtest.Missing(capture.MissingName)))
	if got := take[*signal.Tokenized](f); len(got) != 0 || f.d.Stats().Untimed != 3 {
		t.Errorf("not timed: %+v, totals %+v", got, f.d.Stats())
	}
	// What measuring adds may be more than a call took.
	f.returned(190, encodePlan, 3, encode(1, 0xa0, 12)...)
	f.capture(200, inputPlan, prompted("cmpl-i-0", 0xa0, 5)...)
	if got := take[*signal.Tokenized](f); len(got) != 1 || got[0].Duration != 0 {
		t.Errorf("a short call: %+v", got)
	}
}

// TestTokenizeBounds checks that calls without a request do not pile up.
func TestTokenizeBounds(t *testing.T) {
	f := newFronts(t)
	const n = 5000
	for i := range uint64(n) {
		f.returned(i, encodePlan, 1700, encode(1, 0x1000+16*i, 12)...)
	}
	for i := range uint64(n) {
		f.capture(n+i, inputPlan, prompted("cmpl-"+strconv.FormatUint(i, 10), 0x1000+16*i, 5)...)
	}
	got := take[*signal.Tokenized](f)
	if len(got) == 0 || len(got) >= n || got[len(got)-1].ID != "cmpl-4999" {
		t.Errorf("%d calls are remembered, the last is %+v", len(got), got[max(0, len(got)-1):])
	}
}

func TestDetokenize(t *testing.T) {
	sent, _, _, _ := messages(t)
	f := newFronts(t)
	f.frame(sent[0])
	id := string(take[*signal.StepOutput](f)[0].Outputs[0].ID)
	f.returned(10, decodePlan, 4700, val("id", id))
	f.returned(20, decodePlan, 0, val("id", id))
	f.returned(30, decodePlan, 4700, val("id", vllmtest.Missing(capture.MissingName)))
	got := take[*signal.Detokenized](f)
	if len(got) != 1 || *got[0] != (signal.Detokenized{At: 10, Engine: 1, PID: server, ID: id, Duration: 4000, Tokens: 1, Exact: true}) || f.d.Stats().Untimed != 2 {
		t.Errorf("%+v, totals %+v", got, f.d.Stats())
	}
	f.frame(sent[1]) // ends by its length: each token is turned into text
	if got := take[*signal.Detokenized](f); len(got) != 0 {
		t.Errorf("at the end: %+v", got)
	}
	// A token that ends a request is not.
	stop := output(func(i int, b []byte) []byte {
		if i == 5 {
			return append(b, 0)
		}
		return nil
	})
	r := send(stop)
	again := func() { r.TID++; f.frame(r) }
	again()
	if got := take[*signal.Detokenized](f); len(got) != 0 {
		t.Errorf("end of a request that is not looked at: %+v", got)
	}
	f.returned(40, decodePlan, 1700, val("id", "chatcmpl-1-00000000"))
	take[*signal.Detokenized](f)
	again()
	if got := take[*signal.Detokenized](f); len(got) != 1 || got[0].ID != "chatcmpl-1-00000000" || got[0].Tokens != 1 || got[0].Duration != 0 || !got[0].Exact {
		t.Errorf("stop token: %+v", got)
	}
	again()
	if got := take[*signal.Detokenized](f); len(got) != 0 {
		t.Errorf("stop token once more: %+v", got)
	}
}

func TestCostNote(t *testing.T) {
	f := newFronts(t)
	f.note(note.KindCost, note.Cost{Detail: signal.DetailDetokenize, Calls: 256, Time: 900_000})
	got := take[*signal.Detokenized](f)
	if len(got) != 1 || *got[0] != (signal.Detokenized{At: 1, Engine: 1, PID: server, Duration: 900_000, Tokens: 256, Method: "calibrated"}) {
		t.Errorf("%+v", got)
	}
	f.note(note.KindCost, note.Cost{Detail: "another", Calls: 256, Time: 900_000})
	for _, n := range []note.Cost{{Detail: signal.DetailDetokenize}, {Detail: signal.DetailDetokenize, Calls: -1, Time: 5}, {Detail: signal.DetailDetokenize, Calls: 1, Time: -5}} {
		f.note(note.KindCost, n)
	}
	if got := take[*signal.Detokenized](f); len(got) != 0 || f.d.Stats().Broken != 3 || f.d.Stats().Other != 1 {
		t.Errorf("%+v, totals %+v", got, f.d.Stats())
	}
}

// FuzzFront decodes any bytes as captures of a front end. Each is read or counted as
// broken, and what comes out is of the front end and has no negative times or counts.
func FuzzFront(f *testing.F) {
	add := func(plan uint32, flags uint16, took uint32, values ...vllmtest.Slot) {
		r := vllmtest.Capture(1, server, plan, frontSlots[plan], values...)
		f.Add(plan, r.Capture.Values, flags, took, r.Data)
	}
	add(stampPlan, 0, 0, stamp(1.5, 0)...)
	add(encodePlan, event.CaptureReturn, 5700, encode(1, 0xa0, 12)...)
	add(encodePlan, event.CaptureReturn, 5, encode(3, 0xa0, 12)...)
	add(inputPlan, 0, 0, prompted("cmpl-1", 0xa0, 5)...)
	add(decodePlan, event.CaptureReturn, 5700, val("id", "cmpl-1-aaaaaaaa"))
	f.Fuzz(func(t *testing.T, plan uint32, values, flags uint16, took uint32, data []byte) {
		s := newFronts(t)
		s.returned(5, encodePlan, 5700, encode(1, 0xa0, 12)...)
		r := event.Record{Header: event.Header{Time: 100, Kind: event.KindCapture, PID: server}, Data: data}
		r.Capture = event.Capture{Plan: stampPlan + plan%4, Values: values, Flags: flags, Took: took}
		before := s.d.Stats()
		s.d.Capture(&r, func(sig signal.Signal) {
			switch x := sig.(type) {
			case *signal.Tokenized:
				if x.PID != server || x.Duration < 0 || x.Inputs < 0 || x.Tokens.OK && x.Tokens.V < 0 {
					t.Fatalf("%+v", x)
				}
			case *signal.Detokenized:
				if x.PID != server || x.ID == "" || x.Duration < 0 || x.Tokens != 1 {
					t.Fatalf("%+v", x)
				}
			default: // no message was sent that could be stamped
				t.Fatalf("a signal of type %T: %+v", sig, sig)
			}
		})
		after := s.d.Stats()
		if after.Broken+after.Captures != before.Broken+before.Captures+1 {
			t.Fatalf("a capture was neither read nor broken: %+v", after)
		}
	})
}
