package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inferspan/tests/collectortest"
	"inferspan/tests/workload"
)

// Exit codes, as "inferspan --help" lists them.
const (
	exitUsage     = 2
	exitTarget    = 3
	exitHost      = 4
	exitRecording = 5
	exitExport    = 6
)

// outcome is how a run of the program ended.
type outcome struct {
	code           int
	stdout, stderr string
}

// run runs the program to its end. helper is "" or one of become's words.
func run(t *testing.T, helper string, args ...string) outcome {
	t.Helper()
	abs, err := filepath.Abs(binary)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(abs, args...)
	if helper != "" {
		cmd = exec.Command("/proc/self/exe", append([]string{abs}, args...)...)
		cmd.Env = append(os.Environ(), helperEnv+"="+helper)
	}
	return finish(t, cmd)
}

func finish(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(60*time.Second, func() { cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// check demands the exit code and one clear line with the words.
func (o outcome) check(t *testing.T, code int, words ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d\n%s", o.code, code, o.stderr)
	}
	var lines []string
	for line := range strings.Lines(o.stderr) {
		if strings.HasPrefix(line, "inferspan: ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if len(lines) != 1 {
		t.Errorf("%d lines of error, want one:\n%s", len(lines), o.stderr)
		return
	}
	for _, w := range words {
		if !strings.Contains(lines[0], w) {
			t.Errorf("%q does not say %q", lines[0], w)
		}
	}
	for _, w := range []string{"panic", "goroutine", "0x"} {
		if strings.Contains(o.stderr, w) {
			t.Errorf("stderr has %q:\n%s", w, o.stderr)
		}
	}
	t.Logf("exit code %d: %s", o.code, lines[0])
}

// TestBadTarget needs no engine: the processes are none.
func TestBadTarget(t *testing.T) {
	need(t)
	commands := map[string][]string{
		"attach":  {"attach"},
		"profile": {"profile", "--duration", "1s", "--out", t.TempDir()},
		"record":  {"record", "--duration", "1s", "-o", filepath.Join(t.TempDir(), "x.isr")},
	}
	sleep := exec.Command("sleep", "100")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	python := exec.Command(lookPath(t, "python3", "python3"), "-c", "import time; time.sleep(100)")
	if err := python.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { python.Process.Kill(); python.Wait() }()
	time.Sleep(300 * time.Millisecond) // until it has become Python
	for name, args := range commands {
		for _, tt := range []struct {
			name string
			pid  int
			want string
		}{
			{"no such process", gone.Process.Pid, "no such process"},
			{"not an engine", sleep.Process.Pid, "not"},
			{"Python without an engine", python.Process.Pid, "not"},
		} {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				run(t, "", append(args, "--pid", strconv.Itoa(tt.pid))...).check(t, exitTarget, strconv.Itoa(tt.pid), tt.want)
			})
		}
		t.Run(name+" wrong flag", func(t *testing.T) {
			run(t, "", append(args, "--pid", "many")...).check(t, exitUsage, "many")
		})
	}
	t.Run("unknown command", func(t *testing.T) { run(t, "", "atach").check(t, exitUsage, "atach") })
}

// TestBadHost tries surroundings that do not allow what is asked for.
func TestBadHost(t *testing.T) {
	need(t)
	e := startEngine(t, nil)
	pid := strconv.Itoa(e.pid)

	t.Run("missing capability", func(t *testing.T) {
		run(t, "no-capabilities", "attach", "--pid", pid).check(t, exitHost, "inferspan check")
		o := run(t, "no-capabilities", "check")
		if o.code != exitHost && o.code != 0 {
			t.Errorf("check ended with %d\n%s", o.code, o.stderr)
		}
		if !strings.Contains(o.stdout, "CAP_") {
			t.Errorf("check does not name a capability:\n%s", o.stdout)
		}
	})
	t.Run("no BTF", func(t *testing.T) {
		run(t, "no-btf", "attach", "--pid", pid).check(t, exitHost, "BTF")
		if o := run(t, "no-btf", "check"); !strings.Contains(o.stdout, "BTF") {
			t.Errorf("check does not name BTF:\n%s", o.stdout)
		}
	})
	t.Run("unreachable collector", func(t *testing.T) {
		run(t, "", "attach", "--pid", pid, "--otlp-endpoint", fmt.Sprintf("http://127.0.0.1:%d", freePort(t))).check(t, exitExport, "refused")
	})
	t.Run("collector goes away", func(t *testing.T) { collectorGoesAway(t, e) })
	t.Run("full disk", func(t *testing.T) { fullDisk(t, e) })
	t.Run("no such folder", func(t *testing.T) {
		run(t, "", "record", "--pid", pid, "--duration", "1s", "-o", "/nonexistent/x.isr").check(t, exitExport, "/nonexistent")
	})
	t.Run("port in use", func(t *testing.T) {
		run(t, "", "attach", "--pid", pid, "--prometheus", strings.TrimPrefix(e.url, "http://")).check(t, exitExport, "in use")
	})
	t.Run("engine is well", func(t *testing.T) {
		if log := e.playNamed(t, workload.Options{Seed: 41}, "chat"); len(log) == 0 {
			t.Error("nothing was sent")
		}
	})
	// Last, since the engine ends.
	t.Run("engine exits while attached", func(t *testing.T) {
		tr := attach(t, e)
		e.playNamed(t, workload.Options{Seed: 42}, "chat")
		go e.playAway()
		for end := time.Now().Add(10 * time.Second); e.metrics(t).sum("vllm:num_requests_running") == 0; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no request runs")
			}
		}
		killTree(e.pid)
		select {
		case err := <-tr.done:
			tr.done <- err
		case <-time.After(20 * time.Second):
			t.Fatal("the tracer did not notice that the engine exited")
		}
		o := outcome{tr.cmd.ProcessState.ExitCode(), tr.stdout.String(), tr.stderr.String()}
		o.check(t, exitTarget, "exited")
		spans := readSpans(t, tr.jsonl)
		checkTrees(t, spans)
		n := 0
		for _, s := range spans {
			if s.text("inferspan.outcome") == "engine_exit" {
				n++
			}
		}
		if n == 0 {
			t.Errorf("none of %d spans says that the engine exited", len(spans))
		}
	})
}

// playAway keeps the engine busy with a request that will not be answered in full.
func (e *engine) playAway() {
	body := `{"model":"tiny","prompt":"a story about a river","max_tokens":900,"ignore_eos":true,"stream":true}`
	cmd := exec.Command("curl", "-sN", "-m", "20", e.url+"/v1/completions", "-H", "Content-Type: application/json", "-d", body)
	cmd.Run() // it fails: the engine goes away
}

// TestEngineExitsWhileAttaching ends engines at different moments of attaching.
func TestEngineExitsWhileAttaching(t *testing.T) {
	need(t)
	e := startEngine(t, nil)
	tr := exec.Command(binary, "attach", "--pid", strconv.Itoa(e.pid))
	var stderr syncBuffer
	tr.Stderr = &stderr
	if err := tr.Start(); err != nil {
		t.Fatal(err)
	}
	// Finding the engine and reading its facts takes some tens of milliseconds.
	time.Sleep(20 * time.Millisecond)
	killTree(e.pid)
	done := make(chan error, 1)
	go func() { done <- tr.Wait() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		tr.Process.Kill()
		t.Fatalf("attach did not end\n%s", stderr.String())
	}
	outcome{tr.ProcessState.ExitCode(), "", stderr.String()}.check(t, exitTarget)
}

// killTree ends a process and everything below it without warning.
func killTree(pid int) {
	for _, p := range descendants(pid) {
		syscall.Kill(p, syscall.SIGKILL)
	}
}

// descendants returns a process and everything below it.
func descendants(pid int) []int {
	all := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		for c := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(c); err == nil {
				all = append(all, descendants(n)...)
			}
		}
	}
	return all
}

// collectorGoesAway has a receiver that is there at the start only.
func collectorGoesAway(t *testing.T, e *engine) {
	c := collectortest.Start(t)
	tr := attach(t, e, "--otlp-endpoint", c.Endpoint)
	c.Stop()
	e.playNamed(t, workload.Options{Seed: 43}, "chat")
	code, spans := tr.stop(t)
	if code != exitExport {
		t.Errorf("exit code %d, want %d\n%s", code, exitExport, tr.stderr.String())
	}
	if !strings.Contains(tr.stderr.String(), "lost") {
		t.Errorf("stderr does not say that spans were lost:\n%s", tr.stderr.String())
	}
	if len(spans) == 0 {
		t.Error("the other export has no spans")
	}
}

// fullDisk has results written to a file system without room.
func fullDisk(t *testing.T, e *engine) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a small tmpfs cannot be mounted: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 60<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"profile": {"profile", "--duration", "3s", "--out", filepath.Join(dir, "out")},
		"record":  {"record", "--duration", "3s", "-o", filepath.Join(dir, "x.isr")},
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() {
				time.Sleep(time.Second)
				_, err := e.send(t.Context(), workload.Options{Seed: 44, Count: 64}, "stream")
				done <- err
			}()
			o := run(t, "", append(args, "--pid", strconv.Itoa(e.pid))...)
			if err := <-done; err != nil {
				t.Error(err)
			}
			o.check(t, exitExport, "no space left")
		})
	}
}

// TestBadRecording needs no engine: it damages a recording of the captures.
func TestBadRecording(t *testing.T) {
	need(t)
	files, err := filepath.Glob("../captures/*.isr")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings in tests/captures: %v", err)
	}
	good, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	whole := run(t, "", "replay", files[0], "--to", "jsonl")
	if whole.code != 0 {
		t.Fatalf("replaying the whole file ended with %d\n%s", whole.code, whole.stderr)
	}
	flip := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 0x40
		return b
	}
	for _, tt := range []struct {
		name string
		data []byte
		want string
		some bool // spans before the fault are printed
	}{
		{"empty", nil, "", false},
		{"not a recording", []byte(strings.Repeat("no recording at all\n", 20)), "not", false},
		{"cut in the header", good[:6], "", false},
		{"cut in the middle", good[:len(good)*2/3], "cut off", true},
		{"without its last block", good[:len(good)-10], "cut off", true},
		{"a flipped bit in the middle", flip(len(good) / 2), "", true},
		{"a flipped bit in the header", flip(3), "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := filepath.Join(t.TempDir(), "bad.isr")
			if err := os.WriteFile(f, tt.data, 0o644); err != nil {
				t.Fatal(err)
			}
			o := run(t, "", "replay", f, "--to", "jsonl")
			o.check(t, exitRecording, "bad.isr", tt.want)
			if !tt.some && o.stdout != "" {
				t.Errorf("it printed spans:\n%.300s", o.stdout)
			}
		})
	}
	t.Run("no such file", func(t *testing.T) {
		run(t, "", "replay", "/nonexistent/x.isr").check(t, exitRecording, "/nonexistent/x.isr")
	})
	t.Run("unknown format", func(t *testing.T) { run(t, "", "replay", files[0], "--to", "pictures").check(t, exitUsage, "pictures") })
}
