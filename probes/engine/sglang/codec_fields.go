package sglang

import (
	"math"

	"inferspan/correlate/signal"
	"inferspan/probes/pickle"
)

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
