package note

import "inferspan/bpf/event"

// Kinds of notes about GPUs. Those about devices belong to no process: the PID of their
// records is 0.
const (
	KindGPUDevice  Kind = 32 // GPUDevice
	KindGPUSamples Kind = 33 // GPUSamples
	KindGPUEvent   Kind = 34 // GPUEvent
	KindGPUVisible Kind = 35 // GPUVisible, of the process of the record
	KindGPUKernels Kind = 36 // GPUKernels, of the process of the record
)

// GPUDevice are facts about a GPU or an instance of one (MIG). It comes before the first
// sample of the device, and again when a fact changes. Nil is not known.
type GPUDevice struct {
	UUID   string `json:"uuid"`
	Index  *int64 `json:"index,omitempty"` // by NVML, of the GPU that an instance is of too
	Name   string `json:"name,omitempty"`
	BusID  string `json:"bus_id,omitempty"`
	Driver string `json:"driver,omitempty"`
	MIG    *bool  `json:"mig,omitempty"` // the GPU is split into instances
	// Of an instance: the UUID of its GPU and its ids.
	Parent          string `json:"parent,omitempty"`
	GPUInstance     *int64 `json:"gpu_instance,omitempty"`
	ComputeInstance *int64 `json:"compute_instance,omitempty"`
	// Missing says what the device does not tell, and why.
	Missing map[string]string `json:"missing,omitempty"`
}

// GPUSamples are the samples of one moment: of all devices, or, if More is set, of a part
// of them, the next note having more of the same moment.
type GPUSamples struct {
	Samples []GPUSample `json:"samples"`
	More    bool        `json:"more,omitempty"`
}

// GPUSample is what a device told at a moment. Nil is not known.
type GPUSample struct {
	UUID string `json:"uuid"`
	// Lost says that the device does not answer any more; nothing else is known then.
	Lost           bool     `json:"lost,omitempty"`
	Utilization    *int64   `json:"util,omitempty"`     // percent of time
	MemoryActivity *int64   `json:"mem_util,omitempty"` // percent of time
	MemoryTotal    *uint64  `json:"mem_total,omitempty"`
	MemoryUsed     *uint64  `json:"mem_used,omitempty"`
	MemoryReserved *uint64  `json:"mem_reserved,omitempty"`
	Power          *int64   `json:"mw,omitempty"`
	PowerLimit     *int64   `json:"mw_limit,omitempty"`
	Energy         *uint64  `json:"mj,omitempty"`         // since the driver was loaded
	ClockSM        *int64   `json:"sm_mhz,omitempty"`     //
	ClockMemory    *int64   `json:"mem_mhz,omitempty"`    //
	Temperature    *int64   `json:"celsius,omitempty"`    //
	Throttled      []string `json:"throttled,omitempty"`  // names of reasons
	ThrottleKnown  bool     `json:"throttle,omitempty"`   // Throttled was read
	PCIeSent       *int64   `json:"pcie_tx,omitempty"`    // KiB/s
	PCIeReceived   *int64   `json:"pcie_rx,omitempty"`    // KiB/s
	NVLinkSent     *uint64  `json:"nvlink_tx,omitempty"`  // KiB in all
	NVLinkReceived *uint64  `json:"nvlink_rx,omitempty"`  // KiB in all
	Corrected      *uint64  `json:"ecc_corr,omitempty"`   // ECC errors since the driver was loaded
	Uncorrected    *uint64  `json:"ecc_uncorr,omitempty"` //
	// Processes are those on the device, if ProcessesKnown. Of more than MaxGPUProcesses the
	// rest is left out, and counted in ProcessesLeft.
	Processes      []GPUProcess `json:"procs,omitempty"`
	ProcessesKnown bool         `json:"procs_known,omitempty"`
	ProcessesLeft  int          `json:"procs_left,omitempty"`
}

// MaxGPUProcesses bounds the processes in a sample of one device.
const MaxGPUProcesses = 64

// GPUProcess is a process on a device.
type GPUProcess struct {
	// PID is 0 if which process of ours it is cannot be told.
	PID    uint32  `json:"pid"`
	Memory *uint64 `json:"mem,omitempty"` // bytes
	// Utilization is the percent of time in which its kernels ran, since the sample before.
	Utilization *int64 `json:"util,omitempty"`
}

// GPUEvent is an event of a device.
type GPUEvent struct {
	UUID string `json:"uuid"`
	// XID is the number of a critical error.
	XID uint64 `json:"xid"`
}

// GPUVisible are the devices that a process may use, by the environment that it was
// started with.
type GPUVisible struct {
	UUIDs   []string `json:"uuids,omitempty"`
	Problem string   `json:"problem,omitempty"` // why they are not known
}

// GPUKernels are functions that a process launched, those of which something changed since
// the note before.
type GPUKernels struct {
	Kernels []GPUKernel `json:"kernels"`
	// Beyond are launches of functions that are not counted one by one, there being too
	// many; Unnoted names that the driver gave out and that were not noted. Both in all.
	Beyond  uint64 `json:"beyond,omitempty"`
	Unnoted uint64 `json:"unnoted,omitempty"`
	// Graphs are launches of graphs whose functions are known, while launches were counted,
	// in all. The others: of graphs that were not seen being made, that were made or changed
	// node by node, and for which there was no room.
	Graphs        uint64 `json:"graphs,omitempty"`
	GraphsUnseen  uint64 `json:"g_unseen,omitempty"`
	GraphsChanged uint64 `json:"g_changed,omitempty"`
	GraphsBeyond  uint64 `json:"g_beyond,omitempty"`
}

// GPUKernel is a function that was launched.
type GPUKernel struct {
	Handle   uint64 `json:"h"`            // the driver's
	Runtime  bool   `json:"rt,omitempty"` // it is the runtime's: launches were counted there
	Launches uint64 `json:"n"`            // in all, but for nodes of graphs
	InGraphs uint64 `json:"g,omitempty"`  // as nodes of graphs, in all
	// Name is that of the driver, mangled, when it is first known or another than before;
	// By is how.
	Name string `json:"name,omitempty"`
	By   string `json:"by,omitempty"`
}

// PutGPUKernels makes the records of functions that a process launched, as many as are
// needed, and one if there are none.
func PutGPUKernels(pid uint32, at uint64, k GPUKernels) ([]*event.Record, error) {
	of := func(part []GPUKernel, _ bool) any {
		n := k
		n.Kernels = part
		return n
	}
	if len(k.Kernels) == 0 {
		r, err := Put(KindGPUKernels, pid, at, of([]GPUKernel{}, false))
		return []*event.Record{r}, err
	}
	return putParts(KindGPUKernels, pid, at, k.Kernels, of)
}

// PutGPUSamples makes the records of the samples of one moment, as many as are needed.
// A sample that is too long for a record is an error.
func PutGPUSamples(at uint64, samples []GPUSample) ([]*event.Record, error) {
	return putParts(KindGPUSamples, 0, at, samples, func(part []GPUSample, more bool) any { return GPUSamples{Samples: part, More: more} })
}
