package sglang

import (
	"errors"

	"inferspan/probes/pickle"
	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// Redactor takes what a request says and what it is answered out of the frame
// records of one engine: token ids, texts, log-probabilities, tensors, and
// everything not known to be free of them. Numbers become 0, texts x and bytes 0,
// all of the same width, so that the records decode to the same messages except
// for those values; ids, parameters, times and counts stay. Messages that are not
// understood are blanked as a whole.
//
// A pickle has the same str once wherever it occurs: a text of one letter that is
// also a name that must stay, such as the type code of an array, stays with it.
//
// It is deterministic and must be used by one goroutine at a time.
type Redactor struct {
	*wire.Redactor
	c *Codec
}

// NewRedactor makes a Redactor for the engine that e describes. MessagePack whose
// order of fields is not known is blanked as a whole.
func NewRedactor(e *target.Engine) (*Redactor, error) {
	c, err := NewCodec(e)
	if err != nil {
		return nil, err
	}
	r := &Redactor{c: c}
	r.Redactor = wire.NewRedactor(r.message)
	return r, nil
}

// message blanks a message, which has one frame.
func (r *Redactor) message(m *wire.Message) (received bool) {
	for i := range m.Parts {
		p := &m.Parts[i]
		if i > 0 || !r.frame(p) {
			if p.Size > 1 { // a single byte says nothing
				clear(p.Head)
				clear(p.Tail)
			}
		}
	}
	return true
}

// frame blanks a frame; false if it cannot be read.
func (r *Redactor) frame(p *wire.Part) bool {
	c := r.c
	c.used = 0
	v, err := c.read(p.Head, p.Tail, p.Size)
	class := ""
	var e *pickle.Error
	if errors.As(err, &e) && e.Err == pickle.ErrTruncated && p.Tail != nil && e.Offset <= len(p.Head) {
		// The end is one of its own: either its fields are found, or nothing is.
		v, err = c.read(p.Head, nil, p.Size)
		class = c.classOf(v)
		rest, at := c.resume(p)
		if rest.Kind() == pickle.Dict && class != "" {
			clear(p.Tail[:at])
			rec := record{c: c, class: class, fields: rest}
			k := keeper{c, &c.tail}
			k.record(&rec)
			c.tail.Blank(nil)
		} else {
			clear(p.Tail)
		}
	}
	if err != nil && !errors.Is(err, pickle.ErrTruncated) {
		return false
	}
	k := keeper{c, &c.dec}
	if !k.message(v, 0) {
		return false
	}
	c.dec.Blank(err)
	return true
}

// classOf is the class of a message, "" if it has none.
func (c *Codec) classOf(v pickle.Value) string {
	rec, err := c.open(v, "")
	if err != nil {
		return ""
	}
	return rec.class
}

// What is kept of messages; all else is blanked.
var (
	keepRequest = words("rid", "http_worker_ipc", "return_logprob", "logprob_start_len", "top_logprobs_num", "stream", "return_hidden_states",
		"return_routed_experts", "routed_experts_start_len", "return_indexer_topk", "return_sampling_mask", "lora_id", "lora_name",
		"lora_path", "bootstrap_host", "bootstrap_port", "bootstrap_room", "decode_tp_size", "routed_dp_rank",
		"data_parallel_rank", "disagg_prefill_dp_rank", "require_reasoning", "priority", "no_logs", "return_bytes", "return_entropy",
		"need_wait_for_mm_inputs", "received_time", "external_trace_header", "trace_context", "time_stats", "pp_prefetch_ticketed",
		"sampling_logprobs_mode")
	keepParams = words("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
		"min_new_tokens", "n", "beam_width", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim",
		"stream_interval", "stop_str_max_len", "stop_regex_max_len", "is_normalized")
	keepOutput = words("rids", "http_worker_ipcs", "read_offsets", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim",
		"prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens", "image_tokens", "audio_tokens", "video_tokens",
		"retraction_counts", "token_steps", "cached_tokens_details", "dp_ranks", "time_stats", "spec_verify_ct", "spec_accepted_tokens",
		"spec_num_correct_drafts", "spec_num_block_accept_tokens", "spec_num_cap_tokens", "spec_correct_drafts_histogram",
		"spec_cap_lens_histogram", "queue_time", "forward_entry_time", "prefill_delay", "prefill_latency")
	keepAbort  = words("rid", "http_worker_ipc", "abort_all")
	keepFinish = words("type", "length", "status_code", "err_type")
)

func words(s ...string) map[string]bool {
	m := map[string]bool{}
	for _, w := range s {
		m[w] = true
	}
	return m
}

// keeper marks in one decoder what stays.
type keeper struct {
	c *Codec
	d *pickle.Decoder
}

// message marks what stays of a message; false if it is none.
func (k keeper) message(v pickle.Value, depth int) bool {
	if v.Kind() == pickle.List {
		if inner, d := k.c.unwrapped(v); d != nil {
			k.d.KeepOnly(v.Index(0))
			k.d.KeepOnly(v.Index(1))
			if !(keeper{k.c, d}).message(inner, depth) {
				return false
			}
			d.Blank(nil)
			return true
		}
	}
	rec, err := k.c.open(v, "")
	if err != nil || rec.class == "" {
		return false
	}
	if rec.skip > 0 {
		k.d.KeepOnly(v.Index(0))
	}
	if wrapper(rec.class) && depth == 0 {
		ok := false
		rec.each(func(name string, key, x pickle.Value) {
			k.d.KeepOnly(key)
			if name == "obj" {
				ok = k.message(x, depth+1)
			}
		})
		return ok
	}
	k.record(&rec)
	return true
}

// record marks what stays of a message's fields.
func (k keeper) record(rec *record) {
	kind, _ := kindOf(rec.class)
	keep := keepOutput
	switch kind {
	case KindGenerate, KindEmbedding:
		keep = keepRequest
	case KindAbort:
		keep = keepAbort
	case KindOther:
		keep = nil
	}
	rec.each(func(name string, key, v pickle.Value) {
		k.d.KeepOnly(key)
		switch {
		case keep[name]:
			k.d.Keep(v)
		case keep == nil:
		case name == "input_ids":
			k.array(v)
		case name == "output_ids" || name == "decode_ids":
			for x := range v.Items() {
				k.array(x)
			}
		case name == "sampling_params":
			k.some(v, "SamplingParams", keepParams)
		case name == "finished_reason":
			k.some(v, "", keepFinish)
		case name == "finished_reasons":
			for x := range v.Items() {
				k.some(x, "", keepFinish)
			}
		case name == "batch":
			for x := range v.Items() {
				k.message(x, 1)
			}
		}
	})
}

// some marks some fields of a struct.
func (k keeper) some(v pickle.Value, class string, keep map[string]bool) {
	rec, err := k.c.open(v, class)
	if err != nil {
		return
	}
	if rec.skip > 0 {
		k.d.KeepOnly(v.Index(0))
	}
	rec.each(func(name string, key, x pickle.Value) {
		k.d.KeepOnly(key)
		if keep[name] {
			k.d.Keep(x)
		}
	})
}

// array marks what tells how many token ids there are.
func (k keeper) array(v pickle.Value) {
	if code, _, ok := array(v); ok {
		k.d.KeepOnly(code)
	}
}
