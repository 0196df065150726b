package cuda

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"inferspan/bpf"
	"inferspan/probes/attach"
	"inferspan/probes/elf"
	"inferspan/probes/procfs"
	"inferspan/probes/target"
)

// ErrNoDriver is wrapped when a process does not map the CUDA driver, or not yet.
var ErrNoDriver = errors.New("the process does not map the CUDA driver (libcuda.so)")

// Tracer is the part of bpf.Objects that is needed.
type Tracer interface {
	Program(bpf.Program) *ebpf.Program
	Multi(bpf.Program) bool
	SetCUDA(pid int, launches bool) error
	RemoveCUDA(pid int) error
	CUDA(pid int) (bpf.CUDAState, error)
	CUDALaunches(pid int, age time.Duration) (bpf.CUDALaunches, error)
	TakeCUDANames(pid int) ([]bpf.CUDAName, error)
	PairCUDA(pid int, on bool) error
	CUDAPaired(pid int) (uint64, error)
	CUDAGraphs(pid int) ([]bpf.CUDAGraph, []bpf.CUDANode, error)
	ForgetCUDA(pid int) error
}

// Status tells of one function of the table.
type Status struct {
	Symbol string
	Where  attach.Where
	Points int    // instructions probed; 0: not attached
	Means  string // "uprobe", "uretprobe"
	Reason string // why not attached
}

// Probes are those in one process. Methods may be called from several goroutines.
type Probes struct {
	pid    int
	tracer Tracer
	target *target.Process
	report []Status

	mu       sync.Mutex
	done     bool
	launches bool                   // are counted
	driver   map[string][]io.Closer // by the first function of the table's entry
	// Probes on the runtime's functions, as long as the levels are compared or instead of
	// the driver's.
	runtime [len(pairs)][]io.Closer
	levels  [len(pairs)]level

	functions functions
	named     bool // names of functions are looked at, or were

	out    sync.WaitGroup // probes on launches that are being taken out
	outErr error          // of that; to be read behind out

	stepped [bpf.CUDAHits]bool   // some function whose hits are counted so traps twice
	counted [bpf.CUDAHits]uint64 // hits when they were last looked at
	hits    Hits                 // up to then
}

// Hits are those of the probes, by what the trap is. Where one kind of call has functions
// of both, all of it counts as stepped.
type Hits struct{ Emulated, Stepped uint64 }

// Add adds the hits of other probes.
func (h *Hits) Add(more Hits) {
	h.Emulated += more.Emulated
	h.Stepped += more.Stepped
}

// Hits returns the hits since Attach; those of rare calls do not count.
func (a *Probes) Hits() (Hits, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return a.hits, nil
	}
	err := a.count()
	return a.hits, err
}

// count brings hits up to date. Called with mu held.
func (a *Probes) count() error {
	s, err := a.tracer.CUDA(a.pid)
	if err != nil {
		return err
	}
	for h, n := range s.Hits {
		if n < a.counted[h] {
			a.counted[h] = 0 // they began anew
		}
		if a.stepped[h] {
			a.hits.Stepped += n - a.counted[h]
		} else {
			a.hits.Emulated += n - a.counted[h]
		}
		a.counted[h] = n
	}
	return nil
}

// attach has a program run at a function, where that costs least, and notes what it does.
func (a *Probes) attach(lib *attach.Library, program bpf.Program, symbol string, where attach.Where, hit bpf.CUDAHit) (at attach.Attached, err error) {
	prog := attach.Program{Program: a.tracer.Program(program), Multi: a.tracer.Multi(program)}
	if prog.Program == nil {
		return at, fmt.Errorf("no BPF program %s", program)
	}
	if where == attach.Entry {
		at, err = lib.AttachEntry(prog, symbol, reads(program), a.target)
	} else {
		at, err = lib.Attach(prog, symbol, where, a.target)
	}
	if err == nil && at.Stepped && hit != rare {
		a.stepped[hit] = true
	}
	return at, err
}

// Driver finds the driver in a process. The error wraps ErrNoDriver, or
// procfs.ErrGone if the process is gone.
func Driver(pid int) (*target.Library, error) {
	// libcuda.so.1, or the file that it links to: libcuda.so.580.65.06
	libs, err := mapped(pid, "libcuda.so")
	if err != nil {
		return nil, err
	}
	if len(libs) == 0 {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoDriver)
	}
	return libs[0], nil
}

// mapped returns the libraries of a process whose names begin so, each file once.
func mapped(pid int, name string) ([]*target.Library, error) {
	fs := procfs.FS{}
	maps, err := fs.Maps(pid)
	if err != nil {
		return nil, err
	}
	var out []*target.Library
	for _, m := range maps {
		same := func(l *target.Library) bool { return l.Dev == m.Dev && l.Ino == m.Ino }
		if !m.Exec() || !strings.HasPrefix(path.Base(m.Path), name) || slices.ContainsFunc(out, same) {
			continue
		}
		f, by, err := fs.OpenMapped(pid, m)
		if err != nil {
			return nil, err
		}
		f.Close()
		out = append(out, &target.Library{Path: m.Path, MapFile: by, Dev: m.Dev, Ino: m.Ino})
	}
	return out, nil
}

// Attach puts the probes of a mode into process p, in which other programs that map
// the same driver have no part. The error wraps ErrNoDriver, attach.ErrExited,
// bpf.ErrPermission, or says which required function failed and why; nothing is left
// attached then.
func Attach(t Tracer, p *target.Process, mode Mode) (_ *Probes, err error) {
	if !slices.Contains(Modes, mode) || mode == Off {
		return nil, fmt.Errorf("attaching to the CUDA driver: mode %q", mode)
	}
	where, err := Driver(p.PID)
	if err != nil {
		return nil, fmt.Errorf("attaching to the CUDA driver: %w", err)
	}
	lib, err := attach.OpenLibrary(where)
	if err != nil {
		return nil, fmt.Errorf("attaching to the CUDA driver: %w", err)
	}
	defer lib.Close()
	a := &Probes{pid: p.PID, tracer: t, target: p, driver: make(map[string][]io.Closer)}
	a.functions = functions{names: newNamer(p.PID), tried: make(map[uint64]bool), graphs: make(graphs)}
	defer func() {
		if err != nil {
			err = fmt.Errorf("attaching to the CUDA driver of process %d: %w", p.PID, errors.Join(err, a.Close()))
		}
	}()
	for i := range table {
		if table[i].from == All || table[i].from == Sampled && mode == Graph {
			continue
		}
		if err := a.put(lib, &table[i], p); err != nil {
			return nil, err
		}
	}
	a.named = mode != Graph
	if err := a.compare(Graph); err != nil {
		return nil, err
	}
	// What is counted from here on is whole.
	if mode == All {
		err = a.Launches(true)
	} else {
		err = t.SetCUDA(p.PID, false)
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Launches begins to count launches of kernels and copies, or ends it, at one trap for
// each in between. All else is counted throughout. When it has ended, the probes are taken
// out beside: where each is a link of its own that takes a second or more, and a busy host
// several. An error, which may be of an earlier call, leaves the probes as they are, in
// part: they are to be closed. After Close it does nothing.
func (a *Probes) Launches(on bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done || a.launches == on {
		return nil
	}
	a.launches = on
	if !on {
		// First: what is counted no more is not said to be.
		err := a.tracer.SetCUDA(a.pid, false)
		err = errors.Join(err, a.endPairs())
		var links []io.Closer
		for i := range table {
			if name := table[i].symbols[0]; table[i].from == All {
				links = append(links, a.driver[name]...)
				delete(a.driver, name)
			}
		}
		for i := range captures {
			if name := captures[i].key(); captures[i].from == All {
				links = append(links, a.driver[name]...)
				delete(a.driver, name)
			}
		}
		for i := range pairs {
			if pairs[i].from == All {
				links = append(links, a.runtime[i]...)
				a.runtime[i] = nil
			}
		}
		a.out.Go(func() { a.outErr = errors.Join(append([]error{a.outErr}, bpf.CloseAll(links)...)...) })
		return err
	}
	a.out.Wait() // or launches would be counted twice
	if a.outErr != nil {
		return fmt.Errorf("counting launches of process %d again: %w", a.pid, a.outErr)
	}
	where, err := Driver(a.pid)
	if err != nil {
		return fmt.Errorf("counting launches: %w", err)
	}
	lib, err := attach.OpenLibrary(where)
	if err != nil {
		return fmt.Errorf("counting launches: %w", err)
	}
	defer lib.Close()
	for i := range table {
		from := table[i].from
		if from == Graph || from == Sampled && a.named || from == All && a.atRuntime(table[i].symbols[0]) {
			continue
		}
		if err := a.put(lib, &table[i], a.target); err != nil {
			return fmt.Errorf("counting launches of process %d: %w", a.pid, err)
		}
	}
	a.named = true
	if err := a.compare(All); err != nil {
		return err
	}
	a.captured(All)
	return a.tracer.SetCUDA(a.pid, true)
}

// put attaches one entry of the table at each version of its function. The error is
// that of a required one of which there is none.
func (a *Probes) put(lib *attach.Library, e *probe, p *target.Process) error {
	at := make(map[uint64]bool)
	var errs []error
	for _, symbol := range e.symbols {
		fn, err := lib.Func(symbol)
		if err == nil && at[fn.Offset] {
			continue // another name of the same
		}
		s := Status{Symbol: symbol, Where: e.where}
		if err == nil {
			at[fn.Offset] = true
			var put attach.Attached
			put, err = a.attach(lib, e.program, symbol, e.where, e.hit)
			a.driver[e.symbols[0]] = append(a.driver[e.symbols[0]], put.Links...)
			s.Points, s.Means = put.Points, put.Means
		}
		if err != nil {
			s.Reason = err.Error()
			errs = append(errs, fmt.Errorf("%s %s: %w", symbol, e.where, err))
		}
		same := func(o Status) bool { return o.Symbol == s.Symbol && o.Where == s.Where }
		if !slices.ContainsFunc(a.report, same) {
			a.report = append(a.report, s)
		}
	}
	if e.need == optional {
		return nil
	}
	missing := 0
	for _, err := range errs {
		if errors.Is(err, elf.ErrNoSymbol) {
			missing++
		}
	}
	// A version that the driver does not have is never called.
	if missing == len(errs) && (missing < len(e.symbols) || e.need == present) {
		return nil
	}
	return errors.Join(errs...)
}

// Report tells of each function, as it was when it was first attached to.
func (a *Probes) Report() []Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.report)
}

// Close takes the probes out. Calls after the first do nothing.
func (a *Probes) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return nil
	}
	a.done = true
	var links []io.Closer
	for _, l := range a.driver {
		links = append(links, l...)
	}
	for i := range a.runtime {
		links = append(links, a.runtime[i]...)
	}
	errs := append([]error{a.tracer.RemoveCUDA(a.pid), a.endPairs()}, bpf.CloseAll(links)...)
	a.out.Wait()
	errs = append(errs, a.outErr)
	return errors.Join(append(errs, a.tracer.ForgetCUDA(a.pid))...)
}
