//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Open loads the library and starts it. The error wraps ErrNoLibrary, ErrNoDriver or
// ErrPermission, or says what else there is.
func Open() (Library, error) {
	l := &library{nvml: nvml.New(), has: make(map[string]bool), uuids: make(map[nvml.Device]string)}
	switch r := l.nvml.Init(); r {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("loading NVML: %w", ErrNoLibrary)
	default:
		return nil, fmt.Errorf("starting NVML: %w", failure(r))
	}
	// A function that is called and not there ends the process.
	for _, name := range functions {
		l.has[name] = l.nvml.Extensions().LookupSymbol(name) == nil
	}
	return l, nil
}

// functions are those that are called besides what every version has.
var functions = []string{
	"nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetUUID", "nvmlDeviceGetIndex", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
	"nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature",
	"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEccErrors",
	"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
	"nvmlDeviceGetProcessUtilization", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
	"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes",
}

// failure makes an error of what a call returned, nil if it went well.
func failure(r nvml.Return) error {
	var kind error
	switch r {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_NOT_SUPPORTED:
		kind = ErrNotSupported
	case nvml.ERROR_NO_PERMISSION:
		kind = ErrPermission
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		kind = ErrNoFunction
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_NO_DATA:
		kind = ErrNoData
	case nvml.ERROR_TIMEOUT:
		kind = ErrTimeout
	case nvml.ERROR_GPU_IS_LOST:
		kind = ErrLost
	case nvml.ERROR_DRIVER_NOT_LOADED:
		kind = ErrNoDriver
	default:
		return fmt.Errorf("NVML error %d: %s", int32(r), nvml.ErrorString(r))
	}
	return kind
}

type library struct {
	nvml   nvml.Interface
	has    map[string]bool // functions
	events nvml.EventSet
	// uuids of watched devices: one that is lost may not tell it any more.
	uuids map[nvml.Device]string
}

// need says which of the functions are not there.
func (l *library) need(names ...string) error {
	for _, n := range names {
		if !l.has[n] {
			return fmt.Errorf("%s: %w", n, ErrNoFunction)
		}
	}
	return nil
}

func (l *library) Driver() (string, error) {
	if err := l.need("nvmlSystemGetDriverVersion"); err != nil {
		return "", err
	}
	v, r := l.nvml.SystemGetDriverVersion()
	return v, failure(r)
}

func (l *library) Devices() ([]Device, error) {
	if err := l.need("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"); err != nil {
		return nil, err
	}
	n, r := l.nvml.DeviceGetCount()
	if err := failure(r); err != nil {
		return nil, fmt.Errorf("counting GPUs: %w", err)
	}
	var out []Device
	var errs []error
	for i := range n {
		d, r := l.nvml.DeviceGetHandleByIndex(i)
		if err := failure(r); err != nil {
			errs = append(errs, fmt.Errorf("opening GPU %d: %w", i, err))
			continue
		}
		out = append(out, &device{lib: l, nvml: d})
	}
	return out, errors.Join(errs...)
}

func (l *library) Watch(devices []Device) error {
	if err := l.need("nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetUUID"); err != nil {
		return err
	}
	set, r := l.nvml.EventSetCreate()
	if err := failure(r); err != nil {
		return fmt.Errorf("making an event set: %w", err)
	}
	var errs []error
	n := 0
	for _, d := range devices {
		d, ok := d.(*device)
		if !ok {
			return errors.New("watching a device of another library")
		}
		types, r := d.nvml.GetSupportedEventTypes()
		err := failure(r)
		if err == nil && types&nvml.EventTypeXidCriticalError == 0 {
			err = ErrNotSupported
		}
		if err == nil {
			err = failure(d.nvml.RegisterEvents(nvml.EventTypeXidCriticalError, set))
		}
		var uuid string
		if err == nil {
			uuid, err = d.UUID()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("watching for errors of a GPU: %w", err))
			continue
		}
		l.uuids[d.nvml] = uuid
		n++
	}
	if n == 0 {
		l.nvml.EventSetFree(set)
		return errors.Join(errs...)
	}
	l.events = set
	return errors.Join(errs...)
}

func (l *library) Wait(ms int) (Event, error) {
	if l.events == nil {
		return Event{}, errors.New("waiting for events: nothing is watched")
	}
	e, r := l.nvml.EventSetWait(l.events, uint32(ms))
	if err := failure(r); err != nil {
		return Event{}, err
	}
	uuid, ok := l.uuids[e.Device]
	if !ok {
		return Event{}, fmt.Errorf("XID %d of a GPU that is not watched", e.EventData)
	}
	return Event{UUID: uuid, XID: e.EventData}, nil
}

func (l *library) Close() error {
	if l.events != nil {
		l.nvml.EventSetFree(l.events)
		l.events = nil
	}
	return failure(l.nvml.Shutdown())
}

// device is a device. Its methods are those of Device.
type device struct {
	lib  *library
	nvml nvml.Device
}

// ask calls a function that may not be there.
func ask[T any](d *device, function string, call func() (T, nvml.Return)) (v T, err error) {
	if err := d.lib.need(function); err != nil {
		return v, err
	}
	v, r := call()
	return v, failure(r)
}

func (d *device) UUID() (string, error) { return ask(d, "nvmlDeviceGetUUID", d.nvml.GetUUID) }
func (d *device) Name() (string, error) { return ask(d, "nvmlDeviceGetName", d.nvml.GetName) }

func (d *device) Index() (int64, error) {
	v, err := ask(d, "nvmlDeviceGetIndex", d.nvml.GetIndex)
	return int64(v), err
}

func (d *device) BusID() (string, error) {
	p, err := ask(d, "nvmlDeviceGetPciInfo_v3", d.nvml.GetPciInfo)
	if err != nil {
		return "", err
	}
	var b []byte
	for _, c := range p.BusId {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b), nil
}

func (d *device) Utilization() (Utilization, error) {
	u, err := ask(d, "nvmlDeviceGetUtilizationRates", d.nvml.GetUtilizationRates)
	return Utilization{GPU: int64(u.Gpu), Memory: int64(u.Memory)}, err
}

func (d *device) Memory() (Memory, error) {
	m, err := ask(d, "nvmlDeviceGetMemoryInfo_v2", d.nvml.GetMemoryInfo_v2)
	if err == nil {
		return Memory{Total: m.Total, Used: m.Used, Reserved: m.Reserved}, nil
	}
	if errors.Is(err, ErrLost) {
		return Memory{}, err
	}
	// The older call has what is reserved in what is used.
	old, oldErr := ask(d, "nvmlDeviceGetMemoryInfo", d.nvml.GetMemoryInfo)
	return Memory{Total: old.Total, OnlyTotal: true, Why: err}, oldErr
}

func (d *device) Power() (int64, error) {
	v, err := ask(d, "nvmlDeviceGetPowerUsage", d.nvml.GetPowerUsage)
	return int64(v), err
}

func (d *device) PowerLimit() (int64, error) {
	v, err := ask(d, "nvmlDeviceGetEnforcedPowerLimit", d.nvml.GetEnforcedPowerLimit)
	return int64(v), err
}

func (d *device) Energy() (uint64, error) {
	return ask(d, "nvmlDeviceGetTotalEnergyConsumption", d.nvml.GetTotalEnergyConsumption)
}

func (d *device) Clock(c Clock) (int64, error) {
	kind := nvml.CLOCK_SM
	if c == MemoryClock {
		kind = nvml.CLOCK_MEM
	}
	v, err := ask(d, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.nvml.GetClockInfo(kind) })
	return int64(v), err
}

func (d *device) Temperature() (int64, error) {
	v, err := ask(d, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return d.nvml.GetTemperature(nvml.TEMPERATURE_GPU) })
	return int64(v), err
}

func (d *device) Throttle() (uint64, error) {
	if d.lib.has["nvmlDeviceGetCurrentClocksEventReasons"] {
		return ask(d, "nvmlDeviceGetCurrentClocksEventReasons", d.nvml.GetCurrentClocksEventReasons)
	}
	// Its name before driver 535.
	return ask(d, "nvmlDeviceGetCurrentClocksThrottleReasons", d.nvml.GetCurrentClocksThrottleReasons)
}

func (d *device) PCIe(dir Direction) (int64, error) {
	kind := nvml.PCIE_UTIL_TX_BYTES
	if dir == Received {
		kind = nvml.PCIE_UTIL_RX_BYTES
	}
	v, err := ask(d, "nvmlDeviceGetPcieThroughput", func() (uint32, nvml.Return) { return d.nvml.GetPcieThroughput(kind) })
	return int64(v), err
}

func (d *device) NVLink(dir Direction) (uint64, error) {
	// The scope means the sum over all links.
	f := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: math.MaxUint32}}
	if dir == Received {
		f[0].FieldId = nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX
	}
	if _, err := ask(d, "nvmlDeviceGetFieldValues", func() (struct{}, nvml.Return) { return struct{}{}, d.nvml.GetFieldValues(f) }); err != nil {
		return 0, err
	}
	if err := failure(nvml.Return(f[0].NvmlReturn)); err != nil {
		return 0, err
	}
	return fieldCount(&f[0])
}

func (d *device) ECC(uncorrected bool) (uint64, error) {
	kind := nvml.MEMORY_ERROR_TYPE_CORRECTED
	if uncorrected {
		kind = nvml.MEMORY_ERROR_TYPE_UNCORRECTED
	}
	return ask(d, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) { return d.nvml.GetTotalEccErrors(kind, nvml.VOLATILE_ECC) })
}

func (d *device) Processes() ([]Process, error) {
	lists := []struct {
		function string
		call     func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses_v3", d.nvml.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses_v3", d.nvml.GetGraphicsRunningProcesses},
		{"nvmlDeviceGetMPSComputeRunningProcesses_v3", d.nvml.GetMPSComputeRunningProcesses},
	}
	var out []Process
	at := make(map[uint32]int)
	for i, l := range lists {
		list, err := ask(d, l.function, l.call)
		if i > 0 && errors.Is(err, ErrNotSupported) {
			continue // such processes cannot be there
		}
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			mem := Process{PID: p.Pid, Memory: p.UsedGpuMemory, MemoryKnown: p.UsedGpuMemory != math.MaxUint64}
			j, ok := at[p.Pid]
			if !ok {
				at[p.Pid] = len(out)
				out = append(out, mem)
				continue
			}
			// In several lists, or in several instances, it is the same memory or more of it.
			if mem.MemoryKnown && (!out[j].MemoryKnown || mem.Memory > out[j].Memory) {
				out[j] = mem
			}
		}
	}
	return out, nil
}

func (d *device) Used(since uint64) (used []Usage, err error) {
	list, err := ask(d, "nvmlDeviceGetProcessUtilization", func() (list []nvml.ProcessUtilizationSample, r nvml.Return) {
		// go-nvml asks for the number first: with more of them by the second call it
		// slices beyond its buffer.
		defer func() {
			if recover() != nil {
				list, r = nil, nvml.ERROR_INSUFFICIENT_SIZE
			}
		}()
		return d.nvml.GetProcessUtilization(since)
	})
	if err != nil {
		return nil, err
	}
	for _, u := range list {
		used = append(used, Usage{PID: u.Pid, SM: int64(u.SmUtil), Time: u.TimeStamp})
	}
	return used, nil
}

func (d *device) MIG() (bool, error) {
	on, err := ask(d, "nvmlDeviceGetMigMode", func() (int, nvml.Return) {
		current, _, r := d.nvml.GetMigMode()
		return current, r
	})
	return on == nvml.DEVICE_MIG_ENABLE, err
}

func (d *device) Instances() ([]Device, error) {
	if err := d.lib.need("nvmlDeviceGetMigDeviceHandleByIndex"); err != nil {
		return nil, err
	}
	n, err := ask(d, "nvmlDeviceGetMaxMigDeviceCount", d.nvml.GetMaxMigDeviceCount)
	if err != nil {
		return nil, err
	}
	var out []Device
	for i := range n {
		m, r := d.nvml.GetMigDeviceHandleByIndex(i)
		switch err := failure(r); {
		case errors.Is(err, ErrNoData): // places that are free
		case err != nil:
			return nil, fmt.Errorf("opening instance %d: %w", i, err)
		default:
			out = append(out, &device{lib: d.lib, nvml: m})
		}
	}
	return out, nil
}

func (d *device) Instance() (int64, int64, error) {
	gi, err := ask(d, "nvmlDeviceGetGpuInstanceId", d.nvml.GetGpuInstanceId)
	if err != nil {
		return 0, 0, err
	}
	ci, err := ask(d, "nvmlDeviceGetComputeInstanceId", d.nvml.GetComputeInstanceId)
	return int64(gi), int64(ci), err
}
