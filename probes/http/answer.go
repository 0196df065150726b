package httptap

import (
	"strings"

	"inferspan/correlate/signal"
)

// maxTail bounds the end of a cut document that is searched for usage. The
// BPF program keeps at most 1 KiB of a late write.
const maxTail = 4 << 10

// answer reads the body of a response: one JSON document, or the events of a
// stream. Of what is missing or too long it says nothing, of the rest what holds
// in spite of it.
type answer struct {
	contents *budget
	limit    int // bytes of a document that are read
	kind     answerKind
	api      api
	choices  int64 // ids it can have at most, 0 if that is not known
	content  bool  // asked for

	json   scanner
	fields responseFields
	tail   []byte // end of a cut document
	text   text
	out    output

	// Of a document.
	seen int
	cut  bool // it has a gap
	over bool // longer than the limit

	// Of a stream.
	events   sse
	sawEvent bool
	gap      bool // events are missing
	blind    bool // events are no longer believed
	foreign  bool // events of another response came
}

type answerKind uint8

const (
	answerOther answerKind = iota
	answerJSON
	answerEvents
)

// answerKindOf: what body the response to a request of the API has.
func answerKindOf(a api, headOnly bool, h *head) answerKind {
	switch {
	case headOnly || len(h.contentEncoding) > 0:
	case containsFold(h.contentType, "text/event-stream"):
		return answerEvents
	case a != apiNone && containsFold(h.contentType, "json"):
		return answerJSON
	}
	return answerOther
}

// begin makes the answer that of a request with such a body.
func (a *answer) begin(kind answerKind, of api, body *signal.RequestBody, content bool) {
	a.kind, a.api, a.content = kind, of, content
	a.choices = 0
	if body.Parsed {
		a.choices = max(body.N.V, 1) * max(body.Inputs, 1)
	}
	a.fields.reset(of, kind == answerEvents)
	a.fields.single = body.Parsed && body.N.V <= 1 && body.Inputs == 1
	a.json.reset()
	a.events.reset()
	a.text.off = !content || of == apiNone || kind == answerOther
}

// feed reads the next bytes of the body.
func (a *answer) feed(b []byte) {
	switch a.kind {
	case answerEvents:
		if !a.foreign {
			a.events.feed(b, a)
		}
	case answerJSON:
		if a.cut {
			a.keepTail(b)
			return
		}
		a.seen += len(b)
		if a.over {
			a.keepTail(b)
			return
		}
		if room := a.limit - (a.seen - len(b)); len(b) > room {
			a.over = true
			a.keepTail(b[room:])
			b = b[:room]
		}
		a.json.feed(b, &a.fields)
		a.contents.keep(&a.text, b)
	}
}

// skip: bytes of the body were not seen, in calls socket calls; 0 if records were
// lost, or a call was copied in part.
func (a *answer) skip(calls uint32) {
	a.text.off = true
	switch a.kind {
	case answerEvents:
		a.events.lose(a)
		// What follows can be the answer to another request, if records of all
		// that is between were lost: it is believed if it has the id known
		// before. Events of the Messages API have none.
		a.gap = true
		a.blind = a.blind || a.fields.id == "" || a.api == apiMessages && calls == 0
	case answerJSON:
		a.cut = true
		a.tail = a.tail[:0]
	}
}

// lost: the bytes have chunk framing among them. Around events it looks like
// lines of no interest; within one it spoils the JSON, and the event is dropped.
func (a *answer) lost(b []byte) {
	a.text.off = true
	if a.kind == answerJSON {
		a.cut = true
	}
	a.feed(b)
}

// identified reports whether the id is known, or it is clear that there is none.
func (a *answer) identified() bool {
	return a.id() != "" || a.sawEvent
}

// id is the first one, that of a document as soon as it is read.
func (a *answer) id() string {
	if a.fields.id == "" && a.kind == answerJSON {
		return a.fields.d.id
	}
	return a.fields.id
}

// finish ends the body. It reports false if it was a document that was not read to
// its end.
func (a *answer) finish() bool {
	if a.kind != answerJSON {
		return true
	}
	if a.cut || a.over {
		a.fields.commit(false)
		a.fields.suffix(&a.json, a.tail)
		return false
	}
	a.json.finish(&a.fields)
	whole := a.json.complete()
	a.fields.commit(whole)
	return whole
}

// fill tells e what the answer says. all: it is all of it.
func (a *answer) fill(e *signal.ExchangeEnd, all bool) {
	if a.kind == answerOther {
		return
	}
	r := &a.fields
	e.ResponseID, e.Model = r.id, r.model
	e.InputTokens, e.OutputTokens, e.CachedTokens = r.input, r.output, r.cached
	e.ToolCalls = r.toolCalls(all && r.errType == "")
	whole := all && !a.text.off && r.errType == ""
	for _, c := range r.calls {
		call := signal.ToolCall{Choice: c.choice, Index: c.index, Name: c.name}
		if whole {
			call.Arguments = a.out.arguments(c.choice, c.index)
		}
		e.Calls = append(e.Calls, call)
	}
	e.ErrorType = r.errType
	for _, f := range r.finish {
		e.FinishReasons = append(e.FinishReasons, f.reason)
	}
	if a.content {
		e.ErrorMessage = r.errMessage
	}
	if whole {
		e.Content = a.messages()
	}
}

// messages gives the contents of an answer that was seen whole.
func (a *answer) messages() string {
	if a.kind == answerEvents {
		return a.out.encode(a.api)
	}
	return outputMessages(a.api, a.text.b)
}

// release gives the contents back; the answer may be begun again.
func (a *answer) release() {
	a.contents.discard(&a.text)
	a.contents.held -= a.out.size
	a.fields.reset(apiNone, false)
	a.json.reset()
	a.events.reset()
	*a = answer{contents: a.contents, limit: a.limit, json: a.json, fields: a.fields, events: a.events, tail: a.tail[:0]}
}

// eventData, eventEnd and the rest get the events of a stream.

func (a *answer) eventData(b []byte) {
	a.json.feed(b, &a.fields)
	a.contents.keep(&a.text, b)
}

// choiceID: an id may be that of a choice of which no event was seen yet. SGLang gives each
// choice one of its own, hexadecimal digits; those that are of the response, as vLLM's,
// have a prefix.
func (a *answer) choiceID(id string) bool {
	return int64(len(a.fields.ids)) < a.choices && !strings.Contains(id+a.fields.id, "-")
}

func (a *answer) eventEnd(done bool) {
	if id := a.fields.d.id; a.gap && id != "" && a.fields.id != "" && !a.fields.hasID(id) && !a.choiceID(id) {
		a.foreign = true
	}
	if !done && !a.blind && !a.foreign {
		a.json.finish(&a.fields)
		whole := a.json.complete()
		if !a.text.off {
			if !whole || !a.out.event(a.api, a.text.b, a.contents) {
				a.text.off = true
			}
		}
		a.fields.commit(whole)
		a.sawEvent = a.sawEvent || whole
	}
	a.contents.trim(&a.text)
	a.fields.drop()
	a.json.reset()
}

func (a *answer) eventBroken() {
	a.fields.drop()
	a.json.reset()
	a.tail = a.tail[:0]
}

func (a *answer) eventTail(b []byte) { a.keepTail(b) }

func (a *answer) eventTailEnd() {
	if len(a.tail) > 0 && !a.blind && !a.foreign {
		a.fields.suffix(&a.json, a.tail)
		a.json.reset()
	}
	a.tail = a.tail[:0]
}

// keepTail keeps the last maxTail bytes of a document.
func (a *answer) keepTail(b []byte) {
	if len(b) > maxTail {
		b = b[len(b)-maxTail:]
	}
	if n := len(a.tail) + len(b) - maxTail; n > 0 {
		a.tail = a.tail[:copy(a.tail, a.tail[n:])]
	}
	a.tail = append(a.tail, b...)
}
