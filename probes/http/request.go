package httptap

import (
	"math"
	"strconv"

	"inferspan/correlate/signal"
)

// maxWord bounds the strings that become attributes: model names, ids, reasons.
const maxWord = 256

// word collects a short string that may come in pieces.
type word struct {
	b   []byte
	bad bool // too long
}

// add appends a piece and, at the end of the string, returns its text.
func (w *word) add(piece []byte, end bool) (text []byte, ok bool) {
	if len(w.b) == 0 && !w.bad && end && len(piece) <= maxWord {
		return plain(piece), true
	}
	if len(w.b)+len(piece) > maxWord {
		w.bad = true
	} else if !w.bad {
		w.b = append(w.b, piece...)
	}
	if !end {
		return nil, false
	}
	text, ok = plain(w.b), !w.bad
	w.b, w.bad = w.b[:0], false
	return text, ok
}

func plain(b []byte) []byte {
	for _, c := range b {
		if c == '\\' {
			return unescape(nil, b)
		}
	}
	return b
}

// number reads a JSON number.
func number(text []byte) signal.Opt[float64] {
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return signal.Opt[float64]{}
	}
	return signal.Some(v)
}

// integer reads a JSON number that is an integer, as servers do: 2.0 is 2.
func integer(text []byte) signal.Opt[int64] {
	if v, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return signal.Some(v)
	}
	f := number(text)
	if !f.OK || f.V != math.Trunc(f.V) || math.Abs(f.V) > 1<<53 {
		return signal.Opt[int64]{}
	}
	return signal.Some(int64(f.V))
}

// requestFields reads the body of a request. A field of the wrong type is
// unknown; of a field given twice the last one counts, as for the server.
type requestFields struct {
	model, user     signal.Opt[string]
	n, topK         signal.Opt[int64]
	temperature     signal.Opt[float64]
	topP            signal.Opt[float64]
	max             [3]signal.Opt[int64] // max_tokens, max_completion_tokens, max_output_tokens
	stream          signal.Opt[bool]
	tools           int64
	messages, batch int64 // messages: 1 if there are any; batch: conversations
	talking         bool  // the list of messages has not ended
	prompt, input   counter
	text1, document counter
	word            word
}

// counter counts the inputs in a field that is a string, a list of token ids, or
// a list of either.
type counter struct {
	n    int64
	ids  bool // a list of token ids: one input
	open bool // the list has not ended
}

// more: the list may have others.
func (c *counter) more() bool { return c.open && !c.ids }

func (c *counter) inputs() int64 {
	if c.ids {
		return 1
	}
	return c.n
}

func (f *requestFields) open(n node, array bool) {
	switch n {
	case nodePrompt:
		f.prompt = counter{open: array}
	case nodeInput:
		f.input = counter{open: array}
	case nodeText1:
		f.text1 = counter{open: array}
		if !array {
			f.text1.n = 1
		}
	case nodeDocuments:
		f.document = counter{open: array}
	case nodePromptItem:
		f.prompt.n++
	case nodeInputItem:
		f.input.n++
	case nodeText1Item:
		f.text1.n++
	case nodeDocument:
		f.document.n++
	case nodeTools:
		f.tools = 0
	case nodeTool:
		if !array {
			f.tools++
		}
	case nodeMessages:
		f.messages, f.batch, f.talking = 0, 0, array
		if array {
			f.messages = 1
		}
	case nodeMessage:
		if array {
			f.batch++
		}
	default:
		f.unset(n)
	}
}

func (f *requestFields) close(n node) {
	switch n {
	case nodePrompt, nodeInput, nodeText1, nodeDocuments:
		f.counter(n).open = false
	case nodeMessages:
		f.talking = false
	}
}

func (f *requestFields) str(n node, piece []byte, end bool) {
	switch n {
	case nodeModel, nodeUser:
		text, ok := f.word.add(piece, end)
		if !end {
			return
		}
		v := &f.model
		if n == nodeUser {
			v = &f.user
		}
		*v = signal.Opt[string]{}
		if ok {
			*v = signal.Some(string(text))
		}
	case nodePrompt, nodeInput, nodeText1, nodeDocuments:
		*f.counter(n) = counter{n: 1}
	case nodePromptItem, nodeInputItem, nodeText1Item, nodeDocument:
		if end {
			f.counter(n).n++
		}
	default:
		f.unset(n)
	}
}

func (f *requestFields) counter(n node) *counter {
	switch n {
	case nodePrompt, nodePromptItem:
		return &f.prompt
	case nodeInput, nodeInputItem:
		return &f.input
	case nodeText1, nodeText1Item:
		return &f.text1
	}
	return &f.document
}

func (f *requestFields) num(n node, text []byte) {
	f.unset(n)
	switch n {
	case nodeN:
		f.n = integer(text)
	case nodeTopK:
		f.topK = integer(text)
	case nodeTemperature:
		f.temperature = number(text)
	case nodeTopP:
		f.topP = number(text)
	case nodeMaxTokens, nodeMaxCompletionTokens, nodeMaxOutputTokens:
		f.max[n-nodeMaxTokens] = integer(text)
	case nodePromptItem, nodeInputItem:
		f.counter(n).ids = true
	}
}

func (f *requestFields) lit(n node, c byte) {
	f.unset(n)
	if n == nodeStream && c != 'n' {
		f.stream = signal.Some(c == 't')
	}
}

// unset forgets a field: it is null or of the wrong type.
func (f *requestFields) unset(n node) {
	switch n {
	case nodeModel:
		f.model = signal.Opt[string]{}
	case nodeUser:
		f.user = signal.Opt[string]{}
	case nodeN:
		f.n = signal.Opt[int64]{}
	case nodeTopK:
		f.topK = signal.Opt[int64]{}
	case nodeTemperature:
		f.temperature = signal.Opt[float64]{}
	case nodeTopP:
		f.topP = signal.Opt[float64]{}
	case nodeMaxTokens, nodeMaxCompletionTokens, nodeMaxOutputTokens:
		f.max[n-nodeMaxTokens] = signal.Opt[int64]{}
	case nodeStream:
		f.stream = signal.Opt[bool]{}
	case nodePrompt, nodeInput, nodeText1, nodeDocuments:
		*f.counter(n) = counter{}
	case nodeTools:
		f.tools = 0
	case nodeMessages:
		f.messages, f.batch, f.talking = 0, 0, false
	}
}

// body gives the fields as the API understands them.
func (f *requestFields) body(a api) signal.RequestBody {
	b := signal.RequestBody{
		Model: f.model, User: f.user, N: f.n, TopK: f.topK, Temperature: f.temperature, TopP: f.topP,
		Stream: f.stream, Tools: f.tools,
	}
	switch a {
	case apiChat:
		// vLLM and OpenAI: the newer name wins where both are given.
		b.MaxTokens = f.max[1]
		if !b.MaxTokens.OK {
			b.MaxTokens = f.max[0]
		}
		b.Inputs = max(f.messages, f.batch)
		b.MoreInputs = f.talking && f.batch > 0
	case apiCompletions:
		b.MaxTokens = f.max[0]
		b.Inputs, b.MoreInputs = f.prompt.inputs(), f.prompt.more()
	case apiResponses:
		b.MaxTokens = f.max[2]
		b.Inputs = min(f.input.n, 1) // a list holds the turns of one conversation
	case apiMessages:
		b.MaxTokens = f.max[0]
		b.Inputs = f.messages
	case apiEmbeddings:
		b.Inputs, b.MoreInputs = max(f.input.inputs(), f.messages), f.input.more()
	case apiScore:
		b.Inputs = max(f.document.n, f.text1.n) // pairs: either side may be a single text
		b.MoreInputs = f.document.open || f.text1.open
	case apiRerank:
		b.Inputs, b.MoreInputs = f.document.n, f.document.open
	}
	return b
}
