package sglang

import (
	"errors"
	"fmt"
	"strconv"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/pickle"
	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// maxRunning bounds the requests that are remembered until their end.
const maxRunning = 1 << 16

// noTopK is how the engine writes that the number of candidates has no limit
// (sampling_params.py, TOP_K_ALL); asked for as -1.
const noTopK = 1 << 30

// Options of a Decoder.
type Options struct {
	// Tokens asks for token ids and log-probabilities of the sampled tokens.
	Tokens bool
}

// Stats are totals of a Decoder.
type Stats struct {
	Requests  uint64 // requests that a front end sent
	Aborts    uint64 // requests that a front end gave up
	Steps     uint64 // messages with outputs
	Outputs   uint64 // outputs in them
	Repeated  uint64 // requests, outputs and aborts seen again on their way, or sent again
	Other     uint64 // messages that carry no signal
	NotOurs   uint64 // what is sent on other sockets
	Broken    uint64 // messages that should be read and could not be
	Truncated uint64 // messages read without what the kernel side left out
	Peeked    uint64 // requests in notes
}

// Decoder reads the messages of one engine. It is deterministic and must be used
// by one goroutine at a time. What it hands to emit is valid only during that call.
//
// All messages are seen where they are sent: a request first in the front end, then in
// what passes it on (a DP controller, the router of several tokenizer workers).
type Decoder struct {
	engine  signal.EngineID
	codec   *Codec
	tokens  bool
	roles   map[uint32]target.Role
	cores   map[uint32]signal.Core
	only    signal.Core         // the core that requests go to
	behind  map[uint32]bool     // schedulers that do what the first of their ranks does
	running map[string]*running // by id
	drafted map[uint32]drafted  // by scheduler, since its state was last looked at
	server  uint32              // the only front end, 0 if there are several
	capture *Captures
	stats   Stats
	problem error // of the last broken message

	// Reused for every message.
	added    signal.RequestAdded
	abort    signal.RequestAborted
	peeked   signal.RequestPeeked
	times    signal.RequestTimes
	step     signal.StepOutput
	outputs  []signal.Output
	ids      []int64
	logprobs []float64
}

// running is what is known of a request until its end.
type running struct {
	added   bool   // it was seen on its way to a scheduler
	front   uint32 // that sent it, 0 if not known
	key     uint64 // of the message that it sent
	sent    signal.Opt[int64]
	aborted bool // its front end gave it up
	drafts  drafted
	drafted bool // drafts are those of an output
	// Stages in the front end that were handed over: a look and a probe may both show one.
	tokenized, dispatched bool
}

// NewDecoder makes a Decoder for the engine that e describes.
func NewDecoder(e *target.Engine, opt Options) (*Decoder, error) {
	c, err := NewCodec(e)
	if err != nil {
		return nil, fmt.Errorf("preparing to read messages of engine %d: %w", e.ID, err)
	}
	d := &Decoder{engine: e.ID, codec: c, tokens: opt.Tokens, roles: map[uint32]target.Role{}, cores: map[uint32]signal.Core{}, behind: map[uint32]bool{}, running: map[string]*running{}, drafted: map[uint32]drafted{}, capture: NewCaptures(e.ID, e.PDRole)}
	d.Joined(e)
	return d, nil
}

// Joined takes in which processes the engine has now.
func (d *Decoder) Joined(e *target.Engine) {
	heads, servers := 0, 0
	for i := range e.Processes {
		p := &e.Processes[i]
		pid := uint32(p.PID)
		d.roles[pid] = p.Role
		if front(p.Role) {
			servers++
			d.server = pid
		}
		if p.Role != target.RoleCore {
			continue
		}
		core := signal.Core{Engine: e.ID, Index: p.Index, PID: pid}
		d.cores[pid] = core
		d.capture.Core(pid, core)
		if leads(e, p) {
			heads++
			d.only = core
		} else {
			d.behind[pid] = true
		}
	}
	if servers != 1 {
		d.server = 0
	}
	if heads != 1 {
		d.only = signal.Core{Engine: e.ID, Index: signal.CoreUnknown}
	}
	for i := range e.Processes {
		p := &e.Processes[i]
		if pid := uint32(p.PID); d.behind[pid] {
			if first := leader(e, p); first != nil {
				d.capture.Follows(pid, d.cores[uint32(first.PID)])
			}
		}
	}
}

// leader returns the scheduler that leads the ranks of one that does not, nil if it is not on
// this host or they are at other steps at the same time, as the stages of a pipeline are.
func leader(e *target.Engine, p *target.Process) *target.Process {
	if p.Ranks.TP == nil || p.Ranks.PP != nil && *p.Ranks.PP != 0 {
		return nil
	}
	same := func(a, b *int) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }
	for i := range e.Processes {
		q := &e.Processes[i]
		if q.Role == target.RoleCore && leads(e, q) && same(q.Ranks.DP, p.Ranks.DP) && q.Ranks.TP != nil && int64(*q.Ranks.TP) == firstRank(e, int64(*p.Ranks.TP)) {
			return q
		}
	}
	return nil
}

// leads reports whether a scheduler is the one of its ranks that gets requests and sends
// outputs.
func leads(e *target.Engine, p *target.Process) bool {
	if p.Ranks.PP != nil && *p.Ranks.PP != 0 {
		return false
	}
	return p.Ranks.TP == nil || int64(*p.Ranks.TP) == firstRank(e, int64(*p.Ranks.TP))
}

// firstRank is the first of the tensor-parallel ranks that are at the same steps as one of
// them: of all, or with DP attention of the group that has requests of its own
// (runtime_context.py, derive_attention_ranks).
func firstRank(e *target.Engine, rank int64) int64 {
	groups, ok := e.Setting("attn_dp_size")
	if !ok && e.Settings["enable_dp_attention"] == true { // 0.5.5 has no name of its own for it
		groups, ok = e.Setting("dp_size")
	}
	if tp, known := e.Setting("tp_size"); ok && known && groups > 1 && tp >= groups {
		return rank - rank%(tp/groups)
	}
	return 0
}

// Stats returns the totals so far.
func (d *Decoder) Stats() Stats { return d.stats }

// StepMark tells what the moment of a plan's captures is to a step.
func (d *Decoder) StepMark(_, plan uint32) signal.StepMark { return d.capture.StepMark(plan) }

// CaptureStats returns the totals of the captures so far.
func (d *Decoder) CaptureStats() CaptureStats { return d.capture.Stats() }

// Problem says why the latest broken message could not be read; nil if none was.
func (d *Decoder) Problem() error { return d.problem }

// Message reads one message that a process of the engine sent.
func (d *Decoder) Message(m *wire.Message, emit func(signal.Signal)) {
	role := d.roles[m.PID]
	if m.Receipt || m.Dir != event.FrameSend || len(m.Parts) == 0 || role == target.RoleDetokenizer {
		// Recordings can have what a detokenizer sent: the text of outputs says nothing that
		// the scheduler did not.
		d.stats.Other++
		return
	}
	p := &m.Parts[0]
	x, err := d.codec.Decode(p)
	switch {
	case errors.Is(err, ErrFrame):
		d.stats.NotOurs++
		return
	case errors.Is(err, pickle.ErrTruncated) && !p.Whole():
		d.stats.Truncated++ // what it is was not seen
		return
	case err != nil:
		d.stats.Broken++
		d.problem = err
		return
	}
	if x.Partial {
		d.stats.Truncated++
	}
	switch x.Kind {
	case KindGenerate, KindEmbedding:
		for i := range x.Requests {
			d.request(m, role, x, &x.Requests[i], emit)
		}
	case KindAbort:
		d.aborting(m, role, &x.Abort, emit)
	case KindTokens, KindEmbeddings:
		if role != target.RoleCore {
			d.stats.Other++
			return
		}
		d.capture.Sent(m.PID, signal.Mono(m.End))
		d.outputsOf(m, x, emit)
	default:
		d.stats.Other++
	}
}

// know returns what is known of a request, which may be nothing yet.
func (d *Decoder) know(id string) *running {
	r := d.running[id]
	if r == nil {
		r = &running{}
		if len(d.running) < maxRunning {
			d.running[id] = r
		}
	}
	return r
}

func front(role target.Role) bool {
	return role == target.RoleAPIServer || role == target.RoleOffline
}

// request: a request is on its way to a scheduler. One that its front end sends again is
// another of the same name, unless it is the same message: a send that finds no room is
// seen, too.
func (d *Decoder) request(m *wire.Message, role target.Role, x *Message, q *Request, emit func(signal.Signal)) {
	key := m.Key()
	was := d.running[q.ID]
	if was != nil && was.added && (!front(role) || was.front == 0 || was.front == m.PID && was.key == key && key != 0) {
		d.stats.Repeated++
		return
	}
	d.stats.Requests++
	r := &running{added: true, key: key, sent: signal.Some[int64](0)}
	if front(role) {
		r.front = m.PID
	}
	if was != nil && !was.added {
		r.tokenized, r.dispatched = was.tokenized, was.dispatched
	}
	if len(d.running) < maxRunning {
		d.running[q.ID] = r
	}
	a := &d.added
	*a = signal.RequestAdded{
		At: signal.Mono(m.End), Core: d.only, ID: q.ID, ExternalID: q.ID, ResponseID: q.ID, Pooling: x.Kind == KindEmbedding,
		Adapter: q.Adapter, AdapterUnknown: x.Partial && q.Adapter == "", PromptTokens: q.PromptTokens, Param: asked(q.Param), Client: -1,
		TraceParent: q.TraceParent, Known: true, PID: r.front, Stream: q.Stream, Room: q.BootstrapRoom,
	}
	emit(a)
}

// asked is what a request asks for, as far as the engine's normal form tells. It has
// sampling at temperature 0 as one candidate at temperature 1, which may also have been
// asked for in these words.
func asked(p signal.Param) signal.Param {
	switch {
	case p.TopK.V == 1 && p.Temperature.V == 1:
		p.TopK, p.Temperature = signal.Opt[int64]{}, signal.Opt[float64]{}
	case p.TopK.V == noTopK:
		p.TopK = signal.Some[int64](-1)
	}
	// The scheduler looks for stop strings: no front end ends a request for one.
	p.HasStop = false
	return p
}

// aborting: a front end gives a request up, which is passed on as it is; or a scheduler
// says that it ended one which was in no batch.
func (d *Decoder) aborting(m *wire.Message, role target.Role, a *Abort, emit func(signal.Signal)) {
	if a.ID == "" {
		d.stats.Other++ // of all requests: each will say so
		return
	}
	r := d.running[a.ID]
	if role == target.RoleCore {
		d.refused(m, a, emit)
		return
	}
	if r == nil || r.aborted {
		d.stats.Repeated++
		return
	}
	r.aborted = true
	d.stats.Aborts++
	d.abort = signal.RequestAborted{At: signal.Mono(m.End), Core: d.only, IDs: append(d.abort.IDs[:0], a.ID)}
	emit(&d.abort)
}

// refused is the last output of a request that was in no batch.
func (d *Decoder) refused(m *wire.Message, a *Abort, emit func(signal.Signal)) {
	d.begin(m)
	o := signal.Output{ID: []byte(a.ID), Finish: signal.FinishAbort, FinishReason: "abort"}
	if a.Finish != nil {
		ends(&o, a.Finish)
	}
	delete(d.running, a.ID)
	d.outputs = append(d.outputs, o)
	d.send(emit)
}

func (d *Decoder) begin(m *wire.Message) {
	d.step = signal.StepOutput{At: signal.Mono(m.End), Core: d.core(m.PID), Client: -1}
	d.outputs, d.ids, d.logprobs = d.outputs[:0], d.ids[:0], d.logprobs[:0]
}

func (d *Decoder) send(emit func(signal.Signal)) {
	d.stats.Steps++
	d.stats.Outputs += uint64(len(d.outputs))
	d.step.Outputs = d.outputs
	emit(&d.step)
}

// outputsOf: a scheduler hands over what a step gave.
func (d *Decoder) outputsOf(m *wire.Message, x *Message, emit func(signal.Signal)) {
	d.begin(m)
	for i := range x.Outputs {
		q := &x.Outputs[i]
		if len(q.ID) == 0 {
			d.stats.Broken++
			continue
		}
		if !d.count(q) {
			d.stats.Repeated++
			continue
		}
		d.outputs = append(d.outputs, signal.Output{})
		d.output(q, &d.outputs[len(d.outputs)-1], x.Kind == KindEmbeddings)
	}
	if len(d.outputs) > 0 {
		d.send(emit)
	}
}

// count follows the tokens of a request; false if an output is one that was seen before:
// the engine counts them, and a send that finds no room is seen again.
func (d *Decoder) count(q *Output) bool {
	r := d.running[string(q.ID)]
	if r == nil {
		if q.Finish != nil {
			return true
		}
		r = d.know(string(q.ID))
	}
	if q.NumTokens.V > 0 && q.CompletionTokens.OK && r.sent.OK && q.CompletionTokens.V <= r.sent.V {
		return false
	}
	if q.CompletionTokens.OK {
		r.sent = q.CompletionTokens
	}
	d.drafts(r, q)
	if q.Finish != nil {
		delete(d.running, string(q.ID))
	}
	return true
}

func (d *Decoder) output(q *Output, o *signal.Output, pooled bool) {
	o.ID, o.PromptTokens, o.CachedTokens, o.Pooled = q.ID, q.PromptTokens, q.CachedTokens, pooled
	if !pooled {
		o.NumTokens = int(q.NumTokens.V)
		if q.CompletionTokens.V >= 0 {
			o.Total = q.CompletionTokens
		}
		if q.SpecVerifies.V > 0 {
			o.Checks = q.SpecVerifies
		}
	}
	if q.Finish != nil {
		ends(o, q.Finish)
	}
	if !d.tokens || pooled {
		return
	}
	from := len(d.ids)
	if ids, ok := q.AppendTokens(d.ids); ok {
		d.ids = ids
		o.Tokens = ids[from:len(ids):len(ids)]
	}
	first := len(d.logprobs)
	if v, ok := q.AppendLogprobs(d.logprobs); ok && len(v)-first == o.NumTokens {
		d.logprobs = v
		o.Logprobs = v[first:len(v):len(v)]
	}
}

// ends says how a request ended.
func ends(o *signal.Output, f *Finish) {
	o.FinishReason = f.Type
	switch f.Type {
	case "stop":
		o.Finish = signal.FinishStop
		switch {
		case f.MatchedText != nil:
			o.StopReason = string(f.MatchedText)
		case f.MatchedToken.OK:
			o.StopReason = strconv.FormatInt(f.MatchedToken.V, 10)
		}
	case "length":
		o.Finish = signal.FinishLength
	case "abort":
		o.Finish = signal.FinishAbort
		o.Failure = &signal.Failure{Type: f.Type, Message: string(f.Message), Status: f.Status, Err: string(f.ErrorType)}
	default:
		o.Finish = signal.FinishOther
	}
}
