package python

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Frame is a function that a thread is running. Frames come and go: one near
// the bottom of the stack of a server holds still, one near the top does not.
type Frame struct {
	in   *Interp
	addr uint64
	code Value
	Name string // qualified name ("EngineCoreProc.run_engine_core"); before 3.11 the plain name
	File string // co_filename
}

// MainFrames returns the Python frames of the main thread, innermost first. Without those
// furthest in where these change too fast to be read; where all do, ErrUnstable.
func (in *Interp) MainFrames() ([]Frame, error) {
	return retry(func() ([]Frame, error) {
		ts, err := in.mainThread()
		if err != nil {
			return nil, fmt.Errorf("finding the main thread: %w", err)
		}
		return in.frames(ts)
	})
}

// mainThread returns the thread state of the main thread: the one whose native id is
// that of the process, else the oldest, which is the last in the list.
func (in *Interp) mainThread() (uint64, error) {
	l := &in.layout
	ts, err := in.u64(in.addr + uint64(l.InterpThreads))
	if err != nil {
		return 0, err
	}
	var last uint64
	for range maxThreads {
		if ts == 0 {
			break
		}
		last = ts
		if l.ThreadNativeID >= 0 && in.nativePID != 0 {
			id, err := in.u64(ts + uint64(l.ThreadNativeID))
			if err != nil {
				return 0, err
			}
			if id == uint64(in.nativePID) {
				return ts, nil
			}
		}
		if ts, err = in.u64(ts + uint64(l.ThreadNext)); err != nil {
			return 0, err
		}
	}
	if last == 0 {
		return 0, ErrNotFound
	}
	return last, nil
}

// walks is how often it is looked where frames are. In a loop that polls without a pause one
// look in five finds them all: it takes some microseconds, in which others come and go.
const walks = 64

// frames returns the frames of a thread that stay while they are read.
func (in *Interp) frames(ts uint64) ([]Frame, error) {
	var at, last []uint64
	stay, some, err := 0, false, error(nil)
	for range walks {
		if at, err = in.walk(ts); errors.Is(err, ErrGone) {
			return nil, err
		}
		some = some || err != nil || len(at) > 0
		if err != nil || len(at) == 0 {
			continue
		}
		// One that has ended leads nowhere: then it is not those furthest out that are last.
		if stay = commonEnd(at, last); stay > 0 {
			break
		}
		last = at
	}
	if !some {
		return nil, nil // it runs no Python code
	}
	if stay == 0 {
		return nil, cmp.Or(err, fmt.Errorf("frames: %w", ErrUnstable))
	}
	var out []Frame
	for n, addr := range slices.Backward(at[len(at)-stay:]) {
		f, err := in.frame(addr)
		if err == nil {
			out = append(out, f)
			continue
		}
		if errors.Is(err, ErrType) { // a frame of C code has no code object
			continue
		}
		if changed(err) && len(out) > 0 {
			// It has ended by now, or there is more to the error.
			if again, werr := in.walk(ts); werr != nil || commonEnd(at, again) < stay-n {
				break
			}
		}
		return nil, err
	}
	slices.Reverse(out)
	return out, nil
}

// commonEnd returns how many of the frames furthest out two walks have in common.
func commonEnd(a, b []uint64) int {
	n := 0
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}

// walk returns where the frames of a thread are, innermost first, and nothing else of them,
// which takes least time.
func (in *Interp) walk(ts uint64) (at []uint64, err error) {
	l := &in.layout
	if l.ThreadCFrame >= 0 {
		if ts, err = in.u64(ts + uint64(l.ThreadCFrame)); err != nil {
			return nil, err
		}
	}
	addr, err := in.u64(ts + uint64(l.ThreadFrame))
	for ; err == nil && addr != 0; addr, err = in.u64(addr + uint64(l.FramePrevious)) {
		if len(at) > 0 && at[len(at)-1] == addr {
			return nil, corrupt(addr, "frame before itself")
		}
		if len(at) == maxFrames {
			return nil, fmt.Errorf("more than %d frames: %w", maxFrames, ErrLimit)
		}
		at = append(at, addr)
	}
	return at, err
}

func (in *Interp) frame(addr uint64) (Frame, error) {
	l := &in.layout
	code, err := in.followFrame(addr+uint64(l.FrameCode), nil)
	if err != nil {
		if errors.Is(err, ErrNotFound) {
			err = ErrType
		}
		return Frame{}, err
	}
	if !code.builtin("code") {
		return Frame{}, ErrType
	}
	name := l.CodeQualname
	if name < 0 {
		name = l.CodeName
	}
	f := Frame{in: in, addr: addr, code: code}
	for _, s := range []struct {
		off int
		to  *string
	}{{name, &f.Name}, {l.CodeFilename, &f.File}} {
		v, err := in.follow(code.addr+uint64(s.off), code.from)
		if err != nil {
			return Frame{}, err
		}
		if *s.to, err = v.Str(); err != nil {
			return Frame{}, err
		}
	}
	return f, nil
}

// Local returns a local variable of the frame, also one that an inner function shares.
// ErrNotFound if there is none or it is not set.
func (f Frame) Local(name string) (Value, error) {
	if f.in == nil {
		return Value{}, fmt.Errorf("local %s of no frame: %w", name, ErrNotFound)
	}
	l := &f.in.layout
	v, err := retry(func() (Value, error) {
		c, err := f.Code()
		if err != nil {
			return Value{}, err
		}
		i := c.Local(name)
		if i < 0 {
			return Value{}, ErrNotFound
		}
		v, err := f.in.followFrame(f.addr+uint64(l.FrameLocals+8*i), f.code.from)
		if err != nil {
			return Value{}, err
		}
		if c.Locals[i].Cell && v.builtin("cell") {
			if v, err = f.in.follow(v.addr+uint64(l.CellRef), v.from); err != nil {
				return Value{}, err
			}
		}
		// The frame may have been left meanwhile, and its place reused.
		return v, f.code.still()
	})
	if err != nil {
		return Value{}, fmt.Errorf("local %s of %s: %w", name, f.Name, err)
	}
	return v, nil
}
