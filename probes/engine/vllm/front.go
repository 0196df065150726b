package vllm

import (
	"errors"
	"fmt"

	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/python"
	"inferspan/probes/python/plan"
)

// Modules of the front end.
const (
	moduleStats    = "vllm.v1.metrics.stats"
	moduleAsyncLLM = "vllm.v1.engine.async_llm"
	moduleLLM      = "vllm.v1.engine.llm_engine"
)

// Frames from the clock read outwards. Making an object runs a frame of its own
// between the constructor and its caller (3.12).
const depthStamp = 5

// Front is the front end in the process of an API server, or in one that uses the
// engine as a library. It must be used by one goroutine at a time.
type Front struct {
	in *python.Interp
}

// NewFront finds the front end in an interpreter. The error wraps engine.ErrNoFront
// if there is none, or not yet, and python.ErrGone if the process has ended.
func NewFront(in *python.Interp) (*Front, error) {
	f := &Front{in: in}
	if _, err := in.Module(moduleStats); err != nil {
		if errors.Is(err, python.ErrNotFound) {
			err = fmt.Errorf("%w: %w", engine.ErrNoFront, err)
		}
		return nil, fmt.Errorf("finding vLLM's front end: %w", err)
	}
	if len(f.loops()) == 0 {
		return nil, fmt.Errorf("finding vLLM's front end: %w: no function that takes the outputs", engine.ErrNoFront)
	}
	return f, nil
}

// loops are the functions that take the outputs of a core one message after another
// and have statistics made of each.
func (f *Front) loops() []plan.Function {
	return f.those(
		plan.Func(moduleAsyncLLM, "AsyncLLM._run_output_handler.<locals>.output_handler"),
		plan.Func(moduleAsyncLLM, "AsyncLLM._run_output_handler"),
		plan.Func(moduleLLM, "LLMEngine.step"),
	)
}

// those gives the functions that the process has and that have all of the locals.
func (f *Front) those(fns ...plan.Function) []plan.Function {
	var out []plan.Function
	for _, fn := range fns {
		if c, err := f.in.Code(fn.Module, fn.Path...); err == nil && c.Local("outputs") >= 0 {
			out = append(out, fn)
		}
	}
	return out
}

// Probes returns the probes that show when the front end works on a message.
//
// It reads time.time once for each message with outputs, in the constructor of
// IterationStats, and the times to first token and end to end run until then. Which
// message it is the function that called the constructor has: its outputs carry the
// core's stamp, which no other message of that core has.
func (f *Front) Probes() []engine.Probe {
	var plans []*plan.Plan
	for _, fn := range f.loops() {
		p := plan.New(planStamp, fn, depthStamp)
		outputs := p.Local("outputs")
		class := plan.Func(moduleOutputs, "EngineCoreOutputs")
		outputs.AttrOf(class, "timestamp").Value(slotStamp.String())
		outputs.AttrOf(class, "engine_index").Value(slotEngine.String())
		plans = append(plans, p)
	}
	return []engine.Probe{{
		Detail:   signal.DetailStamps,
		Callable: plan.Func("time", "time"),
		Watches:  []engine.Watch{{Caller: plan.Func(moduleStats, "IterationStats.__init__"), Plans: plans}},
	}}
}
