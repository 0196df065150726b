package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"inferspan/bpf/event"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
)

// fakeTimer is a probe whose calls the test makes.
type fakeTimer struct {
	on        bool
	calls, ns uint64
	did       []string
	err       error
}

func (f *fakeTimer) ProbeTimes(int) (uint64, uint64, error) { return f.calls, f.ns, f.err }

func (f *fakeTimer) Detach(int, string) error {
	f.on, f.calls, f.ns, f.did = false, 0, 0, append(f.did, "out")
	return f.err
}

func (f *fakeTimer) Reattach(int) error {
	f.on, f.did = true, append(f.did, "in")
	return f.err
}

// call makes calls that take so many ns each.
func (f *fakeTimer) call(n, each uint64) {
	if f.on {
		f.calls, f.ns = f.calls+n, f.ns+n*each
	}
}

func newFakeBusy(c *closer) (*busy, *fakeTimer) {
	f := &fakeTimer{on: true}
	w := &watching{inside: &inside{notes: make(chan *event.Record, 100)}, pid: 7}
	return &busy{w: w, timer: f, detail: "detokenize", overhead: 700, on: true, closer: c}, f
}

// costs takes the notes that were sent.
func costs(t *testing.T, b *busy) []note.Cost {
	t.Helper()
	var out []note.Cost
	for {
		select {
		case r := <-b.w.inside.notes:
			c, err := note.Get[note.Cost](r)
			if err != nil || note.Kind(r.Note) != note.KindCost || r.PID != 7 {
				t.Fatalf("note %+v: %v", r, err)
			}
			out = append(out, c)
		default:
			return out
		}
	}
}

func TestBusyWindows(t *testing.T) {
	b, f := newFakeBusy(nil)
	now := time.Unix(1000, 0)
	look := func(after time.Duration) []note.Cost {
		t.Helper()
		now = now.Add(after)
		if err := b.look(context.Background(), now); err != nil {
			t.Fatal(err)
		}
		return costs(t, b)
	}
	want := func(what string, got []note.Cost, want ...note.Cost) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	cost := func(calls, each int64) note.Cost {
		return note.Cost{Detail: "detokenize", Calls: calls, Time: calls * each}
	}
	want("idle", look(time.Hour))
	f.call(busyFirst-1, 2700)
	want("a few calls", look(busyLook))
	f.call(1, 2700)
	want("the first result", look(busyLook), cost(busyFirst, 2000))
	f.call(busyCalls-busyFirst, 2700)
	want("soon after it", look(busyLook))
	want("a window", look(busyResult), cost(busyCalls, 2000))
	if f.on || !b.w.resting {
		t.Fatalf("in place after a window: %+v", f)
	}
	want("at rest", look(busyRest/2))
	if f.on {
		t.Fatal("put in before its time")
	}
	want("put in", look(busyRest))
	if !f.on || b.w.resting {
		t.Fatal("not put in again")
	}
	// A result is of the latest windows.
	for i := range int64(4) {
		f.call(busyCalls, 4700)
		got := look(busyResult)
		sum := note.Cost{Detail: "detokenize", Calls: busyCalls * min(i+2, busyWindows)}
		sum.Time = busyCalls * 4000 * min(i+1, busyWindows)
		if i+1 < busyWindows {
			sum.Time += busyCalls * 2000
		}
		want(fmt.Sprintf("window %d", i+2), got, sum)
		look(2 * busyRest)
	}
	// Calls that take less than measuring adds take nothing.
	b, f = newFakeBusy(nil)
	f.call(busyCalls, 100)
	want("short calls", look(busyResult), cost(busyCalls, 0))
}

func TestBusyErrors(t *testing.T) {
	b, f := newFakeBusy(nil)
	f.err = context.DeadlineExceeded
	if err := b.look(context.Background(), time.Unix(1, 0)); err != f.err || len(f.did) != 0 {
		t.Errorf("times cannot be read: %v, %v", err, f.did)
	}
	f.err = nil
	f.call(busyCalls, 2700)
	b.look(context.Background(), time.Unix(2, 0))
	f.err = context.DeadlineExceeded
	for n := range 3 { // tried again each time
		if err := b.look(context.Background(), time.Unix(100, 0)); err != f.err || len(f.did) != 2+n {
			t.Errorf("cannot be put in: %v, %v", err, f.did)
		}
	}
	// Taken out and put in by the governor: it counts from 0.
	b, f = newFakeBusy(&closer{every: 1})
	f.call(busyCalls, 2700)
	b.look(context.Background(), time.Unix(10, 0))
	costs(t, b)
	f.calls, f.ns = 5, 5*2700
	b.look(context.Background(), time.Unix(20, 0))
	if got := costs(t, b); len(got) != 0 {
		t.Errorf("after 5 calls: %+v", got)
	}
}

const (
	inputPlan  = 5
	decodePlan = 6
)

var placesOf = map[uint32]place{inputPlan: {true, 0}, decodePlan: {false, 0}}

// keep gives a capture to a closer.
func keep(c *closer, plan uint32, id any, now time.Time) bool {
	r := vllmtest.Capture(1, 7, plan, []string{"id"}, vllmtest.Slot{Name: "id", Value: id})
	return c.keep(&r, now)
}

func TestCloser(t *testing.T) {
	c := (&closers{}).add(7, 3, placesOf)
	b, f := newFakeBusy(c)
	now := time.Unix(1000, 0)
	look := func(after time.Duration) {
		t.Helper()
		now = now.Add(after)
		if err := b.look(context.Background(), now); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(id string) {
		t.Helper()
		if !keep(c, inputPlan, id, now) {
			t.Errorf("%s begins: the capture is left out", id)
		}
	}
	token := func(id string, want bool) {
		t.Helper()
		if keep(c, decodePlan, id, now) != want {
			t.Errorf("token of %s: kept %v, want %v", id, !want, want)
		}
	}
	token("cmpl-0-ffffffff", false) // began before
	look(0)
	begin("cmpl-1")
	begin("cmpl-2")
	token("cmpl-1-aaaaaaaa", true)
	token("cmpl-2-bbbbbbbb", false)
	token("1_cmpl-1-aaaaaaab", true) // another choice of the request
	look(closeQuiet - 1)
	if !f.on {
		t.Fatal("taken out while the request runs")
	}
	token("cmpl-1-aaaaaaaa", true)
	look(closeQuiet)
	if f.on {
		t.Fatal("in place after the request")
	}
	token("cmpl-1-aaaaaaaa", false)
	look(time.Minute)
	if f.on {
		t.Fatal("put in before its turn")
	}
	begin("cmpl-3") // the second after cmpl-1: the next is the third
	look(0)
	if !f.on {
		t.Fatal("not put in for the next one")
	}
	begin("cmpl-4")
	token("cmpl-3-cccccccc", false)
	token("cmpl-4-dddddddd", true)
	// One of which nothing is seen is given up after a longer time.
	look(closeQuiet)
	begin("cmpl-5")
	begin("cmpl-6")
	look(0)
	begin("cmpl-7")
	look(closeAbsent - 1)
	if !f.on {
		t.Fatal("given up too early")
	}
	look(1)
	if f.on {
		t.Fatal("not given up")
	}
	// What cannot be understood, or is none of its plans, is left to the decoder.
	if !keep(c, 99, "cmpl-9", now) || !keep(c, decodePlan, 5, now) {
		t.Error("captures that it does not know are left out")
	}
}

func TestCloserEach(t *testing.T) {
	var all closers
	c := all.add(7, 1, placesOf)
	b, f := newFakeBusy(c)
	now := time.Unix(1000, 0)
	for i := range 5 {
		if !keep(c, inputPlan, fmt.Sprint("cmpl-", i), now) || !keep(c, decodePlan, fmt.Sprint("cmpl-", i, "-aaaaaaaa"), now) {
			t.Errorf("request %d is left out", i)
		}
		now = now.Add(time.Hour)
		f.call(2*busyCalls, 2700)
		if err := b.look(context.Background(), now); err != nil || !f.on {
			t.Errorf("request %d: in place %v, %v", i, f.on, err)
		}
	}
	other := vllmtest.Capture(1, 8, decodePlan, []string{"id"}, vllmtest.Slot{Name: "id", Value: "x"})
	if !all.keep(&other, now) {
		t.Error("a capture of another process is left out")
	}
}
