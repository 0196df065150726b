// Package decode turns kernel records into signals. It is the one place that
// knows which decoder an engine needs; the same code serves live runs and
// recordings, so it keeps to what the records and the target facts say.
package decode

import (
	"fmt"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/sglang"
	"inferspan/probes/engine/vllm"
	httptap "inferspan/probes/http"
	"inferspan/probes/note"
	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// Options say what decoding should keep.
type Options struct {
	Content bool // texts of requests and responses
	Tokens  bool // token ids and log-probabilities
}

// messages decodes the messages of one engine.
type messages interface {
	// Message is called for a message that an engine core sent or received, and
	// for a receipt in a front end.
	Message(m *wire.Message, emit func(signal.Signal))
	// Note is called for a note about one of the engine's processes.
	Note(r *event.Record, emit func(signal.Signal))
	// Capture is called for what a probe in one of the engine's processes read.
	Capture(r *event.Record, emit func(signal.Signal))
	// Joined takes in which processes the engine has now.
	Joined(e *target.Engine)
	// Dropped returns messages that could not be read, by reason.
	Dropped() []signal.LossCount
}

// engines has the decoder of every engine kind.
var engines = map[string]func(*target.Engine, Options) (messages, error){
	"vllm": func(e *target.Engine, o Options) (messages, error) {
		d, err := vllm.NewDecoder(e, vllm.Options{Tokens: o.Tokens})
		return vllmMessages{d}, err
	},
	"sglang": func(e *target.Engine, o Options) (messages, error) {
		d, err := sglang.NewDecoder(e, sglang.Options{Tokens: o.Tokens})
		return sglangMessages{d}, err
	},
}

type vllmMessages struct{ *vllm.Decoder }

func (m vllmMessages) Dropped() []signal.LossCount {
	s := m.Stats()
	return []signal.LossCount{{Reason: "message_broken", N: s.Broken}, {Reason: "message_cut", N: s.Truncated}, {Reason: "capture_unplanned", N: s.Unplanned}}
}

type sglangMessages struct{ *sglang.Decoder }

func (m sglangMessages) Dropped() []signal.LossCount {
	s, c := m.Stats(), m.CaptureStats()
	return []signal.LossCount{
		{Reason: "message_broken", N: s.Broken}, {Reason: "message_cut", N: s.Truncated}, {Reason: "capture_unplanned", N: c.Unknown},
		{Reason: "capture_broken", N: c.Malformed}, {Reason: "capture_without_id", N: c.NoID}, {Reason: "capture_cut", N: c.Requests}, {Reason: "capture_state", N: c.Evicted},
	}
}

// Decoder decodes the records of a run. It must be used by one goroutine at a
// time, with Engine called before the first record of an engine's processes.
type Decoder struct {
	opt    Options
	asm    *wire.Assembler
	http   *httptap.Parser
	engine map[uint32]*engine // by process
	exited map[uint32]bool    // processes that had one
	all    []*engine          // as announced; their counts stay when they are gone
	sig    struct {           // reused
		clock signal.Clock
		exit  signal.ProcessExit
		loss  signal.Loss
		mark  signal.GPUMark
		wait  signal.GPUWait
	}
	unknown  uint64 // records of processes that no engine claims
	badNotes uint64
	// unknownGPU counts records of GPU work of a kind that is not known.
	unknownGPU uint64
}

type engine struct {
	id  signal.EngineID
	msg messages // nil if the engine's messages cannot be read
}

// New makes a Decoder.
func New(opt Options) *Decoder {
	d := &Decoder{opt: opt, asm: wire.NewAssembler(wire.Limits{}, false), engine: make(map[uint32]*engine), exited: make(map[uint32]bool)}
	d.http = httptap.New(httptap.Options{Content: opt.Content}, func(pid uint32) (signal.EngineID, bool) {
		e := d.engine[pid]
		if e == nil {
			return 0, false
		}
		return e.id, true
	})
	return d
}

// Engine announces an engine, or one that is known with more processes and facts. An
// error says that its messages cannot be read; its exchanges are decoded all the same.
func (d *Decoder) Engine(e *target.Engine, emit func(signal.Signal)) error {
	emit(announce(e))
	var st *engine
	for _, known := range d.all {
		if known.id == e.ID {
			st = known
		}
	}
	if st == nil {
		st = &engine{id: e.ID}
		d.all = append(d.all, st)
	}
	for i := range e.Processes {
		pid := uint32(e.Processes[i].PID)
		d.engine[pid] = st
		delete(d.exited, pid)
	}
	if st.msg != nil {
		st.msg.Joined(e)
		return nil
	}
	err := fmt.Errorf("decoding messages of %s: no decoder for this engine", e.Kind)
	if make, ok := engines[e.Kind]; ok {
		var msg messages
		if msg, err = make(e, d.opt); err == nil {
			st.msg = msg
		}
	}
	return err
}

// Record decodes one record. Signals are valid only during the call of emit.
func (d *Decoder) Record(r *event.Record, emit func(signal.Signal)) {
	switch r.Kind {
	case event.KindClock:
		d.sig.clock = signal.Clock{At: signal.Mono(r.Time), Wall: signal.Wall(r.Wall)}
		emit(&d.sig.clock)
	case event.KindLoss:
		d.loss(r, emit)
	case event.KindFrame:
		e := d.engine[r.PID]
		if e == nil || e.msg == nil {
			d.unknown++
			return
		}
		d.asm.Put(r, func(m *wire.Message) { e.msg.Message(m, emit) })
	case event.KindHTTP:
		d.http.Put(r, emit)
	case event.KindGPU:
		d.gpuPoint(r, emit)
	case event.KindNote:
		d.note(r, emit)
	case event.KindCapture:
		e := d.engine[r.PID]
		if e == nil || e.msg == nil {
			d.unknown++
			return
		}
		e.msg.Capture(r, emit)
	case event.KindExit:
		d.asm.Put(r, func(*wire.Message) {})
		d.http.Put(r, emit)
		if e := d.engine[r.PID]; e != nil {
			d.sig.exit = signal.ProcessExit{At: signal.Mono(r.Time), Engine: e.id, PID: r.PID, Code: r.Code}
			emit(&d.sig.exit)
			delete(d.engine, r.PID)
			d.exited[r.PID] = true
		}
	}
}

// note passes on what the agent read besides the records of the kernel.
func (d *Decoder) note(r *event.Record, emit func(signal.Signal)) {
	if d.gpuNote(r, emit) {
		return
	}
	e := d.engine[r.PID]
	if e == nil {
		// What is read of one that ends may come behind the record that it ended.
		if !d.exited[r.PID] {
			d.unknown++
		}
		return
	}
	switch note.Kind(r.Note) {
	case note.KindLook:
		emit(&signal.CoreAwaited{At: signal.Mono(r.Time), Engine: e.id, PID: r.PID})
		return
	case note.KindProbe:
		p, err := note.Get[note.Probe](r)
		if err != nil {
			d.badNotes++
			return
		}
		emit(&signal.ProbeChange{At: signal.Mono(r.Time), Engine: e.id, PID: r.PID, Probe: p.Detail, Active: p.Active, Reason: p.Reason, Source: p.Source, Lacks: p.Lacks, Less: p.Less, Why: p.Why})
	}
	if e.msg != nil {
		e.msg.Note(r, emit)
	}
}

// Detach ends the run at time at: what is in flight is handed over as such.
func (d *Decoder) Detach(at signal.Mono, emit func(signal.Signal)) {
	d.http.Detach(at, emit)
	emit(&signal.Detach{At: at})
}

// KernelLosses appends the kernel's totals with their names.
func KernelLosses(to []signal.LossCount, lost [event.LossReasons]uint64) []signal.LossCount {
	for i, n := range lost {
		to = append(to, signal.LossCount{Reason: event.LossReason(i).String(), N: n})
	}
	return to
}

// loss passes on the kernel's totals, with those of decoding beside them.
func (d *Decoder) loss(r *event.Record, emit func(signal.Signal)) {
	l := &d.sig.loss
	*l = signal.Loss{At: signal.Mono(r.Time), Stage: "kernel", Lost: KernelLosses(l.Lost[:0], r.Lost)}
	emit(l)
	*l = signal.Loss{At: signal.Mono(r.Time), Stage: "decode", Lost: append(l.Lost[:0], d.Dropped()...)}
	emit(l)
}

// Dropped returns what decoding had to leave out so far, by reason.
func (d *Decoder) Dropped() []signal.LossCount {
	out := []signal.LossCount{{Reason: "unknown_process", N: d.unknown}, {Reason: "note_broken", N: d.badNotes}}
	if d.unknownGPU > 0 {
		out = append(out, signal.LossCount{Reason: "gpu_unknown", N: d.unknownGPU})
	}
	for i, n := range d.asm.Stats().Dropped {
		out = append(out, signal.LossCount{Reason: "message_" + wire.Drop(i).String(), N: n})
	}
	at := make(map[string]int)
	for _, e := range d.all {
		if e.msg == nil {
			continue
		}
		for _, l := range e.msg.Dropped() {
			i, ok := at[l.Reason]
			if !ok {
				i = len(out)
				at[l.Reason] = i
				out = append(out, signal.LossCount{Reason: l.Reason})
			}
			out[i].N += l.N
		}
	}
	return append(out, d.http.Dropped()...)
}
