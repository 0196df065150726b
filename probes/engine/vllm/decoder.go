// Package vllm reads the messages between vLLM's front ends and its engine
// cores (V1) and turns them into signals.
package vllm

import (
	"fmt"
	"strings"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// Types of the messages that a core receives (EngineCoreRequestType).
const (
	typeAdd   = 0x00
	typeAbort = 0x01
	typeLast  = 0x05 // the highest one known; all but the two above are ignored
)

// coreDead is what a core sends to every front end when it fails.
const coreDead = "ENGINE_CORE_DEAD"

// maxRunning bounds the requests whose front end is remembered, until the
// sockets that lead to it are known.
const maxRunning = 1 << 16

// maxEnded is how many ended requests are remembered at least: those that can end
// in one step.
const maxEnded = 1 << 11

// Options of a Decoder.
type Options struct {
	// Tokens asks for token ids and log-probabilities of the sampled tokens.
	Tokens bool
}

// Stats are totals of a Decoder.
type Stats struct {
	Requests    uint64 // requests added
	Aborts      uint64 // abort messages
	Steps       uint64 // messages with outputs or statistics
	Outputs     uint64 // outputs in them
	Repeated    uint64 // messages seen again that the core tried to send again
	Receipts    uint64 // messages that a front end received
	Other       uint64 // messages between front end and core that carry no signal
	NotOurs     uint64 // messages of other kinds
	Broken      uint64 // messages that should be read and could not be
	Truncated   uint64 // messages read without what the kernel side left out
	Peeked      uint64 // requests in notes
	Captures    uint64 // captures
	Unplanned   uint64 // captures of which no note says how to read them
	Scheduled   uint64 // steps in them
	Stamps      uint64 // moments at which a front end began to work on a message
	Unstamped   uint64 // such moments of which the message is not known
	Tokenized   uint64 // calls of the tokenizer
	Untimed     uint64 // such calls of which it is not known how long they took
	Detokenized uint64 // tokens turned into text, each by a call that was seen
}

// Decoder reads the messages of one engine. It is deterministic and must be used
// by one goroutine at a time. What it hands to emit is valid only during that call.
type Decoder struct {
	engine   signal.EngineID
	version  string
	schema   *schema
	tokens   bool
	defaults signal.Param
	// coordinated: there is a coordinator, to which a core sends statistics of
	// its own in the same form as outputs.
	coordinated bool
	facts       map[uint32]int // index of each known core
	cores       map[uint32]*core
	inside      map[uint32]bool     // processes whose core is part of a program
	captures    map[uint32]captures // by process
	workers     []*worker           // that are processes of their own
	stamps      stamps
	tokenizer   map[uint32]*tokenizer // by front end
	texted      map[string]bool       // requests whose tokens are seen being turned into text
	stats       Stats
	problem     error // of the last broken message

	// Reused for every message.
	request     signal.RequestAdded
	abort       signal.RequestAborted
	step        signal.StepOutput
	delivered   signal.Delivered
	tokenized   signal.Tokenized
	detokenized signal.Detokenized
	outputs     []signal.Output
	events      []signal.EngineEvent
	ids         []int64
	logprobs    []float64
	sched       signal.SchedulerStats
	peeked      signal.RequestPeeked
	stepSig     signal.Step
	capture     plan.Capture
	names       []byte // request ids of a step
	preempted   [][]byte
	finished    [][]byte
}

// core is what is known of one engine core process.
type core struct {
	id      signal.Core
	running map[string]*running
	skips   int // steps whose requests were not seen
	// Requests that have ended: one may be in a step that was scheduled before.
	ended, endedBefore map[string]*running
	clients            map[uint64]int  // front end that a sending socket leads to
	sent               map[uint64]sent // latest message by socket
	steps              steps
	dispatches         dispatches
	told               told
	arrivals           arrivals // where it is part of a program
	// Of its configuration.
	spec          signal.Opt[int64] // draft tokens
	blockSize     signal.Opt[int64]
	prefixCaching signal.Opt[bool]
	remoteKVs     signal.Opt[int64] // status of a request that waits for KV blocks from elsewhere
}

// running is what is known of a request until its end.
type running struct {
	client   int // front end
	prompt   int64
	promptOK bool
	done     int64 // tokens computed after its latest step
	again    int64 // of those, how many have to be computed again
	skips    int   // of the core when done was known
	lost     bool  // how many these are is not known
	// Of cores that are part of a program.
	begun  bool                 // it was handed over with the time when it began
	gave   bool                 // outputs
	from   signal.Mono          // the core had it, at the earliest as far as is known
	idle   signal.Mono          // a later look found the core without requests
	looked *signal.RequestAdded // what a look said of it, which its beginning goes with
}

// NewDecoder makes a Decoder for the engine that e describes. It fails if the
// field order of the engine's messages is neither in e.Structs nor known for
// exactly e.Version.
func NewDecoder(e *target.Engine, opt Options) (*Decoder, error) {
	s, err := newSchema(e)
	if err != nil {
		return nil, fmt.Errorf("preparing to read messages of engine %d: %w", e.ID, err)
	}
	d := &Decoder{engine: e.ID, version: e.Version, schema: s, tokens: opt.Tokens, defaults: defaultParam(e.Defaults[classParams]),
		facts: map[uint32]int{}, cores: map[uint32]*core{}, captures: map[uint32]captures{}, inside: map[uint32]bool{}, stamps: newStamps(), tokenizer: map[uint32]*tokenizer{}, texted: map[string]bool{}}
	d.Joined(e)
	return d, nil
}

// Joined takes in which processes the engine has now.
func (d *Decoder) Joined(e *target.Engine) {
	d.learnWorkers(e)
	for i := range e.Processes {
		switch p := &e.Processes[i]; p.Role {
		case target.RoleCore:
			d.facts[uint32(p.PID)] = p.Index
			d.inside[uint32(p.PID)] = p.InProcess
		case target.RoleCoordinator:
			d.coordinated = true
		}
	}
}

// Stats returns the totals so far.
func (d *Decoder) Stats() Stats { return d.stats }

// Problem says why the latest broken message could not be read; nil if none was.
func (d *Decoder) Problem() error { return d.problem }

// Live tells whether field positions come from the engine's process and not
// from the table of versions.
func (d *Decoder) Live() bool { return d.schema.live }

// Message reads one message of an engine core process, or the receipt of one in
// a front end, and hands over what it says.
func (d *Decoder) Message(m *wire.Message, emit func(signal.Signal)) {
	if m.Receipt {
		d.Receipt(m, emit)
		return
	}
	var err error
	switch kind := classify(m, d.schema); kind {
	case kindAdd:
		err = d.add(m, emit)
	case kindAbort:
		err = d.aborted(m, emit)
	case kindOther:
		d.stats.Other++
	case kindOutputs:
		err = d.outputsMessage(m, emit)
	case kindDead:
		d.stats.Other++
		emit(&signal.CoreFailed{At: signal.Mono(m.End), Core: d.core(m.PID, 0).id})
	default:
		d.stats.NotOurs++
	}
	if err != nil {
		d.stats.Broken++
		d.problem = err
	}
}

// kind is what a message is by its shape.
type kind uint8

const (
	kindNotOurs kind = iota
	kindAdd
	kindAbort
	kindOther
	kindOutputs
	kindDead
)

// classify tells a core's own messages from those of its other sockets
// (workers, coordinator, handshake, event publishers).
func classify(m *wire.Message, s *schema) kind {
	p := &m.Parts[0]
	if m.Dir == event.FrameRecv {
		if len(m.Parts) < 2 || p.Size != 1 || len(p.Head) != 1 {
			return kindNotOurs
		}
		switch t := p.Head[0]; {
		case t == typeAdd:
			return kindAdd
		case t == typeAbort:
			return kindAbort
		case t <= typeLast:
			return kindOther
		}
		return kindNotOurs
	}
	if string(p.Head) == coreDead {
		return kindDead
	}
	r := reader{b: p.Head}
	if n := r.array(); r.err != nil || n != len(s.outputs) {
		return kindNotOurs
	}
	for _, f := range s.outputs {
		c := r.peek()
		switch {
		case f == fieldOutputs:
			if isArray(c) {
				return kindOutputs
			}
			return kindNotOurs
		case f == fieldEngineIndex && !isInt(c):
			return kindNotOurs
		}
		r.skip()
	}
	return kindNotOurs
}

// core returns the state of a core process. index is the core's own word for its
// position, used if the facts do not know the process.
func (d *Decoder) core(pid uint32, index int) *core {
	c := d.cores[pid]
	if c == nil {
		if i, ok := d.facts[pid]; ok {
			index = i
		}
		c = &core{id: signal.Core{Engine: d.engine, Index: index, PID: pid}, running: map[string]*running{}, ended: map[string]*running{}, clients: map[uint64]int{}, sent: map[uint64]sent{}}
		d.cores[pid] = c
	}
	return c
}

// track remembers a request until its end. One that is known already may have
// got new facts.
func (c *core) track(q *signal.RequestAdded) {
	r := c.running[q.ID]
	if r == nil || q.Known {
		if r == nil && len(c.running) >= maxRunning {
			return
		}
		r = new(running)
		c.running[q.ID] = r
	}
	r.client, r.prompt, r.promptOK = q.Client, q.PromptTokens.V, q.PromptTokens.OK
}

// end forgets a request, in a while.
func (c *core) end(id string) {
	r := c.running[id]
	if r == nil {
		return
	}
	delete(c.running, id)
	if len(c.ended) >= maxEnded {
		c.ended, c.endedBefore = map[string]*running{}, c.ended
	}
	c.ended[id] = r
}

// find gives what is known of a request that runs or has ended lately; nil if
// nothing is.
func (c *core) find(id []byte) *running {
	for _, m := range []map[string]*running{c.running, c.ended, c.endedBefore} {
		if r := m[string(id)]; r != nil {
			return r
		}
	}
	return nil
}

// aborted reads an abort message: the payload is a list of ids.
func (d *Decoder) aborted(m *wire.Message, emit func(signal.Signal)) error {
	p := &m.Parts[1]
	c := d.core(m.PID, 0)
	r := reader{b: p.Head}
	n := r.array()
	d.abort = signal.RequestAborted{At: signal.Mono(m.End), Core: c.id, IDs: d.abort.IDs[:0]}
	for range n {
		id := r.str()
		if r.err != nil {
			break
		}
		d.abort.IDs = append(d.abort.IDs, string(id))
		c.end(string(id))
	}
	switch {
	case r.err == errShort && !p.Whole():
		d.stats.Truncated++
	case r.err == nil && (len(r.b) > 0 || !p.Whole()):
		r.err = errTrail
		fallthrough
	case r.err != nil:
		return fmt.Errorf("reading an abort message: %w", r.err)
	}
	d.stats.Aborts++
	if len(d.abort.IDs) > 0 {
		emit(&d.abort)
	}
	return nil
}

// Receipt reads the receipt of a message's first frame in a front end; those of
// later frames say nothing more, since a message arrives as a whole.
func (d *Decoder) Receipt(m *wire.Message, emit func(signal.Signal)) {
	if m.First != 0 {
		return
	}
	d.stats.Receipts++
	if d.stamps.on[m.PID] {
		return
	}
	if key := m.Key(); key != 0 {
		d.delivered = signal.Delivered{At: signal.Mono(m.End), Engine: d.engine, PID: m.PID, Key: key}
		emit(&d.delivered)
	}
}

// describe names the array element at which reading failed.
func describe(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("element %d", i)
}

// defaultParam gives the parameters that a message leaves out, as far as known.
func defaultParam(m map[string]any) signal.Param {
	var p signal.Param
	for name, v := range m {
		switch strings.ToLower(name) {
		case "temperature":
			p.Temperature = number(v)
		case "top_p":
			p.TopP = number(v)
		case "top_k":
			p.TopK = integer(v)
		case "max_tokens":
			p.MaxTokens = integer(v)
		case "n":
			p.N = integer(v)
		}
	}
	return p
}

// number accepts what JSON or a live reader may give for a number.
func number(v any) signal.Opt[float64] {
	switch v := v.(type) {
	case float64:
		return signal.Some(v)
	case int:
		return signal.Some(float64(v))
	case int64:
		return signal.Some(float64(v))
	}
	return signal.Opt[float64]{}
}

func integer(v any) signal.Opt[int64] {
	switch v := v.(type) {
	case float64:
		if v == float64(int64(v)) {
			return signal.Some(int64(v))
		}
	case int:
		return signal.Some(int64(v))
	case int64:
		return signal.Some(v)
	}
	return signal.Opt[int64]{}
}
