package vllm

import "slices"

// resumeBudget bounds the objects looked at to find the place to go on at.
const resumeBudget = 4 << 20

// resume goes on in the last bytes of a frame whose middle is missing, at field
// from of n. What cannot be found there stays unknown.
func (x *request) resume(s *schema, tail []byte, from, n int) {
	start, first, ok := s.resumeRequest(tail, from, n)
	if !ok {
		return
	}
	saved, savedExternal := *x.q, x.external
	r := reader{b: tail[start:]}
	for _, f := range s.request[first:n] {
		x.field(&r, f)
	}
	if r.err != nil || len(r.b) > 0 {
		*x.q, x.external = saved, savedExternal
	}
}

// resumeRequest finds where in the last bytes of a request its fields go on, if
// those from the field from of n on are wanted. Where that field begins is not
// known: it is the place from which the remaining fields have the right types
// and end with the frame. first is the field that begins there; it is a later
// one if only that can be told apart from the bytes before it.
func (s *schema) resumeRequest(tail []byte, from, n int) (start, first int, ok bool) {
	fields := s.request
	if n > len(fields) {
		return 0, 0, false
	}
	// Where the gap reaches beyond the field it began in, the arrival time is a
	// second landmark: no other field is a float.
	arrival := slices.Index(fields, fieldArrivalTime)
	for _, first := range []int{from, arrival} {
		if first < from || first >= n {
			continue
		}
		if p, ok := findFields(tail, fields[first:n], requestType); ok {
			if p.single {
				return p.at, first, true
			}
			return p.second, first + 1, true
		}
	}
	return 0, 0, false
}

// place is where fields were found.
type place struct {
	at     int  // where the first field begins; the last possibility if there are several
	second int  // where the second field begins
	single bool // there is one possibility for the first field
}

// findFields finds the place in b from which exactly the fields follow up to the
// end. ok is false if there is none, or if there are several that differ in
// more than where the first field begins.
func findFields(b []byte, fields []field, accept func(field, byte) bool) (p place, ok bool) {
	budget := resumeBudget
	for i := range b {
		rest, second := b[i:], -1
		for k, f := range fields {
			if len(rest) == 0 || !accept(f, rest[0]) {
				second = -1
				break
			}
			var err error
			rest, budget, err = skipObjects(rest, budget)
			if err == errRange {
				return place{}, false
			}
			if err != nil {
				second = -1
				break
			}
			if k == 0 {
				second = len(b) - len(rest)
			}
		}
		if second < 0 || len(rest) > 0 {
			continue
		}
		if ok && second != p.second {
			return place{}, false
		}
		p = place{at: i, second: second, single: !ok}
		ok = true
	}
	return p, ok
}

// requestType tells whether a field of a request may begin with the byte c.
func requestType(f field, c byte) bool {
	switch f {
	case fieldArrivalTime:
		return c == mpFloat64
	case fieldSamplingParams:
		return c == mpNil || isMap(c)
	case fieldPoolingParams, fieldPromptEmbeds, fieldPromptTokenIDs:
		return c == mpNil || isArray(c)
	case fieldClientIndex:
		return isInt(c)
	case fieldTraceHeaders:
		return c == mpNil || isMap(c)
	case fieldExternalReqID:
		return c == mpNil || isString(c)
	case fieldRequestID:
		return isString(c)
	case fieldPrompt:
		return c == mpNil || isString(c)
	}
	return !isFloat(c)
}

// outputsType tells whether a field of an outputs message may begin with the byte c.
func outputsType(f field, c byte) bool {
	switch f {
	case fieldTimestamp:
		return c == mpFloat64
	case fieldSchedulerStats:
		return c == mpNil || isMap(c)
	case fieldEngineIndex:
		return isInt(c)
	case fieldOutputs, fieldUtilityOutput:
		return c == mpNil || isArray(c)
	}
	return !isFloat(c)
}
