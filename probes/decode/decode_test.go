package decode

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/vllm/vllmtest"
	"inferspan/probes/note"
	"inferspan/probes/target"
)

func TestAnnounce(t *testing.T) {
	e := &target.Engine{ID: 3, Kind: "vllm", Version: "0.32.0", Model: "/models/m", ServedNames: []string{"m", "n"}, PDRole: "none", Processes: []target.Process{
		{PID: 7, Role: target.RoleCore, Index: 1, ServiceName: "svc", ContainerID: "c0", Python: target.Python{Version: "3.12.1"},
			ResourceEnv: "team=a%20b, process.pid=9,broken,=x,k="},
	}}
	s := announce(e)
	if s.ID != 3 || s.Model != "m" || s.PDRole != "none" {
		t.Errorf("engine %+v", s)
	}
	want := []signal.KV{
		{Key: "service.name", Value: "svc"}, {Key: "container.id", Value: "c0"}, {Key: "process.runtime.version", Value: "3.12.1"},
		{Key: "inferspan.process.role", Value: "engine_core"}, {Key: "process.runtime.name", Value: "cpython"},
		{Key: "process.pid", Value: int64(7)}, {Key: "inferspan.process.index", Value: int64(1)},
		{Key: "team", Value: "a b"}, {Key: "k", Value: ""},
	}
	if len(s.Process) != 1 || !reflect.DeepEqual(s.Process[0].Resource, want) {
		t.Errorf("process %+v,\nwant %+v", s.Process, want)
	}
}

// Counts of what was dropped never go back, whatever becomes of the processes.
func TestDroppedStays(t *testing.T) {
	e := vllmtest.SyntheticEngine("0.32.0")
	d := New(Options{})
	none := func(signal.Signal) {}
	if err := d.Engine(e, none); err != nil {
		t.Fatal(err)
	}
	put := func(r event.Record) { d.Record(&r, none) }
	// A message that begins like outputs and breaks off.
	put(vllmtest.Frame(1, vllmtest.SyntheticCore, 1, 9, event.FrameSend, 0, false, []byte{0x99, 0, 0x91, 0xdc, 0, 0x12, 0xa1}))
	put(event.Record{Header: event.Header{Time: 2, Kind: event.KindFrame, PID: 999}})
	before := totals(d.Dropped())
	if before["unknown_process"] != 1 || before["message_broken"] != 1 {
		t.Fatalf("dropped %v, want one of an unknown process and one broken", before)
	}
	put(event.Record{Header: event.Header{Time: 3, Kind: event.KindExit, PID: vllmtest.SyntheticCore}})
	if err := d.Engine(e, none); err != nil {
		t.Fatal(err)
	}
	after := totals(d.Dropped())
	for reason, n := range before {
		if after[reason] < n {
			t.Errorf("%s went from %d to %d", reason, n, after[reason])
		}
	}
}

func totals(all []signal.LossCount) map[string]uint64 {
	out := make(map[string]uint64)
	for _, l := range all {
		if _, twice := out[l.Reason]; twice {
			panic("reason twice: " + l.Reason)
		}
		out[l.Reason] = l.N
	}
	return out
}

// What the redactor does not know does not pass.
func TestRedactorDefault(t *testing.T) {
	d := NewRedactor()
	if err := d.Engine(vllmtest.SyntheticEngine("0.32.0")); err != nil {
		t.Fatal(err)
	}
	model := "/home/someone/models/m"
	config, err := note.Put(note.KindConfig, vllmtest.SyntheticCore, 5, note.Config{Model: &model})
	if err != nil {
		t.Fatal(err)
	}
	broken := *config
	broken.Data = []byte(model)
	var out []event.Record
	for _, r := range []event.Record{
		{Header: event.Header{Time: 1, Kind: event.KindClock}, Wall: 2},
		{Header: event.Header{Time: 2, Kind: event.Kind(99)}, Data: []byte(model)},
		{Header: event.Header{Time: 3, Kind: event.KindFrame, PID: 999}, Data: []byte(model)},
		*config, broken,
	} {
		d.Record(&r, func(o *event.Record) { out = append(out, *o) })
	}
	var kinds []event.Kind
	for _, r := range out {
		kinds = append(kinds, r.Kind)
		if strings.Contains(string(r.Data), "someone") {
			t.Errorf("a path went through: %s", r.Data)
		}
	}
	if !reflect.DeepEqual(kinds, []event.Kind{event.KindClock, event.KindNote}) {
		t.Errorf("kinds %v, want the clock and the note", kinds)
	}
	if c, err := note.Get[note.Config](&out[1]); err != nil || c.Model == nil || *c.Model != "m" {
		t.Errorf("config %+v, %v, want the model's last part", c, err)
	}
}

// TestUnknownKind: without a decoder of its messages the rest of an engine is decoded.
func TestUnknownKind(t *testing.T) {
	d := New(Options{})
	var got []signal.Signal
	emit := func(s signal.Signal) { got = append(got, s) }
	if err := d.Engine(&target.Engine{ID: 3, Kind: "another", Processes: []target.Process{{PID: 7, Role: target.RoleAPIServer}}}, emit); err == nil || !strings.Contains(err.Error(), "another") {
		t.Errorf("error %v", err)
	}
	d.Record(&event.Record{Header: event.Header{Time: 5, Kind: event.KindExit, PID: 7}}, emit)
	if len(got) != 2 {
		t.Fatalf("%d signals, want the announcement and the exit", len(got))
	}
	if x, ok := got[1].(*signal.ProcessExit); !ok || x.Engine != 3 {
		t.Errorf("%+v", got[1])
	}
}

// More processes of an engine that is known: what is known stays, and their records are read.
func TestJoined(t *testing.T) {
	e := vllmtest.SyntheticEngine("0.32.0")
	d, red := New(Options{}), NewRedactor()
	var engines []*signal.Engine
	emit := func(s signal.Signal) {
		if x, ok := s.(*signal.Engine); ok {
			engines = append(engines, x)
		}
	}
	const late = 4711
	part := func(more bool, n int) event.Record {
		return vllmtest.Frame(10+int64(n), late, 1, 9, event.FrameSend, n, more, []byte{0x99, 0, 0x91, 0xdc, 0, 0x12, 0xa1})
	}
	var passed int
	put := func(r event.Record) {
		d.Record(&r, emit)
		red.Record(&r, func(*event.Record) { passed++ })
	}
	more := *e
	more.Processes = append(slices.Clone(e.Processes), target.Process{PID: late, Role: target.RoleCore})
	var before wireRedactor
	for i, step := range []struct {
		engine *target.Engine
		part   event.Record
	}{
		{e, part(true, 0)},      // of a process that is not known
		{&more, part(true, 0)},  // it is now
		{&more, part(false, 1)}, // told again amid its message
	} {
		if err := errors.Join(d.Engine(step.engine, emit), red.Engine(step.engine)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = red.wire[vllmtest.SyntheticCore]
		}
		put(step.part)
		if len(engines) != i+1 || len(engines[i].Process) != len(step.engine.Processes) {
			t.Errorf("told of %d engines, the last %+v", len(engines), engines[len(engines)-1])
		}
		if len(d.all) != 1 || red.wire[late] != nil && red.wire[late] != before {
			t.Errorf("%d engines are known, or the redactor is another", len(d.all))
		}
	}
	if got := totals(d.Dropped()); got["unknown_process"] != 1 || got["message_broken"] != 1 {
		t.Errorf("dropped %v, want the first record and one broken message", got)
	}
	if passed == 0 {
		t.Error("the redactor let nothing of the joined process pass")
	}
}

// A note about a process that has ended is no loss, one about a process that was never
// known is.
func TestNoteAfterExit(t *testing.T) {
	d := New(Options{})
	none := func(signal.Signal) {}
	if err := d.Engine(vllmtest.SyntheticEngine("0.32.0"), none); err != nil {
		t.Fatal(err)
	}
	state := func(pid uint32) {
		r, err := note.Put(note.KindState, pid, 9, note.State{})
		if err != nil {
			t.Fatal(err)
		}
		d.Record(r, none)
	}
	d.Record(&event.Record{Header: event.Header{Time: 3, Kind: event.KindExit, PID: vllmtest.SyntheticCore}}, none)
	state(vllmtest.SyntheticCore)
	if n := totals(d.Dropped())["unknown_process"]; n != 0 {
		t.Errorf("%d notes are lost", n)
	}
	state(4711)
	if n := totals(d.Dropped())["unknown_process"]; n != 1 {
		t.Errorf("%d notes are lost, want 1", n)
	}
}
