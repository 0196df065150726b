package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// loadDelay is what the connector takes for a load.
const loadDelay = 300 * time.Millisecond

// TestKVTransfer compares kv_transfer spans with what a connector of our own logs from
// inside the scheduler. The engine stores prompts and loads them when they come again.
func TestKVTransfer(t *testing.T) {
	need(t)
	t.Run("both", func(t *testing.T) { kvTransfer(t, "kv_both") })
	t.Run("consumer", func(t *testing.T) {
		if os.Getenv("INFERSPAN_LAYOUTS") != "1" {
			t.Skip("INFERSPAN_LAYOUTS=1 is not set: the role is one more engine")
		}
		kvTransfer(t, "kv_consumer")
	})
}

func kvTransfer(t *testing.T, role string) {
	dir := outDir(t)
	log := filepath.Join(dir, "loads")
	for _, old := range logs(t, log) {
		os.Remove(old)
	}
	module, err := filepath.Abs("../engines/vllm/asyncstore")
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{"kv_connector": "AsyncStore", "kv_connector_module_path": "asyncstore", "kv_role": role,
		"kv_load_failure_policy": "recompute", "kv_connector_extra_config": map[string]any{
			"shared_storage_path": t.TempDir(), "delay": loadDelay.Seconds(), "log": log,
			// One loses the rest of its blocks, one all of them, which is tried again.
			"fail": map[string]int{"1": 1, "2": 0},
		}})
	if err != nil {
		t.Fatal(err)
	}
	// The engine's own cache would have what the connector is asked for.
	e := startEngine(t, []string{"PYTHONPATH=" + module}, "--no-enable-prefix-caching", "--kv-transfer-config", string(config))
	tr := attach(t, e, "--precision", "2")
	time.Sleep(5 * time.Second) // until the steps are seen
	const prompts = 4
	ask := func(prompt, tokens int) {
		text := fmt.Sprintf("prompt %d ", prompt) + strings.Repeat("alpha beta gamma delta ", 40)
		body := fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":%d,"ignore_eos":true}`, text, tokens)
		resp, err := http.Post(e.url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	for i := range prompts {
		ask(i, 4) // stored
	}
	for i := range prompts {
		ask(i, 4) // loaded, each alone
	}
	var wg sync.WaitGroup
	wg.Go(func() { ask(prompts, 100) }) // goes on meanwhile
	for i := range 2 * prompts {
		wg.Go(func() { ask(i%prompts, 4) })
	}
	wg.Wait()
	tr.settle(t, 4*prompts+1)
	spans := tr.mustStop(t)
	checkTrees(t, spans)
	checkTransfers(t, role, spans, readLoads(t, log))
}

// loadTruth are the loads of one request, times in ns of CLOCK_MONOTONIC.
type loadTruth struct {
	begins, ends []int64
	after, next  int64 // the steps before and after had been put together
	tokens       float64
	failed       bool
}

func readLoads(t *testing.T, log string) map[string]*loadTruth {
	t.Helper()
	out := make(map[string]*loadTruth)
	for _, name := range logs(t, log) {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var l struct {
				Event, ID string
				At, After int64
				Tokens    float64
				Failed    bool
			}
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			x := out[l.ID]
			if x == nil {
				x = &loadTruth{}
				out[l.ID] = x
			}
			switch l.Event {
			case "end":
				x.ends = append(x.ends, l.At)
				continue
			case "next":
				x.next = l.At
				continue
			}
			if x.begins == nil {
				x.after = l.After
			}
			x.begins, x.tokens, x.failed = append(x.begins, l.At), l.Tokens, x.failed || l.Failed
		}
	}
	return out
}

// checkTransfers compares spans with the log: a transfer begins with the step that
// began the load and ends with the one that brought the blocks. So it has the whole
// load, but begins after the step before and ends before the step after.
func checkTransfers(t *testing.T, role string, spans []*span, truth map[string]*loadTruth) {
	t.Helper()
	var mono unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono); err != nil {
		t.Fatal(err)
	}
	wall := time.Now().UnixNano() - mono.Nano()
	const clocks = int64(200e3) // ns, what the offset of the clocks is off by
	f := faults{t: t}
	defer f.end("transfers")
	children := make(map[string]map[string]*span)
	for _, s := range spans {
		if children[s.ParentID] == nil {
			children[s.ParentID] = make(map[string]*span)
		}
		children[s.ParentID][s.Name] = s
	}
	var before, after []float64
	requests, failed, again := 0, 0, 0
	for _, s := range spans {
		if !s.llmRequest() {
			continue
		}
		requests++
		id := s.text("inferspan.request.internal_id")
		stages, l := children[s.SpanID], truth[id]
		want := map[string]string{"kv_consumer": "consumer", "kv_both": ""}[role]
		if got := s.text("gen_ai.pd_role"); got != want {
			f.add("request %s has role %q, want %q", id, got, want)
		}
		if wait, both := stages["wait"] != nil, stages["prefill"] != nil; !wait || both != (role == "kv_both") || stages["decode"] == nil {
			f.add("request %s of a %s has stages %v", id, role, stages)
			continue
		}
		k := children[stages["wait"].SpanID]["kv_transfer"]
		took, ok := s.number("gen_ai.latency.time_in_kv_transfer")
		if l == nil {
			if k != nil || ok {
				f.add("request %s loaded nothing, but has a transfer of %v", id, took)
			}
			continue
		}
		if k == nil || !ok || len(l.ends) != len(l.begins) {
			f.add("request %s: span %v, time %v; the connector logs %+v", id, k, took, l)
			continue
		}
		delete(truth, id)
		last := len(l.ends) - 1
		from, to := k.Start-wall, k.End-wall
		if from > l.begins[0]+clocks || from < l.after-clocks || to < l.ends[last]-clocks || to > l.next+clocks {
			f.add("request %s: the transfer is from %d to %d, the load from %d to %d, the step before was ready at %d, the one after at %d",
				id, from, to, l.begins[0], l.ends[last], l.after, l.next)
		}
		before, after = append(before, float64(l.begins[0]-from)/1e3), append(after, float64(to-l.ends[last])/1e3)
		sum := 0.0
		for i := range l.begins {
			sum += float64(l.ends[i] - l.begins[i])
		}
		if took < sum || took > float64(l.next-l.after) {
			f.add("request %s: %.0f us in transfers, its loads took %.0f us", id, took/1e3, sum/1e3)
		}
		if k.Start < stages["wait"].Start || k.End > stages["wait"].End {
			f.add("request %s: the transfer is not within the wait", id)
		}
		tokens, _ := k.number("gen_ai.kv_transfer.cached_tokens")
		if fail, _ := k.Attrs["gen_ai.kv_transfer.failed"].(bool); tokens != l.tokens || fail != l.failed || k.text("gen_ai.kv_transfer.direction") != "recv" {
			f.add("request %s: %v, want %v tokens, failed %v", id, k.Attrs, l.tokens, l.failed)
		}
		if derived := fmt.Sprint(k.Attrs["inferspan.derived"]); derived != "[span.start span.end]" {
			f.add("request %s: derived is %s", id, derived)
		}
		if l.failed {
			failed++
		}
		if last > 0 {
			again++
		}
	}
	for id := range truth {
		f.add("request %s loaded and has no span", id)
	}
	if len(before) < 8 || failed != 2 || again != 1 {
		f.add("%d loads, %d failed, %d tried again: want 12, 2, 1", len(before), failed, again)
	}
	if len(before) == 0 {
		return
	}
	slices.Sort(before)
	slices.Sort(after)
	n := len(before)
	t.Logf("%d requests, %d loads of %v: transfers begin %.0f us before the load in the median, %.0f at most, and end %.0f us after it, %.0f at most",
		requests, n, loadDelay, before[n/2], before[n-1], after[n/2], after[n-1])
}
