package signal

// GPUDevice: facts about a GPU or an instance of one (MIG), before its first sample and
// again when a fact changes.
type GPUDevice struct {
	At     Mono
	UUID   string
	Index  Opt[int64] // by NVML; of an instance that of its GPU
	Name   string     // product, "" if not known
	BusID  string     // PCI address, "" if not known
	Driver string     // version, "" if not known
	MIG    Opt[bool]  // it is split into instances
	// Of an instance: the UUID of its GPU and its ids.
	Parent          string
	GPUInstance     Opt[int64]
	ComputeInstance Opt[int64]
	// Missing is what the device does not tell, with the reasons, by name.
	Missing []GPUMissing
}

// GPUMissing is a value that a device does not tell.
type GPUMissing struct{ What, Why string }

// GPUSamples are what the devices of the host told at a moment.
type GPUSamples struct {
	At      Mono
	Samples []GPUSample
	More    bool // the next signal has more devices of the same moment
}

// GPUSample is what a device told.
type GPUSample struct {
	UUID           string
	Lost           bool       // it does not answer any more: nothing else is known
	Utilization    Opt[int64] // percent of time in which some kernel ran
	MemoryActivity Opt[int64] // percent of time in which memory was read or written
	MemoryTotal    Opt[int64] // bytes
	MemoryUsed     Opt[int64] // bytes, without those reserved
	MemoryReserved Opt[int64] // bytes
	Power          Opt[int64] // mW
	PowerLimit     Opt[int64] // mW
	Energy         Opt[int64] // mJ since the driver was loaded
	ClockSM        Opt[int64] // MHz
	ClockMemory    Opt[int64] // MHz
	Temperature    Opt[int64] // degrees Celsius
	Throttled      []string   // reasons for lowered clocks, if ThrottleKnown
	ThrottleKnown  bool
	PCIeSent       Opt[int64] // KiB/s
	PCIeReceived   Opt[int64] // KiB/s
	NVLinkSent     Opt[int64] // KiB in all
	NVLinkReceived Opt[int64] // KiB in all
	Corrected      Opt[int64] // ECC errors since the driver was loaded
	Uncorrected    Opt[int64]
	Processes      []GPUProcess // if ProcessesKnown
	ProcessesKnown bool
	ProcessesLeft  int // processes that are there and not in Processes
}

// GPUProcess is a process on a device.
type GPUProcess struct {
	PID         uint32     // 0 if which process it is is not known
	Memory      Opt[int64] // bytes
	Utilization Opt[int64] // percent of time in which its kernels ran since the sample before
}

// GPUEvent: the driver reported a critical error of a device.
type GPUEvent struct {
	At   Mono
	UUID string
	XID  uint64
}

// GPUVisible: the devices that a process may use, by its environment.
type GPUVisible struct {
	At     Mono
	Engine EngineID
	PID    uint32
	UUIDs  []string
}

// GPUKernels: functions that a process launched, those of which something is new.
type GPUKernels struct {
	At      Mono
	Engine  EngineID
	PID     uint32
	Kernels []GPUKernel
	Beyond  Opt[int64] // launches of functions that are not counted one by one, in all
	Unnoted Opt[int64] // names that the driver gave out and that were not noted, in all
	// Launches of graphs in all, while launches were counted: those whose functions are
	// known; and those not seen being made, made or changed node by node, and without room.
	Graphs, GraphsUnseen, GraphsChanged, GraphsBeyond Opt[int64]
}

// GPUKernel is a function that was launched.
type GPUKernel struct {
	Handle   uint64
	Runtime  bool       // the handle is the CUDA runtime's, else the driver's
	Launches Opt[int64] // in all, while launches were counted, but for nodes of graphs
	InGraphs Opt[int64] // as nodes of graphs, in all
	// Symbol is the driver's name, Name the same as a reader knows it; both "" if it is
	// not known, or as in the signal before. By is how it is known.
	Symbol, Name, By string
}

// DetailGPU is the name of what NVML tells, in ProbeChange.
const DetailGPU = "gpu"

func (*GPUDevice) isSignal()  {}
func (*GPUSamples) isSignal() {}
func (*GPUEvent) isSignal()   {}
func (*GPUVisible) isSignal() {}
func (*GPUKernels) isSignal() {}
