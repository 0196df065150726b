// Package nvml reads NVIDIA GPUs through NVML, the management library of the driver.
//
// Open needs cgo (nvml_cgo.go): the library is loaded at run time, if it is there. A build
// without cgo has everything but that, and Open says so. Library and Device are what is read;
// package nvmltest has a fake of them.
//
// A value that a device does not tell is an error, never zero. Errors wrap the sentinels
// below where the reader has to tell them apart.
package nvml

import "errors"

// Errors of Open, and of calls.
var (
	// ErrNoCgo: this build cannot load the library.
	ErrNoCgo = errors.New("built without cgo")
	// ErrNoLibrary: libnvidia-ml.so.1 is not there. Normal without an NVIDIA GPU.
	ErrNoLibrary = errors.New("libnvidia-ml.so.1 cannot be loaded")
	// ErrNoDriver: the library is there, the kernel module is not loaded or not reached.
	ErrNoDriver = errors.New("the NVIDIA driver is not loaded")
	// ErrPermission: the driver refuses this process.
	ErrPermission = errors.New("no permission")
	// ErrNotSupported: this device has no such value.
	ErrNotSupported = errors.New("not supported by this device")
	// ErrNoFunction: the library is too old for the call.
	ErrNoFunction = errors.New("not in this version of the driver's library")
	// ErrNoData: nothing new since the last call.
	ErrNoData = errors.New("no data")
	// ErrTimeout: no event came.
	ErrTimeout = errors.New("timeout")
	// ErrLost: the device does not answer any more. Only a reset or a reboot helps.
	ErrLost = errors.New("the GPU is lost")
)

// Library is NVML. Its methods, and those of its devices, may be called by several
// goroutines.
type Library interface {
	// Driver is the version of the driver.
	Driver() (string, error)
	// Devices are the GPUs in the order of their indices. One that cannot be opened is left
	// out, and told in the error beside the others.
	Devices() ([]Device, error)
	// Watch has Wait tell of the critical errors (XID) of devices. It may be called once.
	Watch([]Device) error
	// Wait waits for an event, at most for that many milliseconds, then it is ErrTimeout.
	Wait(ms int) (Event, error)
	Close() error
}

// Event is a critical error of a device.
type Event struct {
	UUID string // of the GPU
	XID  uint64
}

// Device is a GPU, or an instance of one.
type Device interface {
	UUID() (string, error)
	Index() (int64, error) // of a GPU, in the order of PCI addresses
	Name() (string, error)
	BusID() (string, error)
	Utilization() (Utilization, error)
	Memory() (Memory, error)
	Power() (milliwatts int64, err error)
	PowerLimit() (milliwatts int64, err error)
	Energy() (millijoules uint64, err error) // since the driver was loaded
	Clock(Clock) (megahertz int64, err error)
	Temperature() (celsius int64, err error)
	Throttle() (reasons uint64, err error)             // see Reasons
	PCIe(Direction) (kibPerSecond int64, err error)    // measures for 20 ms
	NVLink(Direction) (kib uint64, err error)          // of all links, since the driver was loaded
	ECC(uncorrected bool) (errors uint64, err error)   // since the driver was loaded
	Processes() ([]Process, error)                     // that compute or draw
	Used(since uint64) (used []Usage, err error)       // by process, newer than that; ErrNoData: none
	MIG() (on bool, err error)                         // it is split into instances
	Instances() ([]Device, error)                      // those that there are
	Instance() (gpuInstance, compute int64, err error) // ids of an instance
}

// Utilization is percent of the time of the driver's last sample period, 1/6 s to 1 s.
type Utilization struct{ GPU, Memory int64 }

// Memory of a device in bytes. Used leaves out Reserved; both are known together only.
type Memory struct {
	Total, Used, Reserved uint64
	// OnlyTotal says that nothing else is known, and Why.
	OnlyTotal bool
	Why       error
}

// Clock is a clock domain.
type Clock uint8

// Clocks.
const (
	SM Clock = iota
	MemoryClock
)

// Direction of data, as seen from the device.
type Direction uint8

// Directions.
const (
	Sent Direction = iota
	Received
)

// Process is a process on a device.
type Process struct {
	PID         uint32
	Memory      uint64 // bytes
	MemoryKnown bool
}

// Usage is how busy a process kept a device.
type Usage struct {
	PID  uint32
	SM   int64  // percent of time
	Time uint64 // of the sample, us since the epoch
}

// reasons are the names of the bits of Throttle, as nvml.h has them
// (nvmlClocksEventReason*).
var reasons = []struct {
	bit  uint64
	name string
}{
	{1 << 0, "gpu_idle"}, {1 << 1, "applications_clocks_setting"}, {1 << 2, "sw_power_cap"}, {1 << 3, "hw_slowdown"},
	{1 << 4, "sync_boost"}, {1 << 5, "sw_thermal_slowdown"}, {1 << 6, "hw_thermal_slowdown"}, {1 << 7, "hw_power_brake_slowdown"},
	{1 << 8, "display_clock_setting"}, {1 << 9, "board_limit"}, {1 << 10, "reliability"},
}

// Reasons names the bits of Throttle. Bits that this version does not know are one name,
// unknown.
func Reasons(mask uint64) []string {
	var out []string
	for _, r := range reasons {
		if mask&r.bit != 0 {
			out = append(out, r.name)
			mask &^= r.bit
		}
	}
	if mask != 0 {
		out = append(out, "unknown")
	}
	return out
}
