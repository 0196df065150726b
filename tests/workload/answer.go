package workload

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// answer is what the bodies of all endpoints have in common, whole or as events
// of a stream.
type answer struct {
	Object  string `json:"object"`
	Type    string `json:"type"` // events of /v1/responses and /v1/messages
	ID      string `json:"id"`
	Model   string `json:"model"`
	Choices []struct {
		Index        int     `json:"index"`
		FinishReason *string `json:"finish_reason"`
		Message      struct {
			ToolCalls []json.RawMessage `json:"tool_calls"`
		} `json:"message"`
		Delta struct {
			ToolCalls []struct {
				Index int `json:"index"`
			} `json:"tool_calls"`
		} `json:"delta"`
	} `json:"choices"`
	Usage      *usage `json:"usage"`
	Status     string `json:"status"` // /v1/responses
	Incomplete *struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"` // /v1/responses
	StopReason *string   `json:"stop_reason"` // /v1/messages
	Response   *answer   `json:"response"`    // /v1/responses: response.completed
	Error      *apiError `json:"error"`
	Meta       *meta     `json:"meta_info"` // /generate
}

// meta is what SGLang's /generate says of a choice.
type meta struct {
	ID     string `json:"id"`
	Finish *struct {
		Type string `json:"type"`
	} `json:"finish_reason"`
	PromptTokens     *int64 `json:"prompt_tokens"`
	CompletionTokens *int64 `json:"completion_tokens"`
	CachedTokens     *int64 `json:"cached_tokens"`
}

type apiError struct {
	Type string `json:"type"`
	Code any    `json:"code"`
}

type usage struct {
	PromptTokens     *int64 `json:"prompt_tokens"`
	CompletionTokens *int64 `json:"completion_tokens"`
	InputTokens      *int64 `json:"input_tokens"`
	OutputTokens     *int64 `json:"output_tokens"`
	PromptDetails    *struct {
		CachedTokens *int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	InputDetails *struct {
		CachedTokens *int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

// messageEvent holds the fields of /v1/messages events whose names mean other
// things elsewhere.
type messageEvent struct {
	Type    string  `json:"type"`
	Message *answer `json:"message"`
	Delta   struct {
		StopReason *string `json:"stop_reason"`
	} `json:"delta"`
	Usage *usage `json:"usage"`
}

// note takes from a body, or from one event of a stream, what it says. It
// returns an error if data is not JSON.
func (e *Entry) note(data []byte) error {
	if e.Path == "/v1/messages" && e.Stream {
		var m messageEvent
		if err := json.Unmarshal(data, &m); err != nil {
			return fmt.Errorf("reading event %d: %w", e.Events, err)
		}
		if m.Message != nil {
			e.take(m.Message)
		}
		e.takeUsage(m.Usage)
		if m.Delta.StopReason != nil {
			e.FinishReasons = []string{*m.Delta.StopReason}
		}
		return nil
	}
	if bytes.HasPrefix(data, []byte("[")) {
		return nil // no endpoint of ours answers with an array
	}
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if a.Response != nil {
		a.Response.Object = "response"
		e.take(a.Response)
		return nil
	}
	e.take(&a)
	return nil
}

func (e *Entry) take(a *answer) {
	if a.ID != "" {
		e.ResponseID = a.ID
	}
	if a.Model != "" {
		e.ResponseModel = a.Model
	}
	if a.Error != nil {
		e.ErrorType = a.Error.Type
	}
	e.takeUsage(a.Usage)
	if m := a.Meta; m != nil {
		e.ResponseID, e.InputTokens, e.OutputTokens, e.CachedTokens = m.ID, m.PromptTokens, m.CompletionTokens, m.CachedTokens
		if m.Finish != nil {
			e.FinishReasons = []string{m.Finish.Type}
		}
	}
	for _, c := range a.Choices {
		e.ToolCalls += len(c.Message.ToolCalls)
		for _, t := range c.Delta.ToolCalls {
			e.ToolCalls = max(e.ToolCalls, t.Index+1)
		}
		if c.FinishReason == nil {
			continue
		}
		for len(e.FinishReasons) <= c.Index {
			e.FinishReasons = append(e.FinishReasons, "")
		}
		e.FinishReasons[c.Index] = *c.FinishReason
	}
	if a.StopReason != nil {
		e.FinishReasons = []string{*a.StopReason}
	}
	if a.Object == "response" && (a.Status == "completed" || a.Status == "incomplete" || a.Status == "failed") {
		e.FinishReasons = []string{a.Status}
		if a.Incomplete != nil && a.Incomplete.Reason != "" {
			e.FinishReasons[0] = a.Incomplete.Reason
		}
	}
}

func (e *Entry) takeUsage(u *usage) {
	if u == nil {
		return
	}
	for _, f := range []struct {
		from *int64
		to   **int64
	}{{u.PromptTokens, &e.InputTokens}, {u.InputTokens, &e.InputTokens}, {u.CompletionTokens, &e.OutputTokens}, {u.OutputTokens, &e.OutputTokens}} {
		if f.from != nil {
			*f.to = f.from
		}
	}
	if u.PromptDetails != nil && u.PromptDetails.CachedTokens != nil {
		e.CachedTokens = u.PromptDetails.CachedTokens
	}
	if u.InputDetails != nil && u.InputDetails.CachedTokens != nil {
		e.CachedTokens = u.InputDetails.CachedTokens
	}
}
