package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"inferspan/probes/target"
	"inferspan/tests/workload"
)

// TestSGLangWorkerRestart: a tokenizer worker that the server starts again while it is traced
// is traced too: its requests have all that those of the other one have. So they have in a
// recording without texts.
func TestSGLangWorkerRestart(t *testing.T) {
	needSGLang(t)
	if os.Getenv("INFERSPAN_LAYOUTS") != "1" {
		t.Skip("INFERSPAN_LAYOUTS=1 is not set: this test starts an engine of many processes")
	}
	l := sglangLayout{cores: 1, ranks: 1, workers: 2}
	e := startWith(t, serveSGLang, nil, "--sleep-on-idle", "--tokenizer-worker-num", "2")
	waitWorkers(t, e, l.workers)
	before := frontEnds(t, e)
	file := filepath.Join(outDir(t), "run.isr")
	stop := e.record(t, file, "--redact")
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	tr := attach(t, e, "--trace-level", "4", "--prometheus", addr)
	waitDetail(t, addr)

	if err := syscall.Kill(before[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	waitWorkers(t, e, l.workers)
	after := frontEnds(t, e)
	fresh := slices.DeleteFunc(slices.Clone(after), func(pid int) bool { return slices.Contains(before, pid) })
	if len(fresh) != 1 {
		t.Fatalf("front ends %v after %d was killed, %v before", after, before[0], before)
	}
	said := fmt.Sprintf("attached to process %d (api_server), which the engine has started", fresh[0])
	for !strings.Contains(tr.stderr.String(), said) {
		if time.Since(killed) > time.Minute {
			t.Fatalf("the tracer does not say %q\n%s", said, tr.stderr.String())
		}
		time.Sleep(100 * time.Millisecond)
	}

	log := e.playNamed(t, workload.Options{Seed: 1}, layoutScenarios...)
	restSGLang(t, e)
	tr.settle(t, inferences(log))
	time.Sleep(3 * time.Second) // requests without an entry span wait for one
	page := scrape(t, "http://"+addr+"/metrics")
	if n := page.sum("inferspan_lost_records_total") + page.sum("inferspan_steps_missed_total"); n != 0 {
		t.Errorf("%v records or steps were lost", n)
	}
	spans := tr.mustStop(t)
	stop()
	replayed := filepath.Join(outDir(t), "replayed.jsonl")
	lines, err := exec.Command(binary, "replay", file, "--trace-level", "4", "--to", "jsonl").Output()
	if err != nil {
		t.Fatalf("replaying: %v", err)
	}
	if err := os.WriteFile(replayed, lines, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, spans := range map[string][]*span{"live": spans, "replayed": readSpans(t, replayed)} {
		t.Run(name, func(t *testing.T) {
			// The server warms the new worker up by itself.
			ids := map[string]bool{}
			for i := range log {
				ids[log[i].ResponseID] = true
			}
			byTrace := map[string]bool{}
			for _, s := range spans {
				if s.text("module") != "" && ids[s.text("rid")] {
					byTrace[s.TraceID] = true
				}
			}
			spans = slices.DeleteFunc(spans, func(s *span) bool { return !byTrace[s.TraceID] })
			entries, threads := 0, map[string]int{}
			for _, s := range spans {
				if s.entry() {
					entries++
				}
				if label := s.text("thread_label"); strings.HasPrefix(label, "MultiTokenizer") {
					threads[label]++
				}
			}
			if entries != inferences(log) {
				t.Errorf("%d entry spans for %d requests", entries, inferences(log))
			}
			want := []string{}
			for _, pid := range after {
				want = append(want, fmt.Sprint("MultiTokenizer-", pid))
			}
			if got := slices.Sorted(maps.Keys(threads)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("front ends' threads %v, want those of %v", threads, want)
			}
			t.Logf("requests by front end: %v, started again was %d", threads, fresh[0])
			l.check(t, log, spans)
		})
	}
}

// frontEnds lists the front ends of an engine.
func frontEnds(t *testing.T, e *engine) (pids []int) {
	t.Helper()
	out, err := exec.Command(binary, "ps", "--json").Output()
	if err != nil {
		t.Fatalf("listing the engines: %v", err)
	}
	var engines []target.Engine
	if err := json.Unmarshal(out, &engines); err != nil {
		t.Fatalf("listing the engines: %v", err)
	}
	for i := range engines {
		ps := engines[i].Processes
		if !slices.ContainsFunc(ps, func(p target.Process) bool { return p.PID == e.pid }) {
			continue
		}
		for _, p := range ps {
			if p.Role == target.RoleAPIServer {
				pids = append(pids, p.PID)
			}
		}
	}
	return pids
}
