package httptap

// sse splits a stream of server-sent events into the data of each. Data is
// handed on as it comes, without being kept.
type sse struct {
	state  sseState
	field  []byte // beginning of the line, up to the value
	cr     bool   // the last byte was \r: a \n belongs to it
	inData bool   // the event has data already
	damage bool   // bytes are missing from the line before its end
	head   []byte // first bytes of the data, to recognise [DONE]
}

type sseState uint8

const (
	sseLine  sseState = iota // in the name of a field
	sseSpace                 // after data: a space is left out
	sseData
	sseOther // in a line of no interest
)

// sseSink gets the data of events in pieces.
type sseSink interface {
	eventData(piece []byte)
	eventEnd(done bool) // done: the data was [DONE]
	eventTail(b []byte) // piece of a line whose beginning was not seen
	eventTailEnd()      // that line ended
	eventBroken()       // the event will not be complete
}

const (
	sseField = "data:"
	sseDone  = "[DONE]"
)

func (s *sse) reset() { *s = sse{field: s.field[:0], head: s.head[:0]} }

// lose tells that bytes are missing before the next ones.
func (s *sse) lose(k sseSink) {
	k.eventBroken()
	s.reset()
	s.damage = true
}

func (s *sse) feed(b []byte, k sseSink) {
	for len(b) > 0 {
		if s.cr && b[0] == '\n' {
			s.cr = false
			b = b[1:]
			continue
		}
		s.cr = false
		switch s.state {
		case sseLine:
			c := b[0]
			if c == '\n' || c == '\r' {
				s.cr = c == '\r'
				b = b[1:]
				s.endLine(k)
				continue
			}
			if c != sseField[len(s.field)] {
				s.state = sseOther
				if s.damage {
					k.eventTail(s.field)
				}
				continue
			}
			s.field = append(s.field, c)
			b = b[1:]
			if len(s.field) == len(sseField) {
				s.state = sseSpace
				if s.inData {
					s.data([]byte{'\n'}, k)
				}
				s.inData, s.damage = true, false
			}
		case sseSpace:
			s.state = sseData
			if b[0] == ' ' {
				b = b[1:]
			}
		default:
			n := 0
			for n < len(b) && b[n] != '\n' && b[n] != '\r' {
				n++
			}
			if n > 0 {
				if s.state == sseData {
					s.data(b[:n], k)
				} else if s.damage {
					k.eventTail(b[:n])
				}
			}
			if n < len(b) {
				s.cr = b[n] == '\r'
				n++
				if s.damage {
					k.eventTailEnd()
					s.damage = false
				}
				s.state, s.field = sseLine, s.field[:0]
			}
			b = b[n:]
		}
	}
}

func (s *sse) data(b []byte, k sseSink) {
	if n := len(sseDone) + 1 - len(s.head); n > 0 {
		s.head = append(s.head, b[:min(n, len(b))]...)
	}
	k.eventData(b)
}

// endLine handles a line that ended within the name of a field: an empty one
// ends the event.
func (s *sse) endLine(k sseSink) {
	empty := len(s.field) == 0
	s.field, s.damage = s.field[:0], false
	if !empty {
		return
	}
	if s.inData {
		k.eventEnd(string(s.head) == sseDone)
	}
	s.inData, s.head = false, s.head[:0]
}
