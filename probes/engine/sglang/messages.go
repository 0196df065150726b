package sglang

import (
	"fmt"
	"math"

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

func (c *Codec) requestField(r *Request, name string, v pickle.Value) {
	switch name {
	case "rid":
		r.ID = text(v)
	case "http_worker_ipc":
		r.Worker = text(v)
	case "input_ids":
		r.prompt, r.PromptTokens = v, countTokens(v)
	case "sampling_params":
		if p, err := c.open(v, "SamplingParams"); err == nil {
			p.each(func(name string, _, v pickle.Value) { paramField(&r.Param, name, v) })
		}
	case "stream":
		r.Stream = boolean(v)
	case "return_logprob":
		r.Param.Logprobs = boolean(v).V
	case "lora_name", "lora_path":
		r.Adapter = text(v)
	case "lora_id":
		r.AdapterID = text(v)
	case "priority":
		r.Priority = integer(v)
	case "routed_dp_rank", "data_parallel_rank":
		r.DPRank = integer(v)
	case "disagg_prefill_dp_rank":
		r.PrefillDPRank = integer(v)
	case "bootstrap_host":
		r.BootstrapHost = text(v)
	case "bootstrap_port":
		r.BootstrapPort = integer(v)
	case "bootstrap_room":
		r.BootstrapRoom = integer(v)
	case "received_time":
		r.Received = number(v)
	case "external_trace_header", "trace_context":
		r.carrier(v)
		r.carrier(v.Get("root_span"))
	case "time_stats":
		r.Times = c.times(v, r.carrier)
	}
}

// carrier takes the trace context that a dict of headers has.
func (r *Request) carrier(v pickle.Value) {
	if s := text(v.Get("traceparent")); s != "" {
		r.TraceParent, r.TraceState = s, text(v.Get("tracestate"))
	}
}

func paramField(p *signal.Param, name string, v pickle.Value) {
	switch name {
	case "temperature":
		p.Temperature = number(v)
	case "top_p":
		p.TopP = number(v)
	case "top_k":
		p.TopK = integer(v)
	case "max_new_tokens":
		p.MaxTokens = integer(v)
	case "n":
		p.N = integer(v)
	case "stop_strs", "stop_regex_strs":
		p.HasStop = p.HasStop || v.Len() > 0
	}
}

func (c *Codec) abortField(name string, _, v pickle.Value) {
	a := &c.msg.Abort
	switch name {
	case "rid":
		a.ID = text(v)
	case "http_worker_ipc":
		a.Worker = text(v)
	case "abort_all":
		a.All = boolean(v).V
	case "finished_reason":
		a.Finish = c.finish(v)
	}
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

// outputField reads a field that has an item for each request; one that has not
// says nothing.
func (c *Codec) outputField(name string, v pickle.Value) {
	set := outputFields[name]
	if set == nil {
		return
	}
	if name == "time_stats" {
		v = c.unwrap(v)
	}
	if !isList(v) || v.Len() != len(c.msg.Outputs) {
		return
	}
	i := 0
	for x := range v.Items() {
		if i == len(c.msg.Outputs) {
			return
		}
		set(c, &c.msg.Outputs[i], x)
		i++
	}
}

var outputFields = map[string]func(c *Codec, o *Output, v pickle.Value){
	"http_worker_ipcs":          func(_ *Codec, o *Output, v pickle.Value) { o.Worker, _ = v.Text() },
	"finished_reasons":          func(c *Codec, o *Output, v pickle.Value) { o.Finish = c.finish(v) },
	"decode_ids":                func(_ *Codec, o *Output, v pickle.Value) { o.NumDecode = countTokens(v) },
	"output_ids":                func(_ *Codec, o *Output, v pickle.Value) { o.ids, o.NumTokens = v, countTokens(v) },
	"output_token_logprobs_val": func(_ *Codec, o *Output, v pickle.Value) { o.logprobs = v },
	"output_strs": func(_ *Codec, o *Output, v pickle.Value) {
		if v.Kind() == pickle.String {
			o.TextBytes = signal.Some(int64(v.Len()))
		}
	},
	"prompt_tokens":           func(_ *Codec, o *Output, v pickle.Value) { o.PromptTokens = integer(v) },
	"completion_tokens":       func(_ *Codec, o *Output, v pickle.Value) { o.CompletionTokens = integer(v) },
	"reasoning_tokens":        func(_ *Codec, o *Output, v pickle.Value) { o.ReasoningTokens = integer(v) },
	"cached_tokens":           func(_ *Codec, o *Output, v pickle.Value) { o.CachedTokens = integer(v) },
	"retraction_counts":       func(_ *Codec, o *Output, v pickle.Value) { o.Retractions = integer(v) },
	"dp_ranks":                func(_ *Codec, o *Output, v pickle.Value) { o.DPRank = integer(v) },
	"spec_verify_ct":          func(_ *Codec, o *Output, v pickle.Value) { o.SpecVerifies = integer(v) },
	"spec_accepted_tokens":    func(_ *Codec, o *Output, v pickle.Value) { o.SpecAccepted = integer(v) },
	"spec_num_correct_drafts": func(_ *Codec, o *Output, v pickle.Value) { o.SpecAccepted = integer(v) },
	"queue_time":              func(_ *Codec, o *Output, v pickle.Value) { o.QueueTime = number(v) },
	"forward_entry_time":      func(_ *Codec, o *Output, v pickle.Value) { o.ForwardEntry = stamp(v) },
	"prefill_delay":           func(_ *Codec, o *Output, v pickle.Value) { o.PrefillDelay = number(v) },
	"prefill_latency":         func(_ *Codec, o *Output, v pickle.Value) { o.PrefillLatency = number(v) },
	"cached_tokens_details": func(_ *Codec, o *Output, v pickle.Value) {
		o.CachedDevice, o.CachedHost = integer(v.Get("device")), integer(v.Get("host"))
	},
	"time_stats": func(c *Codec, o *Output, v pickle.Value) { o.Times = c.times(v, nil) },
}

// finishClasses are the types of reasons that older versions send as objects.
var finishClasses = map[string]string{
	"FINISH_MATCHED_TOKEN": "stop", "FINISH_MATCHED_STR": "stop", "FINISHED_MATCHED_REGEX": "stop",
	"FINISH_LENGTH": "length", "FINISH_ABORT": "abort",
}

func (c *Codec) finish(v pickle.Value) *Finish {
	if k := v.Kind(); k != pickle.Dict && k != pickle.Object {
		return nil
	}
	rec, err := c.open(v, "")
	if err != nil {
		return nil
	}
	f := &Finish{Type: finishClasses[rec.class]}
	rec.each(func(name string, _, v pickle.Value) {
		switch name {
		case "type":
			f.Type = text(v)
		case "length":
			f.Length = integer(v)
		case "matched":
			f.MatchedToken = integer(v)
			f.MatchedText, _ = v.Text()
		case "status_code":
			f.Status = integer(v)
		case "err_type":
			f.ErrorType, _ = v.Text()
		case "message":
			f.Message, _ = v.Text()
		}
	})
	if f.Type == "" {
		return nil
	}
	return f
}

// times reads time_stats; carrier gets the engine's own trace context.
func (c *Codec) times(v pickle.Value, carrier func(pickle.Value)) Times {
	v = c.unwrap(v)
	if v.Kind() != pickle.Object {
		return Times{}
	}
	rec, err := c.open(v, "")
	if err != nil {
		return Times{}
	}
	t := Times{Class: rec.class}
	rec.each(func(name string, _, v pickle.Value) {
		switch name {
		case "disagg_mode":
			t.Disaggregation = text(v)
		case "created_time":
			t.Created = stamp(v)
		case "api_server_dispatch_time":
			t.Dispatched = stamp(v)
		case "dpc_dispatch_time":
			t.DPCDispatched = stamp(v)
		case "wait_queue_entry_time":
			t.WaitQueueEntry = stamp(v)
		case "forward_entry_time":
			t.ForwardEntry = stamp(v)
		case "prefill_finished_time":
			t.PrefillFinished = stamp(v)
		case "completion_time":
			t.Completion = stamp(v)
		case "queue_duration_s":
			t.QueueDuration = number(v)
		case "diff_realtime_monotonic":
			t.Realtime = number(v)
		case "trace_ctx":
			t.Tracing = boolean(v.Get("tracing_enable"))
			if carrier != nil {
				carrier(v.Get("root_span_context"))
			}
		}
	})
	return t
}

// isList tells whether all of a list, or of a tuple, was read.
func isList(v pickle.Value) bool {
	k := v.Kind()
	return (k == pickle.List || k == pickle.Tuple) && v.Complete()
}

func text(v pickle.Value) string {
	s, _ := v.Text()
	return string(s)
}

func integer(v pickle.Value) signal.Opt[int64] {
	i, ok := v.Int()
	return signal.Opt[int64]{V: i, OK: ok}
}

func number(v pickle.Value) signal.Opt[float64] {
	f, ok := v.Float()
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return signal.Opt[float64]{}
	}
	return signal.Some(f)
}

func boolean(v pickle.Value) signal.Opt[bool] {
	b, ok := v.Bool()
	return signal.Opt[bool]{V: b, OK: ok}
}

// stamp is a time of time.perf_counter, which is CLOCK_MONOTONIC in seconds.
func stamp(v pickle.Value) signal.Mono {
	f, ok := v.Float()
	if !ok || !(f > 0 && f < math.MaxInt64/1e9) {
		return 0
	}
	return signal.Mono(math.Round(f * 1e9))
}
