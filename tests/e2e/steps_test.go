package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
	"inferspan/probes/decode"
	"inferspan/probes/target"
)

// TestStepsTruth compares the steps read from outside with what the scheduler logs
// from inside: every request of every step.
func TestStepsTruth(t *testing.T) {
	need(t)
	small := []string{"--num-gpu-blocks-override", "24", "--max-num-batched-tokens", "64"}
	for _, c := range []struct {
		name  string
		steps int
		by    string // source of the steps
		env   []string
		flags []string
	}{
		{name: "one at a time", steps: 5000, by: "clock", flags: small},
		{name: "two at a time", steps: 2000, by: "clock", env: []string{"INFERSPAN_BATCHES=2"}, flags: small},
		{name: "statistics off", steps: 2000, by: "clock", flags: append([]string{"--disable-log-stats"}, small...)},
		{name: "by dispatch", steps: 2000, by: "dispatch", flags: small},
		{name: "by dispatch, two at a time", steps: 1000, by: "dispatch", env: []string{"INFERSPAN_BATCHES=2"}, flags: small},
		{name: "by dispatch, statistics off", steps: 1000, by: "dispatch", flags: append([]string{"--disable-log-stats"}, small...)},
		{name: "by dispatch, two at a time, statistics off", steps: 1000, by: "dispatch", env: []string{"INFERSPAN_BATCHES=2"}, flags: append([]string{"--disable-log-stats"}, small...)},
	} {
		t.Run(c.name, func(t *testing.T) { stepsTruth(t, c.steps, c.by, c.env, c.flags) })
	}
}

func stepsTruth(t *testing.T, steps int, by string, env, flags []string) {
	dir := outDir(t)
	log, logging := stepLog(t, "vllm")
	e := startEngine(t, append(env, logging...), flags...)
	file := filepath.Join(dir, "run.isr")
	stop := e.record(t, file, "--step-source", by)
	mixedLoads(t, e, log, steps, "ignore_eos")
	stop()
	compareSteps(t, file, readTruth(t, log), steps, by)
}

// record starts a recording of the engine and returns when its probes are in; stop ends it.
func (e *engine) record(t *testing.T, file string, flags ...string) (stop func()) {
	t.Helper()
	rec := exec.Command(binary, append([]string{"record", "--pid", strconv.Itoa(e.pid), "-o", file}, slices.Concat(unbounded, flags)...)...)
	var said syncBuffer
	rec.Stderr = &said
	if err := rec.Start(); err != nil {
		t.Fatal(err)
	}
	for range 1200 {
		if strings.Contains(said.String(), "attached to") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if !strings.Contains(said.String(), "attached to") {
		t.Errorf("the probes are not in after 2 minutes\n%s", said.String())
	}
	return func() {
		t.Helper()
		if err := rec.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := rec.Wait(); err != nil {
			t.Fatalf("%v\n%s", err, said.String())
		}
	}
}

// mixedLoads sends mixed loads until the engine has logged as many steps. What has the
// requests go on to their limits is "ignore_eos", or "min_tokens" with longer answers, of
// which half are streamed.
func mixedLoads(t *testing.T, e *engine, log string, steps int, on string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for seed := uint64(1); countLines(t, log) < steps; seed++ {
		if time.Now().After(deadline) {
			t.Fatalf("the engine made %d steps, not %d", countLines(t, log), steps)
		}
		mixedLoad(e, seed, on)
	}
	time.Sleep(time.Second)
}

// mixedLoad sends prompts of many lengths, some with a common beginning, at once:
// more than the engine has room for.
func mixedLoad(e *engine, seed uint64, on string) {
	var wg sync.WaitGroup
	for i := range uint64(24) {
		rnd := rand.New(rand.NewPCG(seed, i))
		prompt := strings.Repeat("shared prefix ", 60*rnd.IntN(2))
		for range []int{3, 8, 20, 60, 150}[rnd.IntN(5)] {
			prompt += fmt.Sprintf(" w%d", rnd.IntN(1000))
		}
		tokens := []int{1, 5, 20, 60, 120}[rnd.IntN(5)]
		how := `"ignore_eos":true`
		if on == "min_tokens" {
			tokens *= 3
			how = fmt.Sprintf(`"min_tokens":%d,"stream":%v`, tokens, i%2 == 0)
		}
		body := fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":%d,%s,"n":%d}`, prompt, tokens, how, 1+rnd.IntN(2))
		c := http.Client{Timeout: time.Minute}
		if rnd.IntN(10) == 0 {
			c.Timeout = 300 * time.Millisecond // leaves before the end
		}
		wg.Go(func() {
			resp, err := c.Post(e.url+"/v1/completions", "application/json", strings.NewReader(body))
			if err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
}

// stepTruth is a line of the scheduler's log.
type stepTruth struct {
	Step int64
	// State of the scheduler before the step was put together, and after.
	Begin, After struct{ Step, Running, Waiting, Deferred, Free int64 }
	// Of another line: when the outputs of a step were made, s.
	EndOf  int64 `json:"end_of"`
	Stamps []float64

	Tokens                            int64
	Scheduled, Computed, Prompt       map[string]int64
	New, Resumed, Preempted, Finished []string
}

// stepLog is where an engine started with env logs its steps: the beginning of the files' names.
func stepLog(t *testing.T, engine string) (log string, env []string) {
	t.Helper()
	log = filepath.Join(outDir(t), "steps")
	for _, old := range logs(t, log) {
		os.Remove(old)
	}
	var path []string
	for _, dir := range []string{engine + "/steplog", "steplog"} {
		abs, err := filepath.Abs("../engines/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		path = append(path, abs)
	}
	return log, []string{"PYTHONPATH=" + strings.Join(path, ":"), "INFERSPAN_STEP_LOG=" + log}
}

func logs(t *testing.T, log string) []string {
	t.Helper()
	found, err := filepath.Glob(log + ".*")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// eachLine reads the lines of the files of a step log, one object each.
func eachLine[T any](t *testing.T, log string, put func(*T)) {
	t.Helper()
	for _, name := range logs(t, log) {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			v := new(T)
			if err := json.Unmarshal(lines.Bytes(), v); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			put(v)
		}
		if err := lines.Err(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func countLines(t *testing.T, log string) int {
	n := 0
	for _, name := range logs(t, log) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		n += strings.Count(string(b), `"begin"`)
	}
	return n
}

func readTruth(t *testing.T, log string) map[int64]*stepTruth {
	t.Helper()
	out := make(map[int64]*stepTruth)
	eachLine(t, log, func(s *stepTruth) {
		if s.EndOf == 0 {
			out[s.Step] = s
		} else if len(s.Stamps) > 0 && out[s.EndOf] != nil {
			out[s.EndOf].Stamps = s.Stamps
		}
	})
	return out
}

// signalsOf decodes a recording.
func signalsOf(t *testing.T, file string, check func(signal.Signal)) {
	t.Helper()
	dec := decode.New(decode.Options{})
	readRecording(t, file, func(e *target.Engine) error { return dec.Engine(e, check) }, func(r *event.Record) error {
		dec.Record(r, check)
		return nil
	})
}

// compareSteps compares the steps of a recording with the log.
func compareSteps(t *testing.T, file string, truth map[int64]*stepTruth, least int, by string) {
	f := &faults{t: t}
	var n, requests, chunks, preempted, noEnd, partial, last, ends, begins, stamped int64
	check := func(s signal.Signal) {
		g, ok := s.(*signal.Step)
		if !ok {
			return
		}
		n++
		if last != 0 && g.Number.V != last+1 {
			f.add("step %d after step %d", g.Number.V, last)
		}
		last = g.Number.V
		w := truth[g.Number.V]
		if !g.Number.OK || w == nil {
			f.add("step %v is not in the log", g.Number)
			return
		}
		if g.Update == 0 {
			noEnd++
		}
		if want := signal.StepByClock; by == "dispatch" || g.Method != want {
			if want = signal.StepByDispatch; by != "dispatch" || g.Method != want {
				f.add("step %d: seen by method %d, want that of %s", w.Step, g.Method, by)
			}
			if len(w.Stamps) > 0 {
				stamped++
			}
			w.ended(g, f)
		}
		if g.Update != 0 {
			ends++
		}
		if g.Schedule != 0 {
			begins++
		}
		if g.Partial {
			partial++
		}
		requests += int64(len(g.Requests))
		preempted += int64(len(w.Preempted))
		chunks += w.compare(g, f)
	}
	signalsOf(t, file, check)
	f.end("steps")
	t.Logf("%d steps with %d requests: %d chunks of prompts, %d preemptions, %d steps without outputs, %d not whole; of %d the beginning is known, of %d the end", n, requests, chunks, preempted, noEnd, partial, begins, ends)
	if by == "dispatch" && ends*100 < stamped*95 {
		t.Errorf("the end of %d steps is known, %d had outputs", ends, stamped)
	}
	if n < int64(least)*9/10 {
		t.Errorf("%d steps were seen of %d", n, least)
	}
	if chunks == 0 || preempted == 0 {
		t.Error("no prompt was computed in parts, or no request preempted: the load is too light")
	}
	if partial*100 > n {
		t.Errorf("%d of %d steps are not whole", partial, n)
	}
}

// compare reports what differs and returns how many chunks of prompts the step had.
func (w *stepTruth) compare(g *signal.Step, f *faults) (chunks int64) {
	state := w.Begin
	if g.Method == signal.StepByDispatch {
		state = w.After
	}
	if g.Detail != signal.StepNoBeginning || g.Method == signal.StepByDispatch {
		for _, x := range []struct {
			name string
			got  signal.Opt[int64]
			want int64
		}{{"running", g.Running, state.Running}, {"waiting", g.Waiting, state.Waiting}, {"deferred", g.Deferred, state.Deferred}, {"free blocks", g.FreeBlocks, state.Free}} {
			if state.Step == w.Step && x.got != signal.Some(x.want) {
				f.add("step %d: %s %v, want %d", w.Step, x.name, x.got, x.want)
			}
		}
	}
	if g.Partial {
		return 0
	}
	whole := g.Detail != signal.StepNoEnd || g.Method == signal.StepByDispatch
	if g.Tokens.V != w.Tokens && (g.Tokens.OK || whole) {
		f.add("step %d: %v tokens, want %d", w.Step, g.Tokens, w.Tokens)
	}
	if len(g.Requests) != len(w.Scheduled) {
		f.add("step %d: %d requests, want %d", w.Step, len(g.Requests), len(w.Scheduled))
	}
	for i := range g.Requests {
		q := &g.Requests[i]
		id := string(q.ID)
		tokens, ok := w.Scheduled[id]
		if !ok {
			f.add("step %d: request %s is not in it", w.Step, id)
			continue
		}
		from, prompt := w.Computed[id], w.Prompt[id]
		// The first chunk of a silent step may begin behind blocks of the prefix cache.
		if unknown := !whole && q.Tokens == -1; !unknown && (q.Tokens != tokens || q.Computed != signal.Some(from)) {
			f.add("step %d: request %s: %d tokens after %v, want %d after %d", w.Step, id, q.Tokens, q.Computed, tokens, from)
		}
		entry, phase := signal.StepRunning, signal.StepDecode
		switch {
		case slices.Contains(w.New, id):
			entry = signal.StepNew
		case slices.Contains(w.Resumed, id):
			entry = signal.StepResumed
		}
		switch {
		case from+tokens < prompt:
			phase = signal.StepPrefillChunk
			chunks++
		case from < prompt:
			phase = signal.StepPrefillEnd
		}
		if q.Entry != entry || q.Phase != phase && q.Phase != signal.StepRecompute {
			f.add("step %d: request %s: entry %d, phase %d, want %d, %d", w.Step, id, q.Entry, q.Phase, entry, phase)
		}
	}
	if whole {
		if got := texts(g.Preempted); !reflect.DeepEqual(got, w.Preempted) {
			f.add("step %d: preempted %v, want %v", w.Step, got, w.Preempted)
		}
		if got := texts(g.Finished); !reflect.DeepEqual(got, w.Finished) {
			f.add("step %d: finished %v, want %v", w.Step, got, w.Finished)
		}
	}
	return chunks
}

// ended reports an end of a step seen by its dispatch that is not the stamp of its outputs.
func (w *stepTruth) ended(g *signal.Step, f *faults) {
	if g.Dispatch == 0 {
		f.add("step %d: no dispatch", w.Step)
	}
	if g.Update == 0 {
		return
	}
	for _, s := range w.Stamps {
		if d := float64(g.Update) - s*1e9; d > -1000 && d < 1000 {
			return
		}
	}
	f.add("step %d: ends at %d, the stamps of its outputs are %v", w.Step, g.Update, w.Stamps)
}

func texts(ids [][]byte) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}
