// Package captures replays recordings of a real engine and compares what comes
// out with committed files, byte for byte. README.md says how they were made.
package captures

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the goldens instead of comparing")

// maxSize keeps the repository small.
const maxSize = 200 << 10

// build builds the program: the goldens are those of what users run.
func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "inferspan")
	out, err := exec.Command("go", "build", "-o", bin, "inferspan/cmd/tracer").CombinedOutput()
	if err != nil {
		t.Fatalf("building the program: %v\n%s", err, out)
	}
	return bin
}

func replay(bin, file, to string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(bin, append([]string{"replay", file, "--to", to}, args...)...)
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
	bin := build(t)
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
				got, err := replay(bin, f, g.to, "--precision", "2")
				if err != nil {
					t.Fatal(err)
				}
				again, err := replay(bin, f, g.to, "--precision", "2")
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

// firstDifference shows the first lines that differ.
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
			return fmt.Sprintf("line %d\n got %s\nwant %s", i+1, a, b)
		}
	}
	return "no difference"
}
