package signal

// Stage is a stretch of a request's way through one thread of the engine, by the
// engine's own name for it and, unless Method says otherwise, its own stamps. It comes
// when its end is known, or when the request ends.
type Stage struct {
	At      Mono // when it was seen
	Engine  EngineID
	PID     uint32 // process whose thread it was in
	ID      string // RequestAdded.ID
	Name    string // SGLang: one of RequestStage, "prefill_waiting"
	Start   Mono
	End     Mono       // 0: it has no end of its own and lasts until the request leaves the thread
	Round   Opt[int64] // which of several of its name it is, where the engine counts them
	Retract bool       // it belongs to a run after the request was put back
	// Method says how a stamp was derived that the engine does not keep, "" if none was.
	Method     string
	Drafts     Opt[int64] // draft tokens that were accepted, of "spec_verify"
	MicroBatch Opt[int64] // number of the pipeline's micro-batch, of "run_batch_cpu"
}

// Names of marks.
const (
	MarkSchedule = "schedule" // it is in a batch that is about to run
	MarkRetract  = "retract"  // it was put back
	MarkComplete = "complete" // the thread was done with it, by its own stamp
	MarkUnseen   = "unseen"   // it had stages whose stamps were not seen, some time before
	MarkUnkept   = "unkept"   // the engine keeps no stamps of some of its stages
)

// Mark is something that happened to a request in one thread of the engine at one
// moment.
type Mark struct {
	At     Mono
	Engine EngineID
	PID    uint32
	ID     string // RequestAdded.ID
	Name   string // one of the Mark names
	Method string // as in Stage
	// Of the batch, with "schedule".
	Batch Opt[int64] // the engine's count of batches
	Size  Opt[int64] // requests in it
	Mode  string     // "prefill", "decode", "prebuilt"; "" if not known
	// Unkept names the stages that have no stamps, and MarkSchedule if batches have none,
	// with "unkept". It is valid beyond the call.
	Unkept []string
}

// RequestTimes are stamps of a front end about a request, each as soon as it is known;
// a stamp that is not in a signal may have come in an earlier one.
type RequestTimes struct {
	At         Mono
	Engine     EngineID
	PID        uint32 // the front end
	ID         string // RequestAdded.ID
	Created    Mono   // 0: not in this signal, as in all of these
	Dispatched Mono   // handed over to the scheduler
	First      Mono   // first output
	Finished   Mono
}

func (*Stage) isSignal()        {}
func (*Mark) isSignal()         {}
func (*RequestTimes) isSignal() {}
