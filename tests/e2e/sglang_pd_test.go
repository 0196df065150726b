package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inferspan/tests/collectortest"
)

const servePD = "../engines/sglang/pd.sh"

// startPD starts a prefill and a decode server that end with the test.
func startPD(t *testing.T, env []string, flags ...string) (prefill, decode *engine, bootstrap int) {
	t.Helper()
	if err := exec.Command("bash", "-c", `cd ../engines/sglang && here=$PWD && . ../common.sh && . ./env.sh && [ -d "$VENV/pd" ]`).Run(); err != nil {
		t.Skip("the libraries for KV transfer are not installed: PD=1 tests/engines/sglang/install.sh installs them")
	}
	port, bootstrap := freePair(t), freePort(t)
	args := append([]string{"start", "--port", strconv.Itoa(port), "--bootstrap", strconv.Itoa(bootstrap), "--log-dir", outDir(t), "--"}, flags...)
	cmd := exec.Command(servePD, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("starting the servers: %v\n%s", err, &stderr)
	}
	pids := strings.Fields(string(out))
	if len(pids) != 2 {
		t.Fatalf("starting the servers: %q", out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(servePD, "stop", pids[0], pids[1]).CombinedOutput(); err != nil {
			t.Errorf("stopping the servers: %v\n%s", err, out)
		}
	})
	var nodes [2]*engine
	for i, pid := range pids {
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatalf("starting the servers: %v", err)
		}
		nodes[i] = &engine{pid: n, url: fmt.Sprintf("http://127.0.0.1:%d", port+i)}
	}
	return nodes[0], nodes[1], bootstrap
}

// freePair is the first of two ports next to each other that were free a moment ago.
func freePair(t *testing.T) int {
	t.Helper()
	for range 100 {
		p := freePort(t)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p+1)); err == nil {
			l.Close()
			return p
		}
	}
	t.Fatal("no two free ports next to each other")
	return 0
}

// handedOver is a request that both servers get.
type handedOver struct {
	room       int
	path       string
	stream     bool
	tokens     int
	whole      bool    // the text may not end before, though the server does not know
	completion float64 // what the decode server says
}

// send posts it to both servers and reads both answers.
func (h *handedOver) send(ctx context.Context, prefill, decode *engine, bootstrap int) error {
	prompt := fmt.Sprintf("room %d: %s", h.room, strings.Repeat("and on ", h.room%7))
	body := map[string]any{"stream": h.stream, "bootstrap_host": "127.0.0.1", "bootstrap_port": bootstrap, "bootstrap_room": h.room}
	if h.path == "/generate" {
		params := map[string]any{"max_new_tokens": h.tokens, "ignore_eos": true, "temperature": 0.7}
		if h.whole {
			delete(params, "ignore_eos")
			params["min_new_tokens"] = h.tokens
		}
		body["text"], body["sampling_params"] = prompt, params
	} else {
		body["prompt"], body["model"], body["max_tokens"], body["ignore_eos"], body["temperature"] = prompt, "tiny", h.tokens, true, 0.7
		if h.stream {
			body["stream_options"] = map[string]any{"include_usage": true}
		}
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	var said [2]float64
	var errs [2]error
	var wg sync.WaitGroup
	for i, e := range []*engine{prefill, decode} {
		wg.Go(func() { said[i], errs[i] = completionOf(ctx, e.url+h.path, data) })
	}
	wg.Wait()
	h.completion = said[1]
	return errors.Join(errs[:]...)
}

// completionOf posts a request and returns how many tokens the answer says it generated.
func completionOf(ctx context.Context, url string, body []byte) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, fmt.Errorf("reading the answer of %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: status %s: %.200s", url, resp.Status, all)
	}
	tokens := -1.0
	for line := range bytes.Lines(all) {
		line = bytes.TrimPrefix(line, []byte("data: "))
		type usage struct {
			Completion float64 `json:"completion_tokens"`
		}
		var r struct {
			Usage *usage `json:"usage"`
			Meta  *usage `json:"meta_info"`
		}
		if json.Unmarshal(line, &r) != nil {
			continue
		}
		for _, u := range []*usage{r.Usage, r.Meta} {
			if u != nil {
				tokens = u.Completion
			}
		}
	}
	if tokens < 0 {
		return 0, fmt.Errorf("%s: the answer says no tokens: %.200s", url, all)
	}
	return tokens, nil
}

// handedOverLayout is a way to run the two servers.
type handedOverLayout struct {
	name  string
	env   []string
	flags []string
	ranks int  // schedulers of each server
	put   bool // requests are put back
	make  func(i int) handedOver
}

// TestSGLangDisaggregated compares our spans of a prefill and a decode server with those
// that they make themselves.
func TestSGLangDisaggregated(t *testing.T) {
	needSGLang(t)
	if os.Getenv("INFERSPAN_LAYOUTS") != "1" {
		t.Skip("INFERSPAN_LAYOUTS=1 is not set: this test starts two engines at a time")
	}
	short := func(i int) handedOver {
		h := handedOver{room: 1000 + i, path: "/generate", stream: i%2 == 0, tokens: 1 + i%12}
		if i%4 == 3 {
			h.path, h.stream = "/v1/completions", i%8 == 3
		}
		return h
	}
	for _, l := range []handedOverLayout{
		{name: "one rank", ranks: 1, make: short},
		// Both admit as many requests as there is room for what they have so far.
		{name: "retraction", flags: []string{"--max-total-tokens", "2000", "--num-reserved-decode-tokens", "1"}, ranks: 1, put: true,
			make: func(i int) handedOver {
				return handedOver{room: 1000 + i, path: "/generate", stream: i%2 == 0, tokens: 150 + 5*i, whole: true}
			}},
		{name: "two ranks", env: []string{"SGLANG_CPU_OMP_THREADS_BIND=0|1", "SGLANG_NCCL_SO_PATH=/nonexistent/libnccl.so"}, flags: []string{"--tp-size", "2"}, ranks: 2, make: short},
	} {
		t.Run(l.name, func(t *testing.T) { l.run(t) })
	}
}

func (l *handedOverLayout) run(t *testing.T) {
	c := collectortest.Start(t)
	prefill, decode, bootstrap := startPD(t, append([]string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"}, l.env...),
		append([]string{"--sleep-on-idle", "--enable-metrics", "--enable-trace", "--otlp-traces-endpoint", c.Endpoint + "/v1/traces"}, l.flags...)...)
	var tracers []*tracer
	var addrs []string
	for i, e := range []*engine{prefill, decode} {
		addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		tracers = append(tracers, attachTo(t, e, []string{"prefill", "decode"}[i], "--otlp-endpoint", c.Endpoint, "--prometheus", addr))
		waitDetail(t, addr)
		addrs = append(addrs, addr)
	}
	began := time.Now().UnixNano()
	reqs := make([]handedOver, 24)
	for i := range reqs {
		reqs[i] = l.make(i)
	}
	entries := 0
	for i := range reqs {
		if reqs[i].path != "/generate" {
			entries++
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const alone = 8 // one after another, then the others at once
	for i := range alone {
		if err := reqs[i].send(ctx, prefill, decode, bootstrap); err != nil {
			t.Fatal(err)
		}
	}
	errs := make([]error, len(reqs))
	var wg sync.WaitGroup
	for i := alone; i < len(reqs); i++ {
		wg.Go(func() { errs[i] = reqs[i].send(ctx, prefill, decode, bootstrap) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i, e := range []*engine{prefill, decode} {
		restSGLang(t, e)
		tracers[i].settle(t, entries)
	}
	time.Sleep(3 * time.Second) // requests without an entry span wait for one
	for i, tr := range tracers {
		page := scrape(t, "http://"+addrs[i]+"/metrics")
		if n := page.sum("inferspan_lost_records_total") + page.sum("inferspan_steps_missed_total"); n != 0 {
			t.Errorf("%v records or steps were lost", n)
		}
		tr.mustStop(t)
	}
	waitSpans(t, c)
	native, got := sglangReceived(t, c)
	native = slices.DeleteFunc(native, func(s collectortest.Span) bool { return s.Start < began })
	dump(t, "native", native)
	dump(t, "ours", got)

	f := &faults{t: t}
	defer f.end("disaggregation")
	w := &twins{f: f}
	w.find(t, native, got)
	w.report(t)
	if n := len(w.nativeTrees); n != 2*len(reqs) {
		f.add("the servers made trees of %d requests, want %d", n, 2*len(reqs))
	}
	if len(w.missing) > 0 {
		f.add("the servers have spans that we have not")
	}
	for _, stage := range []string{"prefill_prepare", "prefill_bootstrap", "prefill_transfer_kv_cache", "decode_prepare", "decode_bootstrap", "decode_transferred", "decode_waiting", "fake_output", "decode_loop"} {
		if w.starts[stage] == nil {
			f.add("no %s was compared", stage)
		}
	}
	if n := len(threadsOf(got)); n != 2*l.ranks {
		f.add("requests were in %d schedulers, want %d", n, 2*l.ranks)
	}
	if back := w.starts["event retract"] != nil; back != l.put {
		f.add("requests were put back: %v, want %v", back, l.put)
	}
	handedOvers(f, reqs, treesOf(got))
}

// threadsOf gives the schedulers that have threads, by name.
func threadsOf(spans []collectortest.Span) map[string]bool {
	out := map[string]bool{}
	for _, s := range spans {
		if label, _ := s.Attrs["thread_label"].(string); strings.HasSuffix(label, "Scheduler") {
			out[s.Name] = true
		}
	}
	return out
}

// handedOvers checks that each request has a tree of each server, with the room and the
// tokens that its answer has.
func handedOvers(f *faults, reqs []handedOver, trees []*otelTree) {
	f.t.Helper()
	type half struct{ room, role string }
	tokens := map[half]float64{}
	for _, x := range trees {
		if x.root == nil {
			continue
		}
		room, _ := x.root.Attrs["bootstrap_room"].(string)
		role, _, _ := strings.Cut(strings.TrimSpace(x.root.Name), " ")
		at := half{room, role}
		if _, twice := tokens[at]; twice {
			f.add("room %s has two trees of the %s server", room, role)
		}
		n, err := toFloat(x.root.Attrs["gen_ai.usage.completion_tokens"])
		if err != nil {
			f.add("room %s, %s server: %v", room, role, err)
		}
		tokens[at] = n
	}
	if len(tokens) != 2*len(reqs) {
		f.add("%d trees, want %d", len(tokens), 2*len(reqs))
	}
	for _, h := range reqs {
		room := fmt.Sprintf("0x%x", h.room)
		if p, d := tokens[half{room, "prefill"}], tokens[half{room, "decode"}]; p != 1 || d != h.completion {
			f.add("room %s: %v and %v tokens, want 1 and %v", room, p, d, h.completion)
		}
	}
}
