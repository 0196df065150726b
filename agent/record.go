package agent

import (
	"fmt"
	"io"
	"path"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
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
	told   map[signal.EngineID]bool
	err    error // why no recording can be made
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

// Engine stores facts, again when there are more. When they are not enough to redact, there is no recording:
// the error comes again from Record, which ends the run.
func (r *Recorder) Engine(e *target.Engine) error {
	if r.redact != nil {
		if err := r.redact.Engine(e); err != nil {
			r.err = fmt.Errorf("preparing to redact messages of %s: %w", e.Kind, err)
			return r.err
		}
		e = withoutHost(e)
	}
	if err := r.w.Engine(e); err != nil {
		return err
	}
	if !r.tokens || e.Tokenizer == "" || r.told[e.ID] {
		return nil
	}
	if r.told == nil {
		r.told = make(map[signal.EngineID]bool)
	}
	r.told[e.ID] = true
	b, err := tokenizerFile(e)
	if err != nil {
		return fmt.Errorf("token texts are not recorded: %w", err)
	}
	return r.w.Tokenizer(recording.Tokenizer{Engine: e.ID, JSON: b})
}

// tokenizerFile reads the engine's tokenizer.json, which the engine's user chose.
func tokenizerFile(e *target.Engine) ([]byte, error) {
	f, err := target.OpenTokenizer(e)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, recording.MaxTokenizer+1))
	if err != nil {
		return nil, fmt.Errorf("reading the tokenizer: %w", err)
	}
	if len(b) > recording.MaxTokenizer {
		return nil, fmt.Errorf("reading the tokenizer: it has more than %d bytes", recording.MaxTokenizer)
	}
	return b, nil
}

// Record stores one record.
func (r *Recorder) Record(rec *event.Record) error {
	if r.err != nil {
		return r.err
	}
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

// withoutHost leaves out facts that name the host, its files and users. The model
// keeps its name: a path is cut to it where the engine serves it under another.
func withoutHost(e *target.Engine) *target.Engine {
	c := *e
	c.Tokenizer, c.Problems, c.HostID = "", nil, ""
	if len(c.ServedNames) > 0 {
		c.Model = path.Base(c.Model)
	}
	c.Processes = append([]target.Process(nil), e.Processes...)
	for i := range c.Processes {
		p := &c.Processes[i]
		p.Cmdline, p.ResourceEnv, p.UDS, p.ZMQ = nil, "", "", nil
		p.Python.Path, p.Python.Problem = "", ""
	}
	return &c
}
