package bpf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"inferspan/bpf/event/capture"
)

// ProgPyHit is the program for C functions that Python code calls.
const ProgPyHit Program = "py_hit"

// ProgPyEntry is the program for the entry of a C function of which ProgPyHit sees the
// returns, so that it is known how long it ran.
const ProgPyEntry Program = "py_entry"

// ErrFull is wrapped when a map of the tap on Python has no room.
var ErrFull = errors.New("no room in a BPF map")

// interpreter is what the kernel knows of one.
type interpreter struct {
	place  uint32 // in py_processes
	layout capture.Process
	probes map[uint32]*pyProbe
}

// pyProbe is a probe that stands at some addresses, and the code that is watched there.
type pyProbe struct {
	at      map[uint64]bool
	watched map[uint64][]uint32 // plans by the address of a code object
	calls   map[uint64]uint64   // of code that lost its place
}

func (in *interpreter) probe(number uint32) *pyProbe {
	p := in.probes[number]
	if p == nil {
		p = &pyProbe{map[uint64]bool{}, map[uint64][]uint32{}, map[uint64]uint64{}}
		in.probes[number] = p
	}
	return p
}

// SetInterpreter tells the tap on Python how the interpreter of a process is laid
// out. pid is in the agent's PID namespace, as everywhere here. ErrFull if there are
// too many.
func (o *Objects) SetInterpreter(pid int, p capture.Process) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return os.ErrClosed
	}
	in := o.interpreters[pid]
	if in == nil {
		taken := map[uint32]bool{}
		for _, other := range o.interpreters {
			taken[other.place] = true
		}
		in = &interpreter{probes: map[uint32]*pyProbe{}}
		for taken[in.place] {
			in.place++
		}
		if in.place >= o.objs.PyProcesses.MaxEntries() {
			return fmt.Errorf("interpreter of process %d: %w", pid, ErrFull)
		}
	}
	in.layout = p
	if err := o.putInterpreter(pid, in); err != nil {
		return fmt.Errorf("interpreter of process %d: %w", pid, err)
	}
	if o.interpreters == nil {
		o.interpreters = map[int]*interpreter{}
	}
	o.interpreters[pid] = in
	return nil
}

// markCaptures has the captures in a process send what its thread did with the GPU, too, or
// no longer, by whether that is watched. Called with mu held.
func (o *Objects) markCaptures(pid int) error {
	in := o.interpreters[pid]
	if in == nil || o.closed {
		return nil
	}
	if err := o.putInterpreter(pid, in); err != nil {
		return fmt.Errorf("interpreter of process %d: %w", pid, err)
	}
	return nil
}

// putInterpreter also sets whether captures are marked. Called with mu held.
func (o *Objects) putInterpreter(pid int, in *interpreter) error {
	p := in.layout
	p.CUDA = 0
	var watched tracerCudaProcess
	if o.objs.CudaProcesses.Lookup(uint32(pid), &watched) == nil {
		p.CUDA = 1
	}
	return o.objs.PyProcesses.Put(in.place, p)
}

// put is a map update under the lock.
func (o *Objects) put(what string, pid int, m *ebpf.Map, key, value any) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return os.ErrClosed
	}
	err := m.Put(key, value)
	if errors.Is(err, unix.E2BIG) {
		err = fmt.Errorf("%w: %w", ErrFull, err)
	}
	if err != nil {
		return fmt.Errorf("%s of process %d: %w", what, pid, err)
	}
	return nil
}

// RemoveInterpreter forgets the interpreter, probes, watched code and counts of a
// process. Its links are to be closed before, its plans removed after that.
func (o *Objects) RemoveInterpreter(pid int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	tgid := uint32(pid)
	var probe tracerPyProbe
	var counts []uint64
	errs := []error{
		clearKeys(o.objs.PyProbes, &probe, func(k tracerPyProbeKey) bool { return k.Tgid == tgid }),
		clearKeys(o.objs.PyHits, &counts, func(k tracerPyCodeKey) bool { return k.Tgid == tgid }),
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forgetting the interpreter of process %d: %w", pid, err)
	}
	delete(o.interpreters, pid)
	return nil
}

// clearKeys deletes the entries of a map whose keys are chosen.
func clearKeys[K any](m *ebpf.Map, value any, chosen func(K) bool) error {
	var key K
	var stale []K
	it := m.Iterate()
	for it.Next(&key, value) {
		if chosen(key) {
			stale = append(stale, key)
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	for _, k := range stale {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// AddPlan loads a plan and returns its number, which captures carry. Numbers are
// not used again soon. ErrFull if there are too many plans.
func (o *Objects) AddPlan(p *capture.Plan) (uint32, error) {
	if p.OpCount > capture.MaxOps || p.Depth > capture.MaxFrames {
		return 0, fmt.Errorf("loading a plan: %d ops at a depth of %d frames, at most %d and %d are possible", p.OpCount, p.Depth, capture.MaxOps, capture.MaxFrames)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return 0, os.ErrClosed
	}
	slots := o.objs.PyPlans.MaxEntries()
	for range slots {
		// The next slot in turn, so that a number stays unused for long.
		o.lastPlan++
		id := o.lastPlan + slots // never 0
		slot := id % slots
		if o.plans[slot] {
			continue
		}
		if err := o.objs.PyPlans.Put(slot, p); err != nil {
			return 0, fmt.Errorf("loading a plan: %w", err)
		}
		if o.plans == nil {
			o.plans = map[uint32]bool{}
		}
		o.plans[slot] = true
		return id, nil
	}
	return 0, fmt.Errorf("loading a plan: %w: %d are loaded", ErrFull, slots)
}

// RemovePlan gives a plan's place free. No watched code may refer to it any more.
func (o *Objects) RemovePlan(id uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		delete(o.plans, id%o.objs.PyPlans.MaxEntries())
	}
}

// NewProbe returns a number for a probe, which hits and captures carry.
func (o *Objects) NewProbe() uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lastProbe++
	return o.lastProbe
}

// ProbeUnlocked is a flag of SetProbe: the function may be called without the
// interpreter's lock. The plans are to read only what no other thread changes. Needs
// an interpreter that knows the native ids of its threads (3.11+).
const ProbeUnlocked uint32 = 1 << 16

// SetProbe says which probe stands at an address of a process. flags are those of
// event.Capture that its captures are to have, and ProbeUnlocked.
func (o *Objects) SetProbe(pid int, addr uint64, probe uint32, flags uint32) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return os.ErrClosed
	}
	in := o.interpreters[pid]
	if in == nil {
		return fmt.Errorf("probe of process %d, whose interpreter is not known", pid)
	}
	p := in.probe(probe)
	if err := o.putProbe(pid, addr, tracerPyProbe{Id: probe, Flags: flags, Process: in.place}, p); err != nil {
		return fmt.Errorf("probe of process %d: %w", pid, err)
	}
	p.at[addr] = true
	return nil
}

// putProbe writes what stands at an address, with what is watched there. Places of code
// that is counted only are kept as far as there is room. Called with mu held.
func (o *Objects) putProbe(pid int, addr uint64, v tracerPyProbe, p *pyProbe) error {
	was := v
	v = tracerPyProbe{Hits: was.Hits, Timed: was.Timed, Ns: was.Ns, CapturedNs: was.CapturedNs, Id: was.Id, Flags: was.Flags, Process: was.Process}
	n := 0
	for _, code := range slices.Sorted(maps.Keys(p.watched)) {
		if n == len(v.Callers) {
			return fmt.Errorf("%w: %d code objects are watched", ErrFull, n)
		}
		v.Callers[n] = code
		if i := slices.Index(was.Callers[:], code); i >= 0 {
			v.Calls[n] = was.Calls[i]
		}
		v.Watches[n].Count = uint32(len(p.watched[code]))
		copy(v.Watches[n].Plans[:], p.watched[code])
		n++
	}
	lost := map[uint64]uint64{}
	for i, code := range was.Callers {
		switch {
		case code == 0 || p.watched[code] != nil:
		case n < len(v.Callers):
			v.Callers[n], v.Calls[n] = code, was.Calls[i]
			n++
		default:
			lost[code] = was.Calls[i]
		}
	}
	err := o.objs.PyProbes.Put(tracerPyProbeKey{Ip: addr, Tgid: uint32(pid)}, v)
	if errors.Is(err, unix.E2BIG) {
		err = fmt.Errorf("%w: %w", ErrFull, err)
	}
	if err == nil {
		for code, calls := range lost {
			p.calls[code] += calls
		}
	}
	return err
}

// RemoveProbe forgets what stands at an address. Nothing there is no error.
func (o *Objects) RemoveProbe(pid int, addr uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	key := tracerPyProbeKey{Ip: addr, Tgid: uint32(pid)}
	var v tracerPyProbe
	err := o.objs.PyProbes.Lookup(key, &v)
	if err == nil {
		err = o.objs.PyProbes.Delete(key)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("probe of process %d: %w", pid, err)
	}
	if in := o.interpreters[pid]; in != nil {
		p := in.probe(v.Id)
		delete(p.at, addr)
		for i, code := range v.Callers {
			p.calls[code] += v.Calls[i]
		}
	}
	return nil
}

// ProbeUse is what became of a probe since SetProbe.
type ProbeUse struct {
	Hits uint64
	// Calls of the function that were timed, at a return, and how long they took in all:
	// ns, with what measuring adds.
	Timed, TimedNS uint64
	CapturedNS     uint64 // the program was at captures in all, ns
}

// ProbeUse returns what became of the probe at an address.
func (o *Objects) ProbeUse(pid int, addr uint64) (ProbeUse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ProbeUse{}, os.ErrClosed
	}
	var p tracerPyProbe
	if err := o.objs.PyProbes.Lookup(tracerPyProbeKey{Ip: addr, Tgid: uint32(pid)}, &p); err != nil {
		return ProbeUse{}, fmt.Errorf("use of a probe of process %d: %w", pid, err)
	}
	return ProbeUse{Hits: p.Hits, Timed: p.Timed, TimedNS: p.Ns, CapturedNS: p.CapturedNs}, nil
}

// Watch has plans tried, in turn, when code with this address calls the function of
// a probe: the first whose frame is found runs. No plans: the code is no longer
// watched.
func (o *Objects) Watch(pid int, probe uint32, code uint64, plans ...uint32) error {
	if len(plans) > capture.MaxPlans {
		return fmt.Errorf("watching code of process %d: %d plans, at most %d are possible", pid, len(plans), capture.MaxPlans)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return os.ErrClosed
	}
	in := o.interpreters[pid]
	if in == nil {
		return fmt.Errorf("watching code of process %d, whose interpreter is not known", pid)
	}
	p := in.probe(probe)
	before := p.watched[code]
	set := func(plans []uint32) {
		if delete(p.watched, code); len(plans) > 0 {
			p.watched[code] = slices.Clone(plans)
		}
	}
	set(plans)
	for addr := range p.at {
		var v tracerPyProbe
		err := o.objs.PyProbes.Lookup(tracerPyProbeKey{Ip: addr, Tgid: uint32(pid)}, &v)
		if err == nil {
			// What is counted between here and there is not: a few hits at most.
			err = o.putProbe(pid, addr, v, p)
		}
		if err != nil {
			set(before)
			return fmt.Errorf("watched code of process %d: %w", pid, err)
		}
	}
	return nil
}

// Hit is how often a code object called the function of a probe.
type Hit struct {
	PID   int
	Probe uint32
	Code  uint64 // address of the code object; 0: the frame was not found
	Count uint64 // since the interpreter was set, unless it was forgotten meanwhile
}

// Hits returns the counts, the most frequent first. The map keeps some thousand
// code objects and forgets the ones that called the longest time ago; ProbeUse
// has them all.
func (o *Objects) Hits() ([]Hit, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, os.ErrClosed
	}
	var key tracerPyCodeKey
	var perCPU []uint64
	counts := map[tracerPyCodeKey]uint64{}
	it := o.objs.PyHits.Iterate()
	for it.Next(&key, &perCPU) {
		for _, n := range perCPU {
			counts[key] += n
		}
	}
	var at tracerPyProbeKey
	var probe tracerPyProbe
	probes := o.objs.PyProbes.Iterate()
	for probes.Next(&at, &probe) {
		for i, code := range probe.Callers {
			counts[tracerPyCodeKey{Code: code, Tgid: at.Tgid, Probe: probe.Id}] += probe.Calls[i]
		}
	}
	for pid, in := range o.interpreters {
		for number, p := range in.probes {
			for code, n := range p.calls {
				counts[tracerPyCodeKey{Code: code, Tgid: uint32(pid), Probe: number}] += n
			}
		}
	}
	// Entries come and go meanwhile: those seen are right.
	for _, err := range []error{it.Err(), probes.Err()} {
		if err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
			return nil, fmt.Errorf("reading hits: %w", err)
		}
	}
	var hits []Hit
	for key, n := range counts {
		if n > 0 {
			hits = append(hits, Hit{PID: int(key.Tgid), Probe: key.Probe, Code: key.Code, Count: n})
		}
	}
	slices.SortFunc(hits, func(a, b Hit) int {
		switch {
		case a.Count != b.Count:
			return int(min(max(int64(b.Count)-int64(a.Count), -1), 1))
		case a.Code < b.Code:
			return -1
		}
		return 1
	})
	return hits, nil
}
