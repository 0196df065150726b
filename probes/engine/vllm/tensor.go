package vllm

import (
	"encoding/binary"
	"math"

	"inferspan/probes/wire"
)

// extRaw is the extension type of a tensor's bytes (CUSTOM_TYPE_RAW_VIEW).
const extRaw = 3

// tensor is a tensor or array as it is on the wire: data type, shape, and its
// bytes or where they are.
type tensor struct {
	dtype []byte
	rows  int64 // first dimension, -1 if it has none
	count int64 // elements
	data  []byte
	aux   int // frame of the message that holds the bytes, 0 if data has them or nothing is known
}

func (r *reader) tensor() tensor {
	t := tensor{rows: -1, count: 1}
	if r.array() != 3 {
		r.fail(errType)
		return t
	}
	t.dtype = r.str()
	dims := r.array()
	for i := range dims {
		n := r.int()
		if r.err != nil || n < 0 {
			r.fail(errRange)
			return t
		}
		if i == 0 {
			t.rows = n
		}
		if n > 0 && t.count > math.MaxInt32/n {
			t.count = math.MaxInt32 // more than any message holds
		} else {
			t.count *= n
		}
	}
	switch c := r.peek(); {
	case isExt(c):
		kind, data := r.ext()
		if kind == extRaw {
			t.data = data
		}
	case isInt(c):
		if n := r.int(); n > 0 && n < 1<<16 {
			t.aux = int(n)
		}
	default:
		r.skip()
	}
	return t
}

// bytes gives the tensor's bytes, nil if they were not sent or not copied.
func (t *tensor) bytes(parts []wire.Part) []byte {
	if t.aux > 0 && t.aux < len(parts) && parts[t.aux].Whole() {
		return parts[t.aux].Head
	}
	return t.data
}

// firstColumn appends the first element of each row; nil if they are not known.
func (t *tensor) firstColumn(dst []float64, parts []wire.Part) []float64 {
	width := int64(0)
	switch string(t.dtype) {
	case "<f4", "float32":
		width = 4
	case "<f8", "float64":
		width = 8
	}
	b := t.bytes(parts)
	if width == 0 || t.rows <= 0 || int64(len(b)) != t.count*width {
		return nil
	}
	row := t.count / t.rows * width
	for i := range t.rows {
		if width == 4 {
			dst = append(dst, float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i*row:]))))
		} else {
			dst = append(dst, math.Float64frombits(binary.LittleEndian.Uint64(b[i*row:])))
		}
	}
	return dst
}

// logprobs reads the log-probabilities of an output (LogprobsLists) and appends
// those of the sampled tokens, which are the first of each row. It returns nil
// if they are not in the message.
func (r *reader) logprobs(dst []float64, parts []wire.Part) []float64 {
	n := r.array()
	if r.err != nil || n < 2 {
		r.fail(errType)
		return nil
	}
	r.skip() // token ids
	var out []float64
	if probe := *r; probe.array() == 3 && isString(probe.peek()) {
		t := r.tensor()
		out = t.firstColumn(dst, parts)
	} else if isArray(r.peek()) { // lists of rows, before arrays were used
		out = dst
		for range r.array() {
			for k := range r.array() {
				if k == 0 {
					out = append(out, r.float())
				} else {
					r.skip()
				}
				if r.err != nil {
					return nil
				}
			}
			if r.err != nil {
				return nil
			}
		}
	} else {
		r.skip()
	}
	for range n - 2 {
		r.skip()
		if r.err != nil {
			return nil
		}
	}
	for _, v := range out[min(len(dst), len(out)):] {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
	}
	return out
}
