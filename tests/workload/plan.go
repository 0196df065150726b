package workload

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// Leave says when a client goes away on purpose.
type Leave string

// Ways to leave.
const (
	Stay       Leave = ""           // read the whole response
	LeaveEarly Leave = "early"      // close before the first byte of the response body is read
	LeaveMid   Leave = "mid_stream" // close after some events of the stream
)

// Request is one request of the plan.
type Request struct {
	Method string
	Path   string
	Header [][2]string // beyond Host, Content-Type and the length
	Body   []byte      // nil: none
	// Chunked sends the body in HTTP chunks; Pieces > 1 sends it in that many
	// writes, a few milliseconds apart.
	Chunked bool
	Pieces  int

	Leave Leave
	After time.Duration // LeaveEarly: this long after the request was sent
	Event int           // LeaveMid: after this many events

	Want   int    // expected status, 0: any
	Stream bool   // the response is a stream of events
	N      int    // choices asked for per prompt
	Inputs int    // prompts, embedding inputs or pairs in the body
	Max    int    // max_tokens, 0 if not given
	Model  string // asked for, "" if the request names none
	Marks  string // TraceID and ParentID sent, as "trace/parent", "" if none
	Key    string // x-request-id sent, "" if none
}

// Session is what one connection carries, in order.
type Session struct {
	Requests  []Request
	Pipelined bool // all requests are sent before the first response is read
}

// Needs says which server a scenario runs against.
type Needs string

// Kinds of server.
const (
	NeedsGenerate Needs = "generate" // the tiny model as it is
	NeedsTools    Needs = "tools"    // with --enable-auto-tool-choice --tool-call-parser hermes
	NeedsSmallKV  Needs = "small-kv" // with --num-gpu-blocks-override 12
	NeedsPooling  Needs = "pooling"  // with --runner pooling --convert embed
	NeedsNative   Needs = "native"   // SGLang: it has /generate
)

// Scenario is a named piece of traffic.
type Scenario struct {
	Name        string
	About       string
	Needs       Needs
	Count       int // requests by default
	Concurrency int // connections at a time by default
	make        func(g *gen) []Session
}

// Plan returns the sessions of the scenario with at least count requests (0: the
// scenario's default; a scenario with fixed steps plays them as often as needed).
// The same seed and count give the same plan.
func (s *Scenario) Plan(seed uint64, count int) []Session {
	if count <= 0 {
		count = s.Count
	}
	g := &gen{Rand: newRand(seed, s.Name), model: "tiny"}
	var plan []Session
	for n := 0; n < count; {
		for _, session := range s.make(g) {
			if n >= count {
				break
			}
			n += len(session.Requests)
			plan = append(plan, session)
		}
	}
	return plan
}

// newRand returns a generator that depends on the seed and the name only.
func newRand(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// gen makes requests. Its methods draw from Rand in a fixed order.
type gen struct {
	*rand.Rand
	model  string
	serial int // requests made so far
}

type fields map[string]any

// post makes a request with a JSON body. Every third request carries a
// traceparent, every third an x-request-id: mark overrides that.
func (g *gen) post(path string, body fields) Request {
	if _, ok := body["model"]; !ok {
		body["model"] = g.model
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // only plain values are put in
	}
	r := Request{Method: "POST", Path: path, Body: b, N: 1, Inputs: 1, Want: 200}
	r.Stream, _ = body["stream"].(bool)
	r.Model, _ = body["model"].(string)
	for _, k := range []string{"max_tokens", "max_output_tokens", "max_completion_tokens"} {
		if v, ok := body[k].(int); ok {
			r.Max = v
		}
	}
	if v, ok := body["n"].(int); ok {
		r.N = v
	}
	switch g.serial % 3 {
	case 0:
		g.trace(&r)
	case 1:
		g.key(&r)
	}
	g.serial++
	return r
}

func (g *gen) trace(r *Request) {
	if r.Marks != "" {
		return
	}
	trace, parent := fmt.Sprintf("%016x%016x", g.Uint64()|1, g.Uint64()), fmt.Sprintf("%016x", g.Uint64()|1)
	r.Marks = trace + "/" + parent
	r.Header = append(r.Header, [2]string{"traceparent", "00-" + trace + "-" + parent + "-01"})
}

func (g *gen) key(r *Request) {
	if r.Key != "" {
		return
	}
	r.Key = fmt.Sprintf("wl-%016x", g.Uint64())
	r.Header = append(r.Header, [2]string{"X-Request-Id", r.Key})
}

func (g *gen) chat(words, tokens int, more fields) Request {
	body := fields{
		"messages":   []fields{{"role": "user", "content": text(g.Rand, words)}},
		"max_tokens": tokens, "ignore_eos": true,
	}
	for k, v := range more {
		body[k] = v
	}
	return g.post("/v1/chat/completions", body)
}

func (g *gen) completion(words, tokens int, more fields) Request {
	body := fields{"prompt": text(g.Rand, words), "max_tokens": tokens, "ignore_eos": true}
	for k, v := range more {
		body[k] = v
	}
	r := g.post("/v1/completions", body)
	if p, ok := body["prompt"].([]string); ok {
		r.Inputs = len(p)
	}
	return r
}

func (g *gen) between(lo, hi int) int { return lo + g.IntN(hi-lo+1) }

// alone puts each request on a connection of its own.
func alone(rs ...Request) []Session {
	s := make([]Session, len(rs))
	for i := range rs {
		s[i] = Session{Requests: rs[i : i+1]}
	}
	return s
}
