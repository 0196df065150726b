package vm

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"inferspan/bpf"
	"inferspan/probes/attach"
)

// TestLoad checks that the verifier takes the programs, with the constants that
// change their paths.
func TestLoad(t *testing.T) {
	needGuest(t)
	for _, content := range []bool{false, true} {
		o, err := bpf.Load(bpf.Options{CaptureContent: content})
		if err != nil {
			t.Fatalf("content %v: %v", content, explain(err))
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
}

// explain adds the end of the verifier's log to an error of it.
func explain(err error) string {
	var v *ebpf.VerifierError
	if !errors.As(err, &v) {
		return err.Error()
	}
	return fmt.Sprintf("%v\n%s", err, strings.Join(v.Log[max(0, len(v.Log)-80):], "\n"))
}

// TestVerifier reports how much work the programs are to the verifier, whose limit
// is a million instructions per program, and keeps half of it free.
func TestVerifier(t *testing.T) {
	needGuest(t)
	if err := rlimit.RemoveMemlock(); err != nil { // before 5.11
		t.Fatal(err)
	}
	spec, err := ebpf.LoadCollectionSpec(objectFile)
	if err != nil {
		t.Fatal(err)
	}
	// As for an agent in a container: the longer paths.
	if err := spec.Variables["pidns_ino"].Set(uint32(1)); err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
	if err != nil {
		t.Fatal(explain(err))
	}
	defer c.Close()
	most, which := 0, ""
	for name, p := range c.Programs {
		n := 0
		for line := range bytes.Lines([]byte(p.VerifierLog)) {
			if _, err := fmt.Sscanf(string(line), "processed %d insns", &n); err == nil {
				break
			}
		}
		if n == 0 {
			t.Errorf("%s: no count in the verifier's log %q", name, p.VerifierLog)
		}
		if n > most {
			most, which = n, name
		}
	}
	t.Logf("vm: verified %d %s", most, which)
	if most > 500_000 {
		t.Errorf("%s: %d instructions verified, want at most 500000", which, most)
	}
}

// TestAttach checks by which means the probes are in.
func TestAttach(t *testing.T) {
	o := load(t, bpf.Options{})
	for build, means := range map[string]string{"ret": "uprobe", "tail": "uretprobe"} {
		d := startDriver(t, build)
		a := attachTo(t, o, process(t, d))
		if len(a.Report()) != 3 {
			t.Errorf("%s: %d probes, want 3", build, len(a.Report()))
		}
		for _, s := range a.Report() {
			want := "uprobe"
			if s.Probe.Where == attach.Return {
				want = means
			}
			if !s.Attached || s.Points == 0 || s.Means != want {
				t.Errorf("%s: %s: %+v, want a %s", build, s.Probe, s, want)
			}
		}
		if err := a.Close(); err != nil {
			t.Errorf("%s: %v", build, err)
		}
		d.OK("send %d 100 1 0 16", lmsg)
	}
}

// TestMulti: programs for the CUDA driver are attached by links of many points where the
// kernel has these for a process and not for its first thread, and by single ones elsewhere.
// Here they are on functions of libzmq's stand-in.
func TestMulti(t *testing.T) {
	const sends = 7
	var major, minor int
	if _, err := fmt.Sscanf(kernelRelease(), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	for _, single := range []bool{false, true} {
		o := load(t, bpf.Options{SingleUprobes: single})
		if want := !single && (major > 6 || major == 6 && minor >= 10); o.Multi(bpf.ProgCUDAPairBegin) != want {
			t.Errorf("links of many points: %v, want %v on Linux %d.%d", !want, want, major, minor)
		}
		d := startDriver(t, "ret")
		p := process(t, d)
		lib, err := attach.OpenLibrary(p.ZMQ)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.SetCUDA(p.PID, false); err != nil {
			t.Fatal(err)
		}
		for program, where := range map[bpf.Program]attach.Where{bpf.ProgCUDAPairEnd: attach.Return, bpf.ProgCUDAPairBegin: attach.Entry} {
			at, err := lib.Attach(attach.Program{Program: o.Program(program), Multi: o.Multi(program)}, "zmq_msg_send", where, p)
			if err != nil {
				t.Fatal(err)
			}
			if o.Multi(program) != (len(at.Links) == 1) && at.Points > 1 || at.Points == 0 {
				t.Errorf("%s: %d links at %d points", program, len(at.Links), at.Points)
			}
			defer func() {
				if err := errors.Join(bpf.CloseAll(at.Links)...); err != nil {
					t.Error(err)
				}
			}()
		}
		if err := lib.Close(); err != nil {
			t.Error(err)
		}
		for range sends {
			d.OK("send %d 100 1 0 16", lmsg)
		}
		s, err := o.CUDA(p.PID)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Hits[bpf.CUDAHitPair]; got != 2*sends {
			t.Errorf("single %v: %d hits of %d calls, want two each", single, got, sends)
		}
	}
}
