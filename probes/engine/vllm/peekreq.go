package vllm

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"inferspan/probes/note"
	"inferspan/probes/python"
)

// Requests reads the requests that the core has, those left out that end
// meanwhile. now reads CLOCK_MONOTONIC in ns; at is the moment to which the counts
// of output tokens belong. A count that could not be tied to it is left out.
func (p *Peeker) Requests(now func() uint64) (reqs []note.Request, at uint64, err error) {
	clear(p.seen)
	return p.NewRequests(now)
}

// NewRequests is as Requests, without those that were returned before.
func (p *Peeker) NewRequests(now func() uint64) (reqs []note.Request, at uint64, err error) {
	items, err := p.requestItems()
	if err != nil {
		return nil, now(), err
	}
	there := make(map[string]bool, len(items))
	items = slices.DeleteFunc(items, func(it python.Item) bool {
		id, err := it.Key.Str()
		there[id] = true
		return err != nil || p.seen[id]
	})
	maps.DeleteFunc(p.seen, func(id string, _ bool) bool { return !there[id] })
	if len(items) == 0 {
		return nil, now(), nil
	}
	// The dict moves its entries as requests come: an object is taken for alive that
	// is still in it afterwards.
	addrs := make(map[string]uint64, len(items))
	var outputs []python.Value
	for _, it := range items {
		v, err := p.in.Object(it.Value.Addr())
		if err != nil {
			continue
		}
		r, out, err := p.request(v)
		if errors.Is(err, python.ErrGone) {
			return nil, now(), err
		}
		if err != nil || addrs[r.ID] != 0 {
			continue // it has ended
		}
		addrs[r.ID] = it.Value.Addr()
		reqs = append(reqs, r)
		outputs = append(outputs, out)
	}
	at = p.counts(reqs, outputs, now)
	if items, err = p.requestItems(); err != nil {
		return nil, now(), err
	}
	alive := make(map[string]bool, len(items))
	for _, it := range items {
		if id, err := it.Key.Str(); err == nil && addrs[id] == it.Value.Addr() {
			alive[id] = true
		}
	}
	reqs = slices.DeleteFunc(reqs, func(r note.Request) bool { return !alive[r.ID] })
	for i := range reqs {
		p.seen[reqs[i].ID] = true
	}
	return reqs, at, nil
}

// requestItems reads the scheduler's dict of requests.
func (p *Peeker) requestItems() ([]python.Item, error) {
	dict, err := p.sched.Attr("requests")
	if err != nil {
		return nil, fmt.Errorf("reading the requests of the scheduler: %w", err)
	}
	items, err := dict.Items(maxPeeked)
	if err != nil {
		return nil, fmt.Errorf("reading the requests of the scheduler: %w", err)
	}
	return items, nil
}

// attributes are those of one object, read at once.
type attributes map[string]python.Value

// attributes reads those that an object has in its __dict__ or what stands for it.
func (p *Peeker) attributes(v python.Value) (attributes, error) {
	items, err := v.Vars(maxAttributes)
	if err != nil {
		return nil, err
	}
	out := make(attributes, len(items))
	for _, it := range items {
		name, ok := p.names[it.Key.Addr()]
		if !ok {
			if name, err = it.Key.Str(); err != nil {
				return nil, err
			}
			// Names of attributes stay, as the class's code refers to them.
			p.names[it.Key.Addr()] = name
		}
		out[name] = it.Value
	}
	return out, nil
}

// attr gets a value as get does.
func attr[T any](r *lookup, a attributes, name string, as func(python.Value) (T, error)) *T {
	v, ok := a[name]
	if !ok {
		r.miss(name, fmt.Errorf("attribute %s: %w", name, python.ErrNotFound))
		return nil
	}
	return get(r, name, as, v)
}

// request reads one request and gives its list of output tokens.
func (p *Peeker) request(v python.Value) (r note.Request, output python.Value, err error) {
	a, err := p.attributes(v)
	if err != nil {
		return r, output, err
	}
	if r.ID, err = a["request_id"].Str(); err != nil {
		return r, output, err
	}
	n, err := a["status"].Int()
	if err != nil {
		return r, output, err
	}
	r.Status = p.status[n]
	rd := lookup{missing: make(map[string]string)}
	r.Client = attr(&rd, a, "client_index", python.Value.Int)
	if at := attr(&rd, a, "arrival_time", python.Value.Float); at != nil {
		r.Arrival = nanoseconds(*at)
	}
	r.Prompt = attr(&rd, a, "num_prompt_tokens", python.Value.Int)
	r.Computed = attr(&rd, a, "num_computed_tokens", python.Value.Int)
	r.Preemptions = attr(&rd, a, "num_preemptions", python.Value.Int)
	if v, ok := a["pooling_params"]; ok && !v.IsNone() {
		r.Pooling = true
	}
	if v, ok := a["sampling_params"]; ok && !v.IsNone() {
		r.Params = p.params(&rd, v)
	}
	if v, ok := a["prefill_stats"]; ok && !v.IsNone() {
		// The statistics have no values before the request is first scheduled.
		if n := get(&rd, "prefill_stats", python.Value.Int, v, "num_prompt_tokens"); n != nil && *n > 0 {
			r.Cached = get(&rd, "prefill_stats", python.Value.Int, v, "num_cached_tokens")
		}
	}
	if v, ok := a["trace_headers"]; ok && !v.IsNone() {
		r.TraceParent = traceParent(&rd, v)
	}
	if v, ok := a["lora_request"]; ok && v.IsNone() {
		r.Adapter = ptr("")
	} else if ok {
		r.Adapter = member(p, &rd, v, "lora_name", python.Value.Str)
	}
	if v, ok := a["events"]; ok {
		r.Events = p.requestEvents(&rd, v)
	}
	output = a["_output_token_ids"]
	// The object stays what it is as long as the request lives.
	if output.Addr() != 0 {
		if output, err = p.in.Object(output.Addr()); err != nil {
			return r, output, err
		}
	}
	// Did the request live on all the while?
	again, err := v.Attr("request_id")
	if err != nil {
		return r, output, err
	}
	if id, err := again.Str(); err != nil || id != r.ID {
		return r, output, python.ErrUnstable
	}
	for _, name := range requestAttributes {
		if _, ok := rd.missing[name]; ok {
			r.Missing = append(r.Missing, name)
		}
	}
	return r, output, nil
}

// requestAttributes are those whose absence a note names.
var requestAttributes = []string{"arrival_time", "client_index", "events", "lora_name", "num_computed_tokens", "num_preemptions", "num_prompt_tokens", "prefill_stats", "sampling_params", "trace_headers"}

// nanoseconds converts the engine's times; nil if that is not possible.
func nanoseconds(seconds float64) *int64 {
	if !(seconds >= 0 && seconds < maxSeconds) {
		return nil
	}
	return ptr(int64(math.Round(seconds * 1e9)))
}

// params reads sampling parameters.
func (p *Peeker) params(rd *lookup, v python.Value) *note.Params {
	var n note.Params
	r := lookup{missing: make(map[string]string)}
	n.Temperature = member(p, &r, v, "temperature", python.Value.Number)
	n.TopP = member(p, &r, v, "top_p", python.Value.Number)
	n.TopK = member(p, &r, v, "top_k", python.Value.Int)
	n.MaxTokens = member(p, &r, v, "max_tokens", python.Value.Int)
	n.N = member(p, &r, v, "n", python.Value.Int)
	if lp, err := p.field(v, "logprobs"); err == nil {
		n.Logprobs = !lp.IsNone()
	}
	if stop, err := p.field(v, "stop"); err == nil && !stop.IsNone() {
		if k, err := stop.Len(); err == nil {
			n.HasStop = k > 0
		} else {
			r.miss("stop", err)
		}
	}
	for _, err := range r.missing {
		rd.miss("sampling_params", errors.New(err))
	}
	return &n
}

// member reads a field of a message.
func member[T any](p *Peeker, r *lookup, v python.Value, name string, as func(python.Value) (T, error)) *T {
	f, err := p.field(v, name)
	if err != nil {
		r.miss(name, err)
		return nil
	}
	return get(r, name, as, f)
}

// field finds a field of a message where the class has it.
func (p *Peeker) field(v python.Value, name string) (python.Value, error) {
	class, err := v.Type()
	if err != nil {
		return python.Value{}, err
	}
	offsets := p.offsets[class.Addr()]
	if offsets == nil {
		offsets = make(map[string]uint64)
		p.offsets[class.Addr()] = offsets
	}
	at, ok := offsets[name]
	if !ok {
		if at, _, err = class.Slot(name); err != nil {
			return v.Attr(name) // not a slot
		}
		offsets[name] = at
	}
	return v.Field(at)
}

// traceParent finds the W3C header among the trace headers of a request.
func traceParent(rd *lookup, headers python.Value) string {
	items, err := headers.Items(maxHeaders)
	if err != nil {
		rd.miss("trace_headers", err)
		return ""
	}
	for _, it := range items {
		if k, err := it.Key.Str(); err == nil && strings.EqualFold(k, "traceparent") {
			s, err := it.Value.Str()
			if err != nil {
				rd.miss("trace_headers", err)
			}
			return s
		}
	}
	return ""
}

// requestEvents reads the events that were not sent yet.
func (p *Peeker) requestEvents(rd *lookup, list python.Value) []note.Event {
	elems, err := list.List(maxEvents)
	if err != nil {
		rd.miss("events", err)
		return nil
	}
	var out []note.Event
	for _, e := range elems {
		kind := member(p, rd, e, "type", python.Value.Int)
		at := member(p, rd, e, "timestamp", python.Value.Float)
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
