// Package arch tests the structure of the code: which package may import which.
package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "inferspan/"

// pkg is what `go list -json` says about a package.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Doc          string
	Name         string
}

// rules: for each folder, what its non-test code may import of this module. The
// longest matching folder counts. A folder covers its sub-folders, and may
// always import those.
var rules = []struct {
	folder string
	may    []string
	why    string
}{
	{"bpf/event", nil, "records are a leaf: decoders, recordings and tests use them anywhere"},
	{"bpf", []string{"bpf/event"}, "the kernel side knows no engine and no user"},
	{"correlate/signal", nil, "the input of correlate is a leaf"},
	{"correlate/trace", nil, "the output of correlate is a leaf"},
	{"correlate", []string{"correlate"}, "correlate is pure: it imports only its own packages"},
	{"probes/pickle", nil, "reading foreign bytes depends on nothing"},
	{"probes/decode", []string{"bpf/event", "correlate/signal", "probes"}, "decoding must not depend on being live"},
	{"probes/attach", []string{"bpf", "correlate/signal", "probes/target", "probes/elf", "probes/procfs", "probes/python"}, "attaching is the live half of the probes"},
	{"probes", []string{"bpf/event", "correlate/signal", "correlate/semconv", "probes"}, "probes hand over signals and know nothing of what becomes of them"},
	{"gpu/cuda", []string{"bpf", "probes/attach", "probes/elf", "probes/procfs", "probes/target"}, "attaching to the driver is live, as probes/attach is; what records mean is for decoding"},
	{"gpu", []string{"bpf/event", "correlate/signal", "gpu"}, "like probes"},
	{"gpu/triton", []string{"probes/python"}, "looking at an interpreter needs no more than that"},
	{"gpu/nvml", []string{"probes/note"}, "reading GPUs gives notes, and knows no engine"},
	{"recording", []string{"bpf/event", "correlate/signal", "probes/target"}, "a recording is records and facts"},
	{"export", []string{"correlate", "export"}, "exporters see results only"},
	{"agent", []string{"bpf", "correlate", "export", "probes", "recording", "gpu"}, "the agent joins the parts; only commands are above it"},
	{"cmd", []string{"agent", "bpf", "correlate", "export", "probes", "recording", "gpu"}, "commands are wiring"},
	{"tools", []string{"correlate", "probes"}, "build-time tools"},
	{"scripts", nil, "scripts stand alone"},
	{"tests", []string{"agent", "bpf", "cmd", "correlate", "export", "probes", "recording", "gpu", "tests"}, "tests see everything"},
}

// banned outside of the named folders: dependencies that would make pure code impure.
var banned = []struct {
	folder, imports, why string
}{
	{"correlate", "os", "correlate does no I/O"},
	{"correlate", "net", "correlate does no I/O"},
	{"correlate", "time", "correlate reads no clock; its times are numbers"},
	{"correlate", "math/rand", "correlate is deterministic"},
	{"correlate", "math/rand/v2", "correlate is deterministic"},
	{"correlate", "sync", "correlate is used by one goroutine"},
	{"probes/wire", "time", "decoding must give the same on a recording"},
	{"probes/pickle", "time", "decoding must give the same on a recording"},
	{"probes/http", "time", "decoding must give the same on a recording"},
	{"probes/engine", "time", "decoding must give the same on a recording"},
	{"probes/decode", "time", "decoding must give the same on a recording"},
}

func TestArrows(t *testing.T) {
	for _, p := range list(t) {
		folder := strings.TrimPrefix(p.ImportPath, module)
		r := -1
		for i := range rules {
			if under(folder, rules[i].folder) && (r < 0 || len(rules[i].folder) > len(rules[r].folder)) {
				r = i
			}
		}
		if r < 0 {
			t.Errorf("%s: no rule says what it may import; add one", folder)
			continue
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module)
			if ours && !under(to, rules[r].folder) && !underAny(to, rules[r].may) {
				t.Errorf("%s imports %s: %s", folder, to, rules[r].why)
			}
			for _, b := range banned {
				if under(folder, b.folder) && imp == b.imports {
					t.Errorf("%s imports %s: %s", folder, imp, b.why)
				}
			}
		}
	}
}

func TestPackageDocs(t *testing.T) {
	for _, p := range list(t) {
		if p.Doc == "" && len(p.Imports) > 0 {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

func under(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

func underAny(path string, folders []string) bool {
	for _, f := range folders {
		if under(path, f) {
			return true
		}
	}
	return false
}

func list(t *testing.T) []pkg {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Doc,Name", module+"...")
	cmd.Dir = "../.."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("only %d packages found", len(all))
	}
	return all
}
