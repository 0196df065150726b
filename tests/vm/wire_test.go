package vm

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inferspan/bpf"
	"inferspan/bpf/event"
)

// Types of messages, by libzmq's numbers.
const (
	vsm    = 101
	lmsg   = 102
	cmsg   = 104
	zclmsg = 105
)

// TestFrames checks every byte of frames of all message types and of sizes around
// each boundary, sent and received, returns tapped at return instructions and by
// a uretprobe.
func TestFrames(t *testing.T) {
	const chunk = event.MaxData
	o := load(t, bpf.Options{})
	var truncated uint64
	for _, build := range []string{"ret", "tail"} {
		d := startDriver(t, build)
		attachTo(t, o, process(t, d))
		for _, tt := range []struct{ typ, size int }{
			{vsm, 2}, {vsm, 33}, {cmsg, 200}, {zclmsg, 256}, {lmsg, 257}, {lmsg, 1025}, {zclmsg, 4097}, {lmsg, 16385},
			{lmsg, chunk}, {lmsg, chunk + 1}, {lmsg, 8 * chunk}, {zclmsg, 8*chunk + 1}, {lmsg, 1 << 20},
		} {
			for dir, verb := range map[uint8]string{event.FrameSend: "send", event.FrameRecv: "recv"} {
				name := fmt.Sprintf("%s %s type %d size %d", build, verb, tt.typ, tt.size)
				start := bpf.Monotonic()
				d.OK("%s %d %d 3 0 4096", verb, tt.typ, tt.size)
				end := bpf.Monotonic()
				chunks := min((tt.size+chunk-1)/chunk, 8)
				if tt.size > 8*chunk {
					truncated++
				}
				rs := records(t, o, chunks)
				if len(rs) != chunks {
					t.Errorf("%s: %d records, want %d", name, len(rs), chunks)
					continue
				}
				want, off := pattern(tt.size, 3), 0
				for i, r := range rs {
					h := event.Header{Time: r.Time, Kind: event.KindFrame, PID: uint32(d.PID()), TID: uint32(d.PID())}
					f := event.Frame{Sock: 4096, ID: rs[0].Frame.ID, Size: uint32(tt.size), Dir: dir}
					if tt.size > 8*chunk {
						f.Flags = event.FrameCut
						if i == 7 {
							off = tt.size - chunk
						}
					}
					f.Off = uint32(off)
					if r.Header != h || r.Frame != f || r.Time < start || r.Time > end {
						t.Errorf("%s: chunk %d: %+v %+v, want %+v %+v", name, i, r.Header, r.Frame, h, f)
					}
					if !bytes.Equal(r.Data, want[off:min(off+chunk, tt.size)]) {
						t.Errorf("%s: chunk %d of %d bytes differs from the frame", name, i, len(r.Data))
					}
					off += len(r.Data)
				}
				if off != tt.size {
					t.Errorf("%s: the chunks end at %d", name, off)
				}
			}
		}
	}
	wantLosses(t, o, [event.LossReasons]uint64{event.LossTruncated: truncated})
}

// TestLosses checks the counters, from whichever CPU they were counted on.
func TestLosses(t *testing.T) {
	d := startDriver(t, "ret")
	o := load(t, bpf.Options{RingBytes: 4096})
	attachTo(t, o, process(t, d))
	wantLosses(t, o, [event.LossReasons]uint64{})
	d.OK("wild 16")
	d.OK("send 77 0 0 0 16")
	for i := range runtime.NumCPU() {
		var on unix.CPUSet
		on.Set(i)
		if err := unix.SchedSetaffinity(d.PID(), &on); err != nil {
			t.Fatal(err)
		}
		d.OK("recv 77 0 0 0 16")
	}
	if rs := records(t, o, 0); len(rs) != 0 {
		t.Errorf("%d records of frames that cannot be read", len(rs))
	}
	want := [event.LossReasons]uint64{event.LossFault: 1, event.LossUnknownMsg: uint64(1 + runtime.NumCPU())}
	wantLosses(t, o, want)

	const sent = 100
	for i := range sent {
		d.OK("send %d 200 %d 0 16", lmsg, i)
	}
	rs := records(t, o, 1)
	for i, r := range rs {
		if !bytes.Equal(r.Data, pattern(200, i)) {
			t.Errorf("record %d of those that fit on the ring differs", i)
		}
	}
	if len(rs) == sent {
		t.Fatalf("a ring of a page holds %d records", sent)
	}
	want[event.LossRingFull] = uint64(sent - len(rs))
	wantLosses(t, o, want)
}

// TestExit checks the record of a process's end, and that its probes go.
func TestExit(t *testing.T) {
	o := load(t, bpf.Options{})
	for _, tt := range []struct {
		name string
		end  func(*driver) error
		code uint32
	}{
		{"exit 3", func(d *driver) error { return d.Send("exit 3") }, 3 << 8},
		{"killed", func(d *driver) error { return d.Signal(syscall.SIGKILL) }, uint32(syscall.SIGKILL)},
	} {
		d := startDriver(t, "ret")
		a := attachTo(t, o, process(t, d))
		if err := tt.end(d); err != nil {
			t.Fatal(err)
		}
		rs := records(t, o, 1)
		if len(rs) != 1 || rs[0].Kind != event.KindExit || int(rs[0].PID) != d.PID() || rs[0].Code != tt.code {
			t.Errorf("%s: records %+v, want the exit of %d with code %#x", tt.name, rs, d.PID(), tt.code)
		}
		select {
		case <-a.Done():
		case <-time.After(patience):
			t.Errorf("%s: the probes are still there after the exit", tt.name)
		}
	}
}

// TestNested runs agent and targets in a PID namespace of their own, where the
// programs walk the kernel's structs to the numbers that the agent knows.
func TestNested(t *testing.T) {
	needGuest(t)
	if os.Getenv(nestedEnv) != "" {
		t.Skip("nested already")
	}
	again(t, "^Test(Load|Frames|HTTP|Exit)$", &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Unshareflags: unix.CLONE_NEWNS,
	}, nestedEnv+"=1")
}
