package decode

import (
	"maps"
	"math"
	"slices"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/note"
)

// gpuNote passes on a note about GPUs, and reports whether r is one. Those about devices
// belong to no engine.
func (d *Decoder) gpuNote(r *event.Record, emit func(signal.Signal)) bool {
	at := signal.Mono(r.Time)
	var err error
	switch note.Kind(r.Note) {
	case note.KindGPUDevice:
		var n note.GPUDevice
		if n, err = note.Get[note.GPUDevice](r); err == nil {
			emit(&signal.GPUDevice{
				At: at, UUID: n.UUID, Index: signal.Known(n.Index), Name: n.Name, BusID: n.BusID, Driver: n.Driver, MIG: signal.Known(n.MIG),
				Parent: n.Parent, GPUInstance: signal.Known(n.GPUInstance), ComputeInstance: signal.Known(n.ComputeInstance),
				Missing: missing(n.Missing),
			})
		}
	case note.KindGPUSamples:
		var n note.GPUSamples
		if n, err = note.Get[note.GPUSamples](r); err == nil {
			s := signal.GPUSamples{At: at, More: n.More}
			for i := range n.Samples {
				s.Samples = append(s.Samples, gpuSample(&n.Samples[i]))
			}
			emit(&s)
		}
	case note.KindGPUEvent:
		var n note.GPUEvent
		if n, err = note.Get[note.GPUEvent](r); err == nil {
			emit(&signal.GPUEvent{At: at, UUID: n.UUID, XID: n.XID})
		}
	case note.KindGPUVisible:
		e := d.engine[r.PID]
		if e == nil {
			d.unknown++
			return true
		}
		var n note.GPUVisible
		if n, err = note.Get[note.GPUVisible](r); err == nil && n.Problem == "" {
			emit(&signal.GPUVisible{At: at, Engine: e.id, PID: r.PID, UUIDs: n.UUIDs})
		}
	case note.KindGPUKernels:
		e := d.engine[r.PID]
		if e == nil {
			d.unknown++
			return true
		}
		var n note.GPUKernels
		if n, err = note.Get[note.GPUKernels](r); err == nil {
			s := signal.GPUKernels{At: at, Engine: e.id, PID: r.PID, Beyond: launches(n.Beyond), Unnoted: launches(n.Unnoted),
				Graphs: launches(n.Graphs), GraphsUnseen: launches(n.GraphsUnseen), GraphsChanged: launches(n.GraphsChanged), GraphsBeyond: launches(n.GraphsBeyond)}
			for i := range n.Kernels {
				k := &n.Kernels[i]
				s.Kernels = append(s.Kernels, signal.GPUKernel{
					Handle: k.Handle, Runtime: k.Runtime, Launches: launches(k.Launches), InGraphs: launches(k.InGraphs), Symbol: k.Name, Name: demangled(k.Name), By: k.By,
				})
			}
			emit(&s)
		}
	default:
		return false
	}
	if err != nil {
		d.badNotes++
	}
	return true
}

func missing(m map[string]string) []signal.GPUMissing {
	var out []signal.GPUMissing
	for _, what := range slices.Sorted(maps.Keys(m)) {
		out = append(out, signal.GPUMissing{What: what, Why: m[what]})
	}
	return out
}

func gpuSample(n *note.GPUSample) signal.GPUSample {
	s := signal.GPUSample{
		UUID: n.UUID, Lost: n.Lost,
		Utilization: signal.Count(n.Utilization), MemoryActivity: signal.Count(n.MemoryActivity),
		MemoryTotal: whole(n.MemoryTotal), MemoryUsed: whole(n.MemoryUsed), MemoryReserved: whole(n.MemoryReserved),
		Power: signal.Count(n.Power), PowerLimit: signal.Count(n.PowerLimit), Energy: whole(n.Energy),
		ClockSM: signal.Count(n.ClockSM), ClockMemory: signal.Count(n.ClockMemory), Temperature: signal.Known(n.Temperature),
		Throttled: n.Throttled, ThrottleKnown: n.ThrottleKnown,
		PCIeSent: signal.Count(n.PCIeSent), PCIeReceived: signal.Count(n.PCIeReceived),
		NVLinkSent: whole(n.NVLinkSent), NVLinkReceived: whole(n.NVLinkReceived),
		Corrected: whole(n.Corrected), Uncorrected: whole(n.Uncorrected),
		ProcessesKnown: n.ProcessesKnown, ProcessesLeft: n.ProcessesLeft,
	}
	for _, p := range n.Processes {
		s.Processes = append(s.Processes, signal.GPUProcess{PID: p.PID, Memory: whole(p.Memory), Utilization: signal.Count(p.Utilization)})
	}
	return s
}

// whole is a count; one that is beyond all counts is not known.
func whole(v *uint64) signal.Opt[int64] {
	if v == nil || *v > math.MaxInt64 {
		return signal.Opt[int64]{}
	}
	return signal.Some(int64(*v))
}

// launches is a count of launches; one that is beyond all that can be, 30,000 a second for
// a year, is not known.
func launches(n uint64) signal.Opt[int64] {
	const most = 1 << 40
	if n > most {
		return signal.Opt[int64]{}
	}
	return signal.Some(int64(n))
}
