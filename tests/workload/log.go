package workload

// Entry is the log of one request: what was sent, when, and what came back.
// Times named Mono are CLOCK_MONOTONIC nanoseconds, the clock that the tracer and
// the engine stamp with; 0 means that it did not happen.
type Entry struct {
	Scenario string `json:"scenario"`
	Index    int    `json:"index"`    // position in the plan of the scenario
	Conn     int    `json:"conn"`     // position of the session in the plan
	ConnSeq  int    `json:"conn_seq"` // position on the connection
	Port     int    `json:"port"`     // the client's TCP port

	Method     string `json:"method"`
	Path       string `json:"path"`
	TraceID    string `json:"trace_id,omitempty"`  // of the traceparent sent
	ParentID   string `json:"parent_id,omitempty"` // of the traceparent sent
	RequestID  string `json:"x_request_id,omitempty"`
	Model      string `json:"model,omitempty"` // asked for
	Stream     bool   `json:"stream"`
	N          int    `json:"n"`
	Inputs     int    `json:"inputs"`
	MaxTokens  int    `json:"max_tokens,omitempty"`
	BodyBytes  int    `json:"body_bytes"`
	WantStatus int    `json:"want_status,omitempty"` // 0: any
	Plan       Leave  `json:"plan,omitempty"`        // the client means to leave

	ConnectMono int64 `json:"connect_mono"`
	SendMono    int64 `json:"send_mono"` // before the first byte was written
	SendWall    int64 `json:"send_wall"` // the same moment, ns since the epoch
	SentMono    int64 `json:"sent_mono"` // after the last byte was written
	FirstMono   int64 `json:"first_mono"`
	LastMono    int64 `json:"last_mono"`

	Status        int      `json:"status"` // 0: no response seen
	ResponseID    string   `json:"response_id,omitempty"`
	ResponseModel string   `json:"response_model,omitempty"`
	FinishReasons []string `json:"finish_reasons,omitempty"`
	InputTokens   *int64   `json:"input_tokens,omitempty"`
	OutputTokens  *int64   `json:"output_tokens,omitempty"`
	CachedTokens  *int64   `json:"cached_tokens,omitempty"`
	ToolCalls     int      `json:"tool_calls,omitempty"`
	Events        int      `json:"events,omitempty"` // data events of the stream, [DONE] included
	Bytes         int64    `json:"bytes"`            // of the response body
	Complete      bool     `json:"complete"`         // the whole response was read
	ErrorType     string   `json:"error_type,omitempty"`
	LeftMono      int64    `json:"left_mono,omitempty"` // the client closed on purpose
	Fault         string   `json:"fault,omitempty"`     // what went wrong, unplanned
}

// Inference says whether the request is one that an engine answers: what must
// have an entry span. The documents name the operations; these are their paths.
func (e *Entry) Inference() bool {
	if e.Method != "POST" {
		return false
	}
	switch e.Path {
	case "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
		"/v1/embeddings", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank":
		return true
	}
	return false
}

// Operation is gen_ai.operation.name of the entry span, "" if there is no span.
func (e *Entry) Operation() string {
	if !e.Inference() {
		return ""
	}
	switch e.Path {
	case "/v1/completions":
		return "text_completion"
	case "/v1/embeddings":
		return "embeddings"
	case "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank":
		return "rerank"
	}
	return "chat"
}
