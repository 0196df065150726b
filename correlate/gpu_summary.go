package correlate

import (
	"slices"

	"inferspan/correlate/signal"
)

// GPU is what a summary says of a device.
type GPU struct {
	Label       string // gpu0, gpu0/1/0 of an instance, its UUID if the index is not known
	Model       string
	Lost        bool                // it does not answer any more
	Busy        signal.Opt[float64] // mean share of time
	MemoryUsed  signal.Opt[int64]   // most, bytes
	MemoryTotal signal.Opt[int64]   // bytes
	Power       signal.Opt[float64] // mean, W
	Energy      signal.Opt[float64] // J
	Temperature signal.Opt[int64]   // most, degrees Celsius
	Throttled   []string            // reasons that held at some time
	XIDs        []string
	Uncorrected int64 // ECC errors since the first look
	Missing     []signal.GPUMissing
}

// GPUs returns a summary of each device, in the order of appearance.
func (c *Correlator) GPUs() []GPU {
	var out []GPU
	for _, g := range c.gpus {
		if !g.sampled && !g.lost {
			continue
		}
		s := GPU{
			Label: g.label(), Model: g.facts.Name, Lost: g.lost, Busy: scaled(g.busy.value(), 0.01), MemoryUsed: g.mostMemory, MemoryTotal: g.total,
			Power: scaled(g.power.value(), 1e-3), Temperature: g.hottest, Throttled: slices.Clone(g.throttled), Uncorrected: g.ecc[1].sum,
			Missing: slices.Clone(g.facts.Missing),
		}
		if g.energy.last.OK {
			s.Energy = signal.Some(float64(g.energy.sum) / 1e3)
		}
		for _, x := range g.xids {
			s.XIDs = append(s.XIDs, x.a)
		}
		out = append(out, s)
	}
	return out
}

// EngineEnergy is what a summary says of the energy of an engine.
type EngineEnergy struct {
	Model  string
	Method string
	Joules float64
	Tokens uint64 // output tokens of the same time, 0 if not seen
}

// Energy returns the energy of each engine that some could be told of, by method.
func (c *Correlator) Energy() []EngineEnergy {
	var out []EngineEnergy
	for _, e := range c.engines {
		for _, s := range e.energy.shares {
			out = append(out, EngineEnergy{Model: e.model, Method: s.method, Joules: s.joules, Tokens: s.tokens})
		}
	}
	return out
}

// EngineWork is what a summary says of what the steps of an engine kept its GPUs busy with.
type EngineWork struct {
	Model  string
	Loose  bool // of some steps the time is that from their beginning
	Phases []PhaseWork
	// Nobody is time of no request, in s; Outside energy of no step, in J.
	Nobody  float64
	Outside signal.Opt[float64]
}

// PhaseWork is a part of it, by what tokens are: prefill, decode, resumed, unknown.
type PhaseWork struct {
	Phase   string
	Seconds float64 // at most
	Joules  signal.Opt[float64]
}

// Work returns that of each engine of which some was seen.
func (c *Correlator) Work() []EngineWork {
	var out []EngineWork
	for _, e := range c.engines {
		l := &e.ledger
		if len(l.times) == 0 {
			continue
		}
		w := EngineWork{Model: e.model}
		for k, name := range stepKinds {
			p := PhaseWork{Phase: name}
			for _, t := range l.times {
				if t.kind != k {
					continue
				}
				p.Seconds += float64(t.time) / 1e9
				w.Loose = w.Loose || t.method == methodStep
				if t.method == methodSole || t.method == methodUtilization {
					p.Joules = signal.Some(p.Joules.V + t.joules)
				}
			}
			if p.Seconds > 0 {
				w.Phases = append(w.Phases, p)
			}
		}
		for _, n := range l.nobody {
			w.Nobody += float64(n.time) / 1e9
		}
		for _, t := range l.outside {
			w.Outside = signal.Some(w.Outside.V + t.joules)
		}
		out = append(out, w)
	}
	return out
}

func scaled(v signal.Opt[float64], by float64) signal.Opt[float64] {
	v.V *= by
	return v
}
