package vllm

import "slices"

// resumeBudget bounds the objects looked at to find the place to go on at.
const resumeBudget = 1 << 20

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
	if from > 0 && fields[from-1] == fieldPromptTokenIDs {
		if at, ok := afterInts(tail, fields[from:n]); ok {
			return at, from, true
		}
	} else if at, first, ok := resumeAt(tail, fields, from, n); ok {
		return at, first, ok
	}
	// Where the gap reaches beyond the field it began in, the arrival time is a
	// second landmark: no other field is a float.
	if arrival := slices.Index(fields, fieldArrivalTime); arrival > from && arrival < n {
		return resumeAt(tail, fields, arrival, n)
	}
	return 0, 0, false
}

// afterInts finds the fields behind a list of integers of which b begins
// somewhere in the middle. An integer has at most 9 bytes, so reading on from one
// of the first 9 places meets the end of the list: the first byte that begins no
// integer. From the other places one may meet other ends, but hardly one from
// which the fields follow up to the end; if so, ok is false.
func afterInts(b []byte, fields []field) (at int, ok bool) {
	at = -1
	for start := range min(9, len(b)) {
		r := reader{b: b[start:]}
		for len(r.b) > 0 && isInt(r.b[0]) && r.err == nil {
			r.skip()
		}
		end := len(b) - len(r.b)
		if r.err != nil || end == at || !matchFields(r.b, fields) {
			continue
		}
		if at >= 0 {
			return 0, false
		}
		at = end
	}
	return at, at >= 0
}

// matchFields tells whether exactly the fields of a request follow in b.
func matchFields(b []byte, fields []field) bool {
	for _, f := range fields {
		if len(b) == 0 || !requestType(f, b[0]) {
			return false
		}
		rest, err := skipObject(b)
		if err != nil {
			return false
		}
		b = rest
	}
	return len(b) == 0
}

// resumeAt finds field first or the one after it, if where first begins is open.
func resumeAt(tail []byte, fields []field, first, n int) (start, at int, ok bool) {
	if first >= n {
		return 0, 0, false
	}
	p, ok := findFields(tail, fields[first:n], requestType)
	switch {
	case !ok:
		return 0, 0, false
	case p.single:
		return p.at, first, true
	}
	return p.second, first + 1, true
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
	case fieldPoolingParams, fieldPromptEmbeds, fieldPromptTokenIDs, fieldMultiModal:
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
