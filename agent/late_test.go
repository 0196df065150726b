package agent

import (
	"errors"
	"testing"

	"inferspan/bpf/event"
	"inferspan/probes/attach"
	"inferspan/probes/target"
)

// told is a consumer that notes the engines that it is told of.
type told struct {
	engines []*target.Engine
	err     error
}

func (c *told) Engine(e *target.Engine) error { c.engines = append(c.engines, e); return c.err }

func (c *told) Record(*event.Record) error { return nil }

// Consumers know a process that the engine has started before its probes go in, and the run
// tells what became of it.
func TestJoin(t *testing.T) {
	var joined []Joined
	first, later := &target.Engine{ID: 1, Kind: "none"}, &target.Engine{ID: 1, Kind: "none", Processes: []target.Process{{PID: 7}, {PID: 8}}}
	l := &Live{Engine: first, probes: map[uint32]process{}, ended: map[uint32]uint64{8: 1}, inside: &inside{}, late: &late{found: make(chan found)},
		opt: LiveOptions{Joined: func(j Joined) { joined = append(joined, j) }}}
	consumers := []*told{{}, {err: errors.New("cannot be read")}}
	known := make(chan struct{})
	ended := make(chan struct{})
	exited := errors.Join(attach.ErrExited)
	go func() {
		defer close(ended)
		l.late.found <- found{engine: later, told: known}
		<-known
		l.late.found <- found{proc: &later.Processes[0], err: exited}
		l.late.found <- found{proc: &later.Processes[1], probes: &attach.Process{}}
	}()
	for done := false; !done; {
		select {
		case <-ended:
			done = true
		default:
		}
		l.joined([]Consumer{consumers[0], consumers[1]})
	}
	for i, c := range consumers {
		if len(c.engines) != 1 || c.engines[0] != later {
			t.Errorf("consumer %d was told of %v", i, c.engines)
		}
	}
	if l.Engine != later || len(later.Problems) != 1 {
		t.Errorf("engine %+v", l.Engine)
	}
	if len(joined) != 2 || joined[0].PID != 7 || !errors.Is(joined[0].Err, attach.ErrExited) || joined[1].PID != 8 || joined[1].Err != nil {
		t.Errorf("joined %+v", joined)
	}
	if l.Attached(7) || !l.Attached(8) || l.ended[8] != 0 {
		t.Errorf("attached %v, ended %v", l.probes, l.ended)
	}
}
