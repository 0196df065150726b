// Package child runs programs that tests talk to by lines.
package child

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Process is a program that does things at lines of its input and says so in lines of its
// output. It ends with the test. It is for one goroutine.
type Process struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts a program. Its errors go where the test's do, unless cmd says otherwise.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t: t, cmd: cmd}
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.in.Close()
		_ = cmd.Process.Kill() // does nothing if it has ended
		_ = cmd.Wait()
	})
	return p
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Wait waits until the program has ended by itself.
func (p *Process) Wait() {
	p.t.Helper()
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%s: %v", p.cmd.Path, err)
	}
}

// Signal sends the program a signal.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Line reads a line that the program prints.
func (p *Process) Line() string {
	p.t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("reading what %s says: %q, %v", p.cmd.Path, s, err)
	}
	return strings.TrimSuffix(s, "\n")
}

// Expect reads a line, which is to be want.
func (p *Process) Expect(want string) {
	p.t.Helper()
	if got := p.Line(); got != want {
		p.t.Fatalf("%s says %q, want %q", p.cmd.Path, got, want)
	}
}

// Send gives the program a line.
func (p *Process) Send(format string, args ...any) error {
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	return err
}

// Do gives the program a line and returns its answer.
func (p *Process) Do(format string, args ...any) string {
	p.t.Helper()
	if err := p.Send(format, args...); err != nil {
		p.t.Fatalf("telling %s %q: %v", p.cmd.Path, fmt.Sprintf(format, args...), err)
	}
	return p.Line()
}
