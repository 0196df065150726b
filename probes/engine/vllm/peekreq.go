package vllm

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"inferspan/probes/note"
	"inferspan/probes/python"
)

// Requests reads the requests that the core has, those left out that end
// meanwhile. now reads CLOCK_MONOTONIC in ns; at is the moment to which the counts
// of output tokens belong. A count that could not be tied to it is left out.
func (p *Peeker) Requests(now func() uint64) (reqs []note.Request, at uint64, err error) {
	dict, err := p.sched.Attr("requests")
	if err != nil {
		return nil, now(), fmt.Errorf("reading the requests of the scheduler: %w", err)
	}
	items, err := dict.Items(maxPeeked)
	if err != nil {
		return nil, now(), fmt.Errorf("reading the requests of the scheduler: %w", err)
	}
	var outputs []python.Value
	for _, it := range items {
		r, out, err := p.request(it)
		if errors.Is(err, python.ErrGone) {
			return nil, now(), err
		}
		if err != nil {
			continue // it has ended
		}
		reqs = append(reqs, r)
		outputs = append(outputs, out)
	}
	at = p.counts(reqs, outputs, now)
	return reqs, at, nil
}

// request reads one request and gives its list of output tokens.
func (p *Peeker) request(it python.Item) (r note.Request, output python.Value, err error) {
	v := it.Value
	if r.ID, err = it.Key.Str(); err != nil {
		return r, output, err
	}
	status, err := v.Attr("status")
	if err != nil {
		return r, output, err
	}
	n, err := status.Int()
	if err != nil {
		return r, output, err
	}
	r.Status = p.status[n]
	rd := lookup{missing: make(map[string]string)}
	r.Client = get(&rd, "client", python.Value.Int, v, "client_index")
	if at := get(&rd, "arrival", python.Value.Float, v, "arrival_time"); at != nil {
		r.Arrival = nanoseconds(*at)
	}
	r.Prompt = get(&rd, "prompt", python.Value.Int, v, "num_prompt_tokens")
	r.Computed = get(&rd, "computed", python.Value.Int, v, "num_computed_tokens")
	r.Preemptions = get(&rd, "preemptions", python.Value.Int, v, "num_preemptions")
	if pooling, none := rd.part("pooling", v, "pooling_params"); !none && pooling.Addr() != 0 {
		r.Pooling = true
	}
	if params, none := rd.part("params", v, "sampling_params"); !none && params.Addr() != 0 {
		r.Params = samplingParams(&rd, params)
	}
	if stats, none := rd.part("cached", v, "prefill_stats"); !none && stats.Addr() != 0 {
		// The statistics have no values before the request is first scheduled.
		if n := get(&rd, "cached", python.Value.Int, stats, "num_prompt_tokens"); n != nil && *n > 0 {
			r.Cached = get(&rd, "cached", python.Value.Int, stats, "num_cached_tokens")
		}
	}
	r.TraceParent = traceParent(&rd, v)
	r.Events = p.requestEvents(&rd, v)
	if output, err = v.Attr("_output_token_ids"); err != nil {
		rd.miss("output", err)
	}
	// Did the request live on all the while?
	again, err := v.Attr("request_id")
	if err != nil {
		return r, output, err
	}
	if id, err := again.Str(); err != nil || id != r.ID {
		return r, output, python.ErrUnstable
	}
	for _, name := range []string{"client", "arrival", "prompt", "computed", "output", "cached", "preemptions", "pooling", "params", "traceparent", "events"} {
		if _, ok := rd.missing[name]; ok {
			r.Missing = append(r.Missing, name)
		}
	}
	return r, output, nil
}

// nanoseconds converts the engine's times; nil if that is not possible.
func nanoseconds(seconds float64) *int64 {
	if !(seconds >= 0 && seconds < maxSeconds) {
		return nil
	}
	return ptr(int64(math.Round(seconds * 1e9)))
}

func samplingParams(rd *lookup, v python.Value) *note.Params {
	var p note.Params
	r := lookup{missing: make(map[string]string)}
	p.Temperature = get(&r, "temperature", python.Value.Number, v, "temperature")
	p.TopP = get(&r, "top_p", python.Value.Number, v, "top_p")
	p.TopK = get(&r, "top_k", python.Value.Int, v, "top_k")
	p.MaxTokens = get(&r, "max_tokens", python.Value.Int, v, "max_tokens")
	p.N = get(&r, "n", python.Value.Int, v, "n")
	if lp, none := r.part("logprobs", v, "logprobs"); !none && lp.Addr() != 0 {
		p.Logprobs = true
	}
	if stop, none := r.part("stop", v, "stop"); !none && stop.Addr() != 0 {
		if n, err := stop.Len(); err == nil {
			p.HasStop = n > 0
		} else {
			r.miss("stop", err)
		}
	}
	for name := range r.missing {
		rd.miss("params", fmt.Errorf("%s: %s", name, r.missing[name]))
	}
	return &p
}

// traceParent finds the W3C header among the trace headers of a request.
func traceParent(rd *lookup, v python.Value) string {
	headers, none := rd.part("traceparent", v, "trace_headers")
	if none || headers.Addr() == 0 {
		return ""
	}
	items, err := headers.Items(maxHeaders)
	if err != nil {
		rd.miss("traceparent", err)
		return ""
	}
	for _, it := range items {
		if k, err := it.Key.Str(); err == nil && strings.EqualFold(k, "traceparent") {
			s, err := it.Value.Str()
			if err != nil {
				rd.miss("traceparent", err)
			}
			return s
		}
	}
	return ""
}

// requestEvents reads the events that were not sent yet.
func (p *Peeker) requestEvents(rd *lookup, v python.Value) []note.Event {
	list, err := v.Attr("events")
	if err != nil {
		rd.miss("events", err)
		return nil
	}
	elems, err := list.List(maxEvents)
	if err != nil {
		rd.miss("events", err)
		return nil
	}
	var out []note.Event
	for _, e := range elems {
		kind := get(rd, "events", func(v python.Value) (int64, error) {
			if v, err := v.Attr("_value_"); err == nil {
				return v.Int()
			}
			return v.Int()
		}, e, "type")
		at := get(rd, "events", python.Value.Float, e, "timestamp")
		if kind == nil || at == nil {
			return nil
		}
		ns := nanoseconds(*at)
		if ns == nil || p.events[*kind] == "" {
			return nil
		}
		out = append(out, note.Event{Type: p.events[*kind], At: *ns})
	}
	return out
}

// updateFunction is the method of the scheduler that appends the tokens of a step
// to the requests and then stamps the outputs.
const updateFunction = "update_from_output"

// counts reads the output tokens of all requests as of one moment, which it
// returns: no update of the scheduler is under way then, so that the stamp of the
// outputs tells which tokens are counted. The counts are read twice. If they are
// the same, they are those of any moment in between; and an update that was under
// way then, with its tokens appended before and its stamp to come, shows in the
// stack between the two.
func (p *Peeker) counts(reqs []note.Request, outputs []python.Value, now func() uint64) uint64 {
	read := func() []int {
		n := make([]int, len(outputs))
		for i, v := range outputs {
			var err error
			if n[i], err = v.Len(); err != nil {
				n[i] = -1
			}
		}
		return n
	}
	for range countTries {
		before := read()
		busy, err := p.updating()
		at := now()
		if err != nil || busy {
			continue
		}
		after := read()
		same := true
		for i := range after {
			// A list that is gone belongs to a request that has ended.
			same = same && (before[i] == after[i] || after[i] < 0 || before[i] < 0)
		}
		if !same {
			continue
		}
		for i, n := range after {
			if n >= 0 && before[i] >= 0 {
				reqs[i].Output = ptr(int64(n))
			}
		}
		return at
	}
	for i := range reqs {
		reqs[i].Missing = append(reqs[i].Missing, "output")
	}
	return now()
}

// updating reports whether the scheduler is working on the outputs of a step.
func (p *Peeker) updating() (bool, error) {
	frames, err := p.in.MainFrames()
	if err != nil {
		return false, err
	}
	for _, f := range frames {
		if f.Name[strings.LastIndexByte(f.Name, '.')+1:] == updateFunction {
			return true, nil
		}
	}
	return false, nil
}
