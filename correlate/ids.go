package correlate

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"inferspan/correlate/trace"
)

// Ids come from the request's traceparent where there is one, else from a hash
// of what identifies it: the same recording gives the same ids.

// facts collects the input of a hash. Strings are prefixed by their length, so
// that no two lists of facts run together.
type facts struct{ b []byte }

func (f *facts) str(s string) *facts {
	f.b = binary.LittleEndian.AppendUint32(f.b, uint32(len(s)))
	f.b = append(f.b, s...)
	return f
}

func (f *facts) num(n uint64) *facts {
	f.b = binary.LittleEndian.AppendUint64(f.b, n)
	return f
}

func (f *facts) traceID() (id trace.TraceID) {
	h := sha256.Sum256(f.b)
	copy(id[:], h[:])
	return id
}

func (f *facts) spanID() (id trace.SpanID) {
	h := sha256.Sum256(f.b)
	copy(id[:], h[:])
	return id
}

// childID is the id of the only child of that name below parent.
func childID(t trace.TraceID, parent trace.SpanID, name string) trace.SpanID {
	var f facts
	f.b = append(append(f.b, t[:]...), parent[:]...)
	return f.str(name).spanID()
}

// parseTraceparent reads a W3C traceparent header. Versions above 00 are read
// by their first four fields, as the recommendation asks.
func parseTraceparent(s string) (t trace.TraceID, p trace.SpanID, ok bool) {
	const size = 55 // 00-<32>-<16>-<2>
	if len(s) < size || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" {
		return t, p, false
	}
	if len(s) > size && (s[:2] == "00" || s[size] != '-') {
		return t, p, false
	}
	for i := range size {
		if i == 2 || i == 35 || i == 52 {
			continue
		}
		if ch := s[i]; (ch < '0' || ch > '9') && (ch < 'a' || ch > 'f') {
			return t, p, false
		}
	}
	hex.Decode(t[:], []byte(s[3:35]))
	hex.Decode(p[:], []byte(s[36:52]))
	if t == (trace.TraceID{}) || p == (trace.SpanID{}) {
		return trace.TraceID{}, trace.SpanID{}, false
	}
	return t, p, true
}
