package vllm

import (
	"math"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
)

// planStamp is the name of the plan for the clock read of a front end when it begins
// to work on a message.
const planStamp = "stamp"

// maxStamps is how many messages are remembered for the moment at which a front end
// works on them: some seconds' worth of a fast engine.
const maxStamps = 1 << 12

// stamp tells a message with outputs from all others: a core makes no two at the
// same time.
type stamp struct {
	index int // of the core
	at    signal.Mono
}

// stamps remembers the latest messages with outputs.
type stamps struct {
	keys map[stamp]uint64 // wire.Key of the message
	ring []stamp
	next int
	// on has the front ends whose clock reads are seen: those are when they took a
	// message, and its receipt, a little earlier, is of no interest.
	on map[uint32]bool
}

func newStamps() stamps {
	return stamps{keys: make(map[stamp]uint64), on: make(map[uint32]bool)}
}

// add notes a message that a core sent.
func (s *stamps) add(m *signal.StepOutput) {
	if len(m.Outputs) == 0 || m.Stamp == 0 || m.Key == 0 {
		return
	}
	k := stamp{m.Core.Index, m.Stamp}
	if len(s.ring) < maxStamps {
		s.ring = append(s.ring, k)
	} else {
		delete(s.keys, s.ring[s.next])
		s.ring[s.next] = k
		s.next = (s.next + 1) % maxStamps
	}
	s.keys[k] = m.Key
}

// take gives the key of a message; each is taken once.
func (s *stamps) take(k stamp) (key uint64, ok bool) {
	key, ok = s.keys[k]
	delete(s.keys, k)
	return key, ok
}

// stamped: a front end begins to work on a message.
func (d *Decoder) stamped(pid uint32, at signal.Mono, v reading, emit func(signal.Signal)) {
	x := v.value(slotStamp)
	index, ok := v.int(slotEngine)
	if x == nil || x.Tag != capture.TagFloat || !(x.Float > 0 && x.Float < maxSeconds) || !ok || index > math.MaxInt32 {
		d.stats.Unstamped++
		return
	}
	d.stamps.on[pid] = true
	key, ok := d.stamps.take(stamp{int(index), signal.Mono(toNanos(x.Float))})
	if !ok {
		d.stats.Unstamped++ // sent before we looked, or lost
		return
	}
	d.stats.Stamps++
	d.delivered = signal.Delivered{At: at, Engine: d.engine, PID: pid, Key: key, Stamped: true}
	emit(&d.delivered)
}
