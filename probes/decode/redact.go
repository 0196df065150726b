package decode

import (
	"fmt"
	"path"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine/sglang"
	"inferspan/probes/engine/vllm"
	httptap "inferspan/probes/http"
	"inferspan/probes/note"
	"inferspan/probes/target"
)

// Redactor blanks texts and token ids in records, in place and without changing
// their lengths, so that a recording may be shared: it decodes to the same
// signals but for those values. It must be used by one goroutine at a time.
type Redactor struct {
	http *httptap.Redactor
	wire map[uint32]wireRedactor          // by process
	of   map[signal.EngineID]wireRedactor // by engine
}

// wireRedactor blanks an engine's messages. It may hold back the records of a
// message until it has them all.
type wireRedactor interface {
	Put(r *event.Record, emit func(*event.Record))
}

// NewRedactor makes a Redactor.
func NewRedactor() *Redactor {
	return &Redactor{http: httptap.NewRedactor(), wire: make(map[uint32]wireRedactor), of: make(map[signal.EngineID]wireRedactor)}
}

// Engine gives the facts that are needed to read the engine's messages, or tells of more
// processes of one that is known. On an error records of its processes are left out.
func (d *Redactor) Engine(e *target.Engine) error {
	var err error
	w := d.of[e.ID]
	switch {
	case w != nil: // it may hold parts of messages
	case e.Kind == "vllm":
		w, err = vllm.NewRedactor(e)
	case e.Kind == "sglang":
		w, err = sglang.NewRedactor(e)
	default:
		err = fmt.Errorf("redacting messages of %s: no decoder for this engine", e.Kind)
	}
	if err != nil {
		return err
	}
	d.of[e.ID] = w
	for i := range e.Processes {
		d.wire[uint32(e.Processes[i].PID)] = w
	}
	return nil
}

// Record blanks r and hands it on, at once or with a later one. Records whose
// texts cannot be found are left out.
func (d *Redactor) Record(r *event.Record, emit func(*event.Record)) {
	switch r.Kind {
	case event.KindFrame:
		if w := d.wire[r.PID]; w != nil {
			w.Put(r, emit)
		}
	case event.KindHTTP:
		d.http.Put(r)
		emit(r)
	case event.KindExit:
		if w := d.wire[r.PID]; w != nil {
			w.Put(r, emit)
			return
		}
		emit(r)
	case event.KindNote:
		if b := withoutPaths(r); b != nil {
			emit(b)
		}
	case event.KindClock, event.KindLoss, event.KindCapture, event.KindGPU:
		// Captures have request ids, counts and times: what frames keep, too.
		emit(r)
	}
}

// withoutPaths is a note without names of the host's files; nil if it cannot be
// read. Notes have no texts of requests.
func withoutPaths(r *event.Record) *event.Record {
	if note.Kind(r.Note) != note.KindConfig {
		return r
	}
	c, err := note.Get[note.Config](r)
	if err != nil {
		return nil
	}
	if c.Model != nil {
		name := path.Base(*c.Model)
		c.Model = &name
	}
	out, err := note.Put(note.KindConfig, r.PID, r.Time, c)
	if err != nil {
		return nil
	}
	return out
}
