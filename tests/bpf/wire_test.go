package bpf_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/attach"
	"inferspan/probes/target"
)

const (
	vsm    = 101
	lmsg   = 102
	cmsg   = 104
	zclmsg = 105
)

// TestFrames checks every byte of frames of all message types and of sizes around
// each boundary, sent and received.
func TestFrames(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t))
	o := load(t, bpf.Options{})
	attachTo(t, o, process(t, d.PID(), target.RoleCore))
	const chunk = event.MaxData
	for _, tt := range []struct{ typ, size int }{
		{vsm, 0}, {vsm, 2}, {vsm, 33}, {lmsg, 34}, {cmsg, 200}, {zclmsg, 256}, {lmsg, 257},
		{lmsg, 1024}, {zclmsg, 4 << 10}, {lmsg, 4<<10 + 1}, {lmsg, 16 << 10}, {zclmsg, 17000},
		{lmsg, chunk - 1}, {lmsg, chunk}, {lmsg, chunk + 1}, {lmsg, 100 << 10}, {lmsg, 8 * chunk}, {lmsg, 8*chunk + 1}, {zclmsg, 1 << 20},
	} {
		for dir, verb := range map[uint8]string{event.FrameSend: "send", event.FrameRecv: "recv"} {
			seed := tt.size % 251
			start := bpf.Monotonic()
			d.OK("%s %d %d %d 0 4096", verb, tt.typ, tt.size, seed)
			end := bpf.Monotonic()
			name := fmt.Sprintf("%s type %d size %d", verb, tt.typ, tt.size)
			if tt.size <= 1 {
				if rs := records(t, o, 0); len(rs) != 0 {
					t.Errorf("%s: %d records, a lone frame of at most a byte is left out", name, len(rs))
				}
				continue
			}
			want := pattern(tt.size, seed)
			chunks := (tt.size + chunk - 1) / chunk
			rs := records(t, o, min(chunks, 8))
			if len(rs) != min(chunks, 8) {
				t.Errorf("%s: %d records, want %d", name, len(rs), min(chunks, 8))
				continue
			}
			off := 0
			for i, r := range rs {
				f := r.Frame
				if r.Kind != event.KindFrame || int(r.PID) != d.PID() || int(r.TID) != d.PID() || r.Time < start || r.Time > end {
					t.Errorf("%s: header %+v", name, r.Header)
				}
				flags := uint8(0)
				if chunks > 8 {
					flags = event.FrameCut
					if i == 7 {
						off = tt.size - chunk
					}
				}
				if f.Dir != dir || f.Sock != 4096 || f.Part != 0 || int(f.Size) != tt.size || f.Flags != flags || f.ID != rs[0].Frame.ID || int(f.Off) != off {
					t.Errorf("%s: chunk %d: %+v, want offset %d and flags %d", name, i, f, off, flags)
				}
				if !bytes.Equal(r.Data, want[off:off+len(r.Data)]) || (i < len(rs)-1 && len(r.Data) != chunk) {
					t.Errorf("%s: chunk %d of %d bytes differs from the frame", name, i, len(r.Data))
				}
				off += len(r.Data)
			}
			if off != tt.size {
				t.Errorf("%s: the chunks end at %d", name, off)
			}
		}
	}
	// Two frames were longer than what is copied, in two directions.
	want := [event.LossReasons]uint64{event.LossTruncated: 4}
	if got := losses(t, o); got != want {
		t.Errorf("losses %v, want %v", got, want)
	}
}

// TestParts checks the numbering of frames within messages, per socket and direction.
func TestParts(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t))
	o := load(t, bpf.Options{})
	attachTo(t, o, process(t, d.PID(), target.RoleCore))
	type frame struct {
		verb       string
		size, more int
		sock       uint64
		part       uint16
		copied     int
		cut        bool
	}
	frames := []frame{
		{"send", 10, 1, 16, 0, 10, false},
		{"send", 11, 1, 32, 0, 11, false}, // another socket
		{"recv", 1, 1, 16, 0, 1, false},   // the other direction; a type frame of one byte
		{"send", 1, 1, 16, 1, 1, false},
		{"recv", 50000, 0, 16, 1, 50000, false},
		{"send", 64, 1, 16, 2, 64, false}, // from here on at most 64 bytes
		{"send", 65, 1, 16, 3, 64, true},
		{"send", 1 << 20, 0, 16, 4, 64, true},
		{"send", 12, 0, 16, 0, 12, false}, // the next message
		{"send", 13, 0, 32, 1, 13, false},
		{"recv", 14, 0, 16, 0, 14, false},
	}
	for i, f := range frames {
		more := f.more
		if f.verb == "send" {
			more = 2 * f.more // ZMQ_SNDMORE
			if i%2 == 0 {
				more |= 1 // ZMQ_DONTWAIT changes nothing
			}
		}
		typ := lmsg
		if f.size <= 33 {
			typ = vsm
		}
		d.OK("%s %d %d %d %d %d", f.verb, typ, f.size, i, more, f.sock)
		rs := records(t, o, (f.copied+event.MaxData-1)/event.MaxData)
		var data []byte
		for _, r := range rs {
			wantFlags := uint8(f.more)
			if f.cut {
				wantFlags |= event.FrameCut
			}
			if r.Frame.Part != f.part || r.Frame.Sock != f.sock || int(r.Frame.Size) != f.size || r.Frame.Flags != wantFlags {
				t.Errorf("frame %d: %+v, want part %d of socket %d, flags %d", i, r.Frame, f.part, f.sock, wantFlags)
			}
			data = append(data, r.Data...)
		}
		if !bytes.Equal(data, pattern(f.size, i)[:f.copied]) {
			t.Errorf("frame %d: %d bytes, want the first %d", i, len(data), f.copied)
		}
	}
	if got := losses(t, o); got != ([event.LossReasons]uint64{}) {
		t.Errorf("losses %v", got)
	}
}

// TestReceipts checks what is noted of the frames that a front end receives.
func TestReceipts(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t))
	o := load(t, bpf.Options{})
	p := process(t, d.PID(), target.RoleAPIServer)
	p.TLS = true // without the socket tap
	attachTo(t, o, p)
	for i, tt := range []struct{ typ, size int }{{vsm, 2}, {vsm, 33}, {lmsg, 127}, {zclmsg, 128}, {zclmsg, 129}, {zclmsg, 1 << 20}} {
		d.OK("recv %d %d %d 1 16", tt.typ, tt.size, i)
		d.OK("recv %d %d %d 0 16", lmsg, 5000, i) // an aux frame
		d.OK("send %d %d %d 0 16", lmsg, 5000, i)
		rs := records(t, o, 1)
		if len(rs) != 1 {
			t.Fatalf("size %d: %d records, want one receipt", tt.size, len(rs))
		}
		n := min(tt.size, 128)
		want := event.Frame{Sock: 16, ID: rs[0].Time, Size: uint32(tt.size), Off: uint32(tt.size - n), Dir: event.FrameRecv, Flags: event.FrameReceipt | event.FrameMore}
		if rs[0].Frame != want || !bytes.Equal(rs[0].Data, pattern(tt.size, i)[tt.size-n:]) {
			t.Errorf("size %d: %+v with %d bytes, want %+v", tt.size, rs[0].Frame, len(rs[0].Data), want)
		}
	}
}

// TestWireLosses checks the counters for what cannot be read.
func TestWireLosses(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t))
	o := load(t, bpf.Options{})
	attachTo(t, o, process(t, d.PID(), target.RoleCore))
	d.OK("fail 16")
	if rs := records(t, o, 0); len(rs) != 0 || losses(t, o) != ([event.LossReasons]uint64{}) {
		t.Errorf("a receive that failed gives %d records and losses %v", len(rs), losses(t, o))
	}
	d.OK("wild 16")
	d.OK("send 77 0 0 0 16")
	d.OK("recv 77 0 0 1 16") // the first frame of a message, of an unknown type
	d.OK("recv %d 5 3 0 16", vsm)
	rs := records(t, o, 1)
	if len(rs) != 1 || rs[0].Frame.Part != 1 {
		t.Errorf("records %+v, want the second frame of the message", rs)
	}
	want := [event.LossReasons]uint64{event.LossFault: 1, event.LossUnknownMsg: 2}
	if got := losses(t, o); got != want {
		t.Errorf("losses %v, want %v", got, want)
	}
}

// TestUnmatched checks a receive that began before the process was watched, and
// one during which it ceased to be.
func TestUnmatched(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t))
	o := load(t, bpf.Options{})
	attachTo(t, o, process(t, d.PID(), target.RoleCore))
	d.OK("delay 200000")
	slow := func(meanwhile func() error) {
		d.Send("recv %d 100 1 0 16", lmsg)
		time.Sleep(100 * time.Millisecond)
		if err := meanwhile(); err != nil {
			t.Fatal(err)
		}
		if got := d.Line(); got != "ok" {
			t.Fatal(got)
		}
	}
	slow(func() error { return o.RemoveTarget(d.PID()) })
	if got := losses(t, o); got != ([event.LossReasons]uint64{}) {
		t.Errorf("losses %v of a process that is not watched", got)
	}
	slow(func() error { return o.SetTarget(d.PID(), bpf.RoleCore) })
	if got := losses(t, o); got != ([event.LossReasons]uint64{event.LossUnmatched: 1}) {
		t.Errorf("losses %v, want the return without an entry", got)
	}
	if rs := records(t, o, 0); len(rs) != 0 {
		t.Errorf("records %+v of calls that were not seen whole", rs)
	}
	slow(func() error { return o.SetTarget(d.PID(), bpf.RoleReceipt) }) // watched before and after
	if rs := records(t, o, 1); len(rs) != 1 || rs[0].Frame.Flags != event.FrameReceipt {
		t.Errorf("records %+v, want a receipt", rs)
	}
}

// TestRingFull checks that every record is either delivered or counted as lost.
func TestRingFull(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t))
	o := load(t, bpf.Options{RingBytes: 4096})
	attachTo(t, o, process(t, d.PID(), target.RoleCore))
	const sent = 100
	for i := range sent {
		d.OK("send %d 200 %d 0 16", lmsg, i)
	}
	rs := records(t, o, 1)
	lost := losses(t, o)
	if lost[event.LossRingFull] == 0 || len(rs) == 0 || uint64(len(rs))+lost[event.LossRingFull] != sent {
		t.Errorf("%d records delivered, losses %v, want %d in sum", len(rs), lost, sent)
	}
	for i, r := range rs {
		if !bytes.Equal(r.Data, pattern(200, i)) {
			t.Errorf("record %d of those that fit differs", i)
		}
	}
	d.OK("send %d 200 77 0 16", lmsg) // there is room again
	if rs := records(t, o, 1); !bytes.Equal(rs[0].Data, pattern(200, 77)) {
		t.Error("the record after the overflow differs")
	}
}

// TestWakeUp checks that the reader is woken by the amount of bytes, and by time
// for fewer.
func TestWakeUp(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t))
	const flush = 700 * time.Millisecond
	o, err := bpf.Load(bpf.Options{RingBytes: 1 << 20, WakeBytes: 64 << 10, FlushInterval: flush})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	attachTo(t, o, process(t, d.PID(), target.RoleCore))
	read := func(send func()) time.Duration {
		time.Sleep(20 * time.Millisecond)
		got := make(chan error)
		var r event.Record
		// Beginning a flush interval anew.
		o.Reader().SetDeadline(time.Now().Add(10 * time.Millisecond))
		if err := o.Reader().Read(&r); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		o.Reader().SetDeadline(time.Time{})
		go func() { got <- o.Reader().Read(&r) }()
		time.Sleep(20 * time.Millisecond)
		start := time.Now()
		send()
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	if took := read(func() { d.OK("send %d 100000 1 0 16", lmsg) }); took > flush/2 {
		t.Errorf("100 kB were read after %v, want them to wake the reader", took)
	}
	o.Reader().SetDeadline(time.Now())
	for {
		var r event.Record
		if err := o.Reader().Read(&r); err != nil {
			break
		}
	}
	if took := read(func() { d.OK("send %d 100 1 0 16", lmsg) }); took < flush/4 || took > 2*flush {
		t.Errorf("100 bytes were read after %v, want about %v", took, flush)
	}
}

// TestTailCall checks a receive function without return instructions of its own.
func TestTailCall(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t, "-DTAIL_CALL"))
	o := load(t, bpf.Options{})
	a := attachTo(t, o, process(t, d.PID(), target.RoleCore))
	means := ""
	for _, s := range a.Report() {
		if s.Probe.Where == attach.Return {
			means = s.Means
		}
	}
	if means != "uretprobe" {
		t.Errorf("the return is probed by %q, want a uretprobe", means)
	}
	d.OK("recv %d 5000 9 0 16", lmsg)
	rs := records(t, o, 1)
	if !bytes.Equal(rs[0].Data, pattern(5000, 9)) {
		t.Error("the received frame differs")
	}
}

// TestExit checks the record of a process's end, and that its probes go.
func TestExit(t *testing.T) {
	needRoot(t)
	path := compileStub(t)
	o := load(t, bpf.Options{})
	for _, tt := range []struct {
		name string
		end  func(*driver)
		code uint32
	}{
		{"exit 3", func(d *driver) { d.Send("exit 3") }, 3 << 8},
		{"killed", func(d *driver) { d.Signal(syscall.SIGKILL) }, uint32(syscall.SIGKILL)},
	} {
		d := startDriver(t, path)
		a := attachTo(t, o, process(t, d.PID(), target.RoleCore))
		tt.end(d)
		rs := records(t, o, 1)
		if len(rs) != 1 || rs[0].Kind != event.KindExit || int(rs[0].PID) != d.PID() || rs[0].Code != tt.code {
			t.Errorf("%s: records %+v, want the exit of %d with code %#x", tt.name, rs, d.PID(), tt.code)
		}
		select {
		case <-a.Done():
		case <-time.After(time.Second):
			t.Errorf("%s: the probes are still there a second after the exit", tt.name)
		}
	}
}
