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
	moduleStats       = "vllm.v1.metrics.stats"
	moduleAsyncLLM    = "vllm.v1.engine.async_llm"
	moduleLLM         = "vllm.v1.engine.llm_engine"
	moduleInput       = "vllm.v1.engine.input_processor"
	moduleDetokenizer = "vllm.v1.engine.detokenizer"
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
	return f.with("outputs",
		plan.Func(moduleAsyncLLM, "AsyncLLM._run_output_handler.<locals>.output_handler"),
		plan.Func(moduleAsyncLLM, "AsyncLLM._run_output_handler"),
		plan.Func(moduleLLM, "LLMEngine.step"),
	)
}

// with gives those of the functions that the process has and that have a local
// variable.
func (f *Front) with(local string, fns ...plan.Function) []plan.Function {
	var out []plan.Function
	for _, fn := range fns {
		if c, err := f.in.Code(fn.Module, fn.Path...); err == nil && c.Local(local) >= 0 {
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
	clock := engine.Probe{
		Detail:   signal.DetailStamps,
		Callable: plan.Func("time", "time"),
		Watches:  []engine.Watch{{Caller: plan.Func(moduleStats, "IterationStats.__init__"), Plans: plans}},
	}
	encoders, input := f.tokenizer()
	if input != nil {
		clock.Watches = append(clock.Watches, *input)
	}
	return append(append([]engine.Probe{clock}, encoders...), f.detokenizer()...)
}

// detokenizer returns the probe on the native function that turns one token of a
// request into text.
func (f *Front) detokenizer() []engine.Probe {
	step := plan.Func(moduleDetokenizer, "FastIncrementalDetokenizer._protected_step")
	if len(f.with("next_token_id", step)) == 0 {
		step = plan.Func(moduleDetokenizer, "FastIncrementalDetokenizer.decode_next")
		if len(f.with("next_token_id", step)) == 0 {
			return nil
		}
	}
	p := plan.New(planDecode, step, 1)
	p.Local("self").Attr("request_id").Str(slotID.String(), maxIDBytes)
	return []engine.Probe{{
		Detail:   signal.DetailDetokenize,
		Callable: plan.Func("tokenizers.decoders", "DecodeStream.step"),
		Timed:    true,
		Busy:     true,
		Watches:  []engine.Watch{{Caller: step, Plans: []*plan.Plan{p}}},
	}}
}

// tokenizer returns the probe on the tokenizer's native function, which turns texts
// into tokens, in a thread of its own, and what to read where the front end makes a
// request of what it gave: it reads time.time there.
func (f *Front) tokenizer() ([]engine.Probe, *engine.Watch) {
	const texts = "batch_text_or_text_pairs"
	encode := engine.Probe{Detail: signal.DetailTokenize, Callable: plan.Func("tokenizers", "Tokenizer.encode_batch"), Timed: true}
	for _, fn := range f.with(texts,
		plan.Func("transformers.tokenization_utils_tokenizers", "TokenizersBackend._encode_plus"),
		plan.Func("transformers.tokenization_utils_fast", "PreTrainedTokenizerFast._batch_encode_plus"),
	) {
		p := plan.New(planEncode, fn, 1)
		all := p.Local(texts)
		all.Len(slotTexts.String())
		first := all.Index(0)
		first.Addr(slotText.String())
		first.Len(slotChars.String())
		encode.Watches = append(encode.Watches, engine.Watch{Caller: fn, Plans: []*plan.Plan{p}})
	}
	if len(encode.Watches) == 0 {
		return nil, nil
	}
	process := plan.Func(moduleInput, "InputProcessor.process_inputs")
	p := plan.New(planInput, process, 1)
	p.Local("request_id").Str(slotID.String(), maxIDBytes)
	prompt := p.Local("prompt")
	prompt.Key("prompt").Addr(slotText.String())
	prompt.Key("prompt_token_ids").Len(slotPrompt.String())
	return []engine.Probe{encode}, &engine.Watch{Detail: signal.DetailTokenize, Caller: process, Plans: []*plan.Plan{p}}
}
