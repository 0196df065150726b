package nvml

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"

	"inferspan/probes/note"
)

// Reader reads all devices of a library, as notes. It is for one goroutine.
type Reader struct {
	lib     Library
	local   func(pid uint32) bool
	driver  string
	devices []*reading
	gpus    []Device // those of devices that are no instances
	problem error    // devices that could not be opened
	noXID   error    // why no errors are told of
}

// reading is a device that is read.
type reading struct {
	Device
	facts    note.GPUDevice // latest
	told     note.GPUDevice
	was      bool // told is
	missing  map[string]string
	lastUsed uint64 // us, newest sample of process utilisation
	usedOnce bool
	lost     bool
}

// NewReader begins to read a library. local tells whether a PID that NVML gives is one of
// ours, by the same number; one that is not has PID 0 in notes. The error is that no device
// can be read.
func NewReader(lib Library, local func(pid uint32) bool) (*Reader, error) {
	r := &Reader{lib: lib, local: local}
	r.driver, _ = lib.Driver()
	gpus, err := lib.Devices()
	problems := []error{err}
	for i, d := range gpus {
		// One without could not be told from others.
		if _, err := d.UUID(); err != nil {
			problems = append(problems, fmt.Errorf("reading the UUID of GPU %d of those here: %w", i, err))
			continue
		}
		r.gpus = append(r.gpus, d)
	}
	r.problem = errors.Join(problems...)
	if len(r.gpus) == 0 {
		if r.problem == nil {
			r.problem = errors.New("NVML knows no GPU")
		}
		return nil, r.problem
	}
	r.noXID = lib.Watch(r.gpus)
	return r, nil
}

// Problem says which devices are not read, nil if all are.
func (r *Reader) Problem() error { return r.problem }

// Refresh looks for instances and reads the facts. It returns those that are news.
func (r *Reader) Refresh() []note.GPUDevice {
	old := r.devices
	r.devices = nil
	for _, d := range r.gpus {
		r.refresh(old, d)
	}
	var out []note.GPUDevice
	for _, d := range r.devices {
		if f, news := d.news(); news {
			out = append(out, f)
		}
	}
	return out
}

// refresh reads the facts of a GPU and of its instances.
func (r *Reader) refresh(old []*reading, gpu Device) {
	g := find(old, gpu)
	if g == nil {
		return
	}
	r.devices = append(r.devices, g)
	if g.lost {
		return
	}
	i, err := gpu.Index()
	g.note("index", err)
	index := known(i, err)
	g.describe(r, index)
	on, err := gpu.MIG()
	g.note("mig", err)
	g.facts.MIG = known(on, err)
	if r.noXID != nil {
		g.missing["xid"] = r.noXID.Error()
	} else {
		delete(g.missing, "xid")
	}
	if !on {
		return
	}
	list, err := gpu.Instances()
	g.note("instances", err)
	for _, d := range list {
		m := find(old, d)
		if m == nil {
			continue
		}
		m.describe(r, index)
		m.facts.Parent = g.facts.UUID
		gi, ci, err := d.Instance()
		m.note("instance", err)
		m.facts.GPUInstance, m.facts.ComputeInstance = known(gi, err), known(ci, err)
		r.devices = append(r.devices, m)
	}
}

// find returns the reading of a device, which may be a new one; nil if it has no UUID.
func find(old []*reading, d Device) *reading {
	uuid, err := d.UUID()
	for _, o := range old {
		if o.facts.UUID == uuid || errors.Is(err, ErrLost) && o.Device == d {
			o.Device = d
			return o
		}
	}
	if err != nil || uuid == "" {
		return nil
	}
	return &reading{Device: d, facts: note.GPUDevice{UUID: uuid}, missing: map[string]string{}}
}

func (d *reading) describe(r *Reader, index *int64) {
	f := &d.facts
	f.Index, f.Driver = index, r.driver
	var err error
	if f.Name, err = d.Name(); !d.note("name", err) {
		f.Name = ""
	}
	if f.BusID, err = d.BusID(); !d.note("bus_id", err) {
		f.BusID = ""
	}
}

// news returns the facts if they have changed since they were returned last.
func (d *reading) news() (note.GPUDevice, bool) {
	d.facts.Missing = maps.Clone(d.missing)
	if len(d.missing) == 0 {
		d.facts.Missing = nil
	}
	if d.was && reflect.DeepEqual(d.told, d.facts) {
		return note.GPUDevice{}, false
	}
	d.told, d.was = d.facts, true
	return d.facts, true
}

// note keeps why a value is not known, and reports whether it is.
func (d *reading) note(what string, err error) bool {
	if errors.Is(err, ErrLost) {
		d.lost = true
		return false
	}
	if err != nil {
		d.missing[what] = err.Error()
		return false
	}
	delete(d.missing, what)
	return true
}

func known[T any](v T, err error) *T {
	if err != nil {
		return nil
	}
	return &v
}

// get reads a value; nil if it is not known, for the reason that is kept.
func get[T any](d *reading, what string, call func() (T, error)) *T {
	if d.lost {
		return nil
	}
	v, err := call()
	if !d.note(what, err) {
		return nil
	}
	return &v
}

// Sample reads all devices. slow has it measure what takes the driver some 40 ms, too. The
// second result are facts that are news: what a device has begun or ceased to tell.
func (r *Reader) Sample(slow bool) ([]note.GPUSample, []note.GPUDevice) {
	out := make([]note.GPUSample, len(r.devices))
	for i, d := range r.devices {
		out[i] = d.sample(r.local)
	}
	if slow {
		var all sync.WaitGroup
		for i, d := range r.devices {
			all.Go(func() { d.pcie(&out[i]) })
		}
		all.Wait()
	}
	var news []note.GPUDevice
	for i, d := range r.devices {
		if d.lost {
			out[i] = note.GPUSample{UUID: d.facts.UUID, Lost: true}
			continue
		}
		if f, ok := d.news(); ok {
			news = append(news, f)
		}
	}
	return out, news
}

func (d *reading) sample(local func(uint32) bool) note.GPUSample {
	s := note.GPUSample{UUID: d.facts.UUID}
	d.lost = false // else it would never be found to be back
	instance := d.facts.Parent != ""
	if u := get(d, "utilization", d.Utilization); u != nil {
		s.Utilization, s.MemoryActivity = &u.GPU, &u.Memory
	}
	if m := get(d, "memory", d.Memory); m != nil {
		s.MemoryTotal = &m.Total
		if m.OnlyTotal {
			d.note("memory", m.Why)
		} else {
			s.MemoryUsed, s.MemoryReserved = &m.Used, &m.Reserved
		}
	}
	s.Power = get(d, "power", d.Power)
	s.PowerLimit = get(d, "power_limit", d.PowerLimit)
	s.Energy = get(d, "energy", d.Energy)
	s.ClockSM = get(d, "clock_sm", func() (int64, error) { return d.Clock(SM) })
	s.ClockMemory = get(d, "clock_memory", func() (int64, error) { return d.Clock(MemoryClock) })
	s.Temperature = get(d, "temperature", d.Temperature)
	if t := get(d, "throttle", d.Throttle); t != nil {
		s.Throttled, s.ThrottleKnown = Reasons(*t), true
	}
	s.NVLinkSent = get(d, "nvlink_sent", func() (uint64, error) { return d.NVLink(Sent) })
	s.NVLinkReceived = get(d, "nvlink_received", func() (uint64, error) { return d.NVLink(Received) })
	s.Corrected = get(d, "ecc_corrected", func() (uint64, error) { return d.ECC(false) })
	s.Uncorrected = get(d, "ecc_uncorrected", func() (uint64, error) { return d.ECC(true) })
	if !instance && d.facts.MIG != nil && *d.facts.MIG {
		d.missing["processes"] = "it is split into instances, which have the processes"
		return s
	}
	d.processes(&s, local)
	return s
}

// processes reads who is on the device. A process that ends between the calls is in the
// first of them only, or in the second only: then it is left out.
func (d *reading) processes(s *note.GPUSample, local func(uint32) bool) {
	list := get(d, "processes", d.Processes)
	if list == nil {
		return
	}
	s.ProcessesKnown = true
	used := d.used()
	for _, p := range *list {
		if len(s.Processes) >= note.MaxGPUProcesses {
			s.ProcessesLeft++
			continue
		}
		q := note.GPUProcess{}
		if local(p.PID) {
			q.PID = p.PID
		}
		if p.MemoryKnown {
			q.Memory = &p.Memory
		}
		if u, ok := used[p.PID]; ok {
			q.Utilization = &u
		}
		s.Processes = append(s.Processes, q)
	}
}

// used is how busy each process kept the device since the last call: the mean of the
// driver's samples, of which the first call's are from before and are left out.
func (d *reading) used() map[uint32]int64 {
	list, err := d.Used(d.lastUsed)
	if errors.Is(err, ErrNoData) {
		delete(d.missing, "process_utilization")
		return nil
	}
	if !d.note("process_utilization", err) {
		return nil
	}
	sum, n := map[uint32]int64{}, map[uint32]int64{}
	since := d.lastUsed
	for _, u := range list {
		d.lastUsed = max(d.lastUsed, u.Time)
		if u.Time > since {
			sum[u.PID] += u.SM
			n[u.PID]++
		}
	}
	if !d.usedOnce {
		d.usedOnce = true
		return nil
	}
	for pid := range sum {
		sum[pid] /= n[pid]
	}
	return sum
}

// pcie measures the PCIe throughput.
func (d *reading) pcie(s *note.GPUSample) {
	s.PCIeSent = get(d, "pcie_sent", func() (int64, error) { return d.PCIe(Sent) })
	s.PCIeReceived = get(d, "pcie_received", func() (int64, error) { return d.PCIe(Received) })
}
