package note

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"inferspan/bpf/event"
)

func ptr[T any](v T) *T { return &v }

// Notes go through the encoding of records.
func TestPutGet(t *testing.T) {
	roundTrip(t, KindConfig, Config{Model: ptr("m"), MaxSeqs: ptr(int64(0)), LogStats: ptr(false), SpecMethod: ptr(""), Missing: map[string]string{"lora": "gone"}})
	roundTrip(t, KindState, State{Running: ptr(int64(3)), Step: ptr(int64(1 << 40))})
	roundTrip(t, KindRequests, Requests{Requests: []Request{{ID: "a", Arrival: ptr(int64(1795966062668497920)), Params: &Params{TopP: ptr(0.1), HasStop: true}, Events: []Event{{"QUEUED", 5}}}}})
	roundTrip(t, KindProbe, Probe{Detail: "steps", Active: true, Plans: map[uint32]Plan{7: {Name: "update", Slots: []string{"a", "b"}, Dropped: map[string]string{"b": "no such variable"}}}})
}

func roundTrip[T any](t *testing.T, k Kind, want T) {
	t.Helper()
	r, err := Put(k, 42, 99, want)
	if err != nil {
		t.Fatal(err)
	}
	var back event.Record
	if err := event.Decode(event.Append(nil, r), &back); err != nil {
		t.Fatal(err)
	}
	got, err := Get[T](&back)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if back.PID != 42 || back.Time != 99 || Kind(back.Note) != k {
		t.Errorf("record %+v", back)
	}
}

func TestTooLong(t *testing.T) {
	if _, err := Put(KindConfig, 1, 1, Config{Model: ptr(strings.Repeat("x", event.MaxData))}); err == nil {
		t.Error("a note longer than a record was made")
	}
}

func TestPutRequests(t *testing.T) {
	for _, n := range []int{0, 1, 100, 5000} {
		var want []Request
		for i := range n {
			want = append(want, Request{ID: fmt.Sprintf("cmpl-%032d-0-%08x", i, i), Status: "RUNNING", Prompt: ptr(int64(i))})
		}
		records, err := PutRequests(1, 1, want)
		if err != nil {
			t.Fatal(err)
		}
		var got []Request
		for _, r := range records {
			part, err := Get[Requests](r)
			if err != nil {
				t.Fatal(err)
			}
			if len(part.Requests) == 0 {
				t.Errorf("%d requests: an empty note", n)
			}
			got = append(got, part.Requests...)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d requests came back as %d", n, len(got))
		}
	}
}

// One request that is too long for a record is an error, not a loss of the others.
func TestPutRequestsTooLong(t *testing.T) {
	if _, err := PutRequests(1, 1, []Request{{ID: "a"}, {ID: strings.Repeat("x", event.MaxData)}}); err == nil {
		t.Error("no error")
	}
}
