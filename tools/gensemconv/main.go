// Command gensemconv writes the names and tables of package semconv from the
// specification files.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"
)

func main() {
	spec := flag.String("spec", "spec", "folder with the specification")
	out := flag.String("o", "names_gen.go", "file to write")
	flag.Parse()
	src, err := generate(*spec)
	if err == nil {
		err = os.WriteFile(*out, src, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gensemconv:", err)
		os.Exit(1)
	}
}

type attr struct {
	Name, Type, Unit, Requirement, Meaning string
	Sensitive                              bool
	Values, On                             []string
}

type level struct {
	Value int
}

type span struct {
	ID, Status, Engine, Layer string
	EngineVersion             string `yaml:"engine_version"`
	NamePattern               string `yaml:"name_pattern"`
	NameRegex                 string `yaml:"name_regex"`
	ProducedWhen              string `yaml:"produced_when"`
	MinLevel                  *level `yaml:"min_level"`
	Parent                    []*string
	Attributes                []attr
	Events                    []string
}

type event struct {
	ID, Name, Engine string
	MinLevel         *level `yaml:"min_level"`
	Attributes       []attr
}

type spansFile struct {
	Spans      []span
	SpanEvents []event `yaml:"span_events"`
	LogEvents  []event `yaml:"log_events"`
}

type dimension struct{ Name string }

type metric struct {
	ID, Name, Instrument, Unit, Engine, Dimensions, Meaning, Status, Condition string
	EngineVersion                                                              string   `yaml:"engine_version"`
	Extra                                                                      []string `yaml:"extra_dimensions"`
}

type metricsFile struct {
	Groups []struct {
		ID         string
		Dimensions []dimension
	} `yaml:"dimension_groups"`
	Metrics []metric
}

type ownFile struct {
	Attributes []attr
	Resource   []attr
	Spans      []struct {
		ID, Name, Layer, When string
		Parent                []string
	}
	Metrics []struct {
		ID, Name, Instrument, Unit, Meaning string
		Dimensions                          []string
	}
}

func load(dir, name string, into any) error {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("reading the specification: %w", err)
	}
	if err := yaml.Unmarshal(b, into); err != nil {
		return fmt.Errorf("parsing %s: %w", name, err)
	}
	return nil
}

// generate returns the formatted source of names_gen.go.
func generate(dir string) ([]byte, error) {
	var sf spansFile
	var mf metricsFile
	var of ownFile
	for _, f := range []struct {
		name string
		into any
	}{{"spans.yaml", &sf}, {"metrics.yaml", &mf}, {"own.yaml", &of}} {
		if err := load(dir, f.name, f.into); err != nil {
			return nil, err
		}
	}
	g := &gen{consts: map[string]map[string]string{}}
	groups := map[string][]string{}
	for _, gr := range mf.Groups {
		for _, d := range gr.Dimensions {
			groups[gr.ID] = append(groups[gr.ID], d.Name)
			g.add("Dim", d.Name, d.Name)
		}
	}
	var body bytes.Buffer
	body.WriteString("// Spans are the documented spans.\nvar Spans = []Span{\n")
	for _, s := range sf.Spans {
		if s.Status != "required" {
			continue
		}
		g.add("Span", s.ID, s.ID)
		if !strings.ContainsAny(s.NamePattern, "{[ ") {
			g.add("Name", s.NamePattern, s.NamePattern)
		}
		g.attrs(s.Attributes)
		var parents []string
		for _, p := range s.Parent {
			if p == nil {
				parents = append(parents, "")
			} else {
				parents = append(parents, *p)
			}
		}
		fmt.Fprintf(&body, "{ID: %q, Engine: %q, Version: %q, Layer: %q, NamePattern: %q, NameRegex: %q, MinLevel: %d, Parents: %s, When: %q, Attrs: %s, Events: %s},\n",
			s.ID, s.Engine, s.EngineVersion, s.Layer, s.NamePattern, s.NameRegex, s.MinLevel.get(), list(parents), s.ProducedWhen, attrTable(s.Attributes), list(s.Events))
	}
	body.WriteString("}\n\n// Events are the documented span events and log events.\nvar Events = []Event{\n")
	for _, e := range append(sf.SpanEvents, sf.LogEvents...) {
		g.add("Event", e.Name, e.Name)
		g.add("EventID", e.ID, e.ID)
		g.attrs(e.Attributes)
		fmt.Fprintf(&body, "{ID: %q, Name: %q, Engine: %q, MinLevel: %d, Attrs: %s},\n", e.ID, e.Name, e.Engine, e.MinLevel.get(), attrTable(e.Attributes))
	}
	body.WriteString("}\n\n// OwnAttrs are the attributes beyond the documented ones.\nvar OwnAttrs = " + attrTable(of.Attributes) + "\n")
	g.attrs(of.Attributes)
	g.attrs(of.Resource)
	body.WriteString("\n// OwnSpans are the spans beyond the documented ones.\nvar OwnSpans = []Span{\n")
	for _, s := range of.Spans {
		g.add("Span", s.ID, s.ID)
		g.add("Name", s.Name, s.Name)
		fmt.Fprintf(&body, "{ID: %q, Engine: \"any\", Version: \"any\", Layer: %q, NamePattern: %q, NameRegex: %q, MinLevel: -1, Parents: %s, When: %q},\n",
			s.ID, s.Layer, s.Name, "^"+regexp.QuoteMeta(s.Name)+"$", list(s.Parent), s.When)
	}
	body.WriteString("}\n")
	body.WriteString("\n// Metrics are the documented metrics, the OpenTelemetry histograms that stand beside them, and our own.\nvar Metrics = []Metric{\n")
	for _, m := range mf.Metrics {
		// Of the reference names only the OpenTelemetry ones are exported.
		if m.Status != "required" && !strings.HasPrefix(m.ID, "otel.") {
			continue
		}
		short := m.Name
		if strings.HasPrefix(m.ID, "otel.") { // some documented names differ from these only by dots
			short = m.ID
		}
		g.add("Metric", short, m.Name)
		g.add("MetricID", m.ID, m.ID)
		dims := append([]string(nil), groups[m.Dimensions]...)
		for _, d := range m.Extra {
			dims = append(dims, d)
			g.add("Dim", d, d)
		}
		fmt.Fprintf(&body, "{ID: %q, Name: %q, Instrument: %q, Unit: %q, Engine: %q, Version: %q, Group: %q, Dimensions: %s, Meaning: %q, Condition: %q},\n",
			m.ID, m.Name, m.Instrument, m.Unit, m.Engine, m.EngineVersion, m.Dimensions, list(dims), m.Meaning, m.Condition)
	}
	for _, m := range of.Metrics {
		g.add("Metric", m.Name, m.Name)
		g.add("MetricID", m.ID, m.ID)
		for _, d := range m.Dimensions {
			g.add("Dim", d, d)
		}
		fmt.Fprintf(&body, "{ID: %q, Name: %q, Instrument: %q, Unit: %q, Engine: \"any\", Version: \"any\", Group: \"own\", Dimensions: %s, Meaning: %q, Condition: \"always\", Own: true},\n",
			m.ID, m.Name, m.Instrument, m.Unit, list(m.Dimensions), m.Meaning)
	}
	body.WriteString("}\n")
	if g.err != nil {
		return nil, g.err
	}
	var out bytes.Buffer
	out.WriteString("// Code generated by gensemconv from spec/. DO NOT EDIT.\n\npackage semconv\n\n")
	for _, kind := range []struct{ prefix, doc string }{
		{"Attr", "Attributes."}, {"Span", "Ids of spans."}, {"Name", "Names of spans that have a fixed one."}, {"Event", "Names of events."},
		{"EventID", "Ids of events."}, {"Metric", "Names of metrics."}, {"MetricID", "Ids of metrics."}, {"Dim", "Dimensions of metrics."},
	} {
		fmt.Fprintf(&out, "// %s\nconst (\n", kind.doc)
		c := g.consts[kind.prefix]
		names := make([]string, 0, len(c))
		for n := range c {
			names = append(names, n)
		}
		sort.Strings(names)
		for _, n := range names {
			fmt.Fprintf(&out, "%s%s = %q\n", kind.prefix, n, c[n])
		}
		out.WriteString(")\n\n")
	}
	out.Write(body.Bytes())
	src, err := format.Source(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("formatting: %w", err)
	}
	return src, nil
}

func (l *level) get() int {
	if l == nil {
		return -1
	}
	return l.Value
}

// gen collects constants: prefix -> Go name -> value.
type gen struct {
	consts map[string]map[string]string
	err    error
}

func (g *gen) add(prefix, name, value string) {
	n := goName(name)
	c := g.consts[prefix]
	if c == nil {
		c = map[string]string{}
		g.consts[prefix] = c
	}
	if old, ok := c[n]; ok && old != value && g.err == nil {
		g.err = fmt.Errorf("%q and %q both give the name %s%s", old, value, prefix, n)
	}
	c[n] = value
}

func (g *gen) attrs(as []attr) {
	for _, a := range as {
		if !strings.Contains(a.Name, "{") { // families of names have no constant
			g.add("Attr", a.Name, a.Name)
		}
	}
}

// words written in capitals or in their usual form
var words = map[string]string{
	"gen": "Gen", "ai": "AI", "genai": "GenAI", "id": "ID", "ids": "IDs", "llm": "LLM", "vllm": "VLLM", "v0": "V0", "v1": "V1", "pd": "PD", "kv": "KV",
	"e2e": "E2E", "url": "URL", "http": "HTTP", "otel": "OTel", "sglang": "SGLang", "dp": "DP", "pp": "PP", "tp": "TP", "dpc": "DPC", "cpu": "CPU",
	"gpu": "GPU", "hw": "HW", "xid": "XID", "xids": "XIDs", "pcie": "PCIe", "mig": "MIG", "io": "IO", "api": "API", "rpctype": "RPCType", "calltype": "CallType", "callkind": "CallKind", "modelname": "ModelNameCamel", "spankind": "SpanKind",
	"usagetype": "UsageType", "rid": "RID", "bid": "BID", "pid": "PID", "mb": "MB",
}

// goName turns a dotted or snake-case name into a Go name without a prefix.
func goName(s string) string {
	var b strings.Builder
	for _, w := range strings.FieldsFunc(s, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		lw := strings.ToLower(w)
		if f, ok := words[lw]; ok {
			b.WriteString(f)
			continue
		}
		b.WriteString(strings.ToUpper(w[:1]) + lw[1:])
	}
	return b.String()
}

func list(s []string) string {
	if len(s) == 0 {
		return "nil"
	}
	return fmt.Sprintf("%#v", s)
}

func attrTable(as []attr) string {
	if len(as) == 0 {
		return "nil"
	}
	var b strings.Builder
	b.WriteString("[]Attr{\n")
	for _, a := range as {
		fmt.Fprintf(&b, "{Name: %q, Type: %q, Unit: %q, Requirement: %q, Meaning: %q", a.Name, a.Type, a.Unit, a.Requirement, a.Meaning)
		if a.Sensitive {
			b.WriteString(", Sensitive: true")
		}
		if len(a.Values) > 0 {
			fmt.Fprintf(&b, ", Values: %s", list(a.Values))
		}
		if len(a.On) > 0 {
			fmt.Fprintf(&b, ", On: %s", list(a.On))
		}
		b.WriteString("},\n")
	}
	b.WriteString("}")
	return b.String()
}
