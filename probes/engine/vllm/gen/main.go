// Command gen makes the files of probes/engine/vllm that come from fixtures:
// table.json (field order of the message classes by version) and the runs and
// messages in vllmtest/testdata. See vllmtest/testdata/README.md for what a
// folder of fixtures holds.
//
//	go run ./probes/engine/vllm/gen -fixtures DIR -out probes/engine/vllm
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"inferspan/probes/engine/vllm/vllmtest"
)

func main() {
	log.SetFlags(0)
	in := flag.String("fixtures", "", "folder of vLLM fixtures")
	out := flag.String("out", "probes/engine/vllm", "folder of the package")
	flag.Parse()
	if err := table(*in, *out); err != nil {
		log.Fatalf("making the table: %v", err)
	}
	if err := synthetic(*in, *out); err != nil {
		log.Fatalf("packing the synthetic messages: %v", err)
	}
	if err := runs(*in, *out); err != nil {
		log.Fatalf("packing the runs: %v", err)
	}
}

// class is a message class in schema.json.
type class struct {
	Fields []string `json:"fields"`
	Values []string `json:"values"`
}

var (
	structNames = []string{"EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs"}
	enumNames   = []string{"FinishReason"}
)

// noV1 are the versions of schema.json without the messages decoded here.
var noV1 = []string{"0.6.3"}

func table(in, out string) error {
	b, err := os.ReadFile(filepath.Join(in, "schema.json"))
	if err != nil {
		return err
	}
	var schema map[string]map[string]class
	if err := json.Unmarshal(b, &schema); err != nil {
		return err
	}
	var versions []string
	for v := range schema {
		if !slices.Contains(noV1, v) {
			versions = append(versions, v)
		}
	}
	slices.SortFunc(versions, compareVersions)
	var w bytes.Buffer
	fmt.Fprintf(&w, "{\n\"versions\": %s,\n\"structs\": {\n", line(versions))
	for i, name := range structNames {
		fmt.Fprintf(&w, " %q: {\n", name)
		changes(&w, versions, func(v string) string { return line(schema[v][name].Fields) })
		fmt.Fprintf(&w, " }%s\n", comma(i, len(structNames)))
	}
	w.WriteString("},\n\"enums\": {\n")
	for i, name := range enumNames {
		fmt.Fprintf(&w, " %q: {\n", name)
		changes(&w, versions, func(v string) string {
			c, m := schema[v][name], map[string]string{}
			for i, f := range c.Fields {
				m[c.Values[i]] = f
			}
			return line(m)
		})
		fmt.Fprintf(&w, " }%s\n", comma(i, len(enumNames)))
	}
	w.WriteString("}\n}\n")
	return os.WriteFile(filepath.Join(out, "table.json"), w.Bytes(), 0o644)
}

// changes writes the value of each version that differs from the one before.
func changes(w *bytes.Buffer, versions []string, value func(string) string) {
	last, first := "", true
	for _, v := range versions {
		if s := value(v); s != last {
			if !first {
				w.WriteString(",\n")
			}
			fmt.Fprintf(w, "  %q: %s", v, s)
			last, first = s, false
		}
	}
	w.WriteString("\n")
}

func line(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func comma(i, n int) string {
	if i < n-1 {
		return ","
	}
	return ""
}

var number = regexp.MustCompile(`\d+`)

func compareVersions(a, b string) int {
	x, y := number.FindAllString(a, -1), number.FindAllString(b, -1)
	for i := 0; i < len(x) && i < len(y); i++ {
		m, _ := strconv.Atoi(x[i])
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return m - n
		}
	}
	return len(x) - len(y)
}

func synthetic(in, out string) error {
	files, err := filepath.Glob(filepath.Join(in, "synthetic", "*.json"))
	if err != nil {
		return err
	}
	var all []json.RawMessage
	slices.SortFunc(files, compareVersions)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	return pack(filepath.Join(out, "vllmtest", "testdata", "synthetic.json.gz"), all)
}

// frame is a line of a dump.
type frame struct {
	Mono   float64 `json:"mono"`
	PID    int     `json:"pid"`
	TID    int     `json:"tid"`
	Thread string  `json:"thread"`
	Comm   string  `json:"comm"`
	Type   string  `json:"type"`
	EP     string  `json:"ep"`
	SID    uint64  `json:"sid"`
	More   bool    `json:"more"`
	Len    int     `json:"len"`
	Hex    string  `json:"hex"`
}

func runs(in, out string) error {
	dirs, err := os.ReadDir(in)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		name := d.Name()
		// V0 speaks pickle; the 0.10.2 run ended before its first request.
		if !d.IsDir() || name == "synthetic" || strings.Contains(name, "-v0") || name == "0.10.2" {
			continue
		}
		if err := run(in, out, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func run(in, out, name string) error {
	r := vllmtest.Dump{Version: strings.Split(strings.TrimPrefix(name, "offline-"), "-")[0], Offline: strings.HasPrefix(name, "offline-")}
	files, err := filepath.Glob(filepath.Join(in, name, "*"))
	if err != nil {
		return err
	}
	var frames []frame
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		sc := bufio.NewScanner(bytes.NewReader(b))
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			var fr frame
			if err := json.Unmarshal(sc.Bytes(), &fr); err != nil {
				return err
			}
			if fr.Comm == "VLLM::Worker" || fr.Comm == "MPClientEngineMonitor" {
				continue
			}
			if len(fr.Hex) != 2*fr.Len {
				return fmt.Errorf("frame of %d bytes is cut", fr.Len)
			}
			frames = append(frames, fr)
		}
	}
	sort.SliceStable(frames, func(i, j int) bool { return frames[i].Mono < frames[j].Mono })
	endpoints := map[string]int{}
	seen := map[int]bool{}
	var addresses []string
	for _, f := range frames {
		if !seen[f.PID] {
			seen[f.PID] = true
			r.Processes = append(r.Processes, vllmtest.DumpProcess{PID: f.PID, Comm: f.Comm})
		}
		if b, _ := hex.DecodeString(f.Hex); f.Type == "ROUTER" && bytes.Contains(b, []byte("outputs")) && addresses == nil {
			for _, a := range regexp.MustCompile(`ipc://[-/\w.]+`).FindAll(b, -1) {
				addresses = append(addresses, string(a[:len("ipc:///tmp/")+36]))
			}
		}
		if _, ok := endpoints[f.EP]; !ok {
			endpoints[f.EP] = len(endpoints)
		}
		r.Frames = append(r.Frames, vllmtest.DumpFrame{Time: int64(math.Round(f.Mono * 1e9)), PID: f.PID, TID: f.TID, Type: f.Type,
			Input: strings.HasPrefix(f.Thread, "Thread-1 "), EP: endpoints[f.EP], Sock: f.SID, More: f.More, Data: f.Hex})
	}
	// The handshake names the input addresses of all front ends, then the
	// output addresses in the same order.
	half := len(addresses) / 2
	for i := range half {
		r.Clients = append(r.Clients, vllmtest.DumpClient{Input: endpoint(endpoints, addresses[i]), Output: endpoint(endpoints, addresses[half+i])})
	}
	if r.Spans, err = spans(filepath.Join(in, "otel-"+name+".json")); err != nil {
		return err
	}
	return pack(filepath.Join(out, "vllmtest", "testdata", name+".json.gz"), r)
}

func endpoint(m map[string]int, a string) int {
	if i, ok := m[a]; ok {
		return i
	}
	return -1
}

// spans reads the llm_request spans that the engine exported.
func spans(file string) ([]vllmtest.Span, error) {
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var reqs []struct {
		Request struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct {
						Name  string `json:"name"`
						Start string `json:"start_time_unix_nano"`
						End   string `json:"end_time_unix_nano"`
						Attrs []struct {
							Key   string `json:"key"`
							Value struct {
								Double *json.Number `json:"double_value"`
								Int    *json.Number `json:"int_value"`
								String *string      `json:"string_value"`
							} `json:"value"`
						} `json:"attributes"`
					} `json:"spans"`
				} `json:"scope_spans"`
			} `json:"resource_spans"`
		} `json:"request"`
	}
	if err := json.Unmarshal(b, &reqs); err != nil {
		return nil, err
	}
	var out []vllmtest.Span
	for _, r := range reqs {
		for _, rs := range r.Request.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					if s.Name != "llm_request" {
						continue
					}
					sp := vllmtest.Span{Numbers: map[string]float64{}, Strings: map[string]string{}}
					sp.Start, _ = strconv.ParseInt(s.Start, 10, 64)
					sp.End, _ = strconv.ParseInt(s.End, 10, 64)
					for _, a := range s.Attrs {
						switch v := a.Value; {
						case v.Double != nil:
							sp.Numbers[a.Key], _ = v.Double.Float64()
						case v.Int != nil:
							sp.Numbers[a.Key], _ = v.Int.Float64()
						case v.String != nil:
							sp.Strings[a.Key] = *v.String
						}
					}
					out = append(out, sp)
				}
			}
		}
	}
	return out, nil
}

func pack(file string, v any) error {
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, buf.Bytes(), 0o644)
}
