// Package captures replays recordings of a real engine and compares what comes
// out with committed files, byte for byte. README.md says how they were made.
package captures

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inferspan/tests/workload"
)

var update = flag.Bool("update", false, "write the goldens instead of comparing")

// maxSize keeps the repository small.
const maxSize = 200 << 10

var program string // the built program: the goldens are those of what users run

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "captures")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "inferspan")
		if out, err := exec.Command("go", "build", "-o", program, "inferspan/cmd/tracer").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building the program: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

func replay(file, to string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(program, append([]string{"replay", file, "--to", to}, args...)...)
	// Settings of the machine must not reach a golden.
	cmd.Env = []string{"HOME=" + os.TempDir(), "TZ=UTC"}
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("replaying %s: %w\n%s", file, err, &stderr)
	}
	return out, nil
}

func TestReplay(t *testing.T) {
	files, err := filepath.Glob("*.isr")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no recordings: make.sh makes them")
	}
	for _, f := range files {
		name := strings.TrimSuffix(f, ".isr")
		t.Run(name, func(t *testing.T) {
			if info, err := os.Stat(f); err != nil || info.Size() > maxSize {
				t.Errorf("%v, or larger than %d bytes", err, maxSize)
			}
			for _, g := range []struct{ to, golden string }{
				{"jsonl", name + ".jsonl.golden"},
				{"prom", name + ".prom.golden"},
			} {
				// Precision 2 shows every event that the recording gives.
				args := []string{"--precision", "2"}
				if g.to == "jsonl" && slices.Contains(withSteps, name) {
					args = append(args, "--steps", "2")
				}
				got, err := replay(f, g.to, args...)
				if err != nil {
					t.Fatal(err)
				}
				again, err := replay(f, g.to, args...)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, again) {
					t.Errorf("two replays to %s differ: %s", g.to, firstDifference(got, again))
				}
				if *update {
					if err := os.WriteFile(g.golden, got, 0o644); err != nil {
						t.Fatal(err)
					}
					continue
				}
				want, err := os.ReadFile(g.golden)
				if errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is missing: run with -update", g.golden)
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%s: %s", g.golden, firstDifference(got, want))
				}
			}
		})
	}
}

// withSteps are recordings whose goldens show scheduler steps, too: chunked prompts,
// preemptions, forward passes, and steps of SGLang.
var withSteps = []string{"long", "preempt", "cuda", "tensor-parallel", "sglang-usage", "sglang-alone"}

// firstDifference shows the first lines that differ, around the place where they do.
func firstDifference(got, want []byte) string {
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		a, b := "(no line)", "(no line)"
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			at := 0
			for at < min(len(a), len(b)) && a[at] == b[at] {
				at++
			}
			around := func(s string) string { return s[max(0, at-60):min(len(s), at+120)] }
			return fmt.Sprintf("line %d, byte %d\n got ...%s\nwant ...%s", i+1, at, around(a), around(b))
		}
	}
	return "no difference"
}

// recorded says what each recording was made of; make.sh has the same list.
var recorded = []struct {
	name      string
	scenarios []string
	count     int // requests per scenario, 0: its default
}{
	{"chat", []string{"chat"}, 0},
	{"stream", []string{"stream"}, 0},
	{"burst", []string{"burst"}, 32},
	{"long", []string{"long"}, 0},
	{"prefix", []string{"prefix"}, 0},
	{"preempt", []string{"preempt"}, 0},
	{"leave", []string{"leave-early", "leave-mid"}, 0},
	{"invalid", []string{"invalid", "other"}, 0},
	{"n-logprobs", []string{"n", "logprobs"}, 0},
	{"stop", []string{"stop"}, 0},
	{"completions", []string{"completions"}, 0},
	{"responses-messages", []string{"responses", "messages"}, 0},
	{"connections", []string{"keep-alive", "pipeline", "chunked", "headers"}, 0},
	{"tools", []string{"tools"}, 0},
	{"pooling", []string{"embeddings", "score"}, 0},
	{"kv", []string{"long"}, 0},
	{"sglang", []string{"stream", "prefix", "leave-mid"}, 2},
	{"sglang-usage", []string{"n", "leave-mid", "queue"}, 3},
	{"sglang-alone", []string{"chat", "prefix", "long"}, 2},
	{"tensor-parallel", []string{"chat"}, 3},
	{"sglang-0.5.5", []string{"chat", "stream", "leave-mid"}, 3},
	{"cuda", []string{"chat", "stream"}, 2},
}

// TestEntrySpans counts the entry spans of each recording against the plan of the
// traffic that was recorded.
func TestEntrySpans(t *testing.T) {
	const seed = 7
	files, err := filepath.Glob("*.isr")
	if err != nil || len(files) != len(recorded) {
		t.Errorf("%d recordings (%v), want the %d of the list", len(files), err, len(recorded))
	}
	for _, r := range recorded {
		t.Run(r.name, func(t *testing.T) {
			want := map[string]int{}
			for _, s := range r.scenarios {
				for _, session := range workload.Find(s).Plan(seed, r.count) {
					for _, q := range session.Requests {
						e := workload.Entry{Method: q.Method, Path: q.Path}
						if e.Inference() {
							want[q.Path]++
						}
					}
				}
			}
			out, err := replay(r.name+".isr", "jsonl", "--precision", "0")
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int{}
			for line := range bytes.Lines(out) {
				var s struct {
					Attributes map[string]any `json:"attributes"`
				}
				if err := json.Unmarshal(line, &s); err != nil {
					t.Fatal(err)
				}
				if _, ok := s.Attributes["gen_ai.span.kind"]; ok {
					got[fmt.Sprint(s.Attributes["url.path"])]++
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("entry spans by path %v, want %v", got, want)
			}
		})
	}
}

// TestRankKernels: the summary's mean of kernels per step is that of the steps' lines, in
// which each worker says what it launched.
func TestRankKernels(t *testing.T) {
	lines, err := replay("tensor-parallel.isr", "jsonl", "--steps", "2")
	if err != nil {
		t.Fatal(err)
	}
	type mean struct{ kernels, steps int }
	var ranks [2]mean
	var together mean
	for line := range bytes.Lines(lines) {
		var s struct {
			Forward []struct{ Rank, Kernels *int }
		}
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatal(err)
		}
		of, sum := 0, 0
		for _, p := range s.Forward {
			if p.Rank == nil || p.Kernels == nil {
				continue
			}
			of++
			ranks[*p.Rank].kernels += *p.Kernels
			ranks[*p.Rank].steps++
			sum += *p.Kernels
		}
		if of == len(ranks) {
			together.kernels += sum
			together.steps++
		}
	}
	if together.steps == 0 {
		t.Fatal("no step with the kernels of both ranks")
	}
	out, err := replay("tensor-parallel.isr", "summary")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(out)), " ")
	per := func(m mean) string { return fmt.Sprintf("%.2f", float64(m.kernels)/float64(m.steps)) }
	for _, want := range []string{
		fmt.Sprintf("%s in a step by all workers (mean of %d steps)", per(together), together.steps),
		fmt.Sprintf("%s by rank 0 (%d steps)", per(ranks[0]), ranks[0].steps),
		fmt.Sprintf("%s by rank 1 (%d steps)", per(ranks[1]), ranks[1].steps),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the summary lacks %q:\n%s", want, out)
		}
	}
}
