package agent

import (
	"slices"
	"testing"
	"time"

	"inferspan/bpf"
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

// A process whose exit record was lost gets one all the same, when the kernel's records have
// been read up to a second later.
func TestExitWithoutRecord(t *testing.T) {
	gone, lives := &fakeProcess{done: make(chan struct{})}, &fakeProcess{done: make(chan struct{})}
	close(gone.done)
	l := &Live{probes: map[uint32]process{7: gone, 8: lives}, scrub: httptap.NewScrubber(), ended: make(map[uint32]uint64)}
	var got []event.Record
	put := func(r *event.Record) error { got = append(got, *r); return nil }
	now := bpf.Monotonic()
	later := now + uint64(time.Minute)
	for i, c := range []struct {
		seen uint64
		want int
	}{{now - uint64(time.Minute), 0}, {now, 0}, {later, 1}, {later, 1}} {
		if err := l.exits(put, c.seen); err != nil {
			t.Fatal(err)
		}
		if len(got) != c.want {
			t.Fatalf("look %d: %d records, want %d", i, len(got), c.want)
		}
	}
	if r := got[0]; r.Kind != event.KindExit || r.PID != 7 || r.Code != unknownCode || r.Time != later {
		t.Errorf("record %+v", r)
	}
	if !gone.closed || lives.closed || len(l.probes) != 1 {
		t.Errorf("closed %v and %v, %d left", gone.closed, lives.closed, len(l.probes))
	}
}

// TestOrder: what the agent says of a moment waits for the kernel's records of before.
func TestOrder(t *testing.T) {
	var o order
	for _, at := range []uint64{30, 10, 20, 10, 40} {
		if err := o.hold(&event.Record{Header: event.Header{Time: at}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		seen uint64
		want []uint64
	}{{5, nil}, {20, []uint64{10, 10, 20}}, {29, nil}, {100, []uint64{30, 40}}} {
		var got []uint64
		if err := o.take(func(r *event.Record) error { got = append(got, r.Time); return nil }, c.seen); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("up to %d: records of %v, want %v", c.seen, got, c.want)
		}
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
