package python

import (
	"fmt"
	"time"
)

// A container that a thread is changing is torn in memory for as long as the kernel
// does not let that thread go on, and every look shows the same. No Python code sees
// it like this: a thread changes containers while it has the global lock, and gives
// that up between instructions only. So a look counts when, after it, the lock was
// free or an instruction ended, and the next look shows the same.

// A thread that has the lock and sleeps in the kernel all the while, as in one call into
// a library that never returns, changes nothing either: what it could have to wait for
// while it changes a container is memory, and that comes in microseconds.

// Waiting for that: some 10 ms in all, and as long for a thread that sleeps.
const (
	settleTries = 100
	settlePause = 100 * time.Microsecond
)

// errStuck says that it did not happen in time. Trying again at once would wait again.
var errStuck = fmt.Errorf("the thread that runs Python code is in one instruction for long: %w", ErrUnstable)

// pulse is what changes when the thread that has the lock goes on.
type pulse struct {
	free                      bool
	holder, switches          uint64
	frame, instr, threadFrame uint64
}

// findGIL finds the lock and checks that it looks like one.
func (in *Interp) findGIL(runtime uint64) error {
	l := &in.layout
	in.gil = runtime + uint64(l.RuntimeGIL)
	if l.RuntimeGIL < 0 {
		var err error
		if in.gil, err = in.u64(in.addr + uint64(l.InterpGIL)); err != nil {
			return fmt.Errorf("finding the global lock: %w", err)
		}
	}
	holder, err := in.u64(in.gil + uint64(l.GILHolder))
	if err != nil {
		return fmt.Errorf("finding the global lock: %w", err)
	}
	var b [4]byte
	if err := in.read(in.gil+uint64(l.GILLocked), b[:]); err != nil {
		return fmt.Errorf("finding the global lock: %w", err)
	}
	locked := le.Uint32(b[:])
	if locked > 1 || holder%8 != 0 {
		return fmt.Errorf("finding the global lock: locked is %d, holder %#x: %w", int32(locked), holder, ErrCorrupt)
	}
	if holder == 0 {
		return nil // no thread so far
	}
	ts, err := in.u64(in.addr + uint64(l.InterpThreads))
	for range maxThreads {
		if err != nil {
			return fmt.Errorf("finding the global lock: %w", err)
		}
		if ts == holder || ts == 0 {
			break
		}
		ts, err = in.u64(ts + uint64(l.ThreadNext))
	}
	if ts == 0 && locked == 0 {
		// The last one to have it has ended: threads of C++ libraries are Python threads
		// for a call only, and in an idle process nobody takes the lock after them.
		return nil
	}
	if ts == 0 {
		// Changed meanwhile, or one of another interpreter.
		return fmt.Errorf("finding the global lock: its holder %#x is not one of the threads: %w", holder, ErrUnstable)
	}
	return nil
}

func (in *Interp) pulse() (pulse, error) {
	l := &in.layout
	b := make([]byte, max(l.GILHolder, l.GILLocked, l.GILSwitches)+8)
	if err := in.read(in.gil, b); err != nil {
		return pulse{}, err
	}
	p := pulse{free: le.Uint32(b[l.GILLocked:]) == 0, holder: u64at(b, l.GILHolder), switches: u64at(b, l.GILSwitches)}
	if p.free || p.holder == 0 {
		return p, nil
	}
	ts := p.holder
	var err error
	if l.ThreadCFrame >= 0 {
		if ts, err = in.u64(ts + uint64(l.ThreadCFrame)); err != nil {
			return pulse{}, err
		}
		p.threadFrame = ts
	}
	if p.frame, err = in.u64(ts + uint64(l.ThreadFrame)); err != nil || p.frame == 0 {
		return p, err
	}
	p.instr, err = in.u64(p.frame + uint64(l.FrameInstr))
	return p, err
}

// rest is that the thread that has the lock sleeps in the kernel.
type rest struct {
	pulse
	since uint64 // how often it had begun to
}

// resting reports whether a thread that has the lock sleeps.
func (in *Interp) resting(p pulse) (rest, bool) {
	l := &in.layout
	if in.asleep == nil || l.ThreadNativeID < 0 || p.free || p.holder == 0 {
		return rest{}, false
	}
	id, err := in.u64(p.holder + uint64(l.ThreadNativeID))
	if err != nil || id == 0 || id > 1<<31 {
		return rest{}, false
	}
	since, ok := in.asleep(int(id))
	return rest{p, since}, ok
}

// settled returns when the lock was free, an instruction ended, or the thread that has
// the lock slept since it was called. errStuck if none of that happens in time.
func (in *Interp) settled() error {
	first, err := in.pulse()
	ok := err == nil
	if ok && first.free {
		return nil
	}
	for i := range settleTries {
		if i > 1 { // the first time at once: instructions are short
			in.pause(settlePause)
		}
		if known := in.rest.Load(); i == 2 && known != nil {
			if r, ok := in.resting(first); ok && r == *known {
				return nil // it sleeps on
			}
		}
		p, err := in.pulse()
		if err != nil {
			if !changed(err) {
				return err
			}
			continue // the thread left the frame while it was looked at
		}
		if p.free || ok && p != first {
			return nil
		}
		first, ok = p, true
	}
	before, ok := in.resting(first)
	if !ok {
		return errStuck
	}
	for range settleTries {
		in.pause(settlePause)
	}
	if p, err := in.pulse(); err == nil {
		if after, ok := in.resting(p); ok && after == before {
			in.rest.Store(&after)
			return nil
		}
	}
	return errStuck
}
