package cuda

import (
	"errors"
	"fmt"
	"io"

	"inferspan/bpf"
	"inferspan/probes/attach"
)

// level is where launches of a pair are counted.
type level int

const (
	unsettled    level = iota // in the driver, as far as is known
	driverLevel               // in the driver
	runtimeLevel              // in the runtime: the driver is reached by another entry than that probed
)

// How many launches settle that a runtime reaches the driver by the functions probed,
// and how many without a trace there that it does not. A launch that fails early leaves
// none: a few do not count.
const (
	enoughCompared = 256
	enoughMissed   = 16
)

// runtimes puts the probes on the runtime's launches that are called for: to compare them
// with the driver's, at one trap more for each, until the matter is settled; or to count
// them. Called with mu held.
func (a *Probes) runtimes() error {
	for i := range pairs {
		var err error
		switch a.levels[i] {
		case unsettled:
			// Without a runtime there is nothing to compare.
			a.runtime[i], _ = a.onRuntime(i, pairs[i].compare, attach.Entry)
		case runtimeLevel:
			a.runtime[i], err = a.onRuntime(i, pairs[i].launch, attach.Entry)
		}
		if err != nil {
			return fmt.Errorf("counting kernels of process %d at %s: %w", a.pid, pairs[i].runtime, err)
		}
	}
	return nil
}

// atRuntime tells whether launches by a function of the driver are counted at the runtime.
func (a *Probes) atRuntime(function string) bool {
	for i := range pairs {
		if pairs[i].driver == function {
			return a.levels[i] == runtimeLevel
		}
	}
	return false
}

// onRuntime puts a program on the runtime's launch of a pair, in each runtime that the
// process maps. One that is linked into another library is not found.
func (a *Probes) onRuntime(i int, program bpf.Program, at attach.Where) (links []io.Closer, err error) {
	libs, err := mapped(a.pid, "libcudart.so")
	if err != nil {
		return nil, err
	}
	for _, where := range libs {
		lib, err := attach.OpenLibrary(where)
		if err == nil {
			var more []io.Closer
			more, _, err = lib.Attach(a.tracer.Program(program), pairs[i].runtime, at, a.target)
			links = append(links, more...)
			lib.Close()
		}
		if err != nil {
			return nil, errors.Join(append([]error{err}, bpf.CloseAll(links)...)...)
		}
	}
	return links, nil
}

// Settle looks at the comparison of the runtime's launches with the driver's, and ends it
// when it is settled. Where the driver is not reached by the function that it exports,
// kernels are counted where the runtime launches them from then on, and a text says what
// is not seen then. To be called about
// once a second.
func (a *Probes) Settle() (says []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done || !a.launches {
		return nil, nil
	}
	var seen [len(pairs)]bpf.CUDALevels
	if seen[0], seen[1], err = a.tracer.CUDALevels(a.pid); err != nil {
		return nil, err
	}
	for i := range pairs {
		if a.levels[i] != unsettled || a.runtime[i] == nil {
			continue
		}
		switch {
		case seen[i].Missed >= enoughMissed && seen[i].Missed > seen[i].Compared/8:
			if err := a.fallBack(i); err != nil {
				return says, err
			}
			says = append(says, fmt.Sprintf("kernels of libraries that do not launch by the shared runtime's %s: the driver is not reached by the %s that it exports", pairs[i].runtime, pairs[i].driver))
		case seen[i].Compared >= enoughCompared:
			_ = errors.Join(bpf.CloseAll(a.runtime[i])...)
			a.runtime[i], a.levels[i] = nil, driverLevel
		}
	}
	return says, nil
}

// fallBack counts a pair at the runtime. Called with mu held.
func (a *Probes) fallBack(i int) error {
	// No record in between counts at both or at neither.
	if err := a.tracer.RemoveCUDA(a.pid); err != nil {
		return err
	}
	p := &pairs[i]
	errs := bpf.CloseAll(append(a.runtime[i], a.driver[p.driver]...))
	delete(a.driver, p.driver)
	var err error
	a.runtime[i], err = a.onRuntime(i, p.launch, attach.Entry)
	a.levels[i] = runtimeLevel // whatever became of it: there is no more to settle
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("counting kernels of process %d at %s: %w", a.pid, p.runtime, err)
	}
	return a.tracer.SetCUDA(a.pid, true)
}
