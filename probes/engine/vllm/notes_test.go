package vllm_test

import (
	"reflect"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
)

func ptr[T any](v T) *T { return &v }

// noted decodes a note and returns the signals.
func noted(t *testing.T, version string, k note.Kind, v any) []signal.Signal {
	t.Helper()
	e := vllmtest.SyntheticEngine(version)
	e.Structs = structs(t, version)
	d, err := vllm.NewDecoder(e, vllm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := note.Put(k, core, 1000, v)
	if err != nil {
		t.Fatal(err)
	}
	var out []signal.Signal
	d.Note(r, func(s signal.Signal) {
		if p, ok := s.(*signal.RequestPeeked); ok {
			c := *p
			c.Events = append([]signal.EngineEvent(nil), p.Events...)
			s = &c
		}
		out = append(out, s)
	})
	if p := d.Problem(); p != nil {
		t.Error(p)
	}
	return out
}

// usage is worked out at run time, as the engine does, not exactly.
func usage(free, of float64) signal.Opt[float64] { return signal.Some(1 - free/of) }

func TestStateNote(t *testing.T) {
	for _, c := range []struct {
		version    string
		free, pool *int64
		want       signal.EngineState
	}{
		// The null block: never free, and left out of the share since 0.10.2.
		{"0.32.0", ptr(int64(9)), ptr(int64(11)), signal.EngineState{FreeBlocks: signal.Some(int64(9)), Blocks: signal.Some(int64(10)), KVUsage: usage(9, 10)}},
		{"0.32.0+cpu", ptr(int64(10)), ptr(int64(11)), signal.EngineState{FreeBlocks: signal.Some(int64(10)), Blocks: signal.Some(int64(10)), KVUsage: signal.Some(0.0)}},
		{"0.10.0", ptr(int64(9)), ptr(int64(11)), signal.EngineState{FreeBlocks: signal.Some(int64(9)), Blocks: signal.Some(int64(10)), KVUsage: usage(9, 11)}},
		// Read at different moments, or not at all.
		{"0.32.0", ptr(int64(12)), ptr(int64(11)), signal.EngineState{FreeBlocks: signal.Some(int64(12))}},
		{"0.32.0", nil, ptr(int64(11)), signal.EngineState{Blocks: signal.Some(int64(10))}},
		{"0.32.0", ptr(int64(-1)), nil, signal.EngineState{}},
	} {
		version := c.version
		if version == "0.32.0+cpu" {
			version = "0.32.0"
		}
		got := noted(t, version, note.KindState, note.State{FreeBlocks: c.free, Blocks: c.pool})
		c.want.At, c.want.Core = 1000, signal.Core{Engine: 1, PID: core}
		if len(got) != 1 || !reflect.DeepEqual(got[0], &c.want) {
			t.Errorf("%s: %+v, want %+v", c.version, got[0], c.want)
		}
	}
}

func TestConfigNote(t *testing.T) {
	got := noted(t, "0.32.0", note.KindConfig, note.Config{MaxSeqs: ptr(int64(8)), SpecMethod: ptr(""), LogStats: ptr(false), Blocks: ptr(int64(-3))})
	want := &signal.EngineConfig{At: 1000, Core: signal.Core{Engine: 1, PID: core}, MaxSeqs: signal.Some(int64(8)), SpecMethod: signal.Some(""), LogStats: signal.Some(false)}
	if len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("%+v, want %+v", got[0], want)
	}
}

func TestRequestsNote(t *testing.T) {
	full := note.Request{
		ID: "1_cmpl-b26c3dd73760424a-0-960e981a", Client: ptr(int64(2)), Arrival: ptr(int64(1795965030433864960)), Status: "WAITING_FOR_REMOTE_KVS",
		Prompt: ptr(int64(9)), Computed: ptr(int64(4)), Output: ptr(int64(0)), Cached: ptr(int64(3)), Preemptions: ptr(int64(1)), TraceParent: "00-x", Adapter: ptr("sql"),
		Params: &note.Params{Temperature: ptr(0.5), MaxTokens: ptr(int64(7)), Logprobs: true, HasStop: true},
		Events: []note.Event{{Type: "QUEUED", At: 5}, {Type: "FUTURE", At: 6}, {Type: "PREEMPTED", At: 7}, {Type: "SCHEDULED", At: 0}},
	}
	got := noted(t, "0.32.0", note.KindRequests, note.Requests{Requests: []note.Request{full, {ID: "x"}, {ID: "y", Adapter: ptr("")}}})
	at := signal.Core{Engine: 1, PID: core}
	want := []signal.Signal{
		&signal.RequestPeeked{
			At: 1000, State: signal.RequestWaiting, Status: "WAITING_FOR_REMOTE_KVS",
			Computed: signal.Some(int64(4)), Output: signal.Some(int64(0)), Cached: signal.Some(int64(3)), Preemptions: signal.Some(int64(1)),
			Events: []signal.EngineEvent{{Kind: signal.EventQueued, At: 5}, {Kind: signal.EventPreempted, At: 7}},
			Request: signal.RequestAdded{
				Core: at, ID: full.ID, ExternalID: "cmpl-b26c3dd73760424a-0", ResponseID: "cmpl-b26c3dd73760424a", Child: signal.Some(1), Client: 2,
				Arrival: 1795965030433864960, PromptTokens: signal.Some(int64(9)), TraceParent: "00-x", Adapter: "sql",
				Param: signal.Param{Temperature: signal.Some(0.5), MaxTokens: signal.Some(int64(7)), Logprobs: true, HasStop: true},
			},
		},
		&signal.RequestPeeked{At: 1000, Request: signal.RequestAdded{Core: at, ID: "x", ExternalID: "x", ResponseID: "x", AdapterUnknown: true}},
		&signal.RequestPeeked{At: 1000, Request: signal.RequestAdded{Core: at, ID: "y", ExternalID: "y", ResponseID: "y"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
}

// The external id is worked out from the core's, unless that is not sure.
func TestPeekedIDs(t *testing.T) {
	for _, c := range []struct{ version, id, external, response string }{
		{"0.32.0", "chatcmpl-90df43731f7ac314-b62eb48f", "chatcmpl-90df43731f7ac314", "chatcmpl-90df43731f7ac314"},
		{"0.32.0", "2_chatcmpl-90df43731f7ac314-b62eb48f", "chatcmpl-90df43731f7ac314", "chatcmpl-90df43731f7ac314"},
		{"0.32.0", "0-84f4343d", "0", ""},
		{"0.32.0", "1_7-84f4343d", "7", ""},
		{"0.32.0", "own-84f4343d", "own", "own"},
		{"0.32.0", "2_own-84f4343d", "", ""}, // a child of own, or all of an id
		{"0.32.0", "chatcmpl-x", "chatcmpl-x", "chatcmpl-x"},
		{"0.11.2", "1_chatcmpl-90df-b62eb48f", "1_chatcmpl-90df-b62eb48f", "chatcmpl-90df-b62eb48f"},
	} {
		got := noted(t, c.version, note.KindRequests, note.Requests{Requests: []note.Request{{ID: c.id}}})
		p := got[0].(*signal.RequestPeeked).Request
		if p.ExternalID != c.external || p.ResponseID != c.response {
			t.Errorf("%s %s: %q, %q, want %q, %q", c.version, c.id, p.ExternalID, p.ResponseID, c.external, c.response)
		}
	}
}

// FuzzNote decodes any bytes as notes of all kinds: each gives signals or is counted
// as broken, and numbers that cannot be negative are not.
func FuzzNote(f *testing.F) {
	f.Add(uint32(note.KindConfig), []byte(`{"max_seqs":8,"spec_tokens":-1}`))
	f.Add(uint32(note.KindRequests), []byte(`{"requests":[{"id":"a","prompt":3,"client":-1,"events":[{"type":"QUEUED","at":5}]},{}]}`))
	f.Add(uint32(note.KindState), []byte(`{"running":1,"blocks":2,"free_blocks":1}`))
	f.Add(uint32(note.KindProbe), []byte(`{"detail":"steps","plans":{"1":{"name":"update","slots":["step","step"]}}}`))
	e := vllmtest.SyntheticEngine("0.32.0")
	e.Structs = structs(f, "0.32.0")
	f.Fuzz(func(t *testing.T, kind uint32, data []byte) {
		d, err := vllm.NewDecoder(e, vllm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		n := uint64(0)
		r := &event.Record{Header: event.Header{Time: 1, Kind: event.KindNote, PID: core}, Note: kind, Data: data}
		d.Note(r, func(s signal.Signal) {
			n++
			switch s := s.(type) {
			case *signal.RequestPeeked:
				if s.Request.ID == "" || s.Request.Known || s.Request.Client < 0 || s.Request.Arrival < 0 || s.Output.V < 0 || s.Computed.V < 0 {
					t.Fatalf("%+v", s)
				}
			case *signal.EngineState:
				if s.KVUsage.OK && (s.KVUsage.V < 0 || s.KVUsage.V > 1) || s.Running.V < 0 || s.FreeBlocks.V < 0 {
					t.Fatalf("%+v", s)
				}
			}
		})
		if st := d.Stats(); n == 0 && st.Broken == 0 && st.Other == 0 && note.Kind(kind) != note.KindProbe && note.Kind(kind) != note.KindRequests {
			t.Fatalf("a note of kind %d said nothing", kind)
		}
	})
}
