package vllm

import (
	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/engine"
)

// Plans about the tokenizer.
const (
	planEncode = "encode"         // a call of it ends
	planInput  = engine.PlanInput // a request takes what the tokenizer gave
)

// maxTexts is how many calls of the tokenizer wait for the request that they were
// for: more than the requests that a front end can be about to send to the core.
const maxTexts = 1 << 10

// text is a text that was tokenized.
type text struct {
	addr uint64
	at   signal.Mono
	took int64
}

// tokenizer has the texts of one front end, the latest last.
//
// The front end keeps the str that it had tokenized until it makes a request of it
// for the core, and knows by then what the request's id is. As long as it keeps it no
// other str has the same address, so the address tells which call was for which
// request: the latest one with it.
type tokenizer struct{ texts []text }

func (t *tokenizer) add(x text) {
	if len(t.texts) == maxTexts {
		t.texts = append(t.texts[:0], t.texts[1:]...)
	}
	t.texts = append(t.texts, x)
}

// take gives the latest call for the text at an address, and forgets all with it.
func (t *tokenizer) take(addr uint64) (x text, ok bool) {
	rest := t.texts[:0]
	for _, y := range t.texts {
		if y.addr == addr {
			x, ok = y, true
		} else {
			rest = append(rest, y)
		}
	}
	t.texts = rest
	return x, ok
}

func (d *Decoder) tokenizerOf(pid uint32) *tokenizer {
	t := d.tokenizer[pid]
	if t == nil {
		t = &tokenizer{}
		d.tokenizer[pid] = t
	}
	return t
}

// encoded: a call of the tokenizer has ended.
func (d *Decoder) encoded(r *event.Record, overhead int64, v reading, emit func(signal.Signal)) {
	c := &r.Capture
	if c.Flags&event.CaptureReturn == 0 || c.Took == 0 || c.Took == event.TookMax {
		d.stats.Untimed++
		return
	}
	d.stats.Tokenized++
	took := max(int64(c.Took)-overhead, 0)
	n, ok := v.int(slotTexts)
	addr := v.value(slotText)
	// The empty str and those of one character of Latin-1 exist but once.
	if chars, some := v.int(slotChars); ok && n == 1 && some && chars > 1 && addr != nil && addr.Tag == capture.TagAddr {
		d.tokenizerOf(r.PID).add(text{addr.Addr, signal.Mono(r.Time), took})
		return
	}
	d.tokenized = signal.Tokenized{At: signal.Mono(r.Time), Engine: d.engine, PID: r.PID, Duration: took, Inputs: int(n)}
	emit(&d.tokenized)
}

// input: a front end makes a request of a prompt.
func (d *Decoder) input(pid uint32, v reading, emit func(signal.Signal)) {
	id, addr := v.value(slotID), v.value(slotText)
	if id == nil || !id.IsStr() || id.Str == "" || addr == nil || addr.Tag != capture.TagAddr {
		return // the prompt came as tokens or embeddings, or was not tokenized alone
	}
	x, ok := d.tokenizerOf(pid).take(addr.Addr)
	if !ok {
		return
	}
	d.tokenized = signal.Tokenized{At: x.at, Engine: d.engine, PID: pid, ID: id.Str, Duration: x.took, Inputs: 1, Tokens: known(v.int(slotPrompt))}
	emit(&d.tokenized)
}
