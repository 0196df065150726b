package vllm

import (
	"fmt"

	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// Redactor takes what a request says and what it is answered out of the frame
// records of one engine: token ids, texts, log-probabilities, tensors, and
// everything not known to be free of them. Numbers become 0 and texts rows of x
// of the same width, so that the records decode to the same signals except for
// those values; ids, parameters, times and counts stay. Messages that are not
// understood are blanked as a whole.
//
// It is deterministic and must be used by one goroutine at a time.
type Redactor struct {
	*wire.Redactor
	schema *schema
}

// NewRedactor makes a Redactor for the engine that e describes. It fails where
// NewDecoder does.
func NewRedactor(e *target.Engine) (*Redactor, error) {
	s, err := newSchema(e)
	if err != nil {
		return nil, fmt.Errorf("preparing to redact messages of engine %d: %w", e.ID, err)
	}
	r := &Redactor{schema: s}
	r.Redactor = wire.NewRedactor(func(m *wire.Message) bool {
		kind := classify(m, s)
		r.redact(m, kind)
		return kind == kindOutputs
	})
	return r, nil
}

// redact blanks the message in place.
func (r *Redactor) redact(m *wire.Message, k kind) {
	var ok bool
	payload := 0
	switch k {
	case kindAdd:
		payload = 1
		ok = r.request(&m.Parts[1])
	case kindAbort:
		payload = 1
		ok = onlyStrings(&m.Parts[1])
	case kindOutputs:
		ok = r.outputs(&m.Parts[0])
	case kindDead:
		ok = true
	case kindOther:
		payload = 1
	}
	if ok {
		payload++
	}
	for i := payload; i < len(m.Parts); i++ {
		// A single byte says nothing, but it tells kinds of messages apart.
		if p := &m.Parts[i]; p.Size > 1 {
			clear(p.Head)
			clear(p.Tail)
		}
	}
}

// onlyStrings tells whether a frame is a list of strings, of which the end may
// be missing.
func onlyStrings(p *wire.Part) bool {
	clear(p.Tail)
	r := reader{b: p.Head}
	for range r.array() {
		r.str()
		if r.err != nil {
			break
		}
	}
	if p.Whole() {
		return r.err == nil && len(r.b) == 0
	}
	return r.err == errShort
}

// What is kept of the messages; all else is blanked.
var (
	keepRequest = names("request_id", "arrival_time", "lora_request", "data_parallel_rank", "client_index", "current_wave", "priority",
		"trace_headers", "resumable", "external_req_id", "reasoning_ended", "abort_immediately", "prompt_is_token_ids", "eos_token_id")
	keepParams = names("n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "watermarking", "top_p",
		"top_k", "min_p", "ignore_eos", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "flat_logprobs", "detokenize",
		"skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "output_kind", "stream_interval", "skip_clone",
		"output_text_buffer_length", "skip_reading_prefix_cache", "truncate_prompt_tokens")
	keepOutput = names("request_id", "finish_reason", "events", "trace_headers", "prefill_stats", "num_cached_tokens",
		"num_external_computed_tokens", "num_nans_in_logits", "spec_decode_metrics")
	keepOutputs = names("engine_index", "scheduler_stats", "timestamp", "finished_requests", "wave_complete", "start_wave", "weight_version")
)

func names(s ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range s {
		m[n] = true
	}
	return m
}

// request blanks a request; false if it cannot be read.
func (r *Redactor) request(p *wire.Part) bool {
	s := r.schema
	rd := reader{b: p.Head}
	n := rd.array()
	ended := p.Whole()
	for i := range n {
		s.blankRequest(&rd, i)
		if rd.err == nil {
			continue
		}
		if rd.err != errShort || p.Whole() || p.Tail == nil {
			return false
		}
		start, first, ok := s.resumeRequest(p.Tail, i+1, n)
		if !ok {
			start, first = len(p.Tail), n
		}
		clear(p.Tail[:start])
		rd, ended = reader{b: p.Tail[start:]}, true
		for k := first; k < n; k++ {
			s.blankRequest(&rd, k)
		}
		break
	}
	return rd.err == nil && len(rd.b) == 0 && ended
}

// blankRequest blanks field i of a request, as far as it must be.
func (s *schema) blankRequest(r *reader, i int) {
	name, f := "", fieldOther
	if i < len(s.names.request) {
		name, f = s.names.request[i], s.request[i]
	}
	switch {
	case keepRequest[name]:
		r.skip()
	case f == fieldSamplingParams && isMap(r.peek()):
		for range r.mapping() {
			if k := r.str(); keepParams[string(k)] {
				r.skip()
			} else {
				r.blank()
			}
			if r.err != nil {
				return
			}
		}
	default:
		r.blankTensor()
	}
}

// outputs blanks an outputs message; false if it cannot be read.
func (r *Redactor) outputs(p *wire.Part) bool {
	s := r.schema
	rd := reader{b: p.Head}
	n := rd.array()
	ended := p.Whole()
	for i := range n {
		s.blankOutputs(&rd, i)
		if rd.err == nil {
			continue
		}
		if rd.err != errShort || p.Whole() || p.Tail == nil {
			return false
		}
		at, ok := findFields(p.Tail, s.outputs[i+1:n], outputsType)
		if !ok || !at.single {
			clear(p.Tail)
			return true
		}
		clear(p.Tail[:at.at])
		rd, ended = reader{b: p.Tail[at.at:]}, true
		for k := i + 1; k < n; k++ {
			s.blankOutputs(&rd, k)
		}
		break
	}
	return rd.err == nil && len(rd.b) == 0 && ended
}

func (s *schema) blankOutputs(r *reader, i int) {
	switch {
	case keepOutputs[s.names.outputs[i]]:
		r.skip()
	case s.outputs[i] == fieldOutputs:
		for range r.array() {
			n := r.array()
			if r.err == nil && n != len(s.output) {
				r.fail(errField)
			}
			for k := 0; k < n && r.err == nil; k++ {
				switch name := s.names.output[k]; {
				case keepOutput[name]:
					r.skip()
				case isArray(r.peek()):
					r.blankList()
				default:
					r.blank()
				}
			}
			if r.err != nil {
				return
			}
		}
	default:
		r.blank()
	}
}

// blankList blanks a list that may be a tensor or hold tensors.
func (r *reader) blankList() {
	if r.isTensor() {
		r.blankTensor()
		return
	}
	for range r.array() {
		r.blankTensor()
		if r.err != nil {
			return
		}
	}
}

// blankTensor blanks an object; of a tensor, data type and shape stay, and the
// number of the frame that has its bytes.
func (r *reader) blankTensor() {
	if r.isTensor() {
		r.array()
		r.skip()
		r.skip()
		if isInt(r.peek()) {
			r.skip()
			return
		}
	}
	r.blank()
}

// isTensor tells whether the next object is a tensor, without reading it.
func (r *reader) isTensor() bool {
	probe := *r
	if probe.array() != 3 || !isString(probe.peek()) {
		return false
	}
	probe = *r
	probe.tensor()
	return probe.err == nil
}

// blank overwrites the next object: numbers by 0, texts by x, bytes by 0, all of
// the same width. Lists and maps keep their form. Of an incomplete object all
// bytes that are there are overwritten.
func (r *reader) blank() {
	if r.err != nil {
		return
	}
	b := r.b
	for due := 1; due > 0; due-- {
		head, body, more, err := object(b)
		if err != nil {
			if err == errShort {
				clear(b[min(headLen(b), len(b)):])
			}
			r.b = b
			r.fail(err)
			return
		}
		switch c := b[0]; {
		case isString(c):
			for i := range body {
				b[head+i] = 'x'
			}
		case c < mpFixMap || c >= 0xe0:
			b[0] = 0
		default:
			clear(b[head : head+body])
		}
		b = b[head+body:]
		due += more
	}
	r.b = b
}

// headLen is the length of the type and length bytes of the object that b begins with.
func headLen(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch c := b[0]; {
	case c == 0xc4 || c == 0xd9 || c >= 0xd4 && c <= 0xd8:
		return 2
	case c == 0xc5 || c == 0xc7 || c == 0xda || c == 0xdc || c == 0xde:
		return 3
	case c == 0xc8:
		return 4
	case c == 0xc6 || c == 0xdb || c == 0xdd || c == 0xdf:
		return 5
	case c == 0xc9:
		return 6
	}
	return 1
}
