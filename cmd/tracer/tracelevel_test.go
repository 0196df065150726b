package main

import (
	"bufio"
	"io"
	"os"
	"syscall"
	"testing"

	"inferspan/agent"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
)

func TestFollowLevel(t *testing.T) {
	r, w := io.Pipe()
	o := agent.Options{TraceLevel: signal.Some(3)}
	p := agent.NewPipeline(o, func(*trace.Tree) {})
	stop := followLevel(w, "sglang", p, o)
	said := bufio.NewScanner(r)
	for _, x := range []struct {
		sig  syscall.Signal
		want string
	}{
		{syscall.SIGUSR2, "2"}, {syscall.SIGUSR1, "3"}, {syscall.SIGUSR1, "4"}, {syscall.SIGUSR1, "4"},
	} {
		if err := syscall.Kill(os.Getpid(), x.sig); err != nil {
			t.Fatal(err)
		}
		if want := "trace level " + x.want + " for requests from now on"; !said.Scan() || said.Text() != want {
			t.Errorf("%q, want %q", said.Text(), want)
		}
	}
	stop()
}

// A signal that is meant for agents of SGLang does not end another.
func TestFollowNoLevel(t *testing.T) {
	r, w := io.Pipe()
	stop := followLevel(w, "vllm", agent.NewPipeline(agent.Options{}, func(*trace.Tree) {}), agent.Options{})
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(r)
	if want := "user defined signal 1 changes nothing: vllm has no trace levels"; !said.Scan() || said.Text() != want {
		t.Errorf("%q, want %q", said.Text(), want)
	}
	stop()
}
