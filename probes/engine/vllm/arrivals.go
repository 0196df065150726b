package vllm

import (
	"slices"

	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/python/plan"
)

// A program that has the core inside makes a request of a prompt and hands it to the
// core in the same call: it reads the clock where it makes it. That is when the core
// has it, some microseconds before. The core's own id is made later, from the one known
// there.

// planArrive is the plan for that clock read.
const planArrive = "arrive"

// maxArrivals bounds the requests that no step and no look has shown yet: a program may
// hand over a whole data set at once.
const maxArrivals = 1 << 16

// arrivalProbes are the probes that show when a core inside a program gets a request.
func (p *Peeker) arrivalProbes() []engine.Probe {
	process := plan.Func(moduleInput, "InputProcessor.process_inputs")
	if c, err := p.in.Code(process.Module, process.Path...); err != nil || c.Local("request_id") < 0 {
		return nil
	}
	arrive := plan.New(planArrive, process, 1)
	arrive.Local("request_id").Str(slotID.String(), maxIDBytes)
	arrive.Local("prompt").Key("arrival_time").Value(slotArrival.String())
	class, params := plan.Func("vllm.sampling_params", "SamplingParams"), arrive.Local("params")
	for _, x := range []struct {
		name string
		slot slot
	}{{"temperature", slotTemperature}, {"top_p", slotTopP}, {"top_k", slotTopK}, {"max_tokens", slotMaxTokens}, {"n", slotN}, {"logprobs", slotLogprobs}} {
		params.AttrOf(class, x.name).Value(x.slot.String())
	}
	params.AttrOf(class, "stop").Len(slotStop.String())
	arrive.Local("lora_request").Value(slotLoRA.String()).AttrOf(plan.Func("vllm.lora.request", "LoRARequest"), "lora_name").Str(slotAdapter.String(), maxIDBytes)
	return []engine.Probe{{
		Detail:   signal.DetailArrivals,
		Callable: plan.Func("time", "time"),
		Watches:  []engine.Watch{{Caller: process, Plans: []*plan.Plan{arrive}}},
	}}
}

// arrival is a request that a program has made.
type arrival struct {
	at      signal.Mono
	arrival signal.Wall // 0 if it is not in the prompt
	param   signal.Param
	whole   bool               // all of param was read
	adapter signal.Opt[string] // "" is none
	n       uint64             // of its kind
}

// arrivals are those of one process by the id that the program gave.
type arrivals struct {
	of    map[string]arrival
	order []string // the latest ones, some of which were taken
	n     uint64   // those before order
}

// arrived: a program makes a request.
func (d *Decoder) arrived(c *core, at signal.Mono, v reading) {
	id := v.value(slotID)
	if id == nil || !id.IsStr() || id.Str == "" {
		return
	}
	x := arrival{at: at}
	if f := v.value(slotArrival); f != nil && f.Tag == capture.TagFloat {
		if ns := nanoseconds(f.Float); ns != nil {
			x.arrival = signal.Wall(*ns)
		}
	}
	x.params(v)
	switch a := v.value(slotAdapter); {
	case a != nil && a.IsStr():
		x.adapter = signal.Some(a.Str)
	case v.none(slotLoRA):
		x.adapter = signal.Some("")
	}
	c.arrivals.add(id.Str, x)
}

// params reads the sampling parameters. A pooling request has none, and the front end
// works out max_tokens later where the program gives none.
func (x *arrival) params(v reading) {
	number := func(s slot) (o signal.Opt[float64]) {
		switch n := v.value(s); {
		case n != nil && n.Tag == capture.TagFloat:
			o = signal.Some(n.Float)
		case n != nil && n.Tag == capture.TagInt:
			o = signal.Some(float64(n.Int))
		}
		return o
	}
	x.param.Temperature, x.param.TopP = number(slotTemperature), number(slotTopP)
	if k := v.value(slotTopK); k != nil && k.Tag == capture.TagInt {
		x.param.TopK = signal.Some(k.Int) // -1 is all
	}
	x.param.MaxTokens, x.param.N = known(v.int(slotMaxTokens)), known(v.int(slotN))
	stops, ok := v.int(slotStop)
	x.param.HasStop = stops > 0
	_, x.param.Logprobs = v.int(slotLogprobs)
	x.whole = ok && x.param.Temperature.OK && x.param.TopP.OK && x.param.MaxTokens.OK && x.param.N.OK
}

func (a *arrivals) add(id string, x arrival) {
	if a.of == nil {
		a.of = make(map[string]arrival)
	}
	if len(a.order) >= maxArrivals {
		half := len(a.order) / 2
		for i, old := range a.order[:half] {
			if a.of[old].n == a.n+uint64(i) { // else the name was used again
				delete(a.of, old)
			}
		}
		a.order = slices.Delete(a.order, 0, half)
		a.n += uint64(half)
	}
	x.n = a.n + uint64(len(a.order))
	a.of[id] = x
	a.order = append(a.order, id)
}

// begun fills in when the core got a request, which was seen by a look or in a step, and
// reports whether that is known and new. q has the request's ids. Of one that has given
// outputs it comes too late.
func (c *core) begun(q *signal.RequestAdded) bool {
	r := c.running[q.ID]
	if r == nil || r.begun || r.gave || q.ExternalID == "" {
		return false
	}
	x, ok := c.arrivals.of[q.ExternalID]
	if !ok || q.Arrival != 0 && x.arrival != 0 && q.Arrival != x.arrival {
		return false // or another request of that name
	}
	if !q.Child.OK { // the children of a request arrive with it
		delete(c.arrivals.of, q.ExternalID)
	}
	r.begun = true
	q.At, q.Known = x.at, true
	if q.Arrival == 0 {
		q.Arrival = x.arrival
	}
	if q.Outline && x.whole {
		q.Outline, q.Param = false, x.param
		if q.Child.OK {
			q.Param.N = signal.Opt[int64]{} // that is of all of them
		}
	}
	if q.AdapterUnknown && x.adapter.OK {
		q.AdapterUnknown, q.Adapter = false, x.adapter.V
	}
	return true
}
