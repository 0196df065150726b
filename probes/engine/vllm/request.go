package vllm

import (
	"fmt"
	"math"
	"slices"

	"inferspan/correlate/signal"
	"inferspan/probes/wire"
)

// add reads a request that the core received.
func (d *Decoder) add(m *wire.Message, emit func(signal.Signal)) error {
	p := &m.Parts[1]
	c := d.core(m.PID, 0)
	d.request = signal.RequestAdded{At: signal.Mono(m.End), Core: c.id, Known: true}
	external, err := d.readRequest(p, &d.request)
	if err != nil {
		return fmt.Errorf("reading a request: %w", err)
	}
	q := &d.request
	q.ExternalID, q.ResponseID, q.Child = ids(q.ID, external, d.schema.externalIDs())
	c.track(q)
	d.stats.Requests++
	emit(q)
	return nil
}

// readRequest fills q from the frame and returns the external id.
func (d *Decoder) readRequest(p *wire.Part, q *signal.RequestAdded) (external string, err error) {
	s := d.schema
	r := reader{b: p.Head}
	n := r.array()
	if r.err != nil {
		return "", r.err
	}
	// The receiving side of the engine lets trailing fields with defaults be
	// absent and passes over fields it does not know.
	if n < s.required || n > len(s.request) && !s.live {
		return "", fmt.Errorf("%w: %d elements where this version has %d", errField, n, len(s.request))
	}
	x := request{q: q, defaults: &d.defaults}
	lora := slices.Index(s.request, fieldLoRA)
	q.AdapterUnknown = lora >= 0 && lora < n // until the field is read
	ended := p.Whole()
	for i := range n {
		f := fieldOther
		if i < len(s.request) {
			f = s.request[i]
		}
		x.field(&r, f)
		if r.err == nil {
			continue
		}
		if r.err != errShort || p.Whole() || p.Tail == nil {
			return "", fmt.Errorf("%s: %w", describe(s.names.request, i), r.err)
		}
		// The middle of the frame is missing: go on in its last bytes.
		d.stats.Truncated++
		x.resume(s, p.Tail, i+1, n)
		r, ended = reader{}, true
		break
	}
	if len(r.b) > 0 || !ended {
		return "", errTrail
	}
	if q.ID == "" {
		return "", errField
	}
	return x.external, nil
}

// request is a request being read.
type request struct {
	q        *signal.RequestAdded
	defaults *signal.Param
	external string
}

func (x *request) field(r *reader, f field) {
	q := x.q
	if f == fieldOther {
		r.skip()
		return
	}
	if r.null() {
		switch f {
		case fieldRequestID, fieldArrivalTime:
			r.fail(errType)
		case fieldLoRA:
			q.AdapterUnknown = false
		}
		return
	}
	switch f {
	case fieldRequestID:
		q.ID = string(r.str())
	case fieldPromptTokenIDs:
		n := r.array()
		if r.err == nil {
			q.PromptTokens = signal.Some(int64(n))
		}
		r.ints(n)
	case fieldPromptEmbeds:
		if n, ok := rows(r); ok && !q.PromptTokens.OK {
			q.PromptTokens = signal.Some(n)
		}
	case fieldSamplingParams:
		x.params(r)
	case fieldPoolingParams:
		q.Pooling = true
		r.skip()
	case fieldArrivalTime:
		q.Arrival = signal.Wall(r.seconds())
	case fieldClientIndex:
		q.Client = int(r.int())
	case fieldTraceHeaders:
		n := r.mapping()
		for range n {
			k := r.str()
			if string(k) == "traceparent" && isString(r.peek()) {
				q.TraceParent = string(r.str())
			} else {
				r.skip()
			}
			if r.err != nil {
				return
			}
		}
	case fieldExternalReqID:
		x.external = string(r.str())
	case fieldLoRA:
		x.adapter(r)
	default:
		r.skip()
	}
}

// adapter reads the name of the LoRA adapter, which comes first in its message.
func (x *request) adapter(r *reader) {
	x.q.AdapterUnknown = true
	if !isArray(r.peek()) { // another form: the name stays unknown
		r.skip()
		return
	}
	n := r.array()
	for i := 0; i < n && r.err == nil; i++ {
		if i == 0 && isString(r.peek()) {
			x.q.Adapter, x.q.AdapterUnknown = string(r.str()), false
		} else {
			r.skip()
		}
	}
}

// params reads the sampling parameters: a map without what equals its default.
func (x *request) params(r *reader) {
	if !isMap(r.peek()) { // another form: its values stay unknown
		r.skip()
		return
	}
	p := *x.defaults
	n := r.mapping()
	for range n {
		switch k := r.str(); string(k) {
		case "temperature":
			p.Temperature = r.optFloat()
		case "top_p":
			p.TopP = r.optFloat()
		case "top_k":
			p.TopK = r.optInt()
		case "max_tokens":
			p.MaxTokens = r.optInt()
		case "n":
			p.N = r.optInt()
		case "logprobs":
			p.Logprobs = !r.null()
			if p.Logprobs {
				r.skip()
			}
		case "stop":
			switch c := r.peek(); {
			case isArray(c):
				count := r.array()
				p.HasStop = count > 0
				for range count {
					r.skip()
					if r.err != nil {
						return
					}
				}
			case isString(c):
				p.HasStop = len(r.str()) > 0
			default:
				r.skip()
			}
		default:
			r.skip()
		}
		if r.err != nil {
			return
		}
	}
	x.q.Param = p
}

// rows reads a tensor and gives its first dimension.
func rows(r *reader) (int64, bool) {
	t := r.tensor()
	return t.rows, r.err == nil && t.rows >= 0
}

// ints passes over n integers.
func (r *reader) ints(n int) {
	if r.err != nil {
		return
	}
	b := r.b
	for range n {
		switch {
		case len(b) > 0 && b[0] < 0x80:
			b = b[1:]
		case len(b) > 2 && b[0] == 0xcd:
			b = b[3:]
		case len(b) > 4 && b[0] == 0xce:
			b = b[5:]
		case len(b) == 0:
			r.fail(errShort)
			return
		case !isInt(b[0]):
			r.fail(errType)
			return
		default:
			rest, err := skipObject(b)
			if err != nil {
				r.fail(err)
				return
			}
			b = rest
		}
	}
	r.b = b
}

func (r *reader) optFloat() signal.Opt[float64] {
	if r.null() {
		return signal.Opt[float64]{}
	}
	v := r.float()
	if r.err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
		return signal.Opt[float64]{}
	}
	return signal.Opt[float64]{V: v, OK: r.err == nil}
}

func (r *reader) optInt() signal.Opt[int64] {
	if r.null() {
		return signal.Opt[int64]{}
	}
	v := r.int()
	return signal.Opt[int64]{V: v, OK: r.err == nil}
}

// maxSeconds is the highest time accepted, in seconds: it still fits into
// nanoseconds.
const maxSeconds = 9e9

// seconds reads a time in seconds and gives it in nanoseconds. The engine's
// clock gives whole nanoseconds, which the float holds to the last one for an
// uptime of up to 104 days.
func (r *reader) seconds() int64 {
	v := r.float()
	if r.err == nil && !(v >= 0 && v < maxSeconds) {
		r.fail(errRange)
		return 0
	}
	return toNanos(v)
}

func toNanos(s float64) int64 { return int64(math.Round(s * 1e9)) }
