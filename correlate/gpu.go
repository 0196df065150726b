package correlate

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// Bounds on what is kept of GPUs: a host has some, each with up to seven instances.
const (
	maxGPUs         = 256
	maxGPUProcesses = 64
	maxGPULabels    = 64 // XIDs and throttle reasons told apart
)

// gpu is what is known of a device.
type gpu struct {
	facts signal.GPUDevice
	res   *trace.Resource

	at         signal.Mono // of last
	last       signal.GPUSample
	sampled    bool
	step       interval    // as of the moment before
	pcieAt     signal.Mono // when its PCIe throughput was read
	usedAt     signal.Mono // when the utilisation of processes was new
	lost       bool        // it does not answer any more
	energy     total
	nvlink     [2]total // sent, received
	ecc        [2]total // corrected, uncorrected
	throttled  []string // reasons seen
	xids       []labelled
	visible    []processKey // processes that may use it, by their environment
	busy       mean         // percent
	power      mean         // mW
	hottest    signal.Opt[int64]
	total      signal.Opt[int64] // memory
	mostMemory signal.Opt[int64]
}

type processKey struct {
	engine signal.EngineID
	pid    uint32
}

// total is a counter of the device from where it was first looked at.
type total struct {
	last signal.Opt[int64]
	sum  int64
}

// put takes a reading.
func (t *total) put(v signal.Opt[int64]) {
	if !v.OK || v.V < 0 {
		return
	}
	switch {
	case !t.last.OK:
	case v.V >= t.last.V:
		t.sum = addUp(t.sum, v.V-t.last.V)
	default: // since it began anew
		t.sum = addUp(t.sum, v.V)
	}
	t.last = v
}

// addUp adds what is not negative, and stays at the largest number.
func addUp(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func (c *Correlator) gpu(uuid string) *gpu {
	for _, g := range c.gpus {
		if g.facts.UUID == uuid {
			return g
		}
	}
	if len(c.gpus) >= maxGPUs || uuid == "" {
		return nil
	}
	g := &gpu{facts: signal.GPUDevice{UUID: uuid}}
	g.describe()
	c.gpus = append(c.gpus, g)
	return g
}

func (c *Correlator) gpuDevice(s *signal.GPUDevice) {
	if g := c.gpu(s.UUID); g != nil {
		g.facts = *s
		g.facts.Missing = slices.Clone(s.Missing[:min(len(s.Missing), maxGPULabels)])
		g.describe()
	}
}

// name is gpu and its index, and of an instance its ids.
func (g *gpu) name() string {
	f := &g.facts
	switch {
	case !f.Index.OK:
		return ""
	case f.GPUInstance.OK && f.ComputeInstance.OK:
		return fmt.Sprintf("gpu%d/%d/%d", f.Index.V, f.GPUInstance.V, f.ComputeInstance.V)
	case f.Parent != "":
		return ""
	}
	return fmt.Sprintf("gpu%d", f.Index.V)
}

// describe makes the resource of the device, anew if it has changed.
func (g *gpu) describe() {
	f := &g.facts
	kv := []signal.KV{{Key: semconv.AttrHWID, Value: f.UUID}, {Key: semconv.AttrHWType, Value: "gpu"}, {Key: semconv.AttrHWVendor, Value: "NVIDIA"}}
	for _, a := range [...]signal.KV{
		{Key: semconv.AttrHWName, Value: g.name()}, {Key: semconv.AttrHWModel, Value: f.Name}, {Key: semconv.AttrHWDriverVersion, Value: f.Driver},
		{Key: semconv.AttrHWParent, Value: f.Parent}, {Key: semconv.AttrInferspanGPUBusID, Value: f.BusID},
	} {
		if a.Value != "" {
			kv = append(kv, a)
		}
	}
	old := g.res
	if old == nil {
		old = &trace.Resource{}
	}
	g.res = resource(old, kv, nil)
}

func (c *Correlator) gpuSamples(s *signal.GPUSamples) {
	for i := range s.Samples {
		c.gpuSample(s.At, &s.Samples[i])
	}
	if !s.More {
		c.shareEnergy(s.At)
	}
}

func (c *Correlator) gpuSample(at signal.Mono, s *signal.GPUSample) {
	g := c.gpu(s.UUID)
	if g == nil || g.sampled && at <= g.at {
		return
	}
	before := g.last
	g.at, g.sampled, g.last = at, true, *s
	if s.Lost {
		// Of what it said before nothing holds now.
		g.last = signal.GPUSample{UUID: g.facts.UUID, Lost: true}
		c.gpuLost(g, at, "it is lost")
		return
	}
	if g.lost {
		g.lost = false
		c.addNote(at, "GPU "+g.label()+" answers again")
	}
	g.last.UUID = g.facts.UUID
	g.last.Throttled = slices.Clone(s.Throttled)
	g.last.Processes, g.last.ProcessesLeft = nil, max(s.ProcessesLeft, 0)
	for _, p := range s.Processes {
		switch {
		case p.PID != 0 && slices.ContainsFunc(g.last.Processes, func(q signal.GPUProcess) bool { return q.PID == p.PID }):
		case len(g.last.Processes) < maxGPUProcesses:
			g.last.Processes = append(g.last.Processes, p)
		default:
			g.last.ProcessesLeft++
		}
	}
	// The device is asked for it once a second only.
	switch {
	case s.PCIeSent.OK || s.PCIeReceived.OK:
		g.pcieAt = at
	case at-g.pcieAt < pcieHolds:
		g.last.PCIeSent, g.last.PCIeReceived = before.PCIeSent, before.PCIeReceived
	}
	g.holdUse(at, before.Processes)
	g.energy.put(s.Energy)
	g.nvlink[0].put(s.NVLinkSent)
	g.nvlink[1].put(s.NVLinkReceived)
	g.ecc[0].put(s.Corrected)
	g.ecc[1].put(s.Uncorrected)
	for _, r := range s.Throttled {
		if !slices.Contains(g.throttled, r) && len(g.throttled) < maxGPULabels {
			g.throttled = append(g.throttled, r)
		}
	}
	g.busy.add(s.Utilization)
	g.power.add(s.Power)
	g.hottest = larger(g.hottest, s.Temperature)
	if s.MemoryTotal.OK {
		g.total = s.MemoryTotal
	}
	g.mostMemory = larger(g.mostMemory, s.MemoryUsed)
}

// pcieHolds is how long a PCIe throughput stands, which is measured once a second.
const pcieHolds = 2 * second

// useHolds is how long the utilisation of processes stands, which a driver samples 1 to 6
// times a second: it has none for samples that come sooner.
const useHolds = 2 * second

// holdUse lets processes keep their utilisation while the driver has none that is newer.
func (g *gpu) holdUse(at signal.Mono, before []signal.GPUProcess) {
	procs := g.last.Processes
	if slices.ContainsFunc(procs, func(p signal.GPUProcess) bool { return p.Utilization.OK }) {
		g.usedAt = at
		return
	}
	if at-g.usedAt >= useHolds {
		return
	}
	for i := range procs {
		for _, p := range before {
			if p.PID == procs[i].PID && p.PID != 0 {
				procs[i].Utilization = p.Utilization
			}
		}
	}
}

// xidOffBus is "GPU has fallen off the bus" in NVIDIA's list of XID errors.
const xidOffBus = 79

func (c *Correlator) gpuEvent(s *signal.GPUEvent) {
	g := c.gpu(s.UUID)
	if g == nil {
		return
	}
	xid := fmt.Sprint(s.XID)
	if known := slices.ContainsFunc(g.xids, func(l labelled) bool { return l.a == xid }); known || len(g.xids) < maxGPULabels {
		counter(&g.xids, xid, "").n++
	}
	c.addNote(s.At, fmt.Sprintf("GPU %s: XID %d", g.label(), s.XID))
	if s.XID == xidOffBus {
		g.last = signal.GPUSample{UUID: g.facts.UUID, Lost: true}
		c.gpuLost(g, s.At, "it has fallen off the bus")
	}
}

func (c *Correlator) gpuLost(g *gpu, at signal.Mono, why string) {
	if g.lost {
		return
	}
	g.lost = true
	c.addNote(at, "GPU "+g.label()+" does not answer any more: "+why)
}

// label is how a reader knows the device.
func (g *gpu) label() string { return cmp.Or(g.name(), g.facts.UUID) }

func (c *Correlator) gpuVisible(s *signal.GPUVisible) {
	for _, id := range s.UUIDs {
		g := c.gpu(id)
		k := processKey{s.Engine, s.PID}
		if g != nil && !slices.Contains(g.visible, k) && len(g.visible) < maxGPUProcesses {
			g.visible = append(g.visible, k)
		}
	}
}

// processOf returns the engine that has a process, nil if none has.
func (c *Correlator) processOf(pid uint32) *engine {
	if pid == 0 {
		return nil
	}
	for _, e := range c.engines {
		if slices.ContainsFunc(e.procs, func(p process) bool { return p.pid == pid }) {
			return e
		}
	}
	return nil
}

// Values of dimensions.
const (
	gpuType                       = "gpu"
	gpuMethodProcess              = "process"
	gpuMethodVisible              = "visible_devices"
	directionSent, directionTaken = "transmit", "receive"
)

// gpuPoints adds the series of all devices. What a device does not tell has none.
func (c *Correlator) gpuPoints(f families) {
	for _, g := range c.gpus {
		if g.sampled || g.lost {
			c.devicePoints(f, g)
			c.gpuProcessPoints(f, g)
		}
	}
	for _, e := range c.engines {
		e.energyPoints(f)
		e.ledger.points(f, e, c.now)
	}
}

func (c *Correlator) devicePoints(f families, g *gpu) {
	id, s, res := g.facts.UUID, &g.last, g.res
	put := func(metric string, v signal.Opt[int64], scale float64, labels ...string) {
		if v.OK {
			f.add(metric, float64(v.V)*scale, res, append([]string{id}, labels...)...)
		}
	}
	flag := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	put(semconv.MetricIDOwnHWGPUUtilization, s.Utilization, 0.01, "general")
	put(semconv.MetricIDOwnGPUMemoryActivity, s.MemoryActivity, 0.01)
	put(semconv.MetricIDOwnHWGPUMemoryUsage, s.MemoryUsed, 1)
	put(semconv.MetricIDOwnHWGPUMemoryLimit, s.MemoryTotal, 1)
	put(semconv.MetricIDOwnGPUMemoryReserved, s.MemoryReserved, 1)
	if s.MemoryUsed.OK && s.MemoryTotal.OK && s.MemoryTotal.V > 0 {
		f.add(semconv.MetricIDOwnHWGPUMemoryUtilization, float64(s.MemoryUsed.V)/float64(s.MemoryTotal.V), res, id)
	}
	put(semconv.MetricIDOwnHWPower, s.Power, 1e-3, gpuType)
	put(semconv.MetricIDOwnGPUPowerLimit, s.PowerLimit, 1e-3)
	put(semconv.MetricIDOwnHWTemperature, s.Temperature, 1, gpuType)
	put(semconv.MetricIDOwnGPUClock, s.ClockSM, 1e6, "sm")
	put(semconv.MetricIDOwnGPUClock, s.ClockMemory, 1e6, "memory")
	put(semconv.MetricIDOwnGPUPCIe, s.PCIeSent, 1024, directionSent)
	put(semconv.MetricIDOwnGPUPCIe, s.PCIeReceived, 1024, directionTaken)
	if s.ThrottleKnown {
		for _, r := range g.throttled {
			f.add(semconv.MetricIDOwnGPUThrottled, flag(slices.Contains(s.Throttled, r)), res, id, r)
		}
	}
	sum := func(metric string, t *total, scale float64, labels ...string) {
		put(metric, signal.Opt[int64]{V: t.sum, OK: t.last.OK}, scale, labels...)
	}
	sum(semconv.MetricIDOwnHWEnergy, &g.energy, 1e-3, gpuType)
	sum(semconv.MetricIDOwnHWGPUIO, &g.nvlink[0], 1024, directionSent)
	sum(semconv.MetricIDOwnHWGPUIO, &g.nvlink[1], 1024, directionTaken)
	sum(semconv.MetricIDOwnHWErrors, &g.ecc[0], 1, gpuType, "corrected")
	sum(semconv.MetricIDOwnHWErrors, &g.ecc[1], 1, gpuType, "uncorrected")
	for _, x := range g.xids {
		f.add(semconv.MetricIDOwnGPUXIDs, float64(x.n), res, id, x.a)
	}
	f.add(semconv.MetricIDOwnHWStatus, flag(!g.lost), res, id, gpuType, "ok")
	f.add(semconv.MetricIDOwnHWStatus, flag(g.lost), res, id, gpuType, "failed")
	if g.facts.MIG.OK && g.facts.Parent == "" {
		f.add(semconv.MetricIDOwnGPUMIG, flag(g.facts.MIG.V), res, id)
	}
}

// gpuProcessPoints adds what is known of the processes on a device. Those of engines
// have series of their own, on the resource of the process.
func (c *Correlator) gpuProcessPoints(f families, g *gpu) {
	id, s := g.facts.UUID, &g.last
	if !s.ProcessesKnown {
		for _, k := range g.visible {
			if e := c.processOf(k.pid); e != nil && e.id == k.engine {
				f.add(semconv.MetricIDOwnGPUInUse, 1, e.resource(k.pid), id, gpuMethodVisible)
			}
		}
		return
	}
	others, ours := s.ProcessesLeft, 0
	for i := range s.Processes {
		p := &s.Processes[i]
		e := c.processOf(p.PID)
		if e == nil {
			others++
			continue
		}
		ours++
		res := e.resource(p.PID)
		f.add(semconv.MetricIDOwnGPUInUse, 1, res, id, gpuMethodProcess)
		if p.Memory.OK {
			f.add(semconv.MetricIDOwnGPUProcessMemory, float64(p.Memory.V), res, id)
		}
		if p.Utilization.OK {
			f.add(semconv.MetricIDOwnGPUProcessUtilization, float64(p.Utilization.V)/100, res, id)
		}
	}
	f.add(semconv.MetricIDOwnGPUProcesses, float64(ours), g.res, id, "engine")
	f.add(semconv.MetricIDOwnGPUProcesses, float64(others), g.res, id, "other")
}

func larger(a, b signal.Opt[int64]) signal.Opt[int64] {
	if !b.OK || a.OK && a.V >= b.V {
		return a
	}
	return b
}

// mean of samples.
type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v signal.Opt[int64]) {
	if v.OK {
		m.sum += float64(v.V)
		m.n++
	}
}

func (m *mean) value() signal.Opt[float64] {
	if m.n == 0 {
		return signal.Opt[float64]{}
	}
	return signal.Some(m.sum / float64(m.n))
}
