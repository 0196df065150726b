package agent

import (
	"testing"

	"inferspan/bpf/event"
	"inferspan/probes/attach"
	httptap "inferspan/probes/http"
)

// fakeProcess is an attached process without probes.
type fakeProcess struct {
	done   chan struct{}
	closed bool
}

func (f *fakeProcess) Report() []attach.Status { return nil }

func (f *fakeProcess) DetachReceipts() error { return nil }
func (f *fakeProcess) AttachReceipts() error { return nil }
func (f *fakeProcess) Done() <-chan struct{} { return f.done }
func (f *fakeProcess) Close() error          { f.closed = true; return nil }

// A process whose exit record was lost gets one all the same, a look later.
func TestExitWithoutRecord(t *testing.T) {
	gone, lives := &fakeProcess{done: make(chan struct{})}, &fakeProcess{done: make(chan struct{})}
	close(gone.done)
	l := &Live{probes: map[uint32]process{7: gone, 8: lives}, scrub: httptap.NewScrubber(), ended: make(map[uint32]bool)}
	var got []event.Record
	put := func(r *event.Record) error { got = append(got, *r); return nil }
	for i, want := range []int{0, 1, 1} {
		if err := l.exits(put); err != nil {
			t.Fatal(err)
		}
		if len(got) != want {
			t.Fatalf("look %d: %d records, want %d", i, len(got), want)
		}
	}
	if r := got[0]; r.Kind != event.KindExit || r.PID != 7 || r.Code != unknownCode || r.Time == 0 {
		t.Errorf("record %+v", r)
	}
	if !gone.closed || lives.closed || len(l.probes) != 1 {
		t.Errorf("closed %v and %v, %d left", gone.closed, lives.closed, len(l.probes))
	}
}

func TestClockRecord(t *testing.T) {
	a, b := clockRecord(), clockRecord()
	if a.Kind != event.KindClock || a.Wall == 0 || b.Time < a.Time {
		t.Errorf("%+v, then %+v", a, b)
	}
	// Both clocks run alike: the offset between them stays within what a read takes.
	const most = 1e6
	if d := int64(b.Wall-a.Wall) - int64(b.Time-a.Time); d > most || d < -most {
		t.Errorf("offset moved by %d ns", d)
	}
}
