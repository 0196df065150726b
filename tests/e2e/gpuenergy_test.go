package e2e

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inferspan/tests/gpu/rig"
)

// nvmlBinary builds the tracer with NVML, which takes a C compiler.
func nvmlBinary(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "inferspan")
	build := exec.Command("go", "build", "-o", out, "../../cmd/tracer")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the tracer with NVML: %v\n%s", err, b)
	}
	return out
}

// drawing has the fake NVML say that a process is alone on the first GPU, which draws so
// many watts all the time, and returns the script.
func drawing(t *testing.T, pid, watts int) string {
	t.Helper()
	dir := t.TempDir()
	script, next := filepath.Join(dir, "script"), filepath.Join(dir, "next")
	began := time.Now()
	write := func() error {
		mj := time.Since(began).Milliseconds() * int64(watts)
		if err := os.WriteFile(next, fmt.Appendf(nil, "0 process %d\n0 mj %d\n", pid, mj), 0o644); err != nil {
			return err
		}
		return os.Rename(next, script)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				done <- nil
				return
			case <-tick.C:
				if err := write(); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		if err := <-done; err != nil {
			t.Errorf("writing the script of NVML: %v", err)
		}
	})
	return script
}

// TestGPUSGLangEnergy: on a GPU that always draws the same, a request had of the energy what
// it had of the time.
func TestGPUSGLangEnergy(t *testing.T) {
	needGPUOf(t, "sglang-cuda-0.5.23", "engine-sglang-cuda")
	const watts = 200
	program := nvmlBinary(t)
	e := startWith(t, serveSGLangCUDA, []string{"CUDA_MODE=eager", "FAKE_CUDA_KERNEL_NS=50000"}, "--sleep-on-idle", "--chunked-prefill-size", "64")
	e.generate(t, 8, 20) // compiles what the first requests need
	env := []string{"LD_LIBRARY_PATH=" + filepath.Join(rig.Dir(t), "lib"), "FAKE_NVML_SCRIPT=" + drawing(t, scheduler(t, e, 0), watts)}
	for _, counted := range []string{"all", "graph"} {
		restSGLang(t, e)
		tr := attachWith(t, program, env, e, "energy", "--cuda", counted, "--steps", "1")
		time.Sleep(3 * time.Second) // two samples
		e.generate(t, 1, 2)         // what the first batch ever seen is to its requests is not known
		restSGLang(t, e)
		began := time.Now().UnixNano()
		e.generate(t, 1, 60)
		e.generate(t, 8, 120)
		generateLong(t, e, 1)
		restSGLang(t, e)
		time.Sleep(2 * time.Second) // one more
		f := faults{t: t}
		n, joules, seconds := 0, 0.0, 0.0
		for _, s := range tr.mustStop(t) {
			if !strings.Contains(s.Name, "Req ") || s.Start < began {
				continue
			}
			n++
			busy, timed := s.number("inferspan.gpu.time")
			had, ok := s.number("inferspan.gpu.energy")
			if !timed || !ok {
				f.add("%s has time %v and energy %v: %v", s.Name, timed, ok, s.Attrs["inferspan.unavailable"])
				continue
			}
			joules, seconds = joules+had, seconds+busy
			if math.Abs(had-watts*busy) > 0.06*watts*busy {
				f.add("%s: %.2f J in %.4f s, at %d W", s.Name, had, busy, watts)
			}
			if derived, how := s.derived("inferspan.gpu.energy"); !derived || !strings.HasPrefix(how, "sole, ") {
				f.add("%s: derived %v by %q", s.Name, derived, how)
			}
		}
		t.Logf("--cuda %s: %d requests had %.1f J in %.3f s: %.1f W of %d", counted, n, joules, seconds, joules/seconds, watts)
		if n != 10 || math.Abs(joules-watts*seconds) > 0.03*watts*seconds {
			f.add("%d requests had %.1f J in %.3f s at %d W", n, joules, seconds, watts)
		}
		f.end("energy of requests, --cuda " + counted)
	}
}
