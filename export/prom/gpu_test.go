package prom

import (
	"bytes"
	"testing"

	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
	"inferspan/export"
)

// GPUs are told apart by hw_id, which is a dimension too, and have units in their names.
func TestGPUs(t *testing.T) {
	gpu := func(id string) *trace.Resource {
		return &trace.Resource{Attrs: []trace.Attr{{Key: "hw.id", Value: id}, {Key: "hw.model", Value: "H100"}}}
	}
	point := func(id string, v float64) metric.Point {
		return metric.Point{Labels: []metric.Label{{Name: "hw.id", Value: id}}, Value: v, Resource: gpu(id)}
	}
	s := &metric.Snapshot{Families: []metric.Family{
		{Name: "hw.energy", Help: "h", Unit: "J", Type: metric.Counter, Points: []metric.Point{point("A", 1), point("B", 2)}},
		{Name: "hw.gpu.utilization", Help: "h", Unit: "1", Type: metric.Gauge, Points: []metric.Point{point("A", 0.5)}},
		{Name: "hw.gpu.memory.usage", Help: "h", Unit: "By", Type: metric.UpDownCounter, Points: []metric.Point{point("A", 5)}},
		{Name: "hw.status", Help: "h", Unit: "1", Type: metric.UpDownCounter, Points: []metric.Point{point("A", 1)}},
		{Name: "inferspan.gpu.pcie.throughput", Help: "h", Unit: "By/s", Type: metric.Gauge, Points: []metric.Point{point("A", 7)}},
		{Name: "inferspan.gpu.xids", Help: "h", Unit: "{event}", Type: metric.Counter, Points: []metric.Point{point("A", 3)}},
	}}
	// Points of one GPU have one resource.
	for i := range s.Families {
		s.Families[i].Points[0].Resource = s.Families[0].Points[0].Resource
	}
	var out bytes.Buffer
	if err := WriteText(&out, s, export.Defaults{}); err != nil {
		t.Fatal(err)
	}
	want := `# HELP hw_energy_joules_total h
# TYPE hw_energy_joules_total counter
hw_energy_joules_total{hw_id="A",service_name="inferspan"} 1
hw_energy_joules_total{hw_id="B",service_name="inferspan"} 2
# HELP hw_gpu_memory_usage_bytes h
# TYPE hw_gpu_memory_usage_bytes gauge
hw_gpu_memory_usage_bytes{hw_id="A",service_name="inferspan"} 5
# HELP hw_gpu_utilization_ratio h
# TYPE hw_gpu_utilization_ratio gauge
hw_gpu_utilization_ratio{hw_id="A",service_name="inferspan"} 0.5
# HELP hw_status h
# TYPE hw_status gauge
hw_status{hw_id="A",service_name="inferspan"} 1
# HELP inferspan_gpu_pcie_throughput_bytes_per_second h
# TYPE inferspan_gpu_pcie_throughput_bytes_per_second gauge
inferspan_gpu_pcie_throughput_bytes_per_second{hw_id="A",service_name="inferspan"} 7
# HELP inferspan_gpu_xids_total h
# TYPE inferspan_gpu_xids_total counter
inferspan_gpu_xids_total{hw_id="A",service_name="inferspan"} 3
# HELP inferspan_target_info What is known of an observed engine process or GPU. Always 1.
# TYPE inferspan_target_info gauge
inferspan_target_info{hw_id="A",hw_model="H100",service_name="inferspan"} 1
inferspan_target_info{hw_id="B",hw_model="H100",service_name="inferspan"} 1
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	lint(t, &out)
}
