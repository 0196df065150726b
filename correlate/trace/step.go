package trace

// Step is one iteration of an engine core's scheduler.
type Step struct {
	Resource    *Resource // the core's process
	EngineIndex int
	Number      Int  // the engine's own count, or ours
	Counted     bool // Number is our count
	// Start is when the scheduler began, End when the outputs were made, in ns
	// since the epoch; 0 if that was not seen.
	Start, End int64
	// Method is "dispatch" where the step was seen when the workers were told of it, at
	// Dispatch (as Start), and not by the clock. Start is then seldom known, and the
	// state of the core is as of Dispatch.
	Method   string
	Dispatch int64
	// Gap is the time from the end of the step before to this one's start, in ns;
	// negative if they overlap (asynchronous scheduling), unknown if steps between
	// were not seen. Idle says that no request was there to be worked on meanwhile.
	Gap  Int
	Idle bool

	Tokens    Int // scheduled in all
	Requests  []StepRequest
	Partial   bool     // there are requests that are not listed
	Preempted []string // engine ids of the requests that had to leave the batch

	Running, Waiting Int // before the step, or as of Dispatch
	Blocks           Int // KV blocks that can be used
	FreeBlocks       Int // as Running
	FreeAfter        Int // at its end

	// Forward is what the step had its GPUs do, one for each worker; none if that is not seen.
	Forward []Forward
	// FirstLaunchSkew and LastLaunchSkew are how far the first launches of the ranks of
	// tensor parallelism are apart, and their last ones, ns.
	FirstLaunchSkew, LastLaunchSkew Int
}

// Forward is a forward pass of a worker, as its host saw it: when it called for work and
// when it had waited for it, never when kernels ran. Times are ns since the epoch, 0 if not
// known.
type Forward struct {
	// Rank and Begin are of a worker that is a process of its own: its number among those
	// of its core, and when it took the message that has it execute the step.
	Rank  Int
	Begin int64

	Counted string // "all": what is launched one by one and copies count, "graph": only graphs do
	// Of what was called for in the step:
	Kernels      Int // launched one by one; with Counted "all"
	Graphs       Int
	GraphKernels Int // kernels in the graphs, if that is known of all
	Copies       Int // with Counted "all"
	CopyBytes    Int // the same
	// First and Last are the first and the last launch of those that count.
	First, Last int64
	// Submitted is when the outputs were called for: an event was recorded. Wait is when
	// the host began to wait for it, Done when it had come.
	Submitted, Wait, Done int64
	// Bound is "gpu" if the host had to wait, "host" if the outputs were there before, ""
	// if that is not known.
	Bound string
	// Gap is the time from Done of the pass before to First, ns: negative if the pass was
	// called for before that. With Counted "all" only.
	Gap Int
}

// StepRequest is a request in a step.
type StepRequest struct {
	ID        string // the engine's own
	RequestID string // as reported, "" if not known
	Tokens    Int
	Computed  Int // tokens computed before
	Kind      StepKind
}

// StepKind says what a request's tokens in a step are.
type StepKind string

// Kinds.
const (
	StepUnknown      StepKind = "unknown"
	StepPrefillChunk StepKind = "prefill_chunk" // more of the prompt is to come
	StepPrefill      StepKind = "prefill"       // the whole prompt or its last part
	StepDecode       StepKind = "decode"
	StepResumed      StepKind = "resumed" // computed again after a preemption
)

// Int is a number that may be unknown.
type Int struct {
	V  int64
	OK bool
}
