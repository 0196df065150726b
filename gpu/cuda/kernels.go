package cuda

import (
	"errors"
	"fmt"
	"io"
	"time"

	"inferspan/bpf"
	"inferspan/probes/attach"
)

// Kernel is a function that a process launched.
type Kernel struct {
	Handle  uint64 // the driver's; of Runtime what the runtime was asked to launch
	Runtime bool   // counted where the runtime launches it
	// Launches while they were counted, one by one; InGraphs: those as nodes of graphs that
	// were launched meanwhile.
	Launches, InGraphs uint64
	Name               string // as the driver has it: mangled; "" if it is not known
	By                 string // ByRegistration, BySymbols
}

// Kernels are what a process launched, in no order.
type Kernels struct {
	At        uint64 // when launches were counted, ns of the clock that stamps records
	Kernels   []Kernel
	Graphs    uint64 // launches of the graphs that InGraphs of the kernels are of
	Uncounted bpf.CUDAUncounted
}

// enoughPaired is how many of the runtime's launches are looked at for the sake of handles
// that have no name otherwise. A step of an engine has some hundred.
const enoughPaired = 4096

// enoughAgain is how often in a second the driver may be asked for what is known, until
// that is looked at no more: a program that asks at each launch would pay for it each time.
const enoughAgain = 256

// functions is what is known of the functions that a process launches.
type functions struct {
	names *namer
	links []io.Closer     // on the runtime, while pairs are learned
	tried map[uint64]bool // handles that no pair was found for
	from  uint64          // launches paired when that began

	graphs graphs
}

// Names tells the names of those functions of the driver that the program itself has
// names for. It is called from one goroutine at a time, not that of Kernels.
type Names func(handles []uint64) map[uint64]string

// Kernels returns what was launched so far, or up to a moment not longer than age ago, with
// what names can be had, here or by others; nodes of graphs are up to now. Where a handle has
// none, it sees to it that from now on, while launches are counted, the runtime's launches
// are looked at too, at two traps each, until it is known which of them lead there, or
// that none does. To be called about once a second, by one goroutine, and before Close.
func (a *Probes) Kernels(others Names, age time.Duration) (Kernels, error) {
	given, err := a.tracer.TakeCUDANames(a.pid)
	if err != nil {
		return Kernels{}, err
	}
	made, nodes, err := a.tracer.CUDAGraphs(a.pid)
	if err != nil {
		return Kernels{}, err
	}
	launched, err := a.tracer.CUDALaunches(a.pid, age)
	if err != nil {
		return Kernels{}, err
	}
	f := &a.functions
	f.graphs.add(nodes)
	inGraphs := f.graphs.launches(made)
	byName, byKernel := f.names.give(given)
	var search, driver []uint64
	for _, x := range launched.Functions {
		if name, _ := f.names.name(x.Handle); name == "" {
			search = append(search, x.Handle, x.Under)
			if !x.Runtime && x.Under == 0 {
				driver = append(driver, x.Handle)
			}
		}
	}
	f.names.look(search, driver, others)
	k := Kernels{At: launched.At, Uncounted: launched.Uncounted}
	var open []uint64
	for _, x := range launched.Functions {
		one := Kernel{Handle: x.Handle, Runtime: x.Runtime, Launches: x.Launches, InGraphs: inGraphs[node{x.Handle, x.Runtime}]}
		one.Name, one.By = f.names.name(x.Handle)
		if one.Name == "" && x.Under != 0 {
			one.Name, one.By = f.names.name(x.Under)
		}
		if !usable(one.Name) {
			one.Name, one.By = "", ""
		}
		if one.Name == "" && !x.Runtime && !x.Settled && !f.tried[x.Handle] && f.names.searched(x.Handle) {
			open = append(open, x.Handle)
		}
		k.Kernels = append(k.Kernels, one)
		delete(inGraphs, node{x.Handle, x.Runtime})
	}
	// These were not among the functions when they were seen, or there is no room.
	for x, n := range inGraphs {
		one := Kernel{Handle: x.handle, Runtime: x.runtime, InGraphs: n}
		if one.Name, one.By = f.names.name(x.handle); !usable(one.Name) {
			one.Name, one.By = "", ""
		}
		k.Kernels = append(k.Kernels, one)
	}
	for _, g := range made {
		k.Graphs += g.Launches
	}
	var busy []string
	if byName > enoughAgain {
		busy = append(busy, "cuModuleGetFunction", "cuLibraryGetKernel")
	}
	if byKernel > enoughAgain {
		busy = append(busy, kernelFunction)
	}
	return k, errors.Join(a.unprobe(busy), a.pair(open))
}

// unprobe looks at functions of the driver no more.
func (a *Probes) unprobe(functions []string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, name := range functions {
		errs = append(errs, bpf.CloseAll(a.driver[name])...)
		delete(a.driver, name)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("taking probes out of process %d: %w", a.pid, err)
	}
	return nil
}

// pair begins or ends to learn pairs, as there are handles that are open.
func (a *Probes) pair(open []uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return nil
	}
	f := &a.functions
	if !a.launches {
		return nil
	}
	paired, err := a.tracer.CUDAPaired(a.pid)
	if err != nil {
		return err
	}
	switch {
	case f.links == nil && len(open) > 0:
		f.from = paired
		if f.links, err = a.onRuntimeLaunches(); err == nil && len(f.links) > 0 {
			return a.tracer.PairCUDA(a.pid, true)
		}
		// Without a runtime there are no pairs.
	case f.links == nil || len(open) > 0 && paired-f.from < enoughPaired:
		return nil
	}
	for _, h := range open {
		f.tried[h] = true
	}
	return errors.Join(err, a.endPairs())
}

// onRuntimeLaunches puts the programs for pairs in. The returns come first.
func (a *Probes) onRuntimeLaunches() (all []io.Closer, err error) {
	for i := range pairs {
		if pairs[i].pair == "" || a.levels[i] == runtimeLevel {
			continue // which does not lead to a launch that is seen
		}
		links, err := a.onRuntime(pairs[i].runtime, []runtimeProbe{{attach.Return, bpf.ProgCUDAPairEnd, bpf.CUDAHitPair, nil}, {attach.Entry, pairs[i].pair, bpf.CUDAHitPair, nil}})
		if err != nil {
			return nil, errors.Join(append([]error{err}, bpf.CloseAll(all)...)...)
		}
		all = append(all, links...)
	}
	return all, nil
}

// endPairs takes the programs for pairs out. Called with mu held.
func (a *Probes) endPairs() error {
	links := a.functions.links
	a.functions.links = nil
	return errors.Join(append([]error{a.tracer.PairCUDA(a.pid, false)}, bpf.CloseAll(links)...)...)
}
