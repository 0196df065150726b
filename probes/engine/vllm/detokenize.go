package vllm

import (
	"fmt"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/note"
)

// planDecode is the name of the plan for the end of a call that turns a token into
// text.
const planDecode = engine.PlanDecode

// methodCalibrated says that the cost of a token was measured in short windows.
const methodCalibrated = "calibrated"

// maxTexted bounds the requests whose tokens were seen being turned into text.
const maxTexted = 1 << 12

// decoded: a token was turned into text.
func (d *Decoder) decoded(r *event.Record, overhead int64, v reading, emit func(signal.Signal)) {
	c, id := &r.Capture, v.value(slotID)
	if c.Flags&event.CaptureReturn == 0 || c.Took == 0 || c.Took == event.TookMax || id == nil || !id.IsStr() || id.Str == "" {
		d.stats.Untimed++
		return
	}
	d.stats.Detokenized++
	if len(d.texted) < maxTexted {
		d.texted[id.Str] = true
	}
	d.detokenized = signal.Detokenized{At: signal.Mono(r.Time), Engine: d.engine, PID: r.PID, ID: id.Str,
		Duration: max(int64(c.Took)-overhead, 0), Tokens: 1, Exact: true}
	emit(&d.detokenized)
}

// stopTokens counts the tokens that end requests: these are not turned into text,
// which takes no time.
func (d *Decoder) stopTokens(m *signal.StepOutput, emit func(signal.Signal)) {
	if len(d.texted) == 0 {
		return
	}
	for i := range m.Outputs {
		o := &m.Outputs[i]
		if o.Finish == signal.FinishNone || !d.texted[string(o.ID)] {
			continue
		}
		delete(d.texted, string(o.ID))
		if o.Finish == signal.FinishStop && o.NumTokens > 0 {
			d.detokenized = signal.Detokenized{At: m.At, Engine: d.engine, ID: string(o.ID), Tokens: 1, Exact: true}
			emit(&d.detokenized)
		}
	}
}

// costNote: what calls of a function cost on average.
func (d *Decoder) costNote(r *event.Record, emit func(signal.Signal)) error {
	n, err := note.Get[note.Cost](r)
	if err != nil {
		return err
	}
	if n.Detail != signal.DetailDetokenize {
		d.stats.Other++
		return nil
	}
	if n.Calls <= 0 || n.Time < 0 {
		return fmt.Errorf("reading a note about costs: %d ns in %d calls: %w", n.Time, n.Calls, errRange)
	}
	d.detokenized = signal.Detokenized{At: signal.Mono(r.Time), Engine: d.engine, PID: r.PID, Duration: n.Time, Tokens: n.Calls, Method: methodCalibrated}
	emit(&d.detokenized)
	return nil
}
