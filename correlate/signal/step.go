package signal

// Step is one iteration of a core's scheduler, as the scheduler itself held it.
// It comes when the step has given its outputs, thus after those of earlier
// steps, and about when the StepOutput messages with its outputs come: those
// whose Stamp is at or just after Update.
//
// With asynchronous scheduling steps overlap: Schedule of the next one comes
// before Update of this one.
type Step struct {
	Core Core
	// Number is the engine's own count of steps. Where the engine has none, it is
	// counted by us and Counted is set: it starts anywhere, but has no gaps unless
	// steps were lost.
	Number  Opt[int64]
	Counted bool
	// Schedule is when the scheduler began to put the step together, 0 if that was
	// not seen: events of kind EventScheduled or EventPreempted of this step are
	// stamped then, within microseconds.
	Schedule Mono
	// Launched is when all of it had been launched, 0 if there is no such moment or it
	// was not seen: Schedule is then the beginning of the launch. More says that something
	// was launched behind it after all.
	Launched Mono
	More     bool
	// Method is how the step was seen. By its dispatch: Schedule is known only if the
	// engine's events say it, the state is that at Dispatch, when the step had been put
	// together, and FreeAfter is not known.
	Method StepMethod
	// Dispatch is when the workers were told of the step, 0 if that was not seen.
	Dispatch Mono
	// Update is when the outputs were made, 0 if the step gave none that we saw.
	Update Mono
	// Requests of the step, in the order of the batch. Partial says that there are
	// more, or that some could not be read.
	Requests []StepRequest
	Partial  bool
	Tokens   Opt[int64] // scheduled in all
	// Preempted are the requests that had to leave the batch for this step; nil if
	// there were none. PreemptedKnown is not set where the engine does not say.
	Preempted      [][]byte
	PreemptedKnown bool
	// Finished are the requests that ended, in whatever way, since the step before,
	// where the engine lists them; nil if there were none or it is not known. It is
	// what tells of the end where no outputs are seen.
	Finished [][]byte
	// State of the scheduler at Schedule, before the step was put together.
	Running    Opt[int64]
	Waiting    Opt[int64]
	Deferred   Opt[int64]
	FreeBlocks Opt[int64]
	Blocks     Opt[int64] // that can be used
	// FreeAfter are the free blocks at Update, those of finished requests counted.
	FreeAfter Opt[int64]
	Detail    StepDetail
}

// StepRequest is a request in a step.
type StepRequest struct {
	ID     []byte // RequestAdded.ID
	Tokens int64  // computed for it in this step, drafts counted; -1 if not known
	// Computed is how many tokens were computed for it before this step, those
	// from the prefix cache counted.
	Computed Opt[int64]
	Entry    StepEntry
	Phase    StepPhase
}

// StepEntry says how a request came into a step.
type StepEntry uint8

// Ways into a step.
const (
	StepEntryUnknown StepEntry = iota
	StepNew                    // scheduled for the first time
	StepRunning                // it was in the batch
	StepResumed                // back after a preemption
)

// StepPhase says what a request's tokens in a step are.
type StepPhase uint8

// Phases.
const (
	StepPhaseUnknown StepPhase = iota
	// StepPrefillChunk: tokens of the prompt, and more of it is to come. No token
	// is generated.
	StepPrefillChunk
	// StepPrefillEnd: the rest of the prompt; a token is generated.
	StepPrefillEnd
	// StepDecode: behind the prompt.
	StepDecode
	// StepRecompute: after a preemption, tokens that were computed before, and
	// maybe new ones.
	StepRecompute
)

// StepMethod is how steps are seen.
type StepMethod uint8

// Methods.
const (
	StepByClock    StepMethod = iota // by reads of the clock at its beginning and its end
	StepByDispatch                   // by the message that wakes the workers, and the outputs
)

// StepDetail says what of a step was seen.
type StepDetail uint8

// Details.
const (
	StepSeen StepDetail = iota
	// StepNoEnd: scheduled, but the step's outputs were not seen being made. Its
	// requests are there if the next step showed them: those that gave no token.
	StepNoEnd
	StepNoBeginning // outputs, but not how they were scheduled
)

func (*Step) isSignal() {}
