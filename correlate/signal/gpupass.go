package signal

// DetailForward is the name of what probes on the CUDA driver tell, in ProbeChange.
const DetailForward = "forward"

// SourceRuntime ends the source of DetailForward where calls are seen at the CUDA runtime:
// those of libraries that do not use it are missing.
const SourceRuntime = "runtime"

// DetailMessages is the name of what probes in workers that are processes of their own
// tell: at which message of their core they are.
const DetailMessages = "messages"

// GPUWork counts what a thread had its GPU do. Whatever waits in a stream counts when it
// was called for.
type GPUWork struct {
	Kernels       int64 // launched one by one
	Graphs        int64 // launched
	GraphKernels  int64 // kernels of those graphs of which that is known
	GraphsUnknown int64 // graphs of which it is not
	Copies        int64
	CopyBytes     int64
}

// Less returns the work since an earlier count.
func (w GPUWork) Less(than GPUWork) GPUWork {
	return GPUWork{
		Kernels: w.Kernels - than.Kernels, Graphs: w.Graphs - than.Graphs,
		GraphKernels: w.GraphKernels - than.GraphKernels, GraphsUnknown: w.GraphsUnknown - than.GraphsUnknown,
		Copies: w.Copies - than.Copies, CopyBytes: w.CopyBytes - than.CopyBytes,
	}
}

// GPUPoint is how much a thread had its GPU do up to a moment.
type GPUPoint struct {
	At       Mono
	Engine   EngineID
	PID, TID uint32
	Work     GPUWork // since the thread was first seen
	// Epoch moves when it changes what is counted: differences are of points of one. It is
	// 1 since the process is looked at, when all counts are 0.
	Epoch uint32
	// Continues is from how many epochs before this one on, at least, all but kernels and
	// copies was counted without a break.
	Continues uint32
	Launches  bool // kernels and copies are counted, not only graphs
	// First and Last launch, of those that are counted, since the thread's last mark; 0
	// if there was none.
	First, Last Mono
	// Marks of the thread so far, one that is this point included: a gap tells that one
	// was lost.
	Marks uint32
}

// GPUMark is a point at which something else is known about the thread. It comes before
// the signal that says what, if there is one.
type GPUMark struct {
	GPUPoint
	Step StepMark
	// Bursts are the first of the launches between First and Last, in their order, those
	// with no event recorded in between as one; the latest ones, if the first of them is not
	// First. The last ones are zero if there are fewer.
	Bursts [GPUBursts]GPUBurst
}

// GPUBursts is how many bursts a mark has at most; there may have been more.
const GPUBursts = 8

// GPUBurst is launches that follow each other.
type GPUBurst struct{ First, Last Mono }

// StepMark says what a mark is to a step of the scheduler.
type StepMark uint8

// Marks of steps.
const (
	StepUnmarked StepMark = iota
	// StepBegins: the scheduler begins a step here; Schedule of its Step is At. What the
	// thread calls for from here on is of that step.
	StepBegins
	// StepLaunched: the scheduler has launched a step; Launched of its Step is At. What the
	// thread called for since its mark before this one is of that step.
	StepLaunched
	// StepTaken: a worker that is a process of its own takes a message of its core, which
	// MessageTaken tells. What it calls for from here to the next one is of this message.
	StepTaken
	// StepIdle: such a worker has no message to work on.
	StepIdle
)

// MessageTaken says which message of its core a worker took at a mark. It comes after the
// mark, but not always before the next one.
type MessageTaken struct {
	At     Mono // of the mark
	Engine EngineID
	PID    uint32
	Core   Core
	// Step is the Dispatch of the step that the message has the worker execute; 0 if it is
	// another message: what comes of it belongs to the step before.
	Step Mono
}

// RankLaunched: a rank that does what another scheduler does, the first of its ranks, has
// launched a step at a mark, StepLaunched. It comes after the mark.
type RankLaunched struct {
	At     Mono // of the mark
	Engine EngineID
	PID    uint32
	Core   Core  // the first of its ranks
	Number int64 // of the step, the same as there
	// Schedule and More are those of a Step.
	Schedule Mono
	More     bool
}

// GPUWait: a thread waited for its GPU, up to At.
type GPUWait struct {
	GPUPoint
	Entry Mono
	// Slept: it gave up its CPU meanwhile.
	Slept bool
	// Submitted is when what was waited for had been called for, by the thread Submitter:
	// it is done at At. 0 if that was not seen.
	Submitted Mono
	Submitter uint32
	// Event: the wait was for an event, all that was in its stream when it was recorded;
	// else for what the thread itself had called for, in a stream or in all.
	Event  bool
	Failed bool
}

func (*GPUMark) isSignal()      {}
func (*MessageTaken) isSignal() {}
func (*RankLaunched) isSignal() {}
func (*GPUWait) isSignal()      {}
