package cuda

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"inferspan/bpf"
	"inferspan/probes/attach"
)

// level is where calls of a pair are seen.
type level int

const (
	unsettled    level = iota // in the driver, as far as is known
	driverLevel               // in the driver
	runtimeLevel              // in the runtime: the driver is reached by another entry than that probed
)

// How many calls settle that a runtime reaches the driver by the functions probed, and how
// many without a trace there that it does not. A call that fails early leaves none: a few
// do not count.
const (
	enoughCompared = 256
	enoughMissed   = 16
)

// enoughMarks is how many captures on threads of a process without a call of the driver
// say that it is not reached by the functions probed: some ten steps, each of which has
// work for a GPU.
const enoughMarks = 64

// compare puts the probes on the runtime's calls that are looked at from a mode on: to
// compare them with the driver's, at one trap more for each, until the matter is settled;
// or in place of the driver's. Called with mu held.
func (a *Probes) compare(from Mode) error {
	for i := range pairs {
		if pairs[i].from != from {
			continue
		}
		var err error
		switch a.levels[i] {
		case unsettled:
			// Without a runtime there is nothing to compare.
			a.runtime[i], _ = a.onRuntime(pairs[i].runtime, []runtimeProbe{{attach.Entry, pairs[i].compare, bpf.CUDAHitCompare, nil}})
		case runtimeLevel:
			a.runtime[i], err = a.onRuntime(pairs[i].runtime, pairs[i].programs)
		}
		if err != nil {
			return fmt.Errorf("looking at %s of process %d at the runtime: %w", pairs[i].what, a.pid, err)
		}
	}
	return nil
}

// atRuntime tells whether calls of a function of the driver are seen at the runtime.
func (a *Probes) atRuntime(function string) bool {
	for i := range pairs {
		if slices.Contains(pairs[i].driver, function) {
			return a.levels[i] == runtimeLevel
		}
	}
	return false
}

// onRuntime puts programs on the versions of a function of the runtime, in each runtime
// that the process maps. One that is linked into another library is not found. The error
// is that there is no version in one of them, or of attaching.
func (a *Probes) onRuntime(symbols []string, programs []runtimeProbe) (links []io.Closer, err error) {
	libs, err := mapped(a.pid, "libcudart.so")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err, links = errors.Join(append([]error{err}, bpf.CloseAll(links)...)...), nil
		}
	}()
	for _, where := range libs {
		lib, err := attach.OpenLibrary(where)
		if err != nil {
			return links, err
		}
		for _, p := range programs {
			at := symbols
			if p.of != nil {
				at = p.of
			}
			more, err := a.onVersions(lib, at, p)
			links = append(links, more...)
			if err != nil {
				_ = lib.Close()
				return links, err
			}
		}
		_ = lib.Close()
	}
	return links, nil
}

// onVersions puts a program on the versions of a function that a runtime has, of which
// there must be one, each address once.
func (a *Probes) onVersions(lib *attach.Library, symbols []string, p runtimeProbe) (links []io.Closer, err error) {
	at := make(map[uint64]bool)
	var missing []error
	for _, symbol := range symbols {
		fn, err := lib.Func(symbol)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		if at[fn.Offset] {
			continue
		}
		at[fn.Offset] = true
		put, err := a.attach(lib, p.program, symbol, p.where, p.hit)
		if err != nil {
			return links, err
		}
		links = append(links, put.Links...)
	}
	if len(at) == 0 {
		return nil, errors.Join(missing...)
	}
	return links, nil
}

// Settle looks at the comparison of the runtime's calls with the driver's, and ends it
// where it is settled. Calls that do not reach the driver by the functions that it exports
// are seen at the runtime from then on, and a text says what is not seen then. To be
// called about once a second.
func (a *Probes) Settle() (says []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return nil, nil
	}
	seen, err := a.tracer.CUDA(a.pid)
	if err != nil {
		return nil, err
	}
	for i := range pairs {
		if a.levels[i] != unsettled || a.runtime[i] == nil {
			continue
		}
		l := seen.Levels[i]
		switch {
		case l.Missed >= enoughMissed && l.Missed > l.Compared/8:
			if err := a.fallBack(i); err != nil {
				return says, err
			}
			says = append(says, pairs[i].lacks())
		case l.Compared >= enoughCompared:
			_ = errors.Join(bpf.CloseAll(a.runtime[i])...)
			a.runtime[i], a.levels[i] = nil, driverLevel
		}
	}
	return says, nil
}

// lacks says what is not seen where a pair is seen at the runtime.
func (p *pair) lacks() string {
	return fmt.Sprintf("%s of libraries that do not use the shared runtime's %s: the driver is not reached by the %s that it exports", p.what, p.runtime[0], p.driver[0])
}

// Lacks says what is not seen since it is looked at in the runtime, as Settle did.
func (a *Probes) Lacks() (says []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range pairs {
		if a.levels[i] == runtimeLevel && (a.launches || pairs[i].from != All) {
			says = append(says, pairs[i].lacks())
		}
	}
	return says
}

// Silent tells that the process has made steps, but no call of the driver that was seen:
// then there is nothing to be had of it.
func (a *Probes) Silent() (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return false, nil
	}
	s, err := a.tracer.CUDA(a.pid)
	if err != nil {
		return false, err
	}
	calls := uint64(0)
	for h, n := range s.Hits {
		if bpf.CUDAHit(h) != bpf.CUDAHitCompare {
			calls += n
		}
	}
	return calls == 0 && s.Marks >= enoughMarks, nil
}

// fallBack looks at a pair in the runtime. Called with mu held.
func (a *Probes) fallBack(i int) error {
	p := &pairs[i]
	fail := func(errs ...error) error {
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("looking at %s of process %d at the runtime: %w", p.what, a.pid, err)
		}
		return nil
	}
	// No record in between counts at both or at neither. Of kernels alone none counts
	// meanwhile: all else goes on.
	_ = a.count() // before it is forgotten
	begin := func() error { return a.tracer.RemoveCUDA(a.pid) }
	if p.from == All {
		begin = func() error { return a.tracer.SetCUDA(a.pid, false) }
	}
	if err := begin(); err != nil {
		return fail(err)
	}
	out := a.runtime[i]
	for _, function := range p.driver {
		out = append(out, a.driver[function]...)
		delete(a.driver, function)
	}
	a.levels[i] = runtimeLevel // whatever becomes of it: there is no more to settle
	errs := bpf.CloseAll(out)
	var err error
	a.runtime[i], err = a.onRuntime(p.runtime, p.programs)
	if err := fail(append(errs, err)...); err != nil {
		return err
	}
	a.captured(Graph)
	if a.launches {
		a.captured(All)
	}
	return fail(a.tracer.SetCUDA(a.pid, a.launches))
}

// captured looks at captures in the runtime too, as far as a mode needs it, where some call
// of it was found not to reach the driver. Called with mu held.
func (a *Probes) captured(from Mode) {
	for i := range captures {
		c := &captures[i]
		if c.from != from || !slices.Contains(a.levels[:], runtimeLevel) {
			continue
		}
		key := c.key()
		if a.driver[key] != nil {
			continue
		}
		// Older runtimes do not have all: what is not seen of a graph is said with its launch.
		a.driver[key], _ = a.onRuntime(c.symbols, []runtimeProbe{{c.where, c.program, c.hit, nil}})
	}
}

// key is of the probes on a function of the runtime beside those of the driver.
func (p *probe) key() string { return fmt.Sprintf("%s %s", p.symbols[0], p.where) }
