package agent

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"inferspan/bpf/event"
	"inferspan/correlate/metric"
	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/prom"
	"inferspan/gpu/nvml"
	"inferspan/gpu/nvml/nvmltest"
	"inferspan/probes/note"
	"inferspan/probes/target"
	"inferspan/recording"
)

var updateGPU = flag.Bool("update", false, "write the golden files")

func fakeGPU(id string, pids ...uint32) *nvmltest.Device {
	d := &nvmltest.Device{
		ID: id, Product: "H100", Bus: "00000000:01:00.0", Util: nvml.Utilization{GPU: 70, Memory: 35}, Mem: nvml.Memory{Total: 80 << 30, Used: 5 << 30, Reserved: 1 << 28},
		MW: 170000, LimitMW: 700000, MJ: 1000, SMClock: 1980, MemClock: 2619, Celsius: 57, Mask: 4, PCIeSent: 10, PCIeReceived: 20, NVSent: 7, NVReceived: 8,
	}
	for _, pid := range pids {
		d.Procs = append(d.Procs, nvml.Process{PID: pid, Memory: 4 << 30, MemoryKnown: true})
	}
	return d
}

func gpuEngine(pid int) *target.Engine {
	return &target.Engine{ID: 1, Kind: "vllm", Version: "0.32.0", Model: "m", Processes: []target.Process{{PID: pid, Role: target.RoleCore}}}
}

// A recording made with fake GPUs gives the metrics in the golden file.
func TestGPURecording(t *testing.T) {
	one, two := fakeGPU("GPU-1", 70), fakeGPU("GPU-2")
	two.Fail = map[string]error{"Energy": nvml.ErrNotSupported, "NVLink": nvml.ErrNotSupported}
	r, err := nvml.NewReader(nvmltest.New(one, two), func(uint32) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w, err := recording.NewWriter(&b, recording.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	rec := NewRecorder(w, false)
	put := func(r *event.Record, err error) {
		t.Helper()
		if err == nil {
			err = rec.Record(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := rec.Engine(gpuEngine(70)); err != nil {
		t.Fatal(err)
	}
	put(&event.Record{Header: event.Header{Kind: event.KindClock, Time: 1e9}, Wall: 1e18}, nil)
	for _, f := range r.Refresh() {
		put(note.Put(note.KindGPUDevice, 0, 1e9, f))
	}
	put(note.Put(note.KindGPUVisible, 70, 1e9, note.GPUVisible{UUIDs: []string{"GPU-1", "GPU-2"}}))
	for i := range uint64(4) {
		samples, news := r.Sample(true)
		for _, f := range news {
			put(note.Put(note.KindGPUDevice, 0, (2+i)*1e9, f))
		}
		records, err := note.PutGPUSamples((2+i)*1e9, samples)
		for _, r := range records {
			put(r, err)
		}
		one.MJ += 150000
		one.Usage = append(one.Usage, nvml.Usage{PID: 70, SM: 60, Time: i + 1})
		if i == 2 {
			two.Lost = true
			put(note.Put(note.KindGPUEvent, 0, (2+i)*1e9, note.GPUEvent{UUID: "GPU-2", XID: 79}))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	rd, err := recording.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	p := NewPipeline(Options{}, func(*trace.Tree) {})
	if _, err := Replay(rd, p); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	m := p.Metrics()
	if err := prom.WriteText(&text, &m, export.Defaults{}); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "gpu.prom.golden")
	if *updateGPU {
		if err := os.WriteFile(golden, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text.Bytes(), want) {
		t.Errorf("got\n%s\nwant\n%s", &text, want)
	}
}

// until runs the notes of g through a pipeline until its metrics have what is wanted.
func until(t *testing.T, g *gpus, p *Pipeline, name string, value float64) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if err := g.take(p.Record); err != nil {
			t.Fatal(err)
		}
		m := p.Metrics()
		i := slices.IndexFunc(m.Families, func(f metric.Family) bool { return f.Name == name })
		if i >= 0 && slices.ContainsFunc(m.Families[i].Points, func(p metric.Point) bool { return p.Value == value }) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s never was %v", name, value)
		}
	}
}

// A live run reads the GPUs, their events and what becomes of them, to its end.
func TestGPUsLive(t *testing.T) {
	d := fakeGPU("GPU-1", uint32(os.Getpid()))
	lib := nvmltest.New(d)
	e := gpuEngine(os.Getpid())
	p := NewPipeline(Options{}, func(*trace.Tree) {})
	_ = p.Engine(e)
	if err := p.Record(clockRecord()); err != nil {
		t.Fatal(err)
	}
	g := watchGPUs(context.Background(), e, LiveOptions{GPUInterval: 10 * time.Millisecond, GPUs: func() (nvml.Library, error) { return lib, nil }})
	until(t, g, p, "hw.power", 170)
	until(t, g, p, "inferspan.gpu.process.memory", 4<<30)
	lib.Lock()
	d.MW = 200000
	lib.Unlock()
	until(t, g, p, "hw.power", 200)
	lib.Events <- nvml.Event{UUID: "GPU-1", XID: 79}
	lib.Lock()
	d.Lost = true
	lib.Unlock()
	until(t, g, p, "inferspan.gpu.xids", 1)
	g.end()
	if err := g.take(p.Record); err != nil {
		t.Fatal(err)
	}
	if lib.Lock(); !lib.Closed {
		t.Error("the library is still open")
	}
	lib.Unlock()
	if gpus, _ := p.GPUs(); len(gpus) != 1 || !gpus[0].Lost {
		t.Errorf("%+v", gpus)
	}
}

// Why no GPU is read is said, and the run goes on.
func TestGPUsAbsent(t *testing.T) {
	e := gpuEngine(os.Getpid())
	p := NewPipeline(Options{}, func(*trace.Tree) {})
	_ = p.Engine(e)
	g := watchGPUs(context.Background(), e, LiveOptions{GPUs: func() (nvml.Library, error) { return nil, errors.New("out of order") }})
	until(t, g, p, "inferspan_detail_active", 0)
	if n := p.Notes(); len(n) != 1 || !strings.Contains(n[0].Text, "out of order") {
		t.Errorf("notes %v", n)
	}
	g.end()
}

func TestGPUsOff(t *testing.T) {
	g := watchGPUs(context.Background(), gpuEngine(1), LiveOptions{GPUInterval: -1})
	if g != nil {
		t.Fatal("GPUs are read")
	}
	if err := g.take(nil); err != nil {
		t.Error(err)
	}
	g.end()
}
