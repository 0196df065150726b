package httptap

import (
	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

// Scrubber overwrites secrets in the heads of HTTP messages with 'x', in place
// and without changing lengths: the values of headers and query parameters whose
// name has one of secretWords in it. Bodies are left alone.
//
// It must see the records of a connection in order and before anyone else. What
// it cannot place, after a gap, it searches line by line all the same; the rest
// of a line that may have begun within a gap is overwritten.
type Scrubber struct{ tap tap }

// secretWords are the words of names, between "-", "_" and ".", by which a value is
// taken for a secret: Authorization, Cookie, X-Api-Key, X-Amz-Security-Token,
// api_key, access_token and whatever else gateways make up.
var secretWords = map[string]bool{
	"auth": true, "authentication": true, "authorization": true, "bearer": true, "cookie": true, "cookie2": true,
	"credential": true, "credentials": true, "jwt": true, "key": true, "password": true, "passwd": true, "pwd": true,
	"secret": true, "sig": true, "signature": true, "token": true,
	"apikey": true, "accesskey": true, "accesstoken": true, "authtoken": true, "idtoken": true, "secretkey": true,
}

func secretName(name []byte) bool {
	from := 0
	for i := 0; i <= len(name); i++ {
		if i == len(name) || name[i] == '-' || name[i] == '_' || name[i] == '.' {
			if secretWords[string(name[from:i])] {
				return true
			}
			from = i + 1
		}
	}
	return false
}

// headRule says of which headers and query parameters, by their names in lower
// case, the values are overwritten.
type headRule struct {
	header, param func(name []byte) bool
}

var secretsOnly = headRule{header: secretName, param: secretName}

// maxName bounds the names that are looked at: the value of a longer one is
// overwritten.
const maxName = 64

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
	name [maxName]byte
	n    int // bytes of the name; maxName: so many or more
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

// scrub overwrites what rule says in the next bytes of a head.
func (s *scrubState) scrub(b []byte, rule *headRule) {
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
				if s.covers(rule.header) {
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
				if s.covers(rule.param) {
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
	if s.n == maxName {
		return
	}
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	s.name[s.n] = c
	s.n++
}

func (s *scrubState) covers(rule func(name []byte) bool) bool {
	return s.n == maxName || rule(s.name[:s.n])
}

// begin makes the state that of a head's first byte.
func (s *scrubState) begin(dir uint8) {
	*s = scrubState{}
	if dir == event.HTTPRead {
		s.at = scrubTarget
	}
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
		st.begin(dir)
	}
	st.scrub(b, &secretsOnly)
}

// headGap: a secret may have begun among the bytes not seen.
func (s *Scrubber) headGap(c *conn, dir uint8) { c.scrubber(dir).at = scrubSecret }

func (s *Scrubber) stray(c *conn, dir uint8, b []byte) { c.scrubber(dir).scrub(b, &secretsOnly) }

// lost: after a gap in a chunked body the head of the next message can be among the bytes.
func (s *Scrubber) lost(c *conn, _ *exchange, dir uint8, b []byte) { s.stray(c, dir, b) }

func (s *Scrubber) request(c *conn, _ *exchange, _ *head)  { c.scrub[0] = scrubState{} }
func (s *Scrubber) response(c *conn, _ *exchange, _ *head) { c.scrub[1] = scrubState{} }

func (s *Scrubber) requestBody(*conn, *exchange, []byte)         {}
func (s *Scrubber) requestEnd(*conn, *exchange)                  {}
func (s *Scrubber) responseBody(*conn, *exchange, []byte)        {}
func (s *Scrubber) gap(*conn, *exchange, uint8, uint64, uint32)  {}
func (s *Scrubber) end(*conn, *exchange, signal.Outcome, uint64) {}
