package httptap

// framing follows the body of one message. The zero value is a body of no bytes.
type framing struct {
	kind   bodyKind
	state  chunkState
	digits uint8  // of the chunk size
	left   uint64 // bytes left of the body, or of the chunk
}

type bodyKind uint8

const (
	bodyNone bodyKind = iota
	bodyLength
	bodyChunked
	bodyClose // to the end of the connection
)

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkExt
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	chunkTrailer     // at the start of a line after the last chunk
	chunkTrailerLine // within such a line
	chunkEndLF
	chunkLost // after a gap: chunk boundaries unknown
)

// span says what bytes of a body are.
type span uint8

const (
	spanFrame span = iota // chunk framing
	spanBody
	spanExtra // chunk extensions and trailers
)

func lengthFraming(n int64) framing {
	if n == 0 {
		return framing{}
	}
	return framing{kind: bodyLength, left: uint64(n)}
}

func (f *framing) lost() bool { return f.kind == bodyChunked && f.state == chunkLost }

// next takes bytes of one kind from the start of b and reports whether the body
// ends after them. Bytes that are not the framing they should be make it lost.
func (f *framing) next(b []byte) (n int, s span, done bool) {
	switch f.kind {
	case bodyNone:
		return 0, spanFrame, true
	case bodyLength:
		n = int(min(f.left, uint64(len(b))))
		f.left -= uint64(n)
		return n, spanBody, f.left == 0
	case bodyClose:
		return len(b), spanBody, false
	}
	for i := 0; i < len(b); {
		c := b[i]
		switch f.state {
		case chunkSize:
			v, ok := hexValue(c)
			switch {
			case ok && f.digits < 15:
				f.digits++
				f.left = f.left<<4 | uint64(v)
			case f.digits > 0 && c == '\r':
				f.state = chunkSizeLF
			case f.digits > 0 && c == ';':
				f.state = chunkExt
			default:
				f.state = chunkLost
				return i, spanFrame, false
			}
			i++
		case chunkExt:
			if i > 0 {
				return i, spanFrame, false
			}
			for n < len(b) && b[n] != '\r' {
				n++
			}
			if n > 0 {
				return n, spanExtra, false
			}
			f.state = chunkSizeLF
			i++
		case chunkSizeLF:
			if c != '\n' {
				f.state = chunkLost
				return i, spanFrame, false
			}
			f.digits = 0
			f.state = chunkData
			if f.left == 0 {
				f.state = chunkTrailer
			}
			i++
		case chunkData:
			if i > 0 {
				return i, spanFrame, false
			}
			n = int(min(f.left, uint64(len(b))))
			f.left -= uint64(n)
			if f.left == 0 {
				f.state = chunkDataCR
			}
			return n, spanBody, false
		case chunkDataCR, chunkDataLF:
			want, then := byte('\r'), chunkDataLF
			if f.state == chunkDataLF {
				want, then = '\n', chunkSize
			}
			if c != want {
				f.state = chunkLost
				return i, spanFrame, false
			}
			f.state = then
			i++
		case chunkTrailer:
			f.state = chunkTrailerLine
			if c == '\r' {
				f.state = chunkEndLF
				i++
			}
		case chunkTrailerLine:
			if i > 0 {
				return i, spanFrame, false
			}
			for n < len(b) && b[n] != '\n' {
				n++
			}
			if n < len(b) {
				n++
				f.state = chunkTrailer
			}
			return n, spanExtra, false
		case chunkEndLF:
			if c != '\n' {
				f.state = chunkLost
				return i, spanFrame, false
			}
			return i + 1, spanFrame, true
		case chunkLost:
			return i, spanFrame, false
		}
	}
	return len(b), spanFrame, false
}

// skip accounts for n bytes that were not seen. done: the body ended within
// them; over: it ended before the last of them.
func (f *framing) skip(n uint64) (done, over bool) {
	switch f.kind {
	case bodyLength:
		if n > f.left {
			f.left = 0
			return true, true
		}
		f.left -= n
		return f.left == 0, false
	case bodyChunked:
		if f.state == chunkData && n <= f.left {
			if f.left -= n; f.left == 0 {
				f.state = chunkDataCR
			}
			return false, false
		}
		f.state = chunkLost
	}
	return false, false
}

// resync looks for a chunk boundary at the start of b, which begins a socket
// call. Only a chunk that lies in b with both its line ends counts.
func (f *framing) resync(b []byte) bool {
	i, size := 0, 0
	for i < len(b) && i < 8 {
		v, ok := hexValue(b[i])
		if !ok {
			break
		}
		size = size<<4 | int(v)
		i++
	}
	if i == 0 || len(b) < i+4 || b[i] != '\r' || b[i+1] != '\n' {
		return false
	}
	if end := i + 2 + size; end+2 > len(b) || b[end] != '\r' || b[end+1] != '\n' {
		return false
	}
	f.state, f.left, f.digits = chunkSize, 0, 0
	return true
}

func hexValue(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
