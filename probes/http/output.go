package httptap

import "encoding/json"

// output puts the answer together that the events of a stream bring.
type output struct {
	size    int // bytes held
	choices []choiceOutput
	final   []message // given whole by the last event
}

type choiceOutput struct {
	index     int64
	role      string
	reasoning []byte
	text      []byte
	hasText   bool
	calls     []callOutput
	blocks    []blockOutput // Messages API
	finish    string
}

type callOutput struct {
	index     int64
	id, name  string
	arguments []byte
}

type blockOutput struct {
	part wirePart
	text []byte
}

// event adds one event. It reports false if the content can no longer be given.
func (o *output) event(a api, data []byte, contents *budget) bool {
	if !contents.room(o.size, len(data)) {
		return false
	}
	before := o.size
	ok := false
	switch a {
	case apiChat, apiCompletions:
		ok = o.chunk(data)
	case apiMessages:
		ok = o.block(data)
	case apiResponses:
		ok = o.responses(data)
	}
	contents.held += o.size - before
	return ok
}

func (o *output) choice(index int64) *choiceOutput {
	for i := range o.choices {
		if o.choices[i].index == index {
			return &o.choices[i]
		}
	}
	if len(o.choices) >= maxCalls {
		return nil
	}
	o.choices = append(o.choices, choiceOutput{index: index})
	return &o.choices[len(o.choices)-1]
}

func (o *output) chunk(data []byte) bool {
	var c struct {
		Choices []struct {
			Index  int64        `json:"index"`
			Text   *string      `json:"text"`
			Delta  *wireMessage `json:"delta"`
			Finish *string      `json:"finish_reason"`
		} `json:"choices"`
	}
	if json.Unmarshal(data, &c) != nil {
		return false
	}
	for _, e := range c.Choices {
		out := o.choice(e.Index)
		if out == nil {
			return false
		}
		if e.Finish != nil {
			out.finish = *e.Finish
		}
		if e.Text != nil {
			o.add(&out.text, *e.Text)
			out.hasText = true
		}
		d := e.Delta
		if d == nil {
			continue
		}
		if d.Role != "" {
			out.role = d.Role
		}
		var s string
		if len(d.Content) > 0 && string(d.Content) != "null" {
			if json.Unmarshal(d.Content, &s) != nil {
				return false
			}
			o.add(&out.text, s)
			out.hasText = out.hasText || s != ""
		}
		for _, r := range []*string{d.Reasoning, d.ReasoningContent} {
			if r != nil {
				o.add(&out.reasoning, *r)
				break
			}
		}
		for i := range d.ToolCalls {
			if !o.call(out, &d.ToolCalls[i]) {
				return false
			}
		}
	}
	return true
}

func (o *output) add(b *[]byte, s string) {
	*b = append(*b, s...)
	o.size += len(s)
}

func (o *output) call(out *choiceOutput, w *wireCall) bool {
	if w.Index == nil {
		return false // which call it goes on with is not known
	}
	var c *callOutput
	for i := range out.calls {
		if out.calls[i].index == *w.Index {
			c = &out.calls[i]
		}
	}
	if c == nil {
		if len(out.calls) >= maxCalls {
			return false
		}
		out.calls = append(out.calls, callOutput{index: *w.Index})
		c = &out.calls[len(out.calls)-1]
	}
	if w.ID != "" {
		c.id = w.ID
	}
	if w.Function.Name != "" {
		c.name = w.Function.Name
	}
	if raw := w.Function.Arguments; len(raw) > 0 && string(raw) != "null" {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return false
		}
		o.add(&c.arguments, s)
	}
	return true
}

func (o *output) block(data []byte) bool {
	var e struct {
		Type  string   `json:"type"`
		Index int64    `json:"index"`
		Block wirePart `json:"content_block"`
		Delta struct {
			Text        string `json:"text"`
			Thinking    string `json:"thinking"`
			PartialJSON string `json:"partial_json"`
			StopReason  string `json:"stop_reason"`
		} `json:"delta"`
	}
	if json.Unmarshal(data, &e) != nil {
		return false
	}
	out := o.choice(0)
	out.role = "assistant"
	switch e.Type {
	case "content_block_start":
		if e.Index != int64(len(out.blocks)) || e.Index >= maxCalls {
			return false
		}
		out.blocks = append(out.blocks, blockOutput{part: e.Block})
	case "content_block_delta":
		if e.Index < 0 || e.Index >= int64(len(out.blocks)) {
			return false
		}
		o.add(&out.blocks[e.Index].text, e.Delta.Text+e.Delta.Thinking+e.Delta.PartialJSON)
	case "message_delta":
		out.finish = e.Delta.StopReason
	}
	return true
}

// responses waits for the event that repeats the whole answer.
func (o *output) responses(data []byte) bool {
	var e struct {
		Type     string          `json:"type"`
		Response json.RawMessage `json:"response"`
	}
	if json.Unmarshal(data, &e) != nil {
		return false
	}
	if e.Type != "response.completed" && e.Type != "response.incomplete" {
		return true
	}
	m, ok := responsesOutput(e.Response)
	o.final = m
	o.size += len(e.Response)
	return ok
}

func responsesOutput(b []byte) ([]message, bool) {
	var r struct {
		Status     string        `json:"status"`
		Output     []wireMessage `json:"output"`
		Incomplete *struct {
			Reason string `json:"reason"`
		} `json:"incomplete_details"`
	}
	if json.Unmarshal(b, &r) != nil {
		return nil, false
	}
	m, ok := messagesOf(r.Output)
	if n := len(m); n > 0 {
		m[n-1].Finish = r.Status
		if r.Incomplete != nil {
			m[n-1].Finish = r.Incomplete.Reason
		}
	}
	return m, ok
}

func (o *output) encode(a api) string {
	if a == apiResponses {
		return encodeMessages(o.final)
	}
	var out []message
	for want := int64(0); len(out) < len(o.choices); want++ {
		c := o.find(want)
		if c == nil {
			return "" // a choice that left no trace: not the whole answer
		}
		m := message{Role: c.role, Finish: c.finish}
		if m.Role == "" {
			m.Role = "assistant"
		}
		if len(c.reasoning) > 0 {
			m.Parts = append(m.Parts, textPart("reasoning", string(c.reasoning)))
		}
		if c.hasText {
			m.Parts = append(m.Parts, textPart("text", string(c.text)))
		}
		for i := range c.calls {
			k := &c.calls[i]
			m.Parts = append(m.Parts, part{Type: "tool_call", ID: k.id, Name: k.name, Arguments: quote(k.arguments)})
		}
		for i := range c.blocks {
			b := &c.blocks[i]
			switch b.part.Type {
			case "text":
				b.part.Text += string(b.text)
			case "thinking":
				b.part.Thinking += string(b.text)
			case "tool_use":
				if len(b.text) > 0 {
					b.part.Input = json.RawMessage(b.text)
					if !json.Valid(b.text) {
						b.part.Input = quote(b.text)
					}
				}
			}
			m.Parts = append(m.Parts, b.part.part())
		}
		out = append(out, m)
	}
	return encodeMessages(out)
}

// arguments gives those of a call of a stream, "" if there are none.
func (o *output) arguments(choice, index int64) string {
	if c := o.find(choice); c != nil {
		for i := range c.calls {
			if c.calls[i].index == index {
				return string(c.calls[i].arguments)
			}
		}
	}
	return ""
}

func (o *output) find(index int64) *choiceOutput {
	for i := range o.choices {
		if o.choices[i].index == index {
			return &o.choices[i]
		}
	}
	return nil
}

// quote gives arguments that came as text in the form they have in the messages
// of an API: a JSON string.
func quote(b []byte) json.RawMessage {
	raw, err := json.Marshal(string(b))
	if err != nil {
		return nil
	}
	return raw
}

// outputMessages gives the answer in a JSON body, "" if it has none as text.
func outputMessages(a api, body []byte) string {
	switch a {
	case apiChat, apiCompletions:
		var r struct {
			Choices []struct {
				Text    *string      `json:"text"`
				Message *wireMessage `json:"message"`
				Finish  *string      `json:"finish_reason"`
			} `json:"choices"`
		}
		if json.Unmarshal(body, &r) != nil {
			return ""
		}
		var out []message
		for _, c := range r.Choices {
			m := message{Role: "assistant"}
			if c.Text != nil {
				m.Parts = append(m.Parts, textPart("text", *c.Text))
			}
			if c.Message != nil {
				w, ok := c.Message.message()
				if !ok {
					return ""
				}
				m = w
			}
			if c.Finish != nil {
				m.Finish = *c.Finish
			}
			out = append(out, m)
		}
		return encodeMessages(out)
	case apiMessages:
		var r struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
			Stop    string          `json:"stop_reason"`
		}
		if json.Unmarshal(body, &r) != nil {
			return ""
		}
		parts, ok := contentParts(r.Content)
		if !ok || r.Role == "" {
			return ""
		}
		return encodeMessages([]message{{Role: r.Role, Parts: parts, Finish: r.Stop}})
	case apiResponses:
		m, ok := responsesOutput(body)
		if ok {
			return encodeMessages(m)
		}
	}
	return ""
}
