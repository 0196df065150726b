package target

import (
	"errors"
	"fmt"
	"strings"

	"inferspan/probes/python"
)

// ErrNoCore says that a process has no engine core, or none that can be found.
var ErrNoCore = errors.New("no engine core")

// maxFinalizers bounds the callbacks at exit that are looked at.
const maxFinalizers = 4096

// FindCore finds the object of the engine core in a process that runs one: a
// variable of the function that runs a core's process, or, where the engine is part
// of the program, what the objects of the library's interface lead to. The way to
// the object may not last: see python.Interp.Object. Errors: ErrNoCore, those of
// package python.
func FindCore(in *python.Interp) (core python.Value, err error) {
	frames, err := in.MainFrames()
	if err != nil {
		return python.Value{}, fmt.Errorf("finding the engine core: %w", err)
	}
	for _, f := range frames {
		if strings.HasSuffix(f.File, "/vllm/v1/engine/core.py") && plainName(f.Name) == "run_engine_core" {
			core, err := f.Local("engine_core")
			if err != nil || core.IsNone() {
				return python.Value{}, ErrNoCore // it starts
			}
			return core, nil
		}
	}
	return coreInside(in, frames)
}

func plainName(qualified string) string { return qualified[strings.LastIndexByte(qualified, '.')+1:] }

// coreInside finds an engine core that is part of a program: by the callback that
// shuts it down at exit (0.32), by the methods under way, or by the variables of
// the main module.
func coreInside(in *python.Interp, frames []python.Frame) (python.Value, error) {
	if _, err := in.Module("vllm.v1.engine.core"); err != nil {
		return python.Value{}, ErrNoCore
	}
	if items, err := finalizers(in); err == nil {
		for _, it := range items {
			fn, err := it.Value.Attr("func")
			if err != nil {
				continue
			}
			if _, self, err := fn.Method(); err == nil {
				if core, ok := coreFrom(self); ok {
					return core, nil
				}
			}
		}
	}
	for _, f := range frames {
		if strings.Contains(f.File, "vllm/") {
			if self, err := f.Local("self"); err == nil {
				if core, ok := coreFrom(self); ok {
					return core, nil
				}
			}
		}
	}
	main, err := in.Module("__main__")
	if err != nil {
		return python.Value{}, ErrNoCore
	}
	vars, err := main.Vars(maxFinalizers)
	if err != nil {
		return python.Value{}, ErrNoCore
	}
	for _, it := range vars {
		switch it.Value.TypeName() {
		case "LLM", "LLMEngine":
			if core, ok := coreFrom(it.Value); ok {
				return core, nil
			}
		}
	}
	return python.Value{}, ErrNoCore
}

// finalizers are the callbacks that run when an object goes or the program ends.
func finalizers(in *python.Interp) ([]python.Item, error) {
	registry, err := in.Path("weakref", "finalize", "_registry")
	if err != nil {
		return nil, err
	}
	return registry.Items(maxFinalizers)
}

// coreFrom follows the attributes that lead from the objects of the library's
// interface (LLM, LLMEngine, InprocClient) to the engine core in the same process.
func coreFrom(v python.Value) (python.Value, bool) {
	for _, attr := range []string{"llm_engine", "engine_core", "engine_core"} {
		if next, err := v.Attr(attr); err == nil && !next.IsNone() {
			v = next
		}
	}
	if !strings.HasPrefix(v.TypeName(), "EngineCore") && !strings.HasPrefix(v.TypeName(), "DPEngineCore") {
		return python.Value{}, false
	}
	s, err := v.Attr("scheduler")
	if err != nil {
		return python.Value{}, false
	}
	_, err = s.Attr("running")
	return v, err == nil
}
