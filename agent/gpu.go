package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/gpu/nvml"
	"inferspan/probes/note"
	"inferspan/probes/procfs"
	"inferspan/probes/target"
)

// DefaultGPUInterval is how often GPUs are read: drivers renew most values 1 to 6 times a
// second.
const DefaultGPUInterval = time.Second

// gpuSlowEvery is how often that is measured of GPUs which takes the driver some time.
const gpuSlowEvery = time.Second

// gpuFactsEvery is how often instances and facts are looked for.
const gpuFactsEvery = 10 * time.Second

// gpuWait is how long an event is waited for at once, which bounds how long the end takes.
const gpuWait = 100 * time.Millisecond

// gpuEnd is how long the end waits for a driver that does not answer.
const gpuEnd = 2 * time.Second

// gpus reads the GPUs of the host. What it sees are notes, which the run hands over between
// the records of the kernel. Nil reads none.
type gpus struct {
	notes chan *event.Record
	more  chan int // processes that have come
	stop  context.CancelFunc
	ended chan struct{}
}

// watchGPUs begins to read. Where there is no sign of a GPU nothing is said of it.
func watchGPUs(ctx context.Context, e *target.Engine, o LiveOptions) *gpus {
	if o.GPUInterval < 0 || len(e.Processes) == 0 {
		return nil
	}
	if o.GPUInterval == 0 {
		o.GPUInterval = DefaultGPUInterval
	}
	open := o.GPUs
	if open == nil {
		open = nvml.Open
	}
	var pids []int
	for i := range e.Processes {
		pids = append(pids, e.Processes[i].PID)
	}
	ctx, stop := context.WithCancel(ctx)
	g := &gpus{notes: make(chan *event.Record, maxNotes), more: make(chan int, maxMore), stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(g.ended)
		err := g.watch(ctx, pids, open, o.GPUInterval)
		if err != nil && (o.GPUs != nil || nvml.Sign() || !absent(err)) {
			g.probe(ctx, pids, note.Probe{Detail: signal.DetailGPU, Reason: err.Error()})
		}
	}()
	return g
}

// absent reports whether err is what a host without a GPU gives.
func absent(err error) bool {
	return errors.Is(err, nvml.ErrNoLibrary) || errors.Is(err, nvml.ErrNoDriver) || errors.Is(err, nvml.ErrNoCgo)
}

// watch reads until ctx ends, for the processes of an engine. The error is that nothing can be read.
func (g *gpus) watch(ctx context.Context, pids []int, open func() (nvml.Library, error), every time.Duration) error {
	lib, err := open()
	if err != nil {
		return err
	}
	defer lib.Close()
	r, err := nvml.NewReader(lib, localPID())
	if err != nil {
		return err
	}
	reason := ""
	if err := r.Problem(); err != nil {
		reason = err.Error()
	}
	g.probe(ctx, pids, note.Probe{Detail: signal.DetailGPU, Active: true, Reason: reason})
	var events sync.WaitGroup
	events.Go(func() { g.events(ctx, lib) })
	defer events.Wait()
	seen := g.facts(ctx, r.Refresh(), nil)
	g.visible(ctx, pids, seen, r.Problem())
	t := time.NewTicker(every)
	defer t.Stop()
	next, slow := time.Now().Add(gpuFactsEvery), time.Time{}
	for ctx.Err() == nil {
		now := time.Now()
		if now.After(next) {
			next = now.Add(gpuFactsEvery)
			seen = g.facts(ctx, r.Refresh(), seen)
		}
		measure := now.Sub(slow) >= gpuSlowEvery
		if measure {
			slow = now
		}
		at := bpf.Monotonic()
		samples, news := r.Sample(measure)
		seen = g.facts(ctx, news, seen)
		records, err := note.PutGPUSamples(at, samples)
		for _, rec := range records {
			g.send(ctx, rec, err)
		}
		select {
		case <-ctx.Done():
		case pid := <-g.more:
			g.visible(ctx, []int{pid}, seen, r.Problem())
		case <-t.C:
		}
	}
	return nil
}

// maxMore bounds the processes that wait to be looked at.
const maxMore = 64

// join has it told which GPUs a new process may use.
func (g *gpus) join(pid int) {
	if g == nil {
		return
	}
	select {
	case g.more <- pid:
	default: // the driver does not answer
	}
}

// facts sends what is news, and returns all devices that were told of.
func (g *gpus) facts(ctx context.Context, news []note.GPUDevice, seen []note.GPUDevice) []note.GPUDevice {
	for _, f := range news {
		r, err := note.Put(note.KindGPUDevice, 0, bpf.Monotonic(), f)
		g.send(ctx, r, err)
		if i := slices.IndexFunc(seen, func(x note.GPUDevice) bool { return x.UUID == f.UUID }); i >= 0 {
			seen[i] = f
		} else {
			seen = append(seen, f)
		}
	}
	return seen
}

// events sends critical errors until ctx ends.
func (g *gpus) events(ctx context.Context, lib nvml.Library) {
	for ctx.Err() == nil {
		e, err := lib.Wait(int(gpuWait / time.Millisecond))
		switch {
		case err == nil:
			r, err := note.Put(note.KindGPUEvent, 0, bpf.Monotonic(), note.GPUEvent{UUID: e.UUID, XID: e.XID})
			g.send(ctx, r, err)
		case !errors.Is(err, nvml.ErrTimeout):
			// Nothing is watched, or the driver fails at once.
			select {
			case <-ctx.Done():
			case <-time.After(gpuSlowEvery):
			}
		}
	}
}

// visible sends which devices each of the processes may use. problem says which
// devices are not among facts.
func (g *gpus) visible(ctx context.Context, pids []int, facts []note.GPUDevice, problem error) {
	var all []nvml.Seen
	for _, f := range facts {
		all = append(all, nvml.Seen{UUID: f.UUID, Name: f.Name, Parent: f.Parent, Split: f.Parent == "" && f.MIG != nil && *f.MIG})
	}
	for _, pid := range pids {
		n := note.GPUVisible{}
		ids, err := visibleTo(pid, all, problem)
		if n.UUIDs = ids; err != nil {
			n.Problem = err.Error()
		}
		r, err := note.Put(note.KindGPUVisible, uint32(pid), bpf.Monotonic(), n)
		g.send(ctx, r, err)
	}
}

func visibleTo(pid int, all []nvml.Seen, problem error) ([]string, error) {
	if problem != nil {
		return nil, fmt.Errorf("not all GPUs are known: %w", problem)
	}
	env, err := procfs.FS{}.Env(pid, nvml.EnvCUDA, nvml.EnvOrder, nvml.EnvContainer)
	if err != nil {
		return nil, err
	}
	mine, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil, fmt.Errorf("reading our mount namespace: %w", err)
	}
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return nil, fmt.Errorf("reading the mount namespace of process %d: %w", pid, err)
	}
	if v := os.Getenv(nvml.EnvContainer); mine != its && v != "" && v != "all" {
		return nil, fmt.Errorf("it runs in another container than we do, and ours has a part of the GPUs (%s=%q)", nvml.EnvContainer, v)
	}
	return nvml.Visible(all, env, mine != its)
}

// probe sends what became of reading GPUs. It is about the engine: any of its processes does.
func (g *gpus) probe(ctx context.Context, pids []int, n note.Probe) {
	r, err := note.Put(note.KindProbe, uint32(pids[0]), bpf.Monotonic(), n)
	g.send(ctx, r, err)
}

// send hands a note to the run. One that could not be made is left out.
func (g *gpus) send(ctx context.Context, r *event.Record, err error) {
	sendNote(ctx, g.notes, r, err)
}

// take hands over the notes that are there.
func (g *gpus) take(put func(*event.Record) error) error {
	if g == nil {
		return nil
	}
	return takeNotes(g.notes, put)
}

// end stops reading. A driver that does not answer is not waited for.
func (g *gpus) end() {
	if g == nil {
		return
	}
	g.stop()
	select {
	case <-g.ended:
	case <-time.After(gpuEnd):
	}
}

// initPIDNamespace is the name of the namespace of the host: its inode is fixed
// (PROC_PID_INIT_INO in the kernel).
const initPIDNamespace = "pid:[4026531836]"

// localPID tells whether a PID of NVML is the process that we know by that number. NVML has
// those of the host; in a namespace of their own, newer drivers translate them and older
// ones do not: there one counts if that process of ours has a GPU open.
func localPID() func(uint32) bool {
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns == initPIDNamespace {
		return func(uint32) bool { return true }
	}
	return opensGPU
}

func opensGPU(pid uint32) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, f := range fds {
		if to, err := os.Readlink(dir + "/" + f.Name()); err == nil && strings.HasPrefix(to, "/dev/nvidia") {
			return true
		}
	}
	return false
}
