package vllm

import (
	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/target"
)

// Which message of a core a worker takes is worked out from their places in the ring of
// shared memory that both use, and from what the ring cannot but hold to:
//
//   - The core writes one message after another, on one thread, each to the next of P
//     places, and then wakes the workers, which is what is captured. A worker may take it
//     before that.
//   - It waits with writing until all workers have taken what was in that place.
//   - A worker takes the messages in order, each once.
//
// When a worker takes message n at a time at which message K was the latest that was woken
// for, K-P+1 <= n <= K+1, all of them in different places but for the first and the last. K
// is certain when the capture of K+1 has come, right behind that of K. So the place says n
// in all but these two cases. From there on the worker's messages are counted, as long as no
// mark of its thread is lost, which the kernel counts, too.
//
// Lost captures of the core show in places that do not follow on each other. A whole turn of
// the ring that was lost does not, but in the engine's number of the step, which the
// captures have, too. So a message outside of any step is where all begins anew, as after a
// loss; engines that do not number their steps get nothing.

// keptMessages are those of a core that are remembered, in times of the places.
const keptMessages = 4

// maxTaken bounds the messages of a worker that wait for the core's captures: the core cannot
// be ahead by more than the ring holds.
const maxTaken = 64

// maxPlaces bounds the places of a ring that are believed; vLLM has 10.
const maxPlaces = 1 << 10

// told are the messages of a core to its workers.
type told struct {
	queue  uint64
	places int64
	list   []message // the latest, without a gap
}

type message struct {
	number int64 // ours
	place  int64 // of the next message, 0 to places-1: the ring's own index once it was written, or taken
	count  int64 // the engine's number of the latest step
	at     signal.Mono
	step   bool // the workers are to execute a step
}

// worker is what is known of a worker that is a process of its own.
type worker struct {
	pid    uint32
	core   uint32
	seen   bool   // its probes are in
	marks  uint32 // of its thread
	epoch  uint32 // as of these
	marked signal.Mono
	count  int64 // messages taken, since a mark was lost
	known  bool  // the latest is message base+count
	base   int64
	taken  []taken
}

// taken is a message that was taken and has not been told.
type taken struct {
	count int64
	at    signal.Mono
	index int64 // of the ring
	moved bool  // it is that of the next message, not of this one
}

// place is as that of a message.
func (x *taken) place(places int64) int64 {
	if x.moved {
		return x.index
	}
	return (x.index + 1) % places
}

// learnWorkers finds the workers of an engine, with their cores. What is known of one
// stays.
func (d *Decoder) learnWorkers(e *target.Engine) {
	for i := range e.Processes {
		p := &e.Processes[i]
		if core := e.CoreOf(p); p.Role == target.RoleWorker && core != 0 && d.worker(uint32(p.PID)) == nil {
			d.workers = append(d.workers, &worker{pid: uint32(p.PID), core: uint32(core)})
		}
	}
}

// toldWorkers: the core has written a message for its workers.
func (d *Decoder) toldWorkers(c *core, at signal.Mono, v reading, step bool, emit func(signal.Signal)) {
	queue := v.value(slotQueue)
	place, ok := v.int(slotPlace)
	places, sized := v.int(slotPlaces)
	t := &c.told
	count, numbered := v.int(slotStep)
	ok = ok && sized && queue != nil && queue.Tag == capture.TagAddr && places > 4 && places <= maxPlaces && place < places
	switch {
	case ok && queue.Addr != t.queue && !step:
		return // of another queue
	case !ok:
		d.untold(c, 0, 0)
		return
	case !numbered:
		d.untold(c, queue.Addr, places)
		return
	case queue.Addr != t.queue || places != t.places:
		d.untold(c, queue.Addr, places)
	}
	m := message{place: place, count: count, at: at, step: step}
	if n := len(t.list); n > 0 {
		last := &t.list[n-1]
		next := count - last.count
		if place == (last.place+1)%places && at > last.at && (next == 1 || next == 0 && !step) {
			m.number = last.number + 1
		} else {
			// Far enough for no number of before to be taken for one from here on.
			m.number = last.number + 4*places
			d.untold(c, queue.Addr, places)
		}
	}
	if n := len(t.list); n >= keptMessages*int(places) {
		t.list = append(t.list[:0], t.list[n/2:]...)
	}
	t.list = append(t.list, m)
	for _, w := range d.workers {
		if w.core == c.id.PID {
			d.tie(w, c, emit)
		}
	}
}

func (d *Decoder) worker(pid uint32) *worker {
	for _, w := range d.workers {
		if w.pid == pid {
			return w
		}
	}
	return nil
}

// untold forgets the messages of a core, and which its workers have taken.
func (d *Decoder) untold(c *core, queue uint64, places int64) {
	c.told = told{queue: queue, places: places, list: c.told.list[:0]}
	for _, w := range d.workers {
		if w.core == c.id.PID {
			w.known = false
		}
	}
}

// Marked is called for each mark of a process, before the capture that it is of.
func (d *Decoder) Marked(r *event.Record) {
	w := d.worker(r.PID)
	if w == nil {
		return
	}
	if r.GPU.Marks != w.marks+1 || r.GPU.Epoch-w.epoch > r.GPU.Continues() {
		w.forget()
	}
	w.marks, w.epoch, w.marked = r.GPU.Marks, r.GPU.Epoch, signal.Mono(r.Time)
	if d.StepMark(r.PID, r.GPU.Plan) == signal.StepTaken {
		w.count++
	}
}

// takes: a worker takes a message. moved: the ring's index is that of the next one by then.
func (d *Decoder) takes(pid uint32, at signal.Mono, v reading, moved bool, emit func(signal.Signal)) {
	w := d.worker(pid)
	place, ok := v.int(slotPlace)
	if w == nil || !ok || !w.seen || at != w.marked {
		d.stats.Other++ // without its mark it is of no use
		return
	}
	if len(w.taken) == maxTaken {
		w.taken = append(w.taken[:0], w.taken[1:]...)
	}
	w.taken = append(w.taken, taken{w.count, at, place, moved})
	if c := d.cores[w.core]; c != nil && len(c.told.list) > 0 {
		d.tie(w, c, emit)
	}
}

// watched: the probes in a worker were put in, or taken out. Messages in between were not
// seen; nor does the kernel count what it has no mark of.
func (d *Decoder) watched(pid uint32, active bool) {
	if w := d.worker(pid); w != nil {
		w.seen = active
		w.forget()
	}
}

// forget: it is not known any more which message the worker is at.
func (w *worker) forget() { w.known, w.taken = false, w.taken[:0] }

// place finds out which message was taken; false if it is not certain, or not yet.
func (t *told) place(x *taken) (number int64, ok bool) {
	for i := len(t.list) - 2; i >= 0; i-- {
		if latest := &t.list[i]; latest.at <= x.at {
			if t.list[i+1].at <= x.at {
				return 0, false // what came behind is not known yet
			}
			back := (latest.place - x.place(t.places) + t.places) % t.places
			return latest.number - back, back != t.places-1
		}
	}
	return 0, false
}

// tie hands over which messages a worker has taken that are known by now.
func (d *Decoder) tie(w *worker, c *core, emit func(signal.Signal)) {
	t := &c.told
	for i := range w.taken {
		if w.known {
			break
		}
		if n, ok := t.place(&w.taken[i]); ok {
			w.known, w.base = true, n-w.taken[i].count
		}
	}
	if !w.known {
		return
	}
	n := 0
	first, latest := &t.list[0], &t.list[len(t.list)-1]
	for _, x := range w.taken {
		number := w.base + x.count
		if (first.place+(number-first.number)%t.places+t.places)%t.places != x.place(t.places) {
			w.forget()
			return
		}
		switch {
		case number > latest.number:
			w.taken[n] = x
			n++
		case number >= first.number: // else from before there were captures
			s := signal.MessageTaken{At: x.at, Engine: d.engine, PID: w.pid, Core: c.id}
			if m := &t.list[number-first.number]; m.step {
				s.Step = m.at
			}
			emit(&s)
		}
	}
	w.taken = w.taken[:n]
}
