package bpf_test

import (
	"bytes"
	"errors"
	"testing"

	"inferspan/bpf"
	"inferspan/probes/attach"
	"inferspan/probes/target"
)

// TestReceiptsAside takes the probes on what a front end receives out and puts them
// back: without them it runs the code that it came with.
func TestReceiptsAside(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t))
	original := codeAt(t, d.PID(), "zmq_msg_recv", 16)
	o := load(t, bpf.Options{})
	p := process(t, d.PID(), target.RoleAPIServer)
	p.TLS = true // without the socket tap
	a := attachTo(t, o, p)
	probed := codeAt(t, d.PID(), "zmq_msg_recv", 16)
	if bytes.Equal(probed, original) {
		t.Fatal("no breakpoint")
	}
	for round := range 3 {
		for range 2 { // the second call does nothing
			if err := a.DetachReceipts(); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(codeAt(t, d.PID(), "zmq_msg_recv", 16), original) {
			t.Errorf("round %d: taken out, the code is not as before", round)
		}
		d.OK("recv %d 100 %d 0 16", lmsg, round)
		if rs := records(t, o, 0); len(rs) != 0 {
			t.Errorf("round %d: taken out, %d records", round, len(rs))
		}
		for range 2 {
			if err := a.AttachReceipts(); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(codeAt(t, d.PID(), "zmq_msg_recv", 16), probed) {
			t.Errorf("round %d: put back, no breakpoint", round)
		}
		d.OK("recv %d 100 %d 0 16", lmsg, round)
		if rs := records(t, o, 1); len(rs) != 1 || rs[0].Frame.Size != 100 || rs[0].Frame.Part != 0 {
			t.Errorf("round %d: put back, records %+v", round, rs)
		}
	}
	if err := a.DetachReceipts(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := a.AttachReceipts(); !errors.Is(err, attach.ErrExited) {
		t.Errorf("put back after Close: %v, want %v", err, attach.ErrExited)
	}
	if !bytes.Equal(codeAt(t, d.PID(), "zmq_msg_recv", 16), original) {
		t.Error("after Close the code is not as before")
	}
}

// TestReceiptsOfCore checks that a core keeps its probes: what it receives are requests.
func TestReceiptsOfCore(t *testing.T) {
	needRoot(t)
	d := startDriver(t, compileStub(t))
	o := load(t, bpf.Options{})
	a := attachTo(t, o, process(t, d.PID(), target.RoleCore))
	if err := errors.Join(a.DetachReceipts(), a.AttachReceipts()); err != nil {
		t.Fatal(err)
	}
	d.OK("recv %d 1 0 1 16", vsm)
	d.OK("recv %d 100 0 0 16", lmsg)
	if rs := records(t, o, 2); len(rs) != 2 {
		t.Errorf("records %+v", rs)
	}
}
