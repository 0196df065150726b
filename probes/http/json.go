package httptap

import (
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a document; deeper ones count as malformed.
// Python's json module gives up at about 1000.
const maxDepth = 512

// docReader gets what a scanner finds at the nodes of the grammar that are of
// interest; anything at node 0 is passed over.
type docReader interface {
	open(n node, array bool)            // an object or array begins
	close(n node)                       // it ends; not called for the kind that the grammar does not expect
	str(n node, piece []byte, end bool) // string contents, still escaped, in pieces
	num(n node, text []byte)            // text is nil for a number too long to keep
	lit(n node, c byte)                 // 't', 'f' or 'n'
}

// scanner reads one JSON document that arrives in pieces. It keeps no text but
// keys and numbers that lie across pieces.
type scanner struct {
	state   scanState
	inKey   bool
	escaped bool // the key has escapes
	hex     uint8
	num     numState
	lit     string // rest of a literal
	litKind byte   // its first letter
	cur     node   // of the value being read
	stack   []level
	buf     []byte
}

type level struct {
	n     node
	array bool
}

type scanState uint8

const (
	scanValue    scanState = iota // a value must follow
	scanElem                      // a value or ]
	scanKeyFirst                  // a key or }
	scanKey                       // a key
	scanColon
	scanAfter // , or the end of the container
	scanString
	scanEscape
	scanHex
	scanNumber
	scanLiteral
	scanDone
	scanBad
)

type numState uint8

const (
	numMinus numState = iota
	numZero
	numInt
	numDot
	numFrac
	numE
	numSign
	numExp
)

// Longer keys and numbers are not of interest; their text is not kept.
const maxToken = 64

func (s *scanner) reset() {
	*s = scanner{stack: s.stack[:0], buf: s.buf[:0], cur: nodeRoot}
}

// complete reports whether a whole document was read, and nothing but white space after it.
func (s *scanner) complete() bool { return s.state == scanDone }

// feed reads the next piece of the document.
func (s *scanner) feed(b []byte, r docReader) {
	for i := 0; i < len(b); {
		c := b[i]
		switch s.state {
		case scanString:
			i = s.string(b, i, r)
			continue
		case scanEscape:
			if c == 'u' {
				s.state, s.hex = scanHex, 4
			} else if isEscape(c) {
				s.state = scanString
			} else {
				s.state = scanBad
				return
			}
			s.text(b[i:i+1], r)
			i++
			continue
		case scanHex:
			if _, ok := hexValue(c); !ok {
				s.state = scanBad
				return
			}
			if s.hex--; s.hex == 0 {
				s.state = scanString
			}
			s.text(b[i:i+1], r)
			i++
			continue
		case scanNumber:
			n, ok := s.num.step(c)
			if !ok {
				if !s.endNumber(r) {
					return
				}
				continue
			}
			s.num = n
			if len(s.buf) <= maxToken {
				s.buf = append(s.buf, c)
			}
			i++
			continue
		case scanLiteral:
			if c != s.lit[0] {
				s.state = scanBad
				return
			}
			if s.lit = s.lit[1:]; s.lit == "" {
				s.after()
				if s.cur != 0 {
					r.lit(s.cur, s.litKind)
				}
			}
			i++
			continue
		case scanBad:
			return
		}
		i++
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		}
		if !s.structure(c, r) {
			s.state = scanBad
			return
		}
	}
}

// structure handles a byte outside strings, numbers and literals.
func (s *scanner) structure(c byte, r docReader) bool {
	switch s.state {
	case scanElem:
		if c == ']' {
			return s.pop(true, r)
		}
		s.cur = s.element()
		return s.value(c, r)
	case scanValue:
		return s.value(c, r)
	case scanKeyFirst, scanKey:
		if c == '}' && s.state == scanKeyFirst {
			return s.pop(false, r)
		}
		if c != '"' {
			return false
		}
		s.state, s.inKey, s.escaped = scanString, true, false
		s.buf = s.buf[:0]
		return true
	case scanColon:
		s.state = scanValue
		return c == ':'
	case scanAfter:
		top := &s.stack[len(s.stack)-1]
		switch {
		case c == ',' && top.array:
			s.cur = s.element()
			s.state = scanValue
		case c == ',':
			s.state = scanKey
		case c == ']' || c == '}':
			return s.pop(c == ']', r)
		default:
			return false
		}
		return true
	}
	return false // scanDone: text after the document
}

func (s *scanner) element() node {
	return grammar[s.stack[len(s.stack)-1].n].elem
}

func (s *scanner) value(c byte, r docReader) bool {
	switch {
	case c == '{' || c == '[':
		if len(s.stack) >= maxDepth {
			return false
		}
		n := s.cur
		if n != 0 {
			r.open(n, c == '[')
			// The grammar describes one kind of container per node.
			if grammar[n].array != (c == '[') {
				n = 0
			}
		}
		s.stack = append(s.stack, level{n, c == '['})
		s.state = scanKeyFirst
		if c == '[' {
			s.state = scanElem
		}
	case c == '"':
		s.state, s.inKey = scanString, false
	case c == 't':
		s.state, s.lit, s.litKind = scanLiteral, "rue", c
	case c == 'f':
		s.state, s.lit, s.litKind = scanLiteral, "alse", c
	case c == 'n':
		s.state, s.lit, s.litKind = scanLiteral, "ull", c
	default:
		n, ok := numStart(c)
		if !ok {
			return false
		}
		s.state, s.num = scanNumber, n
		s.buf = append(s.buf[:0], c)
	}
	return true
}

func (s *scanner) after() {
	s.state = scanAfter
	if len(s.stack) == 0 {
		s.state = scanDone
	}
}

func (s *scanner) pop(array bool, r docReader) bool {
	top := s.stack[len(s.stack)-1]
	if top.array != array {
		return false
	}
	s.stack = s.stack[:len(s.stack)-1]
	if top.n != 0 {
		r.close(top.n)
	}
	s.after()
	return true
}

// string reads string contents from b[i:] and returns where to go on.
func (s *scanner) string(b []byte, i int, r docReader) int {
	from := i
	for ; i < len(b); i++ {
		c := b[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		switch c {
		case '"':
			if s.inKey {
				s.endKey(b[from:i])
			} else {
				if s.cur != 0 {
					r.str(s.cur, b[from:i], true)
				}
				s.after()
			}
			return i + 1
		case '\\':
			s.text(b[from:i+1], r)
			s.state, s.escaped = scanEscape, true
			return i + 1
		default:
			s.state = scanBad
			return len(b)
		}
	}
	s.text(b[from:], r)
	return i
}

func (s *scanner) text(b []byte, r docReader) {
	if s.inKey {
		s.buf = append(s.buf, b[:min(len(b), maxToken+1-min(len(s.buf), maxToken+1))]...)
	} else if s.cur != 0 && len(b) > 0 {
		r.str(s.cur, b, false)
	}
}

// endKey looks the key up that ends with last.
func (s *scanner) endKey(last []byte) {
	s.state = scanColon
	top := s.stack[len(s.stack)-1].n
	s.cur = 0
	if top == 0 {
		return
	}
	key := last
	if len(s.buf) > 0 {
		s.text(last, nil)
		key = s.buf
	}
	if len(key) > maxToken {
		return
	}
	if s.escaped {
		var a [maxToken]byte
		key = unescape(a[:0], key)
	}
	s.cur = top.member(key)
}

func (s *scanner) endNumber(r docReader) bool {
	if !s.num.whole() {
		s.state = scanBad
		return false
	}
	s.after()
	if s.cur != 0 {
		text := s.buf
		if len(text) > maxToken {
			text = nil
		}
		r.num(s.cur, text)
	}
	return true
}

func numStart(c byte) (numState, bool) {
	switch {
	case c == '-':
		return numMinus, true
	case c == '0':
		return numZero, true
	case c >= '1' && c <= '9':
		return numInt, true
	}
	return 0, false
}

// step gives the state after c; false if c is not part of the number.
func (n numState) step(c byte) (numState, bool) {
	digit := c >= '0' && c <= '9'
	switch n {
	case numMinus:
		return numStart2(c)
	case numZero, numInt:
		switch {
		case digit && n == numInt:
			return numInt, true
		case c == '.':
			return numDot, true
		case c == 'e' || c == 'E':
			return numE, true
		}
	case numDot, numFrac:
		switch {
		case digit:
			return numFrac, true
		case n == numFrac && (c == 'e' || c == 'E'):
			return numE, true
		}
	case numE:
		switch {
		case c == '+' || c == '-':
			return numSign, true
		case digit:
			return numExp, true
		}
	case numSign, numExp:
		if digit {
			return numExp, true
		}
	}
	return n, false
}

func numStart2(c byte) (numState, bool) {
	if c == '-' {
		return 0, false
	}
	return numStart(c)
}

// whole reports whether a number may end here.
func (n numState) whole() bool {
	return n == numZero || n == numInt || n == numFrac || n == numExp
}

func isEscape(c byte) bool {
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't', 'u':
		return true
	}
	return false
}

// unescape appends the text of the string contents b, which a scanner accepted, to dst.
func unescape(dst, b []byte) []byte {
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c != '\\' || i+1 == len(b) {
			dst = append(dst, c)
			continue
		}
		i++
		switch b[i] {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hex4(b[i+1:])
			i += min(4, len(b)-i-1)
			if r >= 0xd800 && r < 0xdc00 && i+2 < len(b) && b[i+1] == '\\' && b[i+2] == 'u' {
				if low := hex4(b[i+3:]); low >= 0xdc00 && low < 0xe000 {
					r = (r-0xd800)<<10 + low - 0xdc00 + 0x10000
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r) // a lone surrogate becomes U+FFFD
			continue
		default:
			c = b[i]
		}
		dst = append(dst, c)
	}
	return dst
}

func hex4(b []byte) rune {
	if len(b) < 4 {
		return utf8.RuneError
	}
	n, err := strconv.ParseUint(string(b[:4]), 16, 32)
	if err != nil {
		return utf8.RuneError
	}
	return rune(n)
}

// finish tells that the document ends here: a number at its top level needs it.
func (s *scanner) finish(r docReader) {
	if s.state == scanNumber && len(s.stack) == 0 {
		s.endNumber(r)
	}
}
