package python

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// words is a Memory in which some words are others than in the one below.
type words struct {
	Memory
	at map[uint64]uint64
	do func(addr uint64) // called before each read
}

func (w *words) ReadAt(addr uint64, buf []byte) error {
	if w.do != nil {
		w.do(addr)
	}
	if err := w.Memory.ReadAt(addr, buf); err != nil {
		return err
	}
	for a, v := range w.at {
		for i := range uint64(8) {
			if a+i >= addr && a+i < addr+uint64(len(buf)) {
				buf[a+i-addr] = byte(v >> (8 * i))
			}
		}
	}
	return nil
}

// eachImage runs f with an interpreter whose memory it can change.
func eachImage(t *testing.T, f func(t *testing.T, in *Interp, w *words, get func(string) Value)) {
	for _, name := range images(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			in, err := readImage(t, name).open()
			if err != nil {
				t.Fatal(err)
			}
			w := &words{Memory: in.mem, at: make(map[uint64]uint64)}
			in.mem = w
			f(t, in, w, func(path string) Value {
				t.Helper()
				v, err := in.Path("__main__", strings.Split(path, ".")...)
				if err != nil {
					t.Fatal(err)
				}
				return v
			})
		})
	}
}

// TestSettled: the reader believes a container once the lock was free or an
// instruction ended, and gives up when neither happens.
func TestSettled(t *testing.T) {
	eachImage(t, func(t *testing.T, in *Interp, w *words, get func(string) Value) {
		l := &in.layout
		list, dict, deque := get("lst"), get("unicode_dict"), get("a_deque")
		read := func() (errs [4]error) {
			_, errs[0] = list.List(10)
			_, errs[1] = dict.Items(10)
			_, errs[2] = deque.List(10)
			_, errs[3] = list.Index(0)
			return errs
		}
		for i, err := range read() {
			if err != nil {
				t.Errorf("lock is free, read %d: %v", i, err)
			}
		}
		// The main thread has the lock and stays where it is.
		ts, err := in.mainThread()
		if err != nil {
			t.Fatal(err)
		}
		locked, err := in.u64(in.gil + uint64(l.GILLocked))
		if err != nil {
			t.Fatal(err)
		}
		w.at[in.gil+uint64(l.GILHolder)] = ts
		w.at[in.gil+uint64(l.GILLocked)] = locked | 1
		var waited time.Duration
		in.pause = func(d time.Duration) { waited += d }
		for i, err := range read() {
			if !errors.Is(err, ErrUnstable) || !errors.Is(err, errStuck) {
				t.Errorf("a thread is stuck, read %d: %v", i, err)
			}
		}
		if waited > 4*settleTries*settlePause {
			t.Errorf("waited %v", waited)
		}
		if _, err := get("tup").List(10); err != nil {
			t.Errorf("a tuple while a thread is stuck: %v", err)
		}
		if s, err := get("long_str").Str(); err != nil || len(s) != 5000 {
			t.Errorf("a str while a thread is stuck: %v", err)
		}
		// It sleeps all the while, runs now and then, or does not sleep.
		if l.ThreadNativeID >= 0 {
			const id = 4711
			w.at[ts+uint64(l.ThreadNativeID)] = id
			times, step, sleeps := uint64(7), uint64(0), true
			in.asleep = func(n int) (uint64, bool) {
				if n != id {
					t.Errorf("asked for thread %d, want %d", n, id)
				}
				times += step
				return times, sleeps
			}
			for _, c := range []struct {
				what   string
				step   uint64
				sleeps bool
				want   error
			}{{"sleeps", 0, true, nil}, {"is awake", 0, false, errStuck}, {"wakes up", 1, true, errStuck}} {
				step, sleeps = c.step, c.sleeps
				for i, err := range read() {
					if !errors.Is(err, c.want) {
						t.Errorf("a thread that is stuck %s, read %d: %v, want %v", c.what, i, err, c.want)
					}
				}
			}
			times, step, sleeps = 7, 0, true // as it was when it was waited for
			waited = 0
			for i, err := range read() {
				if err != nil {
					t.Errorf("a thread sleeps on, read %d: %v", i, err)
				}
			}
			if waited > 4*10*settlePause {
				t.Errorf("waited %v for a thread that sleeps on", waited)
			}
			in.asleep = nil
		}
		// An instruction ends.
		frame := ts
		if l.ThreadCFrame >= 0 {
			if frame, err = in.u64(ts + uint64(l.ThreadCFrame)); err != nil {
				t.Fatal(err)
			}
		}
		if frame, err = in.u64(frame + uint64(l.ThreadFrame)); err != nil {
			t.Fatal(err)
		}
		n := uint64(0)
		w.do = func(addr uint64) {
			if addr == frame+uint64(l.FrameInstr) {
				n++
				w.at[addr] = n
			}
		}
		for i, err := range read() {
			if err != nil {
				t.Errorf("a thread goes on, read %d: %v", i, err)
			}
		}
	})
}

// TestGone changes what led to an object after it was found: none of these objects is
// one any more, though their memory looks as before.
func TestGone(t *testing.T) {
	eachImage(t, func(t *testing.T, in *Interp, w *words, get func(string) Value) {
		l := &in.layout
		ints, deque, dict, general, set := get("ints"), get("big_deque"), get("big_dict"), get("general_dict"), get("big_set")
		must := func(v Value, err error) Value {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		elem := func(v Value) Value {
			t.Helper()
			list, err := v.List(2000)
			if err != nil {
				t.Fatal(err)
			}
			return list[len(list)-1]
		}
		items, err := dict.Items(2000)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := general.Items(10)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			what string
			v    Value
			at   uint64
			to   uint64
		}{
			{"list became shorter", must(ints.Index(9)), ints.addr + uint64(l.VarSize), 9},
			{"list became shorter, all elements", elem(ints), ints.addr + uint64(l.VarSize), 9},
			{"list has others", must(ints.Index(3)), must(ints.Index(3)).from.addr, ints.addr},
			{"deque was changed", elem(deque), deque.addr + dequeState, 12345},
			{"key became another", must(dict.Key("k777")), must(dict.Key("k777")).from.up.addr, 4},
			{"key became another, all entries", items[777].Value, items[777].Value.from.up.addr, 4},
			{"key of a general dict", entries[0].Value, entries[0].Value.from.up.addr, 4},
			{"table of a dict", must(dict.Key("k777")), dict.addr + uint64(l.DictKeys), dict.addr},
			{"table of a set", elem(set), set.addr + uint64(l.SetTable), set.addr},
		} {
			if n, err := c.v.Int(); err != nil {
				t.Errorf("%s: before: %d, %v", c.what, n, err)
			}
			w.at = map[uint64]uint64{c.at: c.to}
			if n, err := c.v.Int(); !errors.Is(err, ErrUnstable) {
				t.Errorf("%s: %d, %v; want %v", c.what, n, err, ErrUnstable)
			}
			w.at = nil
		}
		// A list that grows is still the list.
		v := must(ints.Index(9))
		w.at = map[uint64]uint64{ints.addr + uint64(l.VarSize): 11}
		if _, err := v.Int(); err != nil {
			t.Errorf("list grew: %v", err)
		}
	})
}

// TestHolderEnded: a lock that nobody has may still name a thread that has ended.
func TestHolderEnded(t *testing.T) {
	eachImage(t, func(t *testing.T, in *Interp, w *words, _ func(string) Value) {
		l := &in.layout
		locked, err := in.u64(in.gil + uint64(l.GILLocked))
		if err != nil {
			t.Fatal(err)
		}
		w.at[in.gil+uint64(l.GILHolder)] = 0x7f0000009bc0 // none of the threads
		for _, x := range []struct {
			locked uint64
			want   error
		}{{0, nil}, {1, ErrUnstable}, {2, ErrCorrupt}} {
			w.at[in.gil+uint64(l.GILLocked)] = locked&^0xffffffff | x.locked
			if err := in.findGIL(in.img.runtime); !errors.Is(err, x.want) {
				t.Errorf("locked %d: %v, want %v", x.locked, err, x.want)
			}
		}
	})
}
