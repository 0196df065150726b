// Package signal holds what the probes saw, in neutral terms: the input of
// correlate. Nothing here knows an engine's message format, and nothing here
// does I/O or reads a clock.
//
// A signal, and every slice in it, is valid only during the call that hands it
// over: decoders reuse them. A consumer copies what it keeps.
//
// Times named At and those of type Mono are CLOCK_MONOTONIC nanoseconds, which
// is also the clock of vLLM's and SGLang's own stamps; Wall times are
// nanoseconds since the Unix epoch.
package signal

// Mono is a CLOCK_MONOTONIC time in nanoseconds; 0 means not known.
type Mono int64

// Wall is a CLOCK_REALTIME time in nanoseconds since the epoch; 0 means not known.
type Wall int64

// Opt is a value that may be unknown. An unknown value is never exported.
type Opt[T any] struct {
	V  T
	OK bool
}

// Some returns a known value.
func Some[T any](v T) Opt[T] { return Opt[T]{v, true} }

// Known makes a known value of one that is there.
func Known[T any](p *T) Opt[T] {
	if p == nil {
		return Opt[T]{}
	}
	return Some(*p)
}

// Count is Known for numbers that cannot be negative.
func Count(p *int64) Opt[int64] {
	if p == nil || *p < 0 {
		return Opt[int64]{}
	}
	return Some(*p)
}

// EngineID names one engine instance (its front ends and its cores together)
// within a run or a recording. The same id is used by the target facts.
type EngineID uint32

// Core names one engine core of an engine: with data parallelism there are several.
type Core struct {
	Engine EngineID
	Index  int    // the engine's own index, 0 without data parallelism; CoreUnknown
	PID    uint32 // process of the core
}

// CoreUnknown is the Index, with PID 0, where it is not known yet which core of
// several a request goes to, or was told something: the request's id is unique in
// the engine then, and its first sign in a core says which.
const CoreUnknown = -1

// Signal is one of the pointer types below.
type Signal interface{ isSignal() }

// Clock ties the two clocks together; the first one comes before any other
// signal, later ones follow clock steps.
type Clock struct {
	At   Mono
	Wall Wall
}

// Engine announces an engine before its first other signal, and again when a
// fact changes. Resource attributes are those of the observed processes.
type Engine struct {
	At       Mono
	ID       EngineID
	Kind     string // "vllm", "sglang"
	Version  string // "" if not known
	Model    string // served model name: gen_ai.request.model_name
	PDRole   string // "producer", "consumer", "none"; "" if not known
	Resource []KV   // of the whole engine
	// StreamInterval is how many tokens of a streamed request go into one output.
	StreamInterval Opt[int64]
	// FrontEnds is how many front ends the engine is to have. Some may start yet.
	FrontEnds Opt[int64]
	Process   []Process
}

// Process is one process of an engine, with the resource attributes that differ from the engine's.
type Process struct {
	PID      uint32
	Role     string
	Resource []KV
	// NSPID is the PID that the process itself sees, 0 if not known; its main thread
	// has the same number.
	NSPID uint32
	// Ranks, where the engine has such a dimension.
	TensorRank   Opt[int64]
	PipelineRank Opt[int64]
	DataRank     Opt[int64]
	Rank         Opt[int64] // of a worker that is a process of its own: its number among those of its core
	Core         uint32     // of such a worker: PID of its core, 0 if not known
	HostID       string     // as the engine names its host, "" if not known
}

// KV is a resource attribute. Value is a string, int64, float64, bool or []string.
type KV struct {
	Key   string
	Value any
}

// Param holds the sampling parameters of one request as the engine got them.
// What the engine's message leaves out because it equals the default is filled
// in by the decoder where the default is known, else left unknown.
type Param struct {
	Temperature Opt[float64]
	TopP        Opt[float64]
	TopK        Opt[int64]
	MaxTokens   Opt[int64]
	N           Opt[int64]
	Logprobs    bool // log-probabilities were asked for
	HasStop     bool // stop strings were given: the front end may end the request by an abort
}

// RequestAdded: an engine core received a request.
type RequestAdded struct {
	At             Mono // receipt in the core
	Core           Core
	ID             string   // the engine's own id, unique while the request runs
	ExternalID     string   // id that the engine reports (gen_ai.request.id)
	ResponseID     string   // id in the HTTP response, "" if it has none
	Child          Opt[int] // position among the n children of one request
	Arrival        Wall     // the front end's arrival stamp
	Pooling        bool     // embedding, score or rerank: no tokens are generated
	Adapter        string   // name of the LoRA adapter asked for, "" if none
	AdapterUnknown bool     // whether it asked for an adapter was not seen
	PromptTokens   Opt[int64]
	Param          Param
	Client         int    // index of the front end that sent it
	TraceParent    string // W3C header, "" if none
	Known          bool   // false: built from a peek or from outputs, not seen arriving
	// Outline: of what it asks for nothing is known but the length of the prompt. A
	// RequestPeeked may tell.
	Outline bool
	PID     uint32     // front end that sent it, 0 if not known
	Stream  Opt[bool]  // the client gets outputs as they come
	Room    Opt[int64] // ties the two halves of a request that is prefilled elsewhere
}

// RequestAborted: a front end told the core to end requests. A client that went
// away and a stop string look alike here.
type RequestAborted struct {
	At   Mono
	Core Core
	IDs  []string
	// Late: it was before At, after the latest output.
	Late bool
}

// CoreFailed: a core told its front ends that it has failed. It serves no more
// requests; its process may live on for a while.
type CoreFailed struct {
	At   Mono
	Core Core
}

// StepOutput: one message from a core to a front end: what a step gave to the
// requests of that front end, or statistics only.
type StepOutput struct {
	At      Mono // when it was sent
	Core    Core
	Client  int    // front end it goes to, -1 if not known
	Stamp   Mono   // the core's own time of the outputs
	Key     uint64 // recognises the same message in Delivered, 0 if it has none
	Outputs []Output
	Stats   *SchedulerStats // nil if the message had none
}

// Output is what one request got in one step.
type Output struct {
	ID           []byte // RequestAdded.ID
	NumTokens    int
	Tokens       []int64   // token ids; nil unless asked for
	Logprobs     []float64 // of the sampled tokens; nil unless asked for and given
	Finish       Finish
	FinishReason string // the engine's word, "" if not finished
	StopReason   string // matched stop string or token id, "" if none
	Events       []EngineEvent
	CachedTokens Opt[int64] // prompt tokens not computed again; known once per request
	// ExternalTokens are those of CachedTokens that a KV connector had, by the last
	// look for them.
	ExternalTokens Opt[int64]
	PromptTokens   Opt[int64] // as the core counts them
	// Total is how many tokens the request has, those of this output counted, where the
	// engine says so.
	Total Opt[int64]
	// Checks is how many steps of the request had drafts checked, where the engine says so:
	// each that gave tokens but the one of its prefill.
	Checks  Opt[int64]
	Pooled  bool     // the result of a pooling request
	Failure *Failure // why it was ended early, nil if it was not or the engine does not say
}

// Failure is the engine's account of a request that it ended early.
type Failure struct {
	Type    string // "abort"
	Message string
	Status  Opt[int64] // of HTTP
	Err     string     // class of the error
}

// Finish says how a request ended.
type Finish uint8

// Ways to end.
const (
	FinishNone Finish = iota // still running
	FinishStop
	FinishLength
	FinishAbort
	FinishError
	FinishRepetition
	FinishOther // a reason this build does not know; FinishReason has its word
)

// EventKind is the kind of an EngineEvent.
type EventKind uint8

// Kinds of engine events.
const (
	EventQueued EventKind = 1 + iota
	EventScheduled
	EventPreempted
)

// EngineEvent is a state change that the engine stamped itself.
type EngineEvent struct {
	Kind EventKind
	At   Mono
}

// SchedulerStats is the scheduler's state after a step.
type SchedulerStats struct {
	Running       Opt[int64]
	Waiting       Opt[int64]
	KVUsage       Opt[float64] // share in use, 0 to 1
	PrefixQueries Opt[int64]   // tokens looked up since the last message
	PrefixHits    Opt[int64]   // tokens found since the last message
	SpecDrafts    Opt[int64]
	SpecDraft     Opt[int64] // draft tokens
	SpecAccepted  Opt[int64]
}

// Delivered: a front end received the message that a StepOutput announced.
type Delivered struct {
	At     Mono
	Engine EngineID
	PID    uint32 // the front end
	Key    uint64
	// Stamped says that At is when the front end stamped the message itself: until
	// then run the times to first token and end to end. Else At is the receipt, which
	// is earlier by what the front end had to do before it got to the message.
	Stamped bool
}

// Exchange names one HTTP request and its response.
type Exchange struct {
	Engine EngineID
	PID    uint32
	Conn   uint64
	Seq    uint32 // position on the connection, from 0
}

// ExchangeBegin: a request was read. It comes as soon as the whole request has
// been read, or what will be read of it.
type ExchangeBegin struct {
	At          Mono // first byte read
	Done        Mono // last byte read, 0 if it is not complete
	Exchange    Exchange
	Method      string
	Path        string // without the query
	TraceParent string
	TraceState  string
	RequestID   string // x-request-id
	UserAgent   string
	Host        string
	ContentType string
	LocalPort   uint16
	RemotePort  uint16
	BodyBytes   int64
	Body        RequestBody
	Midstream   bool // the connection was open before we looked: earlier bytes unknown
}

// RequestBody is what the JSON body of a request says.
type RequestBody struct {
	Parsed      bool // false: no JSON body, malformed, or cut before the end
	Truncated   bool // longer than the cap; fields beyond it are unknown
	Model       Opt[string]
	N           Opt[int64]
	Temperature Opt[float64]
	TopP        Opt[float64]
	TopK        Opt[int64]
	MaxTokens   Opt[int64]
	Stream      Opt[bool]
	User        Opt[string]
	Tools       int64  // tools offered
	Inputs      int64  // prompts, embedding inputs or documents in the body, 0 if there are none or none was seen
	MoreInputs  bool   // the body is cut within the list of them
	Messages    string // content as JSON text of the GenAI conventions; "" unless content is wanted
}

// ToolCall is a call of a tool that a response asks for.
type ToolCall struct {
	Choice    int64
	Index     int64
	Name      string // "" if not seen
	Arguments string // JSON text; "" unless content is wanted and all of the response was seen
}

// ExchangeFirst: the response began.
type ExchangeFirst struct {
	At         Mono
	Exchange   Exchange
	Status     int
	ResponseID string // "" if not known yet
}

// Outcome says how an exchange ended.
type Outcome uint8

// Ways an exchange ends.
const (
	OutcomeComplete   Outcome = 1 + iota // the whole response was written
	OutcomeDisconnect                    // the client closed before that
	OutcomeClosed                        // the server closed before that
	OutcomeExit                          // the process ended before that
	OutcomeDetached                      // we stopped looking before that
)

// ExchangeEnd: the response ended, one way or another.
type ExchangeEnd struct {
	At            Mono // last byte written, or the close
	Exchange      Exchange
	First         Mono // first byte of the response, 0 if none
	Outcome       Outcome
	Status        int // 0: no response
	Streamed      bool
	Chunks        int64 // writes of the response
	Bytes         int64
	ResponseID    string
	Model         Opt[string]
	FinishReasons []string // per choice; nil if not seen
	InputTokens   Opt[int64]
	OutputTokens  Opt[int64]
	CachedTokens  Opt[int64]
	ToolCalls     Opt[int64]
	Calls         []ToolCall // those of a chat that were seen, by choice and number; all if ToolCalls is known
	ErrorType     string     // from an error body
	ErrorMessage  string     // from an error body; "" unless content is wanted, since it may quote the input
	Content       string     // output as JSON text of the GenAI conventions; "" unless content is wanted
	Gap           bool       // bytes of the response were not seen
}

// ProcessExit: a watched process ended.
type ProcessExit struct {
	At     Mono
	Engine EngineID
	PID    uint32
	Code   uint32
}

// Loss: records were lost, so what follows may lack parts. Totals, by reason.
type Loss struct {
	At    Mono
	Stage string // "kernel", "decode"
	Lost  []LossCount
}

// LossCount is a total for one reason.
type LossCount struct {
	Reason string
	N      uint64
}

// Detach: we stop looking; requests in flight are exported with what is known.
type Detach struct {
	At Mono
}

func (*Clock) isSignal()          {}
func (*Engine) isSignal()         {}
func (*RequestAdded) isSignal()   {}
func (*RequestAborted) isSignal() {}
func (*CoreFailed) isSignal()     {}
func (*StepOutput) isSignal()     {}
func (*Delivered) isSignal()      {}
func (*ExchangeBegin) isSignal()  {}
func (*ExchangeFirst) isSignal()  {}
func (*ExchangeEnd) isSignal()    {}
func (*ProcessExit) isSignal()    {}
func (*Loss) isSignal()           {}
func (*Detach) isSignal()         {}
