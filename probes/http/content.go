package httptap

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Contents in the form of the OpenTelemetry GenAI conventions
// (gen_ai.input.messages, gen_ai.output.messages).

type message struct {
	Role   string `json:"role"`
	Parts  []part `json:"parts"`
	Finish string `json:"finish_reason,omitempty"`
}

type part struct {
	Type      string          `json:"type"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Content   *string         `json:"content,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Response  json.RawMessage `json:"response,omitempty"`
}

func textPart(kind, s string) part { return part{Type: kind, Content: &s} }

func encodeMessages(m []message) string {
	if len(m) == 0 {
		return ""
	}
	for i := range m {
		if m[i].Parts == nil {
			m[i].Parts = []part{}
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(m) != nil {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSuffix(b.String(), "\n"), "\ufffd")
}

// wireMessage is a message or an input item in a request, or in an answer.
type wireMessage struct {
	Type             string          `json:"type"`
	Role             string          `json:"role"`
	Content          json.RawMessage `json:"content"`
	Reasoning        *string         `json:"reasoning"`
	ReasoningContent *string         `json:"reasoning_content"`
	Refusal          *string         `json:"refusal"`
	ToolCalls        []wireCall      `json:"tool_calls"`
	ToolCallID       string          `json:"tool_call_id"`
	CallID           string          `json:"call_id"`
	Name             string          `json:"name"`
	Arguments        json.RawMessage `json:"arguments"`
	Output           json.RawMessage `json:"output"`
}

type wireCall struct {
	Index    *int64 `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// wirePart is a content part or block.
type wirePart struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Refusal   string          `json:"refusal"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
}

func (w *wirePart) part() part {
	switch w.Type {
	case "text", "input_text", "output_text":
		return textPart("text", w.Text)
	case "thinking":
		return textPart("reasoning", w.Thinking)
	case "reasoning_text", "summary_text":
		return textPart("reasoning", w.Text)
	case "refusal":
		return textPart("refusal", w.Refusal)
	case "tool_use":
		return part{Type: "tool_call", ID: w.ID, Name: w.Name, Arguments: w.Input}
	case "tool_result":
		return part{Type: "tool_call_response", ID: w.ToolUseID, Response: w.Content}
	}
	return part{Type: w.Type} // images, audio and the like: what it is, not what is in it
}

// contentParts reads a content: a string, or a list of parts and strings.
func contentParts(raw json.RawMessage) ([]part, bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, true
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return []part{textPart("text", s)}, true
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil, false
	}
	var parts []part
	for _, e := range list {
		if json.Unmarshal(e, &s) == nil {
			parts = append(parts, textPart("text", s))
			continue
		}
		var w wirePart
		if json.Unmarshal(e, &w) != nil {
			return nil, false
		}
		parts = append(parts, w.part())
	}
	return parts, true
}

// message translates a chat message or an item of the Responses API.
func (w *wireMessage) message() (message, bool) {
	m := message{Role: w.Role}
	switch w.Type {
	case "function_call":
		m.Role = "assistant"
		m.Parts = []part{{Type: "tool_call", ID: w.CallID, Name: w.Name, Arguments: w.Arguments}}
		return m, true
	case "function_call_output":
		m.Role = "tool"
		m.Parts = []part{{Type: "tool_call_response", ID: w.CallID, Response: w.Output}}
		return m, true
	case "reasoning":
		m.Role = "assistant"
	}
	if w.Role == "tool" {
		m.Parts = []part{{Type: "tool_call_response", ID: w.ToolCallID, Response: w.Content}}
		return m, true
	}
	reasoning := w.Reasoning
	if reasoning == nil {
		reasoning = w.ReasoningContent
	}
	if reasoning != nil {
		m.Parts = append(m.Parts, textPart("reasoning", *reasoning))
	}
	parts, ok := contentParts(w.Content)
	if !ok {
		return m, false
	}
	m.Parts = append(m.Parts, parts...)
	if w.Refusal != nil {
		m.Parts = append(m.Parts, textPart("refusal", *w.Refusal))
	}
	for _, c := range w.ToolCalls {
		m.Parts = append(m.Parts, part{Type: "tool_call", ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	return m, true
}

func messagesOf(list []wireMessage) ([]message, bool) {
	var out []message
	for i := range list {
		m, ok := list[i].message()
		if !ok {
			return nil, false
		}
		out = append(out, m)
	}
	return out, true
}

// inputMessages gives the content of a request, "" if it has none as text.
func inputMessages(a api, body []byte) string {
	var r struct {
		Messages     []wireMessage   `json:"messages"`
		System       json.RawMessage `json:"system"`
		Instructions json.RawMessage `json:"instructions"`
		Prompt       json.RawMessage `json:"prompt"`
		Input        json.RawMessage `json:"input"`
		Text1        json.RawMessage `json:"text_1"`
		Text2        json.RawMessage `json:"text_2"`
		Query        json.RawMessage `json:"query"`
		Queries      json.RawMessage `json:"queries"`
		Documents    json.RawMessage `json:"documents"`
	}
	if json.Unmarshal(body, &r) != nil {
		return ""
	}
	var m []message
	ok := true
	user := func(raw json.RawMessage) {
		parts, good := contentParts(raw)
		ok = ok && good
		for _, p := range parts {
			m = append(m, message{Role: "user", Parts: []part{p}})
		}
	}
	system := r.System
	if a == apiResponses {
		system = r.Instructions
	}
	if parts, good := contentParts(system); good && len(parts) > 0 && (a == apiMessages || a == apiResponses) {
		m = append(m, message{Role: "system", Parts: parts})
	}
	switch a {
	case apiResponses:
		var items []wireMessage
		if json.Unmarshal(r.Input, &items) == nil {
			r.Messages = items
		} else {
			user(r.Input)
		}
	case apiCompletions:
		user(r.Prompt)
	case apiEmbeddings:
		user(r.Input)
	case apiScore, apiRerank:
		for _, raw := range []json.RawMessage{r.Text1, r.Query, r.Queries, r.Text2, r.Documents} {
			user(raw)
		}
	}
	list, good := messagesOf(r.Messages)
	if !ok || !good {
		return ""
	}
	return encodeMessages(append(m, list...))
}
