// Package docs tests that the documentation says what the code does.
package docs

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"inferspan/correlate/semconv"
	"inferspan/probes/host"
	"inferspan/probes/target"
)

var update = flag.Bool("update", false, "write the generated pages")

const capabilitiesPage = "../../docs/capabilities.md"

// TestCapabilitiesPage compares docs/capabilities.md with the reports for a plain vLLM and
// a plain SGLang: one API server, one core, all read live.
func TestCapabilitiesPage(t *testing.T) {
	lib := &target.Library{Path: "libzmq.so.5"}
	py := target.Python{Version: "3.12.1", Linkage: "shared"}
	vllm := &target.Engine{
		ID: 1, Kind: "vllm", Version: "0.32.0", Model: "m", PDRole: "none", FactSource: "live",
		Structs: map[string][]string{},
		Processes: []target.Process{
			{PID: 1, Role: target.RoleAPIServer, Python: py, Ports: []int{8000}, ZMQ: lib},
			{PID: 2, Role: target.RoleCore, Python: py, ZMQ: lib},
		},
	}
	first := 0
	sglang := &target.Engine{
		ID: 1, Kind: "sglang", Version: "0.5.23", Model: "m", PDRole: "none", HostID: "h",
		Settings: map[string]any{"tokenizer_worker_num": int64(1)}, Sources: map[string]string{"settings": "live"},
		Processes: []target.Process{
			{PID: 1, Role: target.RoleAPIServer, Python: py, Ports: []int{30000}, ZMQ: lib},
			{PID: 2, Role: target.RoleCore, Python: py, ZMQ: lib, Ranks: target.Ranks{TP: &first, PP: &first}},
			{PID: 3, Role: target.RoleDetokenizer, Python: py, ZMQ: lib},
		},
	}
	var b strings.Builder
	b.WriteString(`# What can be had

From a plain engine: its processes on one host, default flags. "inferspan ps -v" says it for the engine at hand, with what its
flags and this host change. While probes read less, as they cost too much, the metrics inferspan_capability_limited and
inferspan_detail_reduced say what is left out. This page is generated: go test ./tests/docs -update.

- exact: the engine's own value, or what it is made from
- derived: worked out from something near; spans name such values in inferspan.derived
- unavailable: left out
`)
	engineTable(&b, "vLLM V1", vllm)
	engineTable(&b, "SGLang 0.5", sglang)
	gpuTable(&b)
	if *update {
		if err := os.WriteFile(capabilitiesPage, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(capabilitiesPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is not what the code says: run go test ./tests/docs -update", capabilitiesPage)
	}
}

// engineTable lists what can be had from an engine.
func engineTable(b *strings.Builder, title string, e *target.Engine) {
	fmt.Fprintf(b, "\n## %s\n\n| kind | item | state | |\n|---|---|---|---|\n", title)
	for _, c := range target.Capabilities(e, host.Report{}, nil) {
		item := strings.ReplaceAll("`"+c.Item+"`", "|", "\\|")
		if c.Of != "" {
			item += " of " + strings.ReplaceAll("`"+c.Of+"`", "|", "\\|")
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", c.Kind, item, c.State, c.Reason)
	}
}

// gpuTable lists what is known of GPUs, whatever the engine.
func gpuTable(b *strings.Builder) {
	b.WriteString(`
## GPUs

Of any engine, with a build that has NVML and a driver that is there; without, all of it is unavailable, and inferspan check
says why. A device leaves out what it does not tell. [gpu.md](gpu.md) says where each comes from.

| metric | unit | state | |
|---|---|---|---|
`)
	for i := range semconv.Metrics {
		m := &semconv.Metrics[i]
		if !m.Own || !strings.HasPrefix(m.Name, "hw.") && !strings.HasPrefix(m.Name, "inferspan.gpu.") {
			continue
		}
		meaning, derived := strings.CutPrefix(m.Meaning, "derived: ")
		state := target.Exact
		if derived {
			state = target.Derived
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", m.Name, m.Unit, state, meaning)
	}
}
