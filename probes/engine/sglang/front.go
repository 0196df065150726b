package sglang

import (
	"errors"
	"fmt"

	"inferspan/correlate/signal"
	"inferspan/probes/engine"
	"inferspan/probes/note"
	"inferspan/probes/python"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
)

// Front is the tokenizer manager in the process of an HTTP server, or in one that uses
// the engine as a library. It must be used by one goroutine at a time.
type Front struct {
	in     *python.Interp
	probes []engine.Probe
	stats  []string // fields of the times of a request
}

// NewFront finds the tokenizer manager of an interpreter. The error wraps
// engine.ErrNoFront if there is none, or not yet, and python.ErrGone if the process has
// ended.
func NewFront(in *python.Interp) (*Front, error) {
	// While the module is being imported the class is not there, nor all that it needs.
	if _, err := in.Path(moduleTokenizer, "TokenizerManager"); err != nil {
		if errors.Is(err, python.ErrNotFound) {
			err = fmt.Errorf("%w: %w", engine.ErrNoFront, err)
		}
		return nil, fmt.Errorf("finding SGLang's tokenizer manager: %w", err)
	}
	probes, err := FrontProbes(in)
	if errors.Is(err, engine.ErrNoFront) {
		// 0.5.5 has no such class, and reads the wall clock. The reason why these are not
		// in place is that there is nothing to watch.
		probes, err = []engine.Probe{{
			Detail: signal.DetailStamps, Callable: plan.Func("time", "perf_counter"),
			Watches: []engine.Watch{{Caller: plan.Func(moduleStats, "APIServerReqTimeStats.set_api_server_dispatch_finish_time")}},
		}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("finding SGLang's tokenizer manager: %w", err)
	}
	return &Front{in: in, probes: probes, stats: statFields(in, target.RoleAPIServer)}, nil
}

// Probes returns what to put into the process to see when it works on a request.
func (f *Front) Probes() []engine.Probe { return f.probes }

// manager finds the tokenizer manager.
func (f *Front) manager() (python.Value, error) {
	v, err := f.in.Path("sglang.srt.entrypoints.http_server", "_global_state", "tokenizer_manager")
	if err == nil && !v.IsNone() {
		return v, nil
	}
	main, err := f.in.Module("__main__")
	if err != nil {
		return python.Value{}, err
	}
	vars, err := main.Vars(maxVars)
	if err != nil {
		return python.Value{}, err
	}
	for _, it := range vars {
		if it.Value.TypeName() != "Engine" {
			continue
		}
		if v, err := it.Value.Attr("tokenizer_manager"); err == nil {
			return v, nil
		}
	}
	return python.Value{}, python.ErrNotFound
}

// maxVars bounds the variables of a program that are looked at.
const maxVars = 4096

// Requests reads the requests that the front end waits for, with their times.
func (f *Front) Requests(now func() uint64) (reqs []note.Request, at uint64, err error) {
	m, err := f.manager()
	if err != nil {
		return nil, now(), fmt.Errorf("finding SGLang's tokenizer manager: %w", err)
	}
	states, err := m.Attr("rid_to_state")
	if err != nil {
		return nil, now(), fmt.Errorf("reading the requests of the tokenizer manager: %w", err)
	}
	items, err := states.Items(maxPeeked)
	if err != nil {
		return nil, now(), fmt.Errorf("reading the requests of the tokenizer manager: %w", err)
	}
	var names []string
	for _, name := range frontNames {
		if has(f.stats, name) {
			names = append(names, name)
		}
	}
	for _, it := range items {
		id, err := it.Key.Str()
		if err != nil {
			continue
		}
		v, err := f.in.Object(it.Value.Addr())
		if err != nil {
			continue
		}
		if done, err := v.Attr("finished"); err != nil || done.IsNone() {
			continue
		} else if over, err := done.Bool(); err != nil || over {
			continue
		}
		q := note.Request{ID: id, Times: times(v, names)}
		if len(q.Times) > 0 {
			reqs = append(reqs, q)
		}
	}
	return reqs, now(), nil
}

// Controller is the data-parallel controller of a process. It must be used by one
// goroutine at a time.
type Controller struct{ probes []engine.Probe }

// NewController finds the controller of an interpreter. The error is as that of NewFront.
func NewController(in *python.Interp) (*Controller, error) {
	if _, err := in.Path(moduleController, "DataParallelController"); err != nil {
		if errors.Is(err, python.ErrNotFound) {
			err = fmt.Errorf("%w: %w", engine.ErrNoFront, err)
		}
		return nil, fmt.Errorf("finding SGLang's DP controller: %w", err)
	}
	return &Controller{ControllerProbes(in)}, nil
}

// Probes returns what to put into the process to see when it hands requests over.
func (c *Controller) Probes() []engine.Probe { return c.probes }
