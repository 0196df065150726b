package signal

// EngineConfig: what a core was configured with, read from its memory when we
// attached. It comes after the Engine signal and before the core's first
// RequestPeeked or EngineState. What a version lacks or what could not be read
// is unknown.
type EngineConfig struct {
	At               Mono
	Core             Core
	Model            Opt[string]
	MaxModelLen      Opt[int64] // tokens of prompt and output
	MaxSeqs          Opt[int64] // requests running at once
	MaxBatchedTokens Opt[int64] // tokens in one step
	BlockSize        Opt[int64] // tokens in one KV block
	Blocks           Opt[int64] // KV blocks, with one that is never used where the engine sets that aside
	TensorParallel   Opt[int64]
	PipelineParallel Opt[int64]
	DataParallel     Opt[int64]
	PrefixCaching    Opt[bool]
	ChunkedPrefill   Opt[bool]
	AsyncScheduling  Opt[bool] // a step is scheduled while the one before it runs
	LogStats         Opt[bool] // events and statistics are sent
	Policy           Opt[string]
	SpecMethod       Opt[string] // speculative decoding; "" is none
	SpecTokens       Opt[int64]  // draft tokens for each step
	KVConnector      Opt[string] // "" is none
	KVRole           Opt[string]
	LoRA             Opt[bool]
}

// RequestPeeked: a request that a core had when it was looked at, read from its
// memory: how a request that was in flight at attach becomes known. The same
// request may have been seen arriving, or come again with a later look, which
// then says more.
//
// The counts are as of At in this sense: tokens in a StepOutput with a Stamp
// before At are in Output, those in one with a later Stamp are not.
type RequestPeeked struct {
	At      Mono
	Request RequestAdded // its At is 0 and Known is false
	State   RequestState
	Status  string // the engine's word for State
	// Computed is for how many tokens of prompt and output the KV cache is
	// filled, those counted that a step under way will fill; as of a moment within
	// the seconds before At.
	Computed Opt[int64]
	// Output is how many tokens were generated.
	Output Opt[int64]
	// Cached is how many prompt tokens were found in the prefix cache; it is known
	// only until the first output.
	Cached      Opt[int64]
	Preemptions Opt[int64]
	// Events are those that the engine has not yet sent: they will come once more
	// in the next Output of the request, with the same times. A request without
	// output has all of its events here if the engine keeps any.
	Events []EngineEvent
}

// RequestState is what a core does with a request.
type RequestState uint8

// States of requests.
const (
	RequestUnknown   RequestState = iota // a state that this build does not know
	RequestWaiting                       // queued, or waiting for something else than its turn
	RequestRunning                       // in the batch
	RequestPreempted                     // was in the batch, waits to get back
	RequestFinished                      // kept for a while after its end
)

// EngineState is the state of a core, read from its memory once in a while
// whether it works or not. SchedulerStats has the same values after each step,
// from the engine itself, unless its statistics are off.
type EngineState struct {
	At      Mono
	Core    Core
	Running Opt[int64]
	// Waiting is how many requests wait for their turn; Deferred, how many of the
	// others wait for something else, where the engine tells them apart.
	Waiting    Opt[int64]
	Deferred   Opt[int64]
	FreeBlocks Opt[int64]
	Blocks     Opt[int64]   // that can be used
	KVUsage    Opt[float64] // share in use, 0 to 1, as the engine works it out
	Step       Opt[int64]   // number of the latest step
	UsedTokens Opt[int64]   // tokens in the KV cache that are in use
	// What the engine last worked out for its own reports.
	Throughput   Opt[float64] // tokens generated per second
	HitRate      Opt[float64] // share of prompt tokens found in the prefix cache, 0 to 1
	AcceptLength Opt[float64] // tokens per check of drafts
}

// CoreAwaited: a process is going to be looked into for the state of its engine core, and
// to get probes if it has one.
type CoreAwaited struct {
	At     Mono
	Engine EngineID
	PID    uint32
}

// ProbeChange: probes that gave a kind of detail were put in, taken out, or could
// not be put in.
type ProbeChange struct {
	At     Mono
	Engine EngineID
	PID    uint32
	Probe  string // name of the detail, like "steps"
	Active bool
	Reason string // why not active, or not by the best source
	// Source is which of several ways is used, if there are several, and Lacks what it
	// does not tell.
	Source string
	Lacks  string
	// Less is what is left out for a while since it costs too much: names of stages or
	// attributes, or in words; Why is the reason.
	Less []string
	Why  string
}

func (*EngineConfig) isSignal()  {}
func (*RequestPeeked) isSignal() {}
func (*EngineState) isSignal()   {}
func (*CoreAwaited) isSignal()   {}
func (*ProbeChange) isSignal()   {}
