// Package nvmltest has a fake of NVML: devices with the values that a test gives them.
package nvmltest

import (
	"errors"
	"slices"
	"sync"
	"time"

	"inferspan/gpu/nvml"
)

// Library is a fake library. Its fields may be changed under Lock.
type Library struct {
	sync.Mutex
	DriverVersion string
	GPUs          []*Device
	NoEvents      error // what Watch says
	Events        chan nvml.Event
	Closed        bool
}

// New returns a library with those GPUs.
func New(gpus ...*Device) *Library {
	l := &Library{DriverVersion: "580.95.05", GPUs: gpus, Events: make(chan nvml.Event, 16)}
	for _, g := range gpus {
		g.lib = l
		for _, m := range g.Split {
			m.lib = l
		}
	}
	return l
}

// Driver is DriverVersion.
func (l *Library) Driver() (string, error) { return l.DriverVersion, nil }

// Devices are GPUs.
func (l *Library) Devices() ([]nvml.Device, error) { return list(l.GPUs), nil }

func list(ds []*Device) []nvml.Device {
	var out []nvml.Device
	for _, d := range ds {
		out = append(out, d)
	}
	return out
}

// Watch is NoEvents.
func (l *Library) Watch([]nvml.Device) error { return l.NoEvents }

// Wait takes from Events.
func (l *Library) Wait(ms int) (nvml.Event, error) {
	select {
	case e := <-l.Events:
		return e, nil
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return nvml.Event{}, nvml.ErrTimeout
	}
}

// Close sets Closed.
func (l *Library) Close() error {
	l.Lock()
	defer l.Unlock()
	if l.Closed {
		return errors.New("closed twice")
	}
	l.Closed = true
	return nil
}

// Device is a fake device. A call that has an error in Fail gives that, by its name.
type Device struct {
	lib *Library

	ID, Product, Bus                   string
	Util                               nvml.Utilization
	Mem                                nvml.Memory
	MW, LimitMW                        int64
	MJ                                 uint64
	SMClock, MemClock                  int64
	Celsius                            int64
	Mask                               uint64
	PCIeSent, PCIeReceived             int64
	NVSent, NVReceived                 uint64
	CorrectedErrors, UncorrectedErrors uint64
	Procs                              []nvml.Process
	Usage                              []nvml.Usage
	Split                              []*Device // instances; MIG is on if it is not nil
	GPUInstanceID, ComputeInstanceID   int64
	Fail                               map[string]error
	Lost                               bool
}

func (d *Device) fail(call string) error {
	if d.Lost {
		return nvml.ErrLost
	}
	return d.Fail[call]
}

func get[T any](d *Device, call string, v *T) (T, error) {
	d.lib.Lock()
	defer d.lib.Unlock()
	var none T
	if err := d.fail(call); err != nil {
		return none, err
	}
	return *v, nil
}

// The calls of nvml.Device.

func (d *Device) UUID() (string, error)                  { return get(d, "UUID", &d.ID) }
func (d *Device) Name() (string, error)                  { return get(d, "Name", &d.Product) }
func (d *Device) BusID() (string, error)                 { return get(d, "BusID", &d.Bus) }
func (d *Device) Utilization() (nvml.Utilization, error) { return get(d, "Utilization", &d.Util) }
func (d *Device) Memory() (nvml.Memory, error)           { return get(d, "Memory", &d.Mem) }
func (d *Device) Power() (int64, error)                  { return get(d, "Power", &d.MW) }
func (d *Device) PowerLimit() (int64, error)             { return get(d, "PowerLimit", &d.LimitMW) }
func (d *Device) Energy() (uint64, error)                { return get(d, "Energy", &d.MJ) }
func (d *Device) Temperature() (int64, error)            { return get(d, "Temperature", &d.Celsius) }
func (d *Device) Throttle() (uint64, error)              { return get(d, "Throttle", &d.Mask) }
func (d *Device) Processes() ([]nvml.Process, error)     { return get(d, "Processes", &d.Procs) }

// Index is the place in the library.
func (d *Device) Index() (int64, error) {
	d.lib.Lock()
	defer d.lib.Unlock()
	return int64(slices.Index(d.lib.GPUs, d)), d.fail("Index")
}

// Clock is SMClock or MemClock.
func (d *Device) Clock(c nvml.Clock) (int64, error) {
	if c == nvml.SM {
		return get(d, "Clock", &d.SMClock)
	}
	return get(d, "Clock", &d.MemClock)
}

// PCIe is PCIeSent or PCIeReceived.
func (d *Device) PCIe(dir nvml.Direction) (int64, error) {
	if dir == nvml.Sent {
		return get(d, "PCIe", &d.PCIeSent)
	}
	return get(d, "PCIe", &d.PCIeReceived)
}

// NVLink is NVSent or NVReceived.
func (d *Device) NVLink(dir nvml.Direction) (uint64, error) {
	if dir == nvml.Sent {
		return get(d, "NVLink", &d.NVSent)
	}
	return get(d, "NVLink", &d.NVReceived)
}

// ECC is CorrectedErrors or UncorrectedErrors.
func (d *Device) ECC(uncorrected bool) (uint64, error) {
	if uncorrected {
		return get(d, "ECC", &d.UncorrectedErrors)
	}
	return get(d, "ECC", &d.CorrectedErrors)
}

// Used are those of Usage that are newer.
func (d *Device) Used(since uint64) ([]nvml.Usage, error) {
	all, err := get(d, "Used", &d.Usage)
	var out []nvml.Usage
	for _, u := range all {
		if u.Time > since {
			out = append(out, u)
		}
	}
	if err == nil && len(out) == 0 {
		err = nvml.ErrNoData
	}
	return out, err
}

// MIG says whether Split is set.
func (d *Device) MIG() (bool, error) {
	split, err := get(d, "MIG", &d.Split)
	return split != nil, err
}

// Instances are Split.
func (d *Device) Instances() ([]nvml.Device, error) {
	split, err := get(d, "Instances", &d.Split)
	return list(split), err
}

// Instance is GPUInstanceID and ComputeInstanceID.
func (d *Device) Instance() (int64, int64, error) {
	gi, err := get(d, "Instance", &d.GPUInstanceID)
	return gi, d.ComputeInstanceID, err
}
