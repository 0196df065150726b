package httptap

import (
	"bytes"
	"slices"

	"inferspan/correlate/signal"
)

// maxCalls bounds the tool calls told apart in one response.
const maxCalls = 256

// responseFields gathers what a response says, from one JSON document or from
// the documents in its events. A document counts once it is complete.
type responseFields struct {
	api    api
	stream bool
	single bool // there is one choice only

	id            string   // the first
	ids           []string // several: in SGLang the choices of a stream have an id each
	model         signal.Opt[string]
	finish        []finish // by choice
	input, output signal.Opt[int64]
	cached        signal.Opt[int64]
	calls         []call // told apart by choice and index
	callsDone     int64  // as the last event counts them
	hasCallsDone  bool
	callsUnknown  bool
	errType       string
	errMessage    string

	d    doc
	word word
}

type finish struct {
	choice int64
	reason string
}

type call struct {
	choice, index int64
	name          string
}

// doc is what the document being read says.
type doc struct {
	id         string
	model      signal.Opt[string]
	kind       string // type
	object     string
	status     string
	incomplete string
	stop       string // stop_reason
	flatCode   bool
	message    string // of a flat error

	choices       int64
	choice        finish
	choiceCalls   int // calls that belong to the choice being read
	callIndex     signal.Opt[int64]
	callName      string
	finish        []finish
	calls         []call
	input, output signal.Opt[int64]
	cached        signal.Opt[int64]
	items         int64 // function calls among output items or content blocks
	hasItems      bool
	errType       string
	errCode       string
	errMessage    string
	hasError      bool
}

func (d *doc) reset() {
	*d = doc{finish: d.finish[:0], calls: d.calls[:0]}
}

// drop forgets the document being read.
func (r *responseFields) drop() {
	r.d.reset()
	r.word = word{b: r.word.b[:0]}
}

func (r *responseFields) reset(a api, stream bool) {
	r.d.reset()
	*r = responseFields{api: a, stream: stream, ids: r.ids[:0], finish: r.finish[:0], calls: r.calls[:0], d: r.d, word: word{b: r.word.b[:0]}}
}

func (r *responseFields) open(n node, array bool) {
	d := &r.d
	switch n {
	case nodeChoice:
		d.choices++
		d.choice = finish{choice: d.choices - 1}
		d.choiceCalls = len(d.calls)
	case nodeToolCall:
		d.callIndex, d.callName = signal.Opt[int64]{}, ""
	case nodeUsage:
		d.input, d.output, d.cached = signal.Opt[int64]{}, signal.Opt[int64]{}, signal.Opt[int64]{}
	case nodeOutput, nodeBlocks:
		d.items, d.hasItems = 0, array
	case nodeError:
		d.hasError = true
	}
}

func (r *responseFields) close(n node) {
	d := &r.d
	switch n {
	case nodeChoice:
		if d.choice.reason != "" {
			d.finish = append(d.finish, d.choice)
		}
		for i := range d.calls[d.choiceCalls:] {
			d.calls[d.choiceCalls+i].choice = d.choice.choice
		}
	case nodeToolCall:
		if len(d.calls) < maxCalls {
			c := call{index: int64(len(d.calls) - d.choiceCalls), name: d.callName}
			if d.callIndex.OK {
				c.index = d.callIndex.V
			}
			d.calls = append(d.calls, c)
		} else {
			r.callsUnknown = true
		}
	}
}

func (r *responseFields) str(n node, piece []byte, end bool) {
	text, ok := r.word.add(piece, end)
	if !end {
		return
	}
	if !ok {
		text = nil
	}
	d := &r.d
	switch n {
	case nodeID:
		d.id = same(text, r.id)
	case nodeCallName:
		d.callName = string(text)
	case nodeModel:
		d.model = signal.Opt[string]{V: same(text, r.model.V), OK: ok}
	case nodeType:
		d.kind = known(text)
	case nodeObject:
		d.object = known(text)
	case nodeStatus:
		d.status = known(text)
	case nodeIncompleteReason:
		d.incomplete = known(text)
	case nodeStopReason, nodeDeltaStop:
		d.stop = known(text)
	case nodeFinishReason:
		d.choice.reason = known(text)
	case nodeOutputItemType:
		if string(text) == "function_call" {
			d.items++
		}
	case nodeBlockType, nodeStartBlockType:
		if string(text) == "tool_use" {
			d.items++
		}
	case nodeErrorType:
		d.errType = string(text)
	case nodeErrorCode:
		d.errCode = string(text)
	case nodeErrorMessage:
		d.errMessage = string(text)
	case nodeStartMessage:
		d.message = string(text)
	}
}

func (r *responseFields) num(n node, text []byte) {
	d := &r.d
	switch n {
	case nodeChoiceIndex:
		if v := integer(text); v.OK {
			d.choice.choice = v.V
		}
	case nodeToolCallIndex:
		d.callIndex = integer(text)
	case nodeInputTokens, nodeStartInput:
		d.input = integer(text)
	case nodeOutputTokens:
		d.output = integer(text)
	case nodeCachedTokens:
		d.cached = integer(text)
	case nodeFlatCode:
		d.flatCode = true
	}
}

func (r *responseFields) lit(node, byte) {}

// commit takes over what the document said. whole: it was read to its end.
func (r *responseFields) commit(whole bool) {
	d := &r.d
	defer r.drop()
	if r.stream && !whole {
		return
	}
	if d.id != "" && !r.hasID(d.id) && len(r.ids) < maxCalls {
		r.ids = append(r.ids, d.id)
	}
	if r.id == "" {
		r.id = d.id
	}
	if d.model.OK {
		r.model = d.model
	}
	for _, f := range d.finish {
		r.addFinish(f)
	}
	for _, c := range d.calls {
		r.addCall(c)
	}
	// Interim counts of vLLM's continuous_usage_stats are per choice; the
	// totals come in a chunk without choices.
	if !r.stream || d.choices == 0 {
		setOpt(&r.input, d.input)
		setOpt(&r.output, d.output)
		setOpt(&r.cached, d.cached)
	}
	switch {
	case d.hasError:
		r.errType, r.errMessage = d.errType, d.errMessage
		if r.errType == "" {
			r.errType = d.errCode
		}
	case d.object == "error" || d.message != "" && d.flatCode:
		// vLLM before 0.10: the error is the document itself.
		r.errType, r.errMessage = d.kind, d.message
	}
	switch r.api {
	case apiResponses:
		if r.stream && d.kind != "response.completed" && d.kind != "response.incomplete" && d.kind != "response.failed" {
			return
		}
		reason := d.status
		if d.incomplete != "" {
			reason = d.incomplete
		}
		if reason != "" {
			r.addFinish(finish{reason: reason})
		}
		if d.hasItems && whole {
			r.callsDone, r.hasCallsDone = d.items, true
		}
	case apiMessages:
		if d.stop != "" {
			r.addFinish(finish{reason: d.stop})
		}
		r.callsDone += d.items
	}
}

func (r *responseFields) hasID(id string) bool { return slices.Contains(r.ids, id) }

// addFinish keeps the reasons in the order of the choices.
func (r *responseFields) addFinish(f finish) {
	i := len(r.finish)
	for i > 0 && r.finish[i-1].choice >= f.choice {
		i--
	}
	if i < len(r.finish) && r.finish[i].choice == f.choice {
		r.finish[i] = f
		return
	}
	if len(r.finish) >= maxCalls {
		return
	}
	r.finish = append(r.finish, finish{})
	copy(r.finish[i+1:], r.finish[i:])
	r.finish[i] = f
}

func (r *responseFields) addCall(c call) {
	for i, o := range r.calls {
		if o.choice == c.choice && o.index == c.index {
			if o.name == "" {
				r.calls[i].name = c.name
			}
			return
		}
	}
	if len(r.calls) >= maxCalls {
		r.callsUnknown = true
		return
	}
	r.calls = append(r.calls, c)
}

// toolCalls is known only if all of the response was seen.
func (r *responseFields) toolCalls(all bool) signal.Opt[int64] {
	switch r.api {
	case apiChat:
		if all && !r.callsUnknown {
			return signal.Some(int64(len(r.calls)))
		}
	case apiMessages:
		if all {
			return signal.Some(r.callsDone)
		}
	case apiResponses:
		if r.hasCallsDone { // one document lists them all
			return signal.Some(r.callsDone)
		}
	}
	return signal.Opt[int64]{}
}

// suffix reads what it can from the end of a document whose beginning was not
// seen. It looks for a key that it knows and supposes the containers that must
// be open there; the supposition holds only if all that follows, to the end,
// closes exactly those. `"usage":` cannot lie inside a string, where its quotes
// would be escaped.
func (r *responseFields) suffix(s *scanner, b []byte) {
	type guess struct{ key, open string }
	var guesses []guess
	switch r.api {
	case apiResponses:
		if r.stream {
			guesses = []guess{{`"status":`, `{"response":{`}, {`"usage":`, `{"response":{`}}
		} else {
			guesses = []guess{{`"status":`, `{`}, {`"usage":`, `{`}}
		}
	case apiChat, apiCompletions:
		guesses = []guess{{`"finish_reason":`, `{"choices":[{`}, {`"usage":`, `{`}}
	default:
		guesses = []guess{{`"usage":`, `{`}}
	}
	for _, g := range guesses {
		for at := 0; ; {
			i := bytes.Index(b[at:], []byte(g.key))
			if i < 0 {
				break
			}
			i += at
			at = i + len(g.key)
			if i > 0 && b[i-1] == '\\' {
				continue
			}
			r.drop()
			s.reset()
			s.feed([]byte(g.open), r)
			s.feed(b[i:], r)
			if !s.complete() {
				continue
			}
			if !r.single {
				// Which choice it was stands before the cut.
				r.d.finish = r.d.finish[:0]
			}
			if r.d.status == "incomplete" && r.d.incomplete == "" {
				r.d.status = "" // so does why
			}
			r.commit(true)
			return
		}
	}
	r.drop()
}

func setOpt[T any](dst *signal.Opt[T], v signal.Opt[T]) {
	if v.OK {
		*dst = v
	}
}

// same returns old if text says the same, to spare a copy.
func same(text []byte, old string) string {
	if string(text) == old {
		return old
	}
	return string(text)
}

// known returns common words without a copy.
func known(text []byte) string {
	for _, w := range [...]string{
		"stop", "length", "tool_calls", "chat.completion.chunk", "text_completion", "chat.completion",
		"content_block_delta", "response.output_text.delta", "completed", "end_turn", "max_tokens", "message",
	} {
		if string(text) == w {
			return w
		}
	}
	return string(text)
}
