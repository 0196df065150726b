package correlate

import (
	"fmt"
	"strings"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

// gpuRun feeds signals about GPUs, with a second between samples.
type gpuRun struct {
	*testing.T
	c  *Correlator
	at signal.Mono
}

// newGPURun has engine 1 with processes 10 and 11, and engine 2 with process 20.
func newGPURun(t *testing.T) *gpuRun {
	r := &gpuRun{T: t, c: New(NewOptions()), at: second}
	r.put(&signal.Clock{At: r.at, Wall: 1e18})
	for i, pids := range [][]uint32{{10, 11}, {20}} {
		id := signal.EngineID(i + 1)
		e := &signal.Engine{At: r.at, ID: id, Kind: "vllm", Model: fmt.Sprint("m", id), Resource: []signal.KV{{Key: "engine", Value: fmt.Sprint(id)}}}
		for _, pid := range pids {
			e.Process = append(e.Process, signal.Process{PID: pid, Resource: []signal.KV{{Key: "process.pid", Value: int64(pid)}}})
		}
		r.put(e)
	}
	return r
}

func (r *gpuRun) put(s signal.Signal) { r.c.Put(s, func(*trace.Tree) {}) }

// sample is a second later.
func (r *gpuRun) sample(s ...signal.GPUSample) {
	r.at += second
	r.put(&signal.GPUSamples{At: r.at, Samples: s})
}

// tokens has engine 1 give some.
func (r *gpuRun) tokens(n int) {
	r.put(&signal.StepOutput{At: r.at, Core: signal.Core{Engine: 1, PID: 10}, Outputs: []signal.Output{{ID: []byte("a"), NumTokens: n}}})
}

// series are the values of a metric as text, by labels and resource.
func (r *gpuRun) series(name string) string {
	m := r.c.Metrics()
	metricsConform(r.T, m)
	var out []string
	for _, f := range m.Families {
		if f.Name == name {
			for _, p := range f.Points {
				out = append(out, strings.Join(append(values(p), fmt.Sprint(float32(p.Value))), " "))
			}
		}
	}
	return strings.Join(out, "; ")
}

func values(p metric.Point) (out []string) {
	for _, l := range p.Labels {
		out = append(out, l.Value)
	}
	return out
}

func (r *gpuRun) want(name, want string) {
	r.Helper()
	if got := r.series(name); got != want {
		r.Errorf("%s: %q, want %q", name, got, want)
	}
}

func some(v int64) signal.Opt[int64] { return signal.Some(v) }

func fullSample(id string) signal.GPUSample {
	return signal.GPUSample{
		UUID: id, Utilization: some(70), MemoryActivity: some(35), MemoryTotal: some(800), MemoryUsed: some(200), MemoryReserved: some(10), Power: some(170500), PowerLimit: some(700000),
		Energy: some(5000), ClockSM: some(1980), ClockMemory: some(2619), Temperature: some(57), Throttled: []string{"sw_power_cap"}, ThrottleKnown: true,
		PCIeSent: some(3), PCIeReceived: some(4), NVLinkSent: some(100), NVLinkReceived: some(200), Corrected: some(7), Uncorrected: some(1),
		ProcessesKnown: true, Processes: []signal.GPUProcess{{PID: 10, Memory: some(150), Utilization: some(60)}, {PID: 99, Memory: some(5)}},
	}
}

func TestGPUMetrics(t *testing.T) {
	r := newGPURun(t)
	r.put(&signal.GPUDevice{At: r.at, UUID: "G", Index: some(1), Name: "H100", Driver: "580", BusID: "0:1", MIG: signal.Some(false)})
	s := fullSample("G")
	r.sample(s)
	s.Energy, s.NVLinkSent, s.NVLinkReceived, s.Corrected, s.Uncorrected = some(7500), some(103), some(200), some(9), some(1)
	s.PCIeSent, s.PCIeReceived, s.Throttled = signal.Opt[int64]{}, signal.Opt[int64]{}, nil
	r.sample(s)
	for name, want := range map[string]string{
		"hw.gpu.utilization": "G general 0.7", "inferspan.gpu.memory.activity": "G 0.35", "hw.gpu.memory.usage": "G 200", "hw.gpu.memory.limit": "G 800", "hw.gpu.memory.utilization": "G 0.25",
		"inferspan.gpu.memory.reserved": "G 10", "hw.power": "G gpu 170.5", "inferspan.gpu.power.limit": "G 700", "hw.energy": "G gpu 2.5", "hw.temperature": "G gpu 57",
		"inferspan.gpu.clock": "G memory 2.619e+09; G sm 1.98e+09", "inferspan.gpu.throttled": "G sw_power_cap 0", "inferspan.gpu.pcie.throughput": "G receive 4096; G transmit 3072",
		"hw.gpu.io": "G receive 0; G transmit 3072", "hw.errors": "G gpu corrected 2; G gpu uncorrected 0", "hw.status": "G gpu failed 0; G gpu ok 1", "inferspan.gpu.mig": "G 0",
		"inferspan.gpu.processes": "G engine 1; G other 1", "inferspan.gpu.process.memory": "G 150", "inferspan.gpu.process.utilization": "G 0.6", "inferspan.gpu.in_use": "G process 1",
		"inferspan.gpu.xids": "",
	} {
		r.want(name, want)
	}
	for _, f := range r.c.Metrics().Families {
		if f.Points[0].Resource == nil {
			continue
		}
		res := ""
		for _, a := range f.Points[0].Resource.Attrs {
			res += fmt.Sprint(a.Key, "=", a.Value, " ")
		}
		switch f.Name {
		case "hw.power":
			if want := "hw.driver_version=580 hw.id=G hw.model=H100 hw.name=gpu1 hw.type=gpu hw.vendor=NVIDIA inferspan.gpu.bus_id=0:1 "; res != want {
				t.Errorf("resource of the GPU: %s, want %s", res, want)
			}
		case "inferspan.gpu.process.memory":
			if want := "engine=1 process.pid=10 "; res != want {
				t.Errorf("resource of the process: %s, want %s", res, want)
			}
		}
	}
	// PCIe is measured once a second: what is older does not stand.
	r.sample(s)
	r.want("inferspan.gpu.pcie.throughput", "")
}

// What is not known has no series.
func TestGPUUnknown(t *testing.T) {
	r := newGPURun(t)
	r.sample(signal.GPUSample{UUID: "G"})
	for _, f := range r.c.Metrics().Families {
		if strings.Contains(f.Name, ".gpu.") || strings.HasPrefix(f.Name, "hw.") && f.Name != "hw.status" {
			t.Errorf("%s has series", f.Name)
		}
	}
	r.want("hw.status", "G gpu failed 0; G gpu ok 1")
}

func TestGPULost(t *testing.T) {
	for _, how := range []string{"sample", "event", "both"} {
		t.Run(how, func(t *testing.T) {
			r := newGPURun(t)
			r.sample(fullSample("G"))
			if how != "sample" {
				r.put(&signal.GPUEvent{At: r.at, UUID: "G", XID: 79})
				r.want("inferspan.gpu.xids", "G 79 1")
			}
			if how != "event" {
				r.sample(signal.GPUSample{UUID: "G", Lost: true})
				r.sample(signal.GPUSample{UUID: "G", Lost: true})
			}
			r.want("hw.status", "G gpu failed 1; G gpu ok 0")
			r.want("hw.power", "")
			r.want("hw.energy", "G gpu 0")
			lost := 0
			for _, n := range r.c.Notes() {
				if strings.Contains(n.Text, "does not answer") {
					lost++
				}
			}
			if lost != 1 {
				t.Errorf("notes %v", r.c.Notes())
			}
			r.sample(fullSample("G"))
			r.want("hw.status", "G gpu failed 0; G gpu ok 1")
		})
	}
}

// Other errors leave the GPU as it is.
func TestGPUXID(t *testing.T) {
	r := newGPURun(t)
	r.sample(fullSample("G"))
	for range 2 {
		r.put(&signal.GPUEvent{At: r.at, UUID: "G", XID: 31})
	}
	r.want("inferspan.gpu.xids", "G 31 2")
	r.want("hw.status", "G gpu failed 0; G gpu ok 1")
}

func TestGPUInstance(t *testing.T) {
	r := newGPURun(t)
	r.put(&signal.GPUDevice{At: r.at, UUID: "G", Index: some(0), MIG: signal.Some(true)})
	r.put(&signal.GPUDevice{At: r.at, UUID: "M", Index: some(0), Parent: "G", GPUInstance: some(2), ComputeInstance: some(0)})
	r.sample(signal.GPUSample{UUID: "G", Power: some(1000)}, signal.GPUSample{UUID: "M", MemoryUsed: some(5), ProcessesKnown: true, Processes: []signal.GPUProcess{{PID: 11}}})
	r.want("inferspan.gpu.mig", "G 1")
	r.want("inferspan.gpu.in_use", "M process 1")
	for _, f := range r.c.Metrics().Families {
		if f.Name == "hw.gpu.memory.usage" {
			if res := fmt.Sprint(f.Points[0].Resource.Attrs); !strings.Contains(res, "{hw.parent G}") || !strings.Contains(res, "{hw.name gpu0/2/0}") {
				t.Errorf("resource %s", res)
			}
		}
	}
}

// Where the processes on a GPU are not known, the environment says which it may be.
func TestGPUVisible(t *testing.T) {
	r := newGPURun(t)
	r.put(&signal.GPUVisible{At: r.at, Engine: 1, PID: 10, UUIDs: []string{"G", "H"}})
	s := fullSample("H")
	r.sample(signal.GPUSample{UUID: "G"}, s)
	r.want("inferspan.gpu.in_use", "G visible_devices 1; H process 1")
}

func energySample(id string, mj int64, procs ...signal.GPUProcess) signal.GPUSample {
	return signal.GPUSample{UUID: id, Utilization: some(50), Energy: some(mj), ProcessesKnown: true, Processes: procs}
}

func onGPU(pid uint32, util int64) signal.GPUProcess {
	p := signal.GPUProcess{PID: pid}
	if util >= 0 {
		p.Utilization = some(util)
	}
	return p
}

// An engine alone on its GPUs has their energy.
func TestEnergySole(t *testing.T) {
	r := newGPURun(t)
	for i := range int64(12) {
		r.sample(energySample("G", 1000*i, onGPU(10, -1)), energySample("H", 3000*i, onGPU(11, -1)))
		r.tokens(8)
	}
	r.want("inferspan.gpu.engine.energy", "m1 sole 44")
	r.want("inferspan.gpu.engine.output_tokens", "m1 sole 88")
	r.want("inferspan.gpu.energy_per_output_token", "m1 sole 0.5")
	r.want("inferspan.gpu.engine.busy", "m1 sole 0.5")
	r.want("inferspan.gpu.engine.unattributed", "")
}

// Engines that share a GPU share its energy as they use it.
func TestEnergyShared(t *testing.T) {
	r := newGPURun(t)
	for i := range int64(3) {
		r.sample(energySample("G", 1000*i, onGPU(10, 30), onGPU(20, 10)))
		r.tokens(5)
	}
	r.want("inferspan.gpu.engine.energy", "m1 process_utilization 1.5; m2 process_utilization 0.5")
	r.want("inferspan.gpu.engine.busy", "m1 process_utilization 0.3; m2 process_utilization 0.1")
}

// The driver renews the utilisation of processes less often than we may look.
func TestProcessUse(t *testing.T) {
	r := newGPURun(t)
	put := func(ms signal.Mono, s signal.GPUSample) {
		r.at += ms * second / 1000
		r.put(&signal.GPUSamples{At: r.at, Samples: []signal.GPUSample{s}})
	}
	put(1000, energySample("G", 0, onGPU(10, 30), onGPU(20, 10)))
	put(500, energySample("G", 1000, onGPU(10, -1), onGPU(20, -1)))
	put(500, energySample("G", 2000, onGPU(10, 10), onGPU(20, 30)))
	put(500, energySample("G", 3000, onGPU(10, -1), onGPU(20, -1)))
	r.want("inferspan.gpu.engine.energy", "m1 process_utilization 1.25; m2 process_utilization 1.75")
	r.want("inferspan.gpu.process.utilization", "G 0.1; G 0.3")
	put(1500, energySample("G", 4000, onGPU(10, -1), onGPU(20, -1)))
	r.want("inferspan.gpu.process.utilization", "")
	r.want("inferspan.gpu.engine.energy", "m1 process_utilization 1.25; m2 process_utilization 1.75")
}

// What cannot be told is left out, with the reason and the time.
func TestEnergyUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		samples []signal.GPUSample
		reason  string
	}{
		"a stranger whose use is not known": {[]signal.GPUSample{energySample("G", 0, onGPU(10, 50), onGPU(0, -1)), energySample("G", 1000, onGPU(10, 50), onGPU(0, -1))}, reasonShared},
		"nobody used it":                    {[]signal.GPUSample{energySample("G", 0, onGPU(10, 0), onGPU(20, 0)), energySample("G", 1000, onGPU(10, 0), onGPU(20, 0))}, reasonShared},
		"a stranger came":                   {[]signal.GPUSample{energySample("G", 0, onGPU(10, 50)), energySample("G", 1000, onGPU(10, 50), onGPU(99, 50))}, reasonChanged},
		"no energy":                         {[]signal.GPUSample{{UUID: "G", ProcessesKnown: true, Processes: []signal.GPUProcess{{PID: 10}}}, {UUID: "G", ProcessesKnown: true, Processes: []signal.GPUProcess{{PID: 10}}}}, reasonNoEnergy},
		"energy counts anew":                {[]signal.GPUSample{energySample("G", 1000, onGPU(10, 50)), energySample("G", 10, onGPU(10, 50))}, reasonNoEnergy},
		"the process ended":                 {[]signal.GPUSample{energySample("G", 0, onGPU(10, 50)), energySample("G", 1000)}, reasonChanged},
		"the GPU was lost":                  {[]signal.GPUSample{energySample("G", 0, onGPU(10, 50)), {UUID: "G", Lost: true}}, reasonChanged},
		"more processes than were told":     {[]signal.GPUSample{withLeft(energySample("G", 0, onGPU(10, 50))), withLeft(energySample("G", 9, onGPU(10, 50)))}, reasonNoProcesses},
	} {
		t.Run(name, func(t *testing.T) {
			r := newGPURun(t)
			for _, s := range c.samples {
				r.sample(s)
				r.tokens(3)
			}
			r.want("inferspan.gpu.engine.energy", "")
			r.want("inferspan.gpu.energy_per_output_token", "")
			if got := strings.Split(r.series("inferspan.gpu.engine.unattributed"), "; ")[0]; got != "m1 "+c.reason+" 1" {
				t.Errorf("left out: %q, want %q", got, c.reason)
			}
		})
	}
}

func withLeft(s signal.GPUSample) signal.GPUSample {
	s.ProcessesLeft = 1
	return s
}

// State is bounded whatever comes.
func TestGPUBounds(t *testing.T) {
	r := newGPURun(t)
	for i := range 2 * maxGPUs {
		s := fullSample(fmt.Sprint("G", i))
		s.Processes = make([]signal.GPUProcess, 2*maxGPUProcesses)
		r.sample(s)
	}
	for i := range 2 * maxGPULabels {
		r.put(&signal.GPUEvent{At: r.at, UUID: "G1", XID: uint64(i)})
	}
	if len(r.c.gpus) != maxGPUs || len(r.c.gpus[0].last.Processes) != maxGPUProcesses || len(r.c.gpus[1].xids) != maxGPULabels {
		t.Errorf("%d GPUs, %d processes, %d XIDs", len(r.c.gpus), len(r.c.gpus[0].last.Processes), len(r.c.gpus[1].xids))
	}
	r.want("inferspan.gpu.processes", r.series("inferspan.gpu.processes"))
}
