// Package prom shows metrics in the Prometheus text format.
//
// Names are those of the documents, exactly: documented counters get no
// "_total". Our own counters (inferspan_*) get it, and names with dots (those of
// the OpenTelemetry conventions) are written as its Prometheus rules say:
// underscores, then the unit.
//
// Every series of an engine carries service_name and process_pid (as the agent
// sees it), so that the engines of one host do not collide; one of a GPU hw_id. Everything else
// known of the process is in inferspan_target_info with the same two labels.
// Should two resources still look alike, a label target_id tells them apart.
//
// The OpenMetrics format is not offered: its encoder appends "_total" to every
// counter.
package prom

import (
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
	"inferspan/export"
)

const own = "inferspan_"

// WriteText writes s to w: families and series sorted by name and labels. The
// defaults complete the resources as they do for OTLP. Series that cannot be
// shown are left out and named in the error.
func WriteText(w io.Writer, s *metric.Snapshot, d export.Defaults) error {
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(&collector{snapshot: func() *metric.Snapshot { return s }, defaults: d}); err != nil {
		return fmt.Errorf("writing metrics: %w", err)
	}
	families, gatherErr := reg.Gather()
	enc := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return fmt.Errorf("writing metrics: %w", err)
		}
	}
	if gatherErr != nil {
		return fmt.Errorf("gathering metrics: %w", gatherErr)
	}
	return nil
}

// collector turns snapshots into constant metrics. It describes nothing
// beforehand, as the families are not known before the first snapshot.
type collector struct {
	snapshot func() *metric.Snapshot
	defaults export.Defaults
}

func (c *collector) Describe(chan<- *prometheus.Desc) {}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.snapshot()
	if s == nil {
		return
	}
	targets := c.targets(s)
	for i := range s.Families {
		f := &s.Families[i]
		for j := range f.Points {
			p := &f.Points[j]
			ch <- constMetric(f, p, targets[p.Resource])
		}
	}
	seen := make(map[*trace.Resource]bool)
	for i := range s.Families {
		for j := range s.Families[i].Points {
			if t := targets[s.Families[i].Points[j].Resource]; t != nil && !seen[t.resource] {
				seen[t.resource] = true
				ch <- t.info()
			}
		}
	}
}

func constMetric(f *metric.Family, p *metric.Point, t *target) prometheus.Metric {
	names, values := make([]string, 0, len(p.Labels)+3), make([]string, 0, len(p.Labels)+3)
	for _, l := range p.Labels {
		names, values = append(names, labelName(l.Name)), append(values, text(l.Value))
	}
	if t != nil {
		for i, n := range t.names {
			if !slices.Contains(names, n) { // hw_id is a dimension, too
				names, values = append(names, n), append(values, t.values[i])
			}
		}
	}
	desc := prometheus.NewDesc(metricName(f), f.Help, names, nil)
	var m prometheus.Metric
	var err error
	switch f.Type {
	case metric.Histogram:
		if len(p.Buckets) != len(f.Bounds)+1 {
			return prometheus.NewInvalidMetric(desc, fmt.Errorf("%s: %d buckets for %d bounds", f.Name, len(p.Buckets), len(f.Bounds)))
		}
		le := make(map[float64]uint64, len(f.Bounds))
		var sum uint64
		for i, b := range f.Bounds {
			sum += p.Buckets[i]
			le[b] = sum
		}
		m, err = prometheus.NewConstHistogram(desc, p.Count, p.Value, le, values...)
	case metric.Counter:
		m, err = prometheus.NewConstMetric(desc, prometheus.CounterValue, p.Value, values...)
	default:
		m, err = prometheus.NewConstMetric(desc, prometheus.GaugeValue, p.Value, values...)
	}
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}

// target is how the series of one resource are labelled.
type target struct {
	resource      *trace.Resource
	attrs         []trace.Attr
	names, values []string
}

func (c *collector) targets(s *metric.Snapshot) map[*trace.Resource]*target {
	out := make(map[*trace.Resource]*target)
	var order []*target
	for i := range s.Families {
		for j := range s.Families[i].Points {
			r := s.Families[i].Points[j].Resource
			if r == nil || out[r] != nil { // no resource: the agent's own
				continue
			}
			t := &target{resource: r, attrs: c.defaults.Apply(r)}
			for _, a := range t.attrs {
				if a.Key == "service.name" || a.Key == "process.pid" || a.Key == "hw.id" {
					t.names, t.values = append(t.names, labelName(a.Key)), append(t.values, value(a.Value))
				}
			}
			out[r] = t
			order = append(order, t)
		}
	}
	count := make(map[string]int)
	for _, t := range order {
		count[strings.Join(t.values, "\x00")]++
	}
	for _, t := range order {
		if count[strings.Join(t.values, "\x00")] > 1 {
			t.names, t.values = append(t.names, "target_id"), append(t.values, t.id())
		}
	}
	return out
}

// id is a hash of all that is known of the target.
func (t *target) id() string {
	h := fnv.New64a()
	for _, a := range t.attrs {
		fmt.Fprintf(h, "%s\x00%s\x00", a.Key, value(a.Value))
	}
	return strconv.FormatUint(h.Sum64(), 16)
}

func (t *target) info() prometheus.Metric {
	names, values := append([]string(nil), t.names...), append([]string(nil), t.values...)
	has := make(map[string]bool)
	for _, n := range names {
		has[n] = true
	}
	for _, a := range t.attrs {
		if n := labelName(a.Key); !has[n] {
			has[n] = true
			names, values = append(names, n), append(values, value(a.Value))
		}
	}
	desc := prometheus.NewDesc(own+"target_info", "What is known of an observed engine process or GPU. Always 1.", names, nil)
	m, err := prometheus.NewConstMetric(desc, prometheus.GaugeValue, 1, values...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}

func metricName(f *metric.Family) string {
	switch {
	case strings.HasPrefix(f.Name, own):
		if f.Type == metric.Counter && !strings.HasSuffix(f.Name, "_total") {
			return f.Name + "_total"
		}
	case strings.Contains(f.Name, "."):
		n := strings.ReplaceAll(f.Name, ".", "_")
		if u := unit(f); u != "" && !strings.HasSuffix(n, "_"+u) {
			n += "_" + u
		}
		if f.Type == metric.Counter {
			n += "_total"
		}
		return n
	}
	return f.Name
}

// units are the words for units, as the OpenTelemetry rules for Prometheus have them.
var units = map[string]string{"s": "seconds", "By": "bytes", "By/s": "bytes_per_second", "W": "watts", "J": "joules", "Cel": "celsius", "Hz": "hertz"}

// unit is the word that a name ends with. Of what has no unit, shares of the names below hw
// and inferspan are ratios; {annotations} are none, J/{token} is per token by its name.
func unit(f *metric.Family) string {
	if f.Unit == "1" && f.Type == metric.Gauge && (strings.HasPrefix(f.Name, "hw.") || strings.HasPrefix(f.Name, "inferspan.")) {
		return "ratio"
	}
	if f.Unit == "J/{token}" {
		return "joules"
	}
	return units[f.Unit]
}

// labelName makes a label name of an attribute name.
func labelName(s string) string {
	b := []byte(s)
	for i, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || i > 0 && c >= '0' && c <= '9') {
			b[i] = '_'
		}
	}
	return string(b)
}

func value(v any) string {
	switch v := v.(type) {
	case string:
		return text(v)
	case []string:
		return text(strings.Join(v, ","))
	}
	return fmt.Sprint(v)
}

func text(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
