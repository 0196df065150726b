package httptap

import (
	"bytes"
	"strconv"
)

// maxHead is the longest message head that is read. Servers refuse far shorter
// ones: h11 and httptools stop at 64 KiB.
const maxHead = 64 << 10

var headEnd = []byte("\r\n\r\n")

// head is a parsed message head. Its slices alias the bytes it was parsed from.
type head struct {
	method []byte // requests
	target []byte
	status int  // responses
	minor  byte // HTTP/1.minor

	length  int64 // Content-Length, -1 if there is none
	chunked bool

	contentType     []byte
	contentEncoding []byte
	traceParent     []byte
	traceState      []byte
	requestID       []byte
	userAgent       []byte
	host            []byte
}

// parse reads a complete head, with the empty line that ends it. It reports
// false for bytes that are not a head of HTTP/1.
func (h *head) parse(b []byte, request bool) bool {
	*h = head{length: -1}
	line, rest, ok := cutLine(b)
	if !ok {
		return false
	}
	if request {
		ok = h.requestLine(line)
	} else {
		ok = h.statusLine(line)
	}
	if !ok {
		return false
	}
	for {
		line, rest, ok = cutLine(rest)
		if !ok {
			return false
		}
		if len(line) == 0 {
			return true
		}
		if line[0] == ' ' || line[0] == '\t' {
			continue // a folded line: of no header that we read
		}
		i := bytes.IndexByte(line, ':')
		if i <= 0 {
			return false
		}
		if !h.header(bytes.TrimRight(line[:i], " \t"), bytes.Trim(line[i+1:], " \t")) {
			return false
		}
	}
}

func cutLine(b []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return nil, nil, false
	}
	line, rest = b[:i], b[i+1:]
	if i > 0 && line[i-1] == '\r' {
		line = line[:i-1]
	}
	return line, rest, true
}

func (h *head) requestLine(line []byte) bool {
	i := bytes.IndexByte(line, ' ')
	j := bytes.LastIndexByte(line, ' ')
	if i <= 0 || j <= i+1 {
		return false
	}
	h.method, h.target = line[:i], line[i+1:j]
	if bytes.IndexByte(h.target, ' ') >= 0 {
		return false
	}
	return h.version(line[j+1:])
}

func (h *head) statusLine(line []byte) bool {
	if len(line) < len("HTTP/1.1 200") || line[8] != ' ' || !h.version(line[:8]) {
		return false
	}
	if len(line) > 12 && line[12] != ' ' {
		return false
	}
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return false
		}
		h.status = h.status*10 + int(c-'0')
	}
	return h.status >= 100
}

func (h *head) version(b []byte) bool {
	if string(b) != "HTTP/1.1" && string(b) != "HTTP/1.0" {
		return false
	}
	h.minor = b[7] - '0'
	return true
}

func (h *head) header(name, value []byte) bool {
	switch len(name) {
	case 4:
		if fold(name, "host") {
			h.host = value
		}
	case 10:
		if fold(name, "user-agent") {
			h.userAgent = value
		} else if fold(name, "tracestate") {
			h.traceState = value
		}
	case 11:
		if fold(name, "traceparent") {
			h.traceParent = value
		}
	case 12:
		if fold(name, "content-type") {
			h.contentType = value
		} else if fold(name, "x-request-id") {
			h.requestID = value
		}
	case 14:
		if !fold(name, "content-length") {
			return true
		}
		n, err := strconv.ParseUint(string(value), 10, 62)
		if err != nil || h.length >= 0 && h.length != int64(n) {
			return false
		}
		h.length = int64(n)
	case 16:
		if fold(name, "content-encoding") {
			h.contentEncoding = value
		}
	case 17:
		if fold(name, "transfer-encoding") {
			// "chunked" is the last coding where there are several.
			h.chunked = len(value) >= 7 && fold(value[len(value)-7:], "chunked")
		}
	}
	return true
}

// fold compares b to the lower-case ASCII string s, ignoring case.
func fold(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i := range len(b) {
		c := b[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != s[i] {
			return false
		}
	}
	return true
}

// containsFold reports whether the lower-case ASCII string s is in b, ignoring case.
func containsFold(b []byte, s string) bool {
	for i := 0; i+len(s) <= len(b); i++ {
		if fold(b[i:i+len(s)], s) {
			return true
		}
	}
	return false
}

var methods = [...]string{"GET ", "POST ", "PUT ", "HEAD ", "DELETE ", "OPTIONS ", "PATCH ", "TRACE ", "CONNECT "}

// beginsRequest reports whether b can be the beginning of a request.
func beginsRequest(b []byte) bool {
	for _, m := range methods {
		if n := min(len(m), len(b)); string(b[:n]) == m[:n] {
			return true
		}
	}
	return false
}

// beginsResponse reports whether b can be the beginning of a response.
func beginsResponse(b []byte) bool {
	const p = "HTTP/1."
	n := min(len(p), len(b))
	return string(b[:n]) == p[:n]
}

// wholeHead reports whether b begins with a complete head.
func wholeHead(b []byte, request bool) bool {
	if request && !beginsRequest(b) || !request && !beginsResponse(b) {
		return false
	}
	i := bytes.Index(b, headEnd)
	var h head
	return i >= 0 && h.parse(b[:i+len(headEnd)], request)
}
