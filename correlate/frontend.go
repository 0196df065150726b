package correlate

import (
	"slices"
	"strings"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// Times of the tokenizer in the front end. A call of it comes before the request
// has a name in the engine, so most calls are matched by the number of tokens and
// the order. Requests look for theirs in the order in which they reached the
// core, a little later or when they are exported: by then the front end's records
// have come.

// tokenizing is a call of the tokenizer that may be one or several requests'.
type tokenizing struct {
	at       signal.Mono
	pid      uint32
	id       string
	duration int64
	inputs   int // texts that no request has yet
	tokens   signal.Opt[int64]
	left     int64  // tokens of them
	resp     string // response id of the requests that have a share of it
	unsure   bool   // at some time another one looked just the same
}

const (
	maxTokenizings = 1024 // about 100 bytes each
	// A request reaches its core within so long after it was tokenized, or never.
	tokenizeWait = 60 * second
	// Older versions stamp the arrival after tokenizing.
	arrivalAfter = second
)

// timeIn is a time of a request in the front end.
type timeIn struct {
	ns     int64
	known  bool
	method string // how it was derived, "" if it is exact
}

func (c *Correlator) tokenized(s *signal.Tokenized) {
	if !sensible(s.Duration) {
		return
	}
	e := c.engine(s.Engine)
	e.seen.Tokenize = true
	n := 0
	for n < len(e.tokenizings) && (len(e.tokenizings)-n >= maxTokenizings || c.now-e.tokenizings[n].at > tokenizeWait) {
		n++
	}
	e.tokenizings = append(slices.Delete(e.tokenizings, 0, n), tokenizing{
		at: s.At, pid: s.PID, id: s.ID, duration: s.Duration, inputs: max(s.Inputs, 1), tokens: s.Tokens, left: s.Tokens.V,
	})
}

// sensible: a time in ns that can be, less than an hour.
func sensible(ns int64) bool { return ns >= 0 && ns < 3600e9 }

// claimTokenizings lets requests look for the calls that tokenized their prompts:
// those that came before a time, or, if r is not nil, up to r.
func (c *Correlator) claimTokenizings(e *engine, before signal.Mono, r *request) {
	n := 0
	for _, q := range e.untokenized {
		if r == nil && q.added > before {
			break
		}
		n++
		if q.live && !q.tokenize.known {
			c.claimTokenizing(q)
		}
		if q == r {
			break
		}
	}
	clear(e.untokenized[:n])
	e.untokenized = e.untokenized[n:]
}

// claimTokenizingsOf is for a request that is about to be exported.
func (c *Correlator) claimTokenizingsOf(r *request) {
	if e := r.core.eng; e.seen.Tokenize && !r.tokenize.known && slices.Contains(e.untokenized, r) {
		c.claimTokenizings(e, 0, r)
	}
}

func (c *Correlator) claimTokenizing(r *request) {
	e := r.core.eng
	if len(e.tokenizings) == 0 {
		return
	}
	for _, q := range e.byResp[r.resp] {
		if q != r && q.child.OK && q.external == r.external && q.tokenize.known {
			r.tokenize = q.tokenize // candidates share their prompt
			return
		}
	}
	best, alike := -1, 0
	for i := range e.tokenizings {
		k := &e.tokenizings[i]
		if k.at > r.added || r.added-k.at > tokenizeWait || !e.isFront(r.client, k.pid) {
			continue
		}
		if r.arrival != 0 && r.offOK && int64(k.at)+r.off < int64(r.arrival)-int64(arrivalAfter) {
			continue
		}
		switch k.fits(r) {
		case fitsName:
			best, alike = i, 1
		case fitsMaybe:
			if alike++; best < 0 {
				best = i
			}
			continue
		default:
			continue
		}
		break
	}
	if best < 0 {
		return
	}
	k := &e.tokenizings[best]
	if alike > 1 {
		for i := range e.tokenizings {
			if o := &e.tokenizings[i]; o.fits(r) == fitsMaybe {
				o.unsure = true
			}
		}
	}
	r.tokenize = timeIn{ns: k.duration, known: true}
	switch {
	case k.tokens.OK && k.tokens.V > 0 && r.prompt.OK && (k.left < k.tokens.V || k.inputs > 1):
		r.tokenize.ns = int64(float64(k.duration) * float64(r.prompt.V) / float64(k.tokens.V))
		r.tokenize.method = methodShareOfBatch
	case k.id == "" && (k.unsure || c.tokenizeMissed(r)):
		r.tokenize.method = methodOrder
	}
	if r.child.OK {
		// Candidates share their prompt, and may be exported at different times.
		for _, q := range e.byResp[r.resp] {
			if q.child.OK && q.external == r.external {
				q.tokenize = r.tokenize
			}
		}
	}
	k.inputs--
	k.left -= r.prompt.V
	k.resp = r.resp
	if k.inputs <= 0 {
		e.tokenizings = slices.Delete(e.tokenizings, best, best+1)
	}
}

// How a call fits a request.
const (
	fitsNot = iota
	fitsMaybe
	fitsName
)

func (k *tokenizing) fits(r *request) int {
	switch {
	case k.id != "":
		if k.id == r.external || (r.external == "" && k.id == r.resp) {
			return fitsName
		}
		return fitsNot
	case !k.tokens.OK || !r.prompt.OK:
		return fitsNot
	case k.resp != "":
		if k.resp == r.resp && k.left >= r.prompt.V {
			return fitsName // a call of which another prompt of this API request has a share
		}
		return fitsNot
	case k.inputs > 1:
		if r.resp != "" && k.tokens.V > r.prompt.V {
			return fitsMaybe
		}
		return fitsNot
	case k.tokens.V == r.prompt.V:
		return fitsMaybe
	}
	return fitsNot
}

// tokenizeMissed: the call for r itself may not have been seen, so that one that
// fits may be another's.
func (c *Correlator) tokenizeMissed(r *request) bool {
	from := r.added - tokenizeWait
	if r.arrival != 0 && r.offOK {
		from = max(from, signal.Mono(int64(r.arrival)-r.off)-arrivalAfter)
	}
	d := r.core.eng.detail(signal.DetailTokenize)
	return c.firstAt > from || c.lastLoss > from || (d != nil && (d.since > from || !d.active))
}

// detokenized takes in the time of the detokenizer: of a request, or what a token
// costs in a front end.
func (c *Correlator) detokenized(s *signal.Detokenized) {
	if !sensible(s.Duration) || s.Tokens < 0 {
		return
	}
	e := c.engine(s.Engine)
	e.seen.Detokenize = true
	if s.ID == "" {
		if s.Tokens > 0 {
			e.setTokenCost(tokenCost{s.PID, s.Duration, s.Tokens, s.Method})
		}
		return
	}
	r := e.named(s.ID)
	if r == nil {
		return
	}
	d := &r.detokenize
	if d.tokens == 0 {
		d.exact, d.method = true, s.Method
	}
	d.ns += s.Duration
	d.tokens += s.Tokens
	d.exact = d.exact && s.Exact
	if !s.Exact {
		d.method = s.Method
	}
}

// awaitsText: the front end is still at r's last tokens, and the time that it
// takes is being measured.
func (c *Correlator) awaitsText(r *request) bool {
	n := r.detokenize.tokens
	return n > 0 && n < r.tokens && c.now-r.doneAt < reorderWait
}

// detokenizing sums up what was seen of a request.
type detokenizing struct {
	ns, tokens int64
	exact      bool
	method     string
}

// tokenCost is what turning tokens into text costs in a front end.
type tokenCost struct {
	pid        uint32
	ns, tokens int64
	method     string
}

func (e *engine) setTokenCost(k tokenCost) {
	for i := range e.tokenCosts {
		if e.tokenCosts[i].pid == k.pid {
			e.tokenCosts[i] = k
			return
		}
	}
	e.tokenCosts = append(e.tokenCosts, k)
}

// named finds the request with that id: internal, response, or external.
func (e *engine) named(id string) *request {
	for _, co := range e.cores {
		if r := co.find(id); r != nil {
			return r
		}
	}
	list := e.byResp[id]
	if i := strings.LastIndexByte(id, '-'); len(list) == 0 && i > 0 {
		list = e.byResp[id[:i]] // one of several prompts
	}
	var found *request
	for _, r := range list {
		if r.external == id || (r.external == "" && r.resp == id) {
			if found != nil {
				return nil // candidates, told apart by their internal ids only
			}
			found = r
		}
	}
	return found
}

// detokenizeTime returns r's time for a number of tokens.
func (r *request) detokenizeTime(tokens signal.Opt[int64]) timeIn {
	e := r.core.eng
	if !tokens.OK || tokens.V <= 0 || r.pooling {
		return timeIn{}
	}
	if d := &r.detokenize; d.tokens == tokens.V {
		t := timeIn{ns: d.ns, known: true}
		if !d.exact {
			t.method = orWord(d.method)
		}
		return t
	}
	if d := e.detail(signal.DetailDetokenize); d != nil && !d.active {
		return timeIn{}
	}
	for _, k := range e.tokenCosts {
		if (r.ex != nil && r.ex.key.PID == k.pid) || (r.ex == nil && e.isFront(r.client, k.pid)) {
			return timeIn{ns: int64(float64(k.ns) / float64(k.tokens) * float64(tokens.V)), known: true, method: orWord(k.method)}
		}
	}
	return timeIn{}
}

func orWord(method string) string {
	if method == "" {
		return methodCalibrated
	}
	return method
}

// frontEndTimes fills in the tokenizer times.
func (c *Correlator) frontEndTimes(v *view) {
	r := v.r
	if t := r.tokenize; t.known {
		v.tokenize = signal.Some(t.ns)
		if t.method != "" {
			v.derive(t.method, semconv.AttrGenAILatencyTimeInTokenize)
		}
	}
	if t := r.detokenizeTime(v.tokens); t.known {
		v.detokenize = signal.Some(t.ns)
		if t.method != "" {
			v.derive(t.method, semconv.AttrGenAILatencyTimeInDetokenize)
		}
	}
}
