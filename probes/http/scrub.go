package httptap

import (
	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

// Scrubber overwrites secrets in the heads of HTTP messages with 'x', in place
// and without changing lengths: the values of the headers below, and of query
// parameters that carry keys. Bodies are left alone.
//
// It must see the records of a connection in order and before anyone else. What
// it cannot place, after a gap, it searches line by line all the same; the rest
// of a line that may have begun within a gap is overwritten.
type Scrubber struct{ tap tap }

var secretHeaders = map[string]bool{
	"authorization": true, "proxy-authorization": true, "cookie": true, "set-cookie": true,
	"x-api-key": true, "api-key": true, "x-auth-token": true, "x-goog-api-key": true,
}

var secretParams = map[string]bool{
	"api_key": true, "api-key": true, "apikey": true, "key": true, "token": true, "access_token": true,
}

// maxSecretName is longer than any name above.
const maxSecretName = 24

// NewScrubber returns a Scrubber that has seen nothing yet.
func NewScrubber() *Scrubber {
	s := new(Scrubber)
	s.tap = newTap(s)
	return s
}

// Put scrubs a record of kind HTTP; others are left alone.
func (s *Scrubber) Put(r *event.Record) { s.tap.put(r) }

// scrubState is where in a head a direction of a connection is.
type scrubState struct {
	at   scrubPlace
	name [maxSecretName]byte
	n    int // bytes of the name; maxSecretName: too long to be of interest
}

type scrubPlace uint8

const (
	scrubLine      scrubPlace = iota // at the start of a line
	scrubFold                        // same, after the value of a secret header
	scrubName                        // in the name of a header
	scrubSkip                        // in the rest of a line
	scrubSecret                      // in a secret, to the end of the line
	scrubTarget                      // in the first line of a request, before a query
	scrubParam                       // in the name of a parameter
	scrubParamSkip                   // in its value
	scrubParamSecret
)

func (s *scrubState) scrub(b []byte) {
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c == '\n' {
			if s.at == scrubSecret {
				s.at = scrubFold
			} else {
				s.at = scrubLine
			}
			continue
		}
		switch s.at {
		case scrubLine, scrubFold:
			if s.at == scrubFold && (c == ' ' || c == '\t') {
				s.at = scrubSecret
				continue
			}
			s.at, s.n = scrubName, 0
			s.letter(c)
		case scrubName:
			switch c {
			case ':':
				s.at = scrubSkip
				if secretHeaders[string(s.text())] {
					s.at = scrubSecret
				}
			case ' ', '\t', '\r':
			case '?':
				s.at, s.n = scrubParam, 0 // a line that begins with a target
			default:
				s.letter(c)
			}
		case scrubSecret:
			if c != '\r' && (c != ' ' && c != '\t') {
				b[i] = 'x'
			}
		case scrubTarget:
			if c == '?' {
				s.at, s.n = scrubParam, 0
			}
		case scrubParam, scrubParamSkip, scrubParamSecret:
			switch {
			case c == '&':
				s.at, s.n = scrubParam, 0
			case c == ' ' || c == '\t' || c == '\r' || c == '#':
				s.at = scrubSkip
			case s.at == scrubParamSecret:
				b[i] = 'x'
			case s.at == scrubParam && c == '=':
				s.at = scrubParamSkip
				if secretParams[string(s.text())] {
					s.at = scrubParamSecret
				}
			case s.at == scrubParam:
				s.letter(c)
			}
		}
	}
}

// letter adds c, in lower case, to the name.
func (s *scrubState) letter(c byte) {
	if s.n == maxSecretName {
		return
	}
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	s.name[s.n] = c
	s.n++
}

func (s *scrubState) text() []byte {
	if s.n == maxSecretName {
		return nil
	}
	return s.name[:s.n]
}

func (c *conn) scrubber(dir uint8) *scrubState {
	if dir == event.HTTPWrite {
		return &c.scrub[1]
	}
	return &c.scrub[0]
}

func (s *Scrubber) open(*conn) bool { return true }

func (s *Scrubber) headBytes(c *conn, dir uint8, b []byte, first bool) {
	st := c.scrubber(dir)
	if first {
		*st = scrubState{}
		if dir == event.HTTPRead {
			st.at = scrubTarget
		}
	}
	st.scrub(b)
}

// headGap: a secret may have begun among the bytes not seen.
func (s *Scrubber) headGap(c *conn, dir uint8) { c.scrubber(dir).at = scrubSecret }

func (s *Scrubber) stray(c *conn, dir uint8, b []byte) { c.scrubber(dir).scrub(b) }

func (s *Scrubber) request(c *conn, _ *exchange, _ *head)  { c.scrub[0] = scrubState{} }
func (s *Scrubber) response(c *conn, _ *exchange, _ *head) { c.scrub[1] = scrubState{} }

func (s *Scrubber) requestBody(*conn, *exchange, []byte)         {}
func (s *Scrubber) requestEnd(*conn, *exchange)                  {}
func (s *Scrubber) responseBody(*conn, *exchange, []byte)        {}
func (s *Scrubber) gap(*conn, *exchange, uint8, uint64, uint32)  {}
func (s *Scrubber) lost(*conn, *exchange, uint8, []byte)         {}
func (s *Scrubber) end(*conn, *exchange, signal.Outcome, uint64) {}
