package agent

import (
	"fmt"
	"os"

	"inferspan/bpf/event"
	"inferspan/probes/decode"
	"inferspan/probes/target"
	"inferspan/recording"
)

// Recorder is a consumer that writes a recording. Flush makes what was written
// so far safe from the end of the process.
type Recorder struct {
	w      *recording.Writer
	redact *decode.Redactor // nil: as seen
	tokens bool             // store token tables
	copy   []byte           // record being redacted, reused
	last   uint64           // time of the last flush, CLOCK_MONOTONIC ns
}

// flushEvery is how much of a run an end without warning may cost, ns.
const flushEvery = 2e9

// NewRecorder makes a recorder on w. With redact, texts and token ids are
// blanked; without, token tables are stored so that token texts can be replayed.
func NewRecorder(w *recording.Writer, redact bool) *Recorder {
	r := &Recorder{w: w, tokens: !redact}
	if redact {
		r.redact = decode.NewRedactor()
	}
	return r
}

// Engine stores facts.
func (r *Recorder) Engine(e *target.Engine) error {
	if r.redact != nil {
		if err := r.redact.Engine(e); err != nil {
			return fmt.Errorf("preparing to redact messages of %s: %w", e.Kind, err)
		}
		e = withoutHost(e)
	}
	if err := r.w.Engine(e); err != nil {
		return err
	}
	if r.tokens && e.Tokenizer != "" {
		if b, err := os.ReadFile(e.Tokenizer); err == nil {
			return r.w.Tokenizer(recording.Tokenizer{Engine: e.ID, JSON: b})
		}
	}
	return nil
}

// Record stores one record.
func (r *Recorder) Record(rec *event.Record) error {
	if rec.Time > r.last+flushEvery {
		r.last = rec.Time
		if err := r.w.Flush(); err != nil {
			return err
		}
	}
	if r.redact == nil {
		return r.w.Record(rec)
	}
	// Other consumers see the same bytes: blank a copy.
	r.copy = append(r.copy[:0], rec.Data...)
	c := *rec
	c.Data = r.copy
	var err error
	r.redact.Record(&c, func(out *event.Record) {
		if err == nil {
			err = r.w.Record(out)
		}
	})
	return err
}

// withoutHost leaves out facts that name the host's files and users.
func withoutHost(e *target.Engine) *target.Engine {
	c := *e
	c.Tokenizer = ""
	c.Processes = append([]target.Process(nil), e.Processes...)
	for i := range c.Processes {
		p := &c.Processes[i]
		p.Cmdline, p.ResourceEnv = nil, ""
		p.Python.Path = ""
		if p.ZMQ != nil {
			p.ZMQ = nil
		}
	}
	return &c
}
