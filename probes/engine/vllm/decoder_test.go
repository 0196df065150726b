package vllm_test

import (
	"bytes"
	"encoding/binary"
	"math"
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

const (
	core   = vllmtest.SyntheticCore
	server = vllmtest.SyntheticServer
)

func TestUnknownVersion(t *testing.T) {
	for _, tt := range []struct {
		version string
		structs map[string][]string
		want    string // part of the error, "" for none
	}{
		{version: "0.32.0"},
		{version: "v0.32.0+cpu"},
		{version: "0.11.0"},
		{version: "0.6.3", want: `version "0.6.3"`},
		{version: "0.24.1", want: "not in the table of 0.7.3 to 0.33.0"},
		{version: "", want: "not read from the process"},
		{version: "9.9", structs: structs(t, "0.32.0")},
		{version: "9.9", structs: map[string][]string{"EngineCoreRequest": {"request_id"}}, want: "not read from the process"},
		{version: "9.9", structs: map[string][]string{"EngineCoreRequest": {"request_id"}, "EngineCoreOutput": {"request_id"}, "EngineCoreOutputs": {"outputs"}}, want: "EngineCoreRequest has no field prompt_token_ids"},
	} {
		e := vllmtest.SyntheticEngine(tt.version)
		e.Structs = tt.structs
		d, err := vllm.NewDecoder(e, vllm.Options{})
		if _, err2 := vllm.NewRedactor(e); (err == nil) != (err2 == nil) {
			t.Errorf("version %q: decoder %v, redactor %v", tt.version, err, err2)
		}
		switch {
		case tt.want == "":
			if err != nil || d.Live() != (tt.structs != nil) {
				t.Errorf("version %q: %v", tt.version, err)
			}
		case err == nil || !strings.Contains(err.Error(), tt.want):
			t.Errorf("version %q: error %v, want one with %q", tt.version, err, tt.want)
		}
	}
}

// structs gives the field lists of a version as a live reader would.
func structs(t testing.TB, version string) map[string][]string {
	t.Helper()
	s, err := vllm.TableStructs(version)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// one decodes records of one synthetic engine and returns signals and totals.
func one(t testing.TB, e *target.Engine, recs ...event.Record) ([]signal.Signal, *vllm.Decoder) {
	t.Helper()
	var out []signal.Signal
	d, _ := decode(t, e, vllm.Options{Tokens: true}, recs, func(s signal.Signal) { out = append(out, s) })
	return out, d
}

func send(data []byte) event.Record {
	return vllmtest.Frame(6_000_000_000, core, core, 0x200, event.FrameSend, 0, false, data)
}

// TestMovedFields checks that live facts win over the table: the same messages
// with fields moved around and new ones added.
func TestMovedFields(t *testing.T) {
	all, err := vllmtest.AllSynthetic()
	if err != nil {
		t.Fatal(err)
	}
	v := all[len(all)-2] // 0.32.0
	want := decodeAll(t, v.Engine, vllm.Options{Tokens: true}, v.Records)
	e := *v.Engine
	e.Version = "0.99.0.dev1"
	e.Structs = map[string][]string{}
	for class, names := range structs(t, "0.32.0") {
		n := slices.Clone(names)
		slices.Reverse(n)
		e.Structs[class] = append([]string{"brand_new"}, n...)
	}
	e.Enums = map[string]map[int64]string{"FinishReason": {1: "LENGTH", 7: "TIRED"}}
	var recs []event.Record
	for _, r := range v.Records {
		switch {
		case r.Kind == event.KindFrame && r.Frame.Dir == event.FrameRecv && r.Frame.Part == 1 && len(r.Data) > 100:
			r.Data = reversed(t, r.Data, 0)
		case r.Kind == event.KindFrame && r.Frame.Dir == event.FrameSend:
			r.Data = reversed(t, r.Data, 1)
		case r.Frame.Flags&event.FrameReceipt != 0:
			continue
		}
		r.Frame.Size = uint32(len(r.Data))
		recs = append(recs, r)
	}
	got := decodeAll(t, &e, vllm.Options{Tokens: true}, recs)
	want = slices.DeleteFunc(want, func(s signal.Signal) bool { _, ok := s.(*signal.Delivered); return ok })
	if a, b := withoutValues(got), withoutValues(want); !slices.Equal(a, b) {
		t.Errorf("got  %s\nwant %s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
}

// reversed turns an array around and puts a map in front. deep is the element
// that is itself a list of arrays to turn around.
func reversed(t *testing.T, b []byte, deep int) []byte {
	t.Helper()
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	var elems [][]byte
	for i := range int(n) {
		rest, err := msgp.Skip(b)
		if err != nil {
			t.Fatal(err)
		}
		e := b[:len(b)-len(rest)]
		if deep > 0 && i == deep {
			k, list, err := msgp.ReadArrayHeaderBytes(e)
			if err != nil || k != 1 {
				t.Fatalf("%d outputs: %v", k, err)
			}
			e = append(msgp.AppendArrayHeader(nil, 1), reversed(t, list, 0)...)
		}
		elems = append(elems, e)
		b = rest
	}
	out := msgp.AppendArrayHeader(nil, n+1)
	out = append(out, 0x81, 0xa1, 'k', 0x92, 1, 2)
	for _, e := range slices.Backward(elems) {
		out = append(out, e...)
	}
	return out
}

func TestFinishReasons(t *testing.T) {
	e := vllmtest.SyntheticEngine("0.32.0")
	e.Enums = map[string]map[int64]string{"FinishReason": {0: "STOP", 1: "LENGTH", 2: "ABORT", 3: "ERROR", 4: "REPETITION", 5: "TIRED"}}
	want := []struct {
		kind signal.Finish
		word string
	}{{signal.FinishStop, "stop"}, {signal.FinishLength, "length"}, {signal.FinishAbort, "abort"}, {signal.FinishError, "error"},
		{signal.FinishRepetition, "repetition"}, {signal.FinishOther, "tired"}, {signal.FinishOther, "6"}}
	for v, w := range want {
		sigs, d := one(t, e, send(output(func(i int, b []byte) []byte {
			if i == 5 {
				return msgp.AppendInt(b, v)
			}
			return nil
		})))
		if len(sigs) != 1 {
			t.Fatalf("%d signals: %v", len(sigs), d.Problem())
		}
		if o := sigs[0].(*signal.StepOutput).Outputs[0]; o.Finish != w.kind || o.FinishReason != w.word {
			t.Errorf("%d: %v %q", v, o.Finish, o.FinishReason)
		}
	}
}

// output encodes a message of vLLM 0.32.0 with one output of two tokens. value
// may give the value of a field, nil for the usual one.
func output(value func(i int, b []byte) []byte) []byte {
	b := []byte{0x99, 0, 0x91, 0xdc, 0, 18}
	for i := range 18 {
		if v := value(i, b); v != nil {
			b = v
			continue
		}
		switch i {
		case 0:
			b = msgp.AppendString(b, "chatcmpl-1-00000000")
		case 1:
			b = append(b, 0x92, 7, 8)
		case 13:
			b = append(b, 0)
		default:
			b = msgp.AppendNil(b)
		}
	}
	b = msgp.AppendNil(b)
	b = msgp.AppendFloat64(b, 5.5)
	return append(b, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0)
}

func floats(v ...float32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func TestLogprobs(t *testing.T) {
	e := vllmtest.SyntheticEngine("0.32.0")
	tensor := func(b []byte, dtype string, rows, cols int, data []byte) []byte {
		b = append(b, 0x93)
		b = msgp.AppendString(b, dtype)
		b = append(b, 0x92, byte(rows), byte(cols))
		if data == nil {
			return append(b, 1) // in frame 1
		}
		b = append(b, 0xc7, byte(len(data)), 3)
		return append(b, data...)
	}
	values := floats(-0.5, -2, -3, -0.25, -4, -5)
	aux := func(data []byte) event.Record {
		return vllmtest.Frame(6_000_000_100, core, core, 0x200, event.FrameSend, 1, false, data)
	}
	for name, tt := range map[string]struct {
		value func(b []byte) []byte
		aux   []byte
		want  []float64
	}{
		"inline": {value: func(b []byte) []byte {
			b = append(b, 0x94)
			b = tensor(b, "<i4", 2, 3, make([]byte, 24))
			b = tensor(b, "<f4", 2, 3, values)
			return append(b, 0x93, 0xa1, 'x', 0x90, 0xc0, 0xc0)
		}, want: []float64{-0.5, -0.25}},
		"in an aux frame": {value: func(b []byte) []byte {
			return append(tensor(append(b, 0x93, 0xc0), "float32", 2, 3, nil), 0xc0)
		}, aux: values, want: []float64{-0.5, -0.25}},
		"in an aux frame that was cut": {value: func(b []byte) []byte {
			return append(tensor(append(b, 0x93, 0xc0), "float32", 2, 3, nil), 0xc0)
		}, aux: values[:20]},
		"lists": {value: func(b []byte) []byte {
			b = append(b, 0x93, 0xc0, 0x92, 0x92)
			b = msgp.AppendFloat64(b, -0.5)
			b = msgp.AppendFloat64(b, -9)
			b = append(b, 0x91)
			b = msgp.AppendFloat64(b, -0.25)
			return append(b, 0xc0)
		}, want: []float64{-0.5, -0.25}},
		"another count than tokens": {value: func(b []byte) []byte {
			return append(tensor(append(b, 0x93, 0xc0), "<f4", 3, 2, values), 0xc0)
		}},
		"another type": {value: func(b []byte) []byte {
			return append(tensor(append(b, 0x93, 0xc0), "bfloat16", 2, 3, values), 0xc0)
		}},
		"infinite": {value: func(b []byte) []byte {
			return append(tensor(append(b, 0x93, 0xc0), "<f4", 2, 1, floats(float32(math.Inf(-1)), -1)), 0xc0)
		}},
	} {
		recs := []event.Record{send(output(func(i int, b []byte) []byte {
			if i == 2 {
				return tt.value(b)
			}
			return nil
		}))}
		if tt.aux != nil {
			recs[0].Frame.Flags |= event.FrameMore
			recs = append(recs, aux(tt.aux))
		}
		sigs, d := one(t, e, recs...)
		if len(sigs) != 1 {
			t.Errorf("%s: %d signals: %v", name, len(sigs), d.Problem())
			continue
		}
		o := sigs[0].(*signal.StepOutput).Outputs[0]
		if !slices.Equal(o.Logprobs, tt.want) || !slices.Equal(o.Tokens, []int64{7, 8}) {
			t.Errorf("%s: log-probabilities %v of tokens %v", name, o.Logprobs, o.Tokens)
		}
		if tt.want != nil {
			compareRedacted(t, e, recs)
		}
	}
}

func TestPooling(t *testing.T) {
	all, err := vllmtest.AllSynthetic()
	if err != nil {
		t.Fatal(err)
	}
	v := all[len(all)-2]
	recs := slices.Clone(v.Records)
	for i := range recs {
		r := &recs[i]
		if r.Frame.Dir != event.FrameRecv || r.Frame.Part != 1 || !bytes.Contains(r.Data, prompt) {
			continue
		}
		at := bytes.Index(r.Data, prompt) + len(prompt) + 1 // behind mm_features
		rest, err := msgp.Skip(r.Data[at:])
		if err != nil {
			t.Fatal(err)
		}
		// No sampling parameters, but pooling parameters: task "embed".
		r.Data = bytes.Join([][]byte{r.Data[:at], {0xc0, 0x95, 0xc0, 0xc0, 0xc0, 0xc0, 0xa5}, []byte("embed"), rest[1:]}, nil)
		r.Frame.Size = uint32(len(r.Data))
	}
	recs = append(recs, send(output(func(i int, b []byte) []byte {
		switch i {
		case 1:
			return append(b, 0x90)
		case 4:
			return append(b, 0x93, 0xa7, 'f', 'l', 'o', 'a', 't', '3', '2', 0x91, 2, 0xc7, 8, 3, 1, 2, 3, 4, 5, 6, 7, 8)
		}
		return nil
	})))
	sigs := decodeAll(t, v.Engine, vllm.Options{}, recs)
	q := sigs[0].(*signal.RequestAdded)
	if !q.Pooling || q.Param != (signal.Param{}) || q.PromptTokens != signal.Some[int64](4) || q.Arrival == 0 {
		t.Errorf("request %+v", q)
	}
	o := sigs[len(sigs)-1].(*signal.StepOutput).Outputs[0]
	if !o.Pooled || o.NumTokens != 0 {
		t.Errorf("output %+v", o)
	}
	compareRedacted(t, v.Engine, recs)
}

// TestNeverRan checks that the cached tokens of a request that ended before it
// ran stay unknown, where the message has a plain 0.
func TestNeverRan(t *testing.T) {
	e := vllmtest.SyntheticEngine("0.19.1")
	for _, tokens := range []byte{0, 1} {
		b := []byte{0x98, 0, 0x91, 0x9e, 0xa1, 'a', 0x90 | tokens}
		b = append(b, make([]byte, tokens)...)
		b = append(b, 0xc0, 0xc0, 0xc0, 2, 0xc0, 0xc0, 0xc0, 0xc0, 0, 0, 0xc0, 0, 0xc0)
		b = msgp.AppendFloat64(b, 5.5)
		b = append(b, 0xc0, 0xc0, 0xc0, 0xc0)
		sigs, d := one(t, e, send(b))
		if len(sigs) != 1 {
			t.Fatalf("%d signals: %v", len(sigs), d.Problem())
		}
		if o := sigs[0].(*signal.StepOutput).Outputs[0]; o.CachedTokens.OK != (tokens > 0) || o.Finish != signal.FinishAbort {
			t.Errorf("%d tokens: %+v", tokens, o)
		}
	}
}

// TestPrefillStats checks what is read of the tokens that were not computed.
func TestPrefillStats(t *testing.T) {
	sigs, d := one(t, vllmtest.SyntheticEngine("0.32.0"), send(output(func(i int, b []byte) []byte {
		if i != 11 {
			return nil
		}
		b = append(b, 0x84)
		for _, x := range []struct {
			name string
			n    int
		}{{"num_prompt_tokens", 9}, {"num_cached_tokens", 7}, {"num_local_cached_tokens", 4}, {"num_external_cached_tokens", 3}} {
			b = msgp.AppendInt(msgp.AppendString(b, x.name), x.n)
		}
		return b
	})))
	if len(sigs) != 1 {
		t.Fatalf("%d signals: %v", len(sigs), d.Problem())
	}
	o := sigs[0].(*signal.StepOutput).Outputs[0]
	if o.PromptTokens != signal.Some[int64](9) || o.CachedTokens != signal.Some[int64](7) || o.ExternalTokens != signal.Some[int64](3) {
		t.Errorf("%+v", o)
	}
}

// A send is seen at its beginning: one that finds no room is tried again, and is the same
// message. What another thread sends is another one, as is one with other bytes between.
func TestRepeatedSend(t *testing.T) {
	usual := send(output(func(int, []byte) []byte { return nil }))
	other := usual
	other.TID++
	elsewhere := usual
	elsewhere.Frame.Sock = 0x900
	for _, c := range []struct {
		name     string
		recs     []event.Record
		want     int
		repeated uint64
	}{
		{"once", []event.Record{usual}, 1, 0},
		{"again and again", []event.Record{usual, usual, usual}, 1, 2},
		{"by another thread", []event.Record{usual, other}, 2, 0},
		{"with another between", []event.Record{usual, other, usual}, 3, 0},
		{"to another front end", []event.Record{usual, elsewhere, usual}, 2, 1},
	} {
		sigs, d := one(t, vllmtest.SyntheticEngine("0.32.0"), c.recs...)
		if len(sigs) != c.want || d.Stats().Repeated != c.repeated {
			t.Errorf("%s: %d signals, %d repeated, want %d and %d", c.name, len(sigs), d.Stats().Repeated, c.want, c.repeated)
		}
	}
}

// TestCoordinator checks that a core's statistics for the coordinator, which
// have the form of those for front ends but hold no usage, are left out.
func TestCoordinator(t *testing.T) {
	stamp := 5.0
	stats := func(sock uint64, usage float64) event.Record {
		b := []byte{0x99, 0, 0x90, 0x81}
		b = msgp.AppendString(b, "kv_cache_usage")
		b = msgp.AppendFloat64(b, usage)
		stamp += 0.5
		b = msgp.AppendFloat64(b, stamp)
		b = append(b, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0)
		return vllmtest.Frame(6_000_000_000, core, core, sock, event.FrameSend, 0, false, b)
	}
	usual := send(output(func(int, []byte) []byte { return nil }))
	recs := []event.Record{stats(0x200, 0.1), stats(0x300, 0), usual, stats(0x200, 0.2), stats(0x300, 0)}
	for _, coordinated := range []bool{false, true} {
		e := vllmtest.SyntheticEngine("0.32.0")
		want := []float64{0.1, 0, -1, 0.2, 0}
		if coordinated {
			e.Processes = append(e.Processes, target.Process{PID: 3, Role: target.RoleCoordinator})
			want = []float64{-1, 0.2} // the first one came before its socket was known
		}
		sigs, _ := one(t, e, recs...)
		var got []float64
		for _, s := range sigs {
			if st := s.(*signal.StepOutput).Stats; st != nil {
				got = append(got, st.KVUsage.V)
			} else {
				got = append(got, -1)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("coordinated %v: %v, want %v", coordinated, got, want)
		}
	}
}

func TestOtherMessages(t *testing.T) {
	recv := func(parts ...string) (out []event.Record) {
		for i, p := range parts {
			out = append(out, vllmtest.Frame(6_000_000_000+int64(i), core, core, 0x100, event.FrameRecv, i, i < len(parts)-1, []byte(p)))
		}
		return out
	}
	sent := func(p string) []event.Record { return []event.Record{send([]byte(p))} }
	dead := sent("ENGINE_CORE_DEAD")
	for name, tt := range map[string]struct {
		recs []event.Record
		want vllm.Stats
	}{
		"step notice":          {sent("\x00"), vllm.Stats{NotOurs: 1}},
		"ready":                {sent("READY"), vllm.Stats{NotOurs: 1}},
		"empty":                {sent(""), vllm.Stats{NotOurs: 1}},
		"ready map":            {sent("\x81\xa6status\xa5READY"), vllm.Stats{NotOurs: 1}},
		"list of other size":   {sent("\x92\x01\x90"), vllm.Stats{NotOurs: 1}},
		"list of other types":  {sent("\x99\x00\x01\xc0\xc0\xc0\xc0\xc0\xc0\xc0"), vllm.Stats{NotOurs: 1}},
		"pickle":               {sent("\x80\x05\x95\x10\x00"), vllm.Stats{NotOurs: 1}},
		"handshake":            {recv("\x81\xa1a\x01"), vllm.Stats{NotOurs: 1}},
		"topic":                {recv("kv", "\x00\x00", "\x90"), vllm.Stats{NotOurs: 1}},
		"type beyond":          {recv("\x09", "\x90"), vllm.Stats{NotOurs: 1}},
		"utility":              {recv("\x03", "\x94\x00\x01\xa5reset\x90"), vllm.Stats{Other: 1}},
		"utility reply":        {sent("\x99\x00\x90\xc0\xcb\x40\x16\x00\x00\x00\x00\x00\x00\x93\x01\xc0\xc0\xc0\xc0\xc0\xc0"), vllm.Stats{Other: 1}},
		"dead":                 {dead, vllm.Stats{Other: 1}},
		"broken request":       {recv("\x00", "\x93\xa1a\x90\xc0"), vllm.Stats{Broken: 1}},
		"too many fields":      {recv("\x00", "\xdc\x00\x20"+strings.Repeat("\xc0", 32)), vllm.Stats{Broken: 1}},
		"request cut short":    {recv("\x00", "\xdc\x00\x16\xa1a\x91"), vllm.Stats{Broken: 1}},
		"broken abort":         {recv("\x01", "\x91\x07"), vllm.Stats{Broken: 1}},
		"empty abort":          {recv("\x01", "\x90"), vllm.Stats{Aborts: 1}},
		"negative stamp":       {sent("\x99\x00\x90\xc0\xcb\xc0\x16\x00\x00\x00\x00\x00\x00\xc0\xc0\xc0\xc0\xc0"), vllm.Stats{Broken: 1}},
		"bytes after":          {sent("\x99\x00\x90\xc0\xcb\x40\x16\x00\x00\x00\x00\x00\x00\xc0\xc0\xc0\xc0\xc0\xc0"), vllm.Stats{Broken: 1}},
		"output of other size": {sent("\x99\x00\x91\x92\xa1a\x90\xc0\xcb\x40\x16\x00\x00\x00\x00\x00\x00\xc0\xc0\xc0\xc0\xc0"), vllm.Stats{Broken: 1}},
	} {
		sigs, d := one(t, vllmtest.SyntheticEngine("0.32.0"), tt.recs...)
		if d.Stats() != tt.want || (d.Problem() != nil) != (tt.want.Broken > 0) {
			t.Errorf("%s: totals %+v, %v", name, d.Stats(), d.Problem())
		}
		if name == "dead" {
			if len(sigs) != 1 || *sigs[0].(*signal.CoreFailed) != (signal.CoreFailed{At: 6_000_000_000, Core: signal.Core{Engine: 1, PID: core}}) {
				t.Errorf("signals %v", sigs)
			}
		} else if len(sigs) != 0 {
			t.Errorf("%s: signals %v", name, sigs)
		}
	}
}

// TestDelivered checks that the first frame of a message counts, once.
func TestDelivered(t *testing.T) {
	data := bytes.Repeat([]byte{1, 2, 3}, 100)
	later := vllmtest.Receipt(21, server, 5, false, data)
	later.Frame.Part = 1
	sigs, d := one(t, vllmtest.SyntheticEngine("0.32.0"), vllmtest.Receipt(10, server, 5, false, data), vllmtest.Receipt(20, server, 5, true, data), later)
	var at []signal.Mono
	for _, s := range sigs {
		at = append(at, s.(*signal.Delivered).At)
	}
	if !slices.Equal(at, []signal.Mono{10, 20}) || d.Stats().Receipts != 2 {
		t.Errorf("received at %v, totals %+v", at, d.Stats())
	}
}
