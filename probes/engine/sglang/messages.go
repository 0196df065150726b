package sglang

import (
	"fmt"

	"inferspan/correlate/signal"
	"inferspan/probes/pickle"
	"inferspan/probes/wire"
)

// Kind says what a message is for.
type Kind uint8

// Kinds of messages, with the processes that send them.
const (
	KindOther      Kind = iota // none of the below
	KindGenerate               // requests to generate; tokenizer manager, data-parallel controller
	KindEmbedding              // requests for embeddings; as before
	KindAbort                  // end a request; as before, and schedulers back to the tokenizer manager
	KindTokens                 // outputs as token ids; scheduler
	KindTexts                  // outputs as text; detokenizer
	KindEmbeddings             // outputs of embedding requests; scheduler and detokenizer
)

// Message is one message. It, all slices and values in it are valid until the
// Codec's next use; strings are copies.
type Message struct {
	Kind  Kind
	Class string // the engine's name for it
	// Partial says that bytes of the frame were missing: what they had is unknown,
	// and of a batch the last requests may be missing.
	Partial  bool
	Requests []Request // of KindGenerate and KindEmbedding
	Outputs  []Output  // of KindTokens, KindTexts and KindEmbeddings
	Abort    Abort     // of KindAbort
}

// Request is a request as the tokenizer manager sends it.
type Request struct {
	ID           string // the rid, also the id of an OpenAI response
	Worker       string // http_worker_ipc: where answers go with several tokenizer workers, else ""
	PromptTokens signal.Opt[int64]
	Stream       signal.Opt[bool]
	// Param has the sampling parameters as the engine normalised them: greedy is a
	// TopK of 1, no limit on it 1<<30.
	Param         signal.Param
	Adapter       string // lora_name, in older versions lora_path
	AdapterID     string // lora_id
	Priority      signal.Opt[int64]
	DPRank        signal.Opt[int64] // asked for; routed_dp_rank or data_parallel_rank
	PrefillDPRank signal.Opt[int64] // disagg_prefill_dp_rank
	BootstrapHost string
	BootstrapPort signal.Opt[int64]
	BootstrapRoom signal.Opt[int64]
	Received      signal.Opt[float64] // received_time, s; in versions that send it
	TraceParent   string              // of the engine's own tracing, or an external header
	TraceState    string
	Times         Times
	prompt        pickle.Value
}

// AppendPrompt appends the token ids of the prompt; ok is false if they are not there.
func (r *Request) AppendPrompt(dst []int64) (ids []int64, ok bool) {
	return appendTokens(dst, r.prompt)
}

// Output is what a message says of one request.
type Output struct {
	ID               []byte
	Worker           []byte // http_worker_ipc, nil if it has none
	Finish           *Finish
	NumTokens        signal.Opt[int64] // new output tokens in this message
	NumDecode        signal.Opt[int64] // token ids for the detokenizer, the first time with some of the prompt
	TextBytes        signal.Opt[int64] // length of the new text
	PromptTokens     signal.Opt[int64]
	CompletionTokens signal.Opt[int64] // so far
	ReasoningTokens  signal.Opt[int64]
	CachedTokens     signal.Opt[int64]
	CachedDevice     signal.Opt[int64]
	CachedHost       signal.Opt[int64]
	Retractions      signal.Opt[int64]
	DPRank           signal.Opt[int64]
	SpecVerifies     signal.Opt[int64] // verification passes so far
	// SpecAccepted is how many draft tokens were accepted so far: spec_accepted_tokens
	// or spec_num_correct_drafts.
	SpecAccepted signal.Opt[int64]
	// As 0.5.5 and its like send them.
	QueueTime      signal.Opt[float64] // s
	ForwardEntry   signal.Mono
	PrefillDelay   signal.Opt[float64] // s
	PrefillLatency signal.Opt[float64] // s
	Times          Times
	ids, logprobs  pickle.Value
}

// AppendTokens appends the ids of the new output tokens; ok is false if they are not there.
func (o *Output) AppendTokens(dst []int64) (ids []int64, ok bool) { return appendTokens(dst, o.ids) }

// AppendLogprobs appends the log-probabilities of the new output tokens; ok is
// false if they are not there.
func (o *Output) AppendLogprobs(dst []float64) (out []float64, ok bool) {
	if !isList(o.logprobs) {
		return dst, false
	}
	for v := range o.logprobs.Items() {
		f, is := v.Float()
		if !is {
			return dst, false
		}
		dst = append(dst, f)
	}
	return dst, true
}

// Finish says how a request ended.
type Finish struct {
	Type         string // "stop", "length", "abort", or what a later version has
	Length       signal.Opt[int64]
	MatchedToken signal.Opt[int64]
	MatchedText  []byte // nil if no text was matched
	Status       signal.Opt[int64]
	ErrorType    []byte
	Message      []byte
}

// Abort is an AbortReq.
type Abort struct {
	ID     string
	Worker string
	All    bool
	Finish *Finish // nil if it has none
}

// Times are the stamps of time_stats that a message carries; CLOCK_MONOTONIC, 0 if
// not there or not yet set. Servers without --enable-trace and --enable-metrics send few.
// Each process that passes them on moves them by what its own difference of clocks
// differs from the sender's, some microseconds: the scheduler's are the exact ones.
type Times struct {
	Class           string // "" if the message has no time_stats for the request
	Disaggregation  string // "null", "prefill", "decode"; "" if not there
	Created         signal.Mono
	Dispatched      signal.Mono // api_server_dispatch_time
	DPCDispatched   signal.Mono
	WaitQueueEntry  signal.Mono
	ForwardEntry    signal.Mono
	PrefillFinished signal.Mono
	Completion      signal.Mono
	QueueDuration   signal.Opt[float64] // s, in all stays
	Realtime        signal.Opt[float64] // s to add to stamps for wall time
	Tracing         signal.Opt[bool]
}

// Decode reads one frame. The error wraps ErrFrame, ErrVersion, ErrFields or one
// of package pickle; a frame with bytes missing is no error if its beginning says
// what it is.
func (c *Codec) Decode(p *wire.Part) (*Message, error) {
	c.msg = Message{Requests: c.msg.Requests[:0], Outputs: c.msg.Outputs[:0]}
	c.used = 0
	v, partial, err := c.root(p)
	if err != nil {
		return nil, fmt.Errorf("decoding a message of SGLang: %w", err)
	}
	c.msg.Partial = partial
	if err := c.message(v, 0); err != nil {
		return nil, fmt.Errorf("decoding a message of SGLang: %w", err)
	}
	if partial && p.Tail != nil {
		if rest, _ := c.resume(p); rest.Kind() == pickle.Dict {
			c.merge(rest)
		}
	}
	return &c.msg, nil
}

// message reads a message of whatever class.
func (c *Codec) message(v pickle.Value, depth int) error {
	if inner := c.unwrap(v); v.Kind() == pickle.List && inner.Kind() == pickle.Object {
		v = inner
	}
	rec, err := c.open(v, "")
	if err != nil {
		return err
	}
	if rec.class == "" {
		return ErrFrame
	}
	if wrapper(rec.class) && depth == 0 {
		return c.message(rec.fields.Get("obj"), depth+1)
	}
	c.msg.Class = rec.class
	kind, batch := kindOf(rec.class)
	c.msg.Kind = kind
	switch kind {
	case KindGenerate, KindEmbedding:
		if !batch {
			return c.request(&rec)
		}
		var err error
		rec.each(func(name string, _, v pickle.Value) {
			if name != "batch" || !isList(v) && v.Kind() != pickle.List {
				return
			}
			for x := range v.Items() {
				one, e := c.open(x, rec.class[len("Batch"):])
				if e == nil {
					e = c.request(&one)
				}
				if e != nil && err == nil && !c.msg.Partial {
					err = e
				}
			}
		})
		return err
	case KindAbort:
		rec.each(c.abortField)
	case KindTokens, KindTexts, KindEmbeddings:
		return c.outputs(&rec)
	}
	return nil
}

// merge adds fields found at the end of a frame.
func (c *Codec) merge(rest pickle.Value) {
	rec := record{c: c, fields: rest}
	kind, batch := kindOf(c.msg.Class)
	switch {
	case kind == KindGenerate || kind == KindEmbedding:
		if !batch && len(c.msg.Requests) == 1 {
			r := &c.msg.Requests[0]
			rec.each(func(name string, _, v pickle.Value) { c.requestField(r, name, v) })
		}
	case kind == KindTokens || kind == KindTexts || kind == KindEmbeddings:
		rec.each(func(name string, _, v pickle.Value) { c.outputField(name, v) })
	case kind == KindAbort:
		rec.each(c.abortField)
	}
}

// next is one more item of a slice that keeps its memory.
func next[T any](s []T) ([]T, *T) {
	var zero T
	s = append(s, zero)
	return s, &s[len(s)-1]
}

func (c *Codec) request(rec *record) error {
	var r *Request
	c.msg.Requests, r = next(c.msg.Requests)
	rec.each(func(name string, _, v pickle.Value) { c.requestField(r, name, v) })
	if r.ID == "" {
		c.msg.Requests = c.msg.Requests[:len(c.msg.Requests)-1]
		if c.msg.Partial {
			return nil
		}
		return ErrFrame
	}
	return nil
}

func (c *Codec) outputs(rec *record) error {
	// The ids come first in some versions, later in others.
	found := false
	rec.each(func(name string, _, v pickle.Value) {
		if name != "rids" || !isList(v) {
			return
		}
		found = true
		for x := range v.Items() {
			var o *Output
			c.msg.Outputs, o = next(c.msg.Outputs)
			o.ID, _ = x.Text()
		}
	})
	if !found {
		if c.msg.Partial {
			return nil
		}
		return ErrFrame
	}
	rec.each(func(name string, _, v pickle.Value) { c.outputField(name, v) })
	return nil
}
