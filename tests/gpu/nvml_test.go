//go:build cgo

package gpu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"inferspan/gpu/nvml"
	"inferspan/probes/note"
	"inferspan/tests/gpu/rig"
)

// nvmlChild, set, has the test program read GPUs: a library is found by an environment that
// is set before a program starts.
const nvmlChild = "INFERSPAN_TEST_NVML_CHILD"

// look is what the child saw at once.
type look struct {
	Facts   []note.GPUDevice
	Samples []note.GPUSample
	Events  []nvml.Event
	Error   string
	Kind    string // of the error
}

// TestNVMLChild is the child: for each line on its input it looks, and prints a line.
func TestNVMLChild(t *testing.T) {
	if os.Getenv(nvmlChild) == "" {
		t.Skip("this is the part of other tests that runs in a process of its own")
	}
	out := json.NewEncoder(os.NewFile(3, "results"))
	lib, err := nvml.Open()
	var r *nvml.Reader
	if err == nil {
		r, err = nvml.NewReader(lib, func(uint32) bool { return true })
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var l look
		if err != nil {
			l.Error = err.Error()
			for kind, e := range map[string]error{"no library": nvml.ErrNoLibrary, "no driver": nvml.ErrNoDriver, "permission": nvml.ErrPermission} {
				if errors.Is(err, e) {
					l.Kind = kind
				}
			}
		} else {
			l.Facts = r.Refresh()
			var news []note.GPUDevice
			l.Samples, news = r.Sample(true)
			l.Facts = append(l.Facts, news...)
			for {
				e, err := lib.Wait(1)
				if err != nil {
					break
				}
				l.Events = append(l.Events, e)
			}
		}
		if err := out.Encode(l); err != nil {
			t.Fatal(err)
		}
	}
}

// gpus is a child with a script for the fake NVML.
type gpus struct {
	*testing.T
	script string
	in     io.Writer
	out    *json.Decoder
	epoch  float64
}

func startGPUs(t *testing.T, lib string, env ...string) *gpus {
	t.Helper()
	g := &gpus{T: t, script: filepath.Join(t.TempDir(), "script"), epoch: float64(time.Now().Unix() - 3)}
	g.write("")
	results, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestNVMLChild$")
	c.Env = append(os.Environ(), nvmlChild+"=1", "LD_LIBRARY_PATH="+lib, "FAKE_CUDA_DEVICES=2", "FAKE_NVML_SCRIPT="+g.script, fmt.Sprintf("FAKE_NVML_EPOCH=%f", g.epoch))
	c.Env = append(c.Env, env...)
	c.ExtraFiles = []*os.File{w}
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	g.in, g.out = in, json.NewDecoder(results)
	t.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Errorf("the child: %v", err)
		}
		results.Close()
	})
	return g
}

func (g *gpus) write(lines ...string) {
	g.Helper()
	// In one step: the library may be reading it.
	tmp := g.script + ".new"
	if err := os.WriteFile(tmp, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		g.Fatal(err)
	}
	if err := os.Rename(tmp, g.script); err != nil {
		g.Fatal(err)
	}
}

func (g *gpus) look() (l look) {
	g.Helper()
	if _, err := io.WriteString(g.in, "\n"); err != nil {
		g.Fatal(err)
	}
	if err := g.out.Decode(&l); err != nil {
		g.Fatalf("reading what the child saw: %v", err)
	}
	return l
}

// second looks within one second of the pattern, and says which.
func (g *gpus) second() (look, int64) {
	g.Helper()
	t := func() int64 { return int64(math.Floor(float64(time.Now().UnixNano())/1e9 - g.epoch)) }
	for range 20 {
		before := t()
		if l := g.look(); t() == before {
			return l, before
		}
	}
	g.Fatal("no look took less than a second")
	return look{}, 0
}

func rigLib(t *testing.T) string { return filepath.Join(rig.Dir(t), "lib") }

func at[T any](v T) *T { return &v }

const (
	firstGPU  = "GPU-46414b45-4750-552d-0000-000000000001"
	secondGPU = "GPU-46414b45-4750-552d-0000-000000000002"
)

// Each value is that of the pattern, on both GPUs.
func TestNVMLValues(t *testing.T) {
	g := startGPUs(t, rigLib(t), "FAKE_NVML_PIDS=100:512,200:1024")
	g.write("0 ecc_corrected 5", "0 ecc_uncorrected 1", "1 no_process 1")
	l := g.look()
	if len(l.Facts) != 2 {
		t.Fatalf("%+v", l)
	}
	for i, f := range l.Facts {
		want := note.GPUDevice{UUID: firstGPU, Index: at(int64(i)), Name: "NVIDIA H100 80GB HBM3 (fake)", BusID: "00000000:01:00.0", Driver: "580.95.05-fake", MIG: at(false)}
		if i == 1 {
			want.UUID, want.BusID = secondGPU, "00000000:02:00.0"
		}
		if !reflect.DeepEqual(f, want) {
			t.Errorf("facts %+v, want %+v", f, want)
		}
	}
	time.Sleep(1100 * time.Millisecond) // the library has utilisation by process once a second
	l, s := g.second()
	const total = 80 << 30
	for i, got := range l.Samples {
		util := 10 * (s % 10)
		if i == 1 {
			util = 100 - util
		}
		mw := 100000 + 1000*util
		want := note.GPUSample{
			UUID: []string{firstGPU, secondGPU}[i], Utilization: at(util), MemoryActivity: at(util / 2), MemoryTotal: at(uint64(total)), MemoryUsed: at(uint64(total/16 + s%8<<20)), MemoryReserved: at(uint64(256 << 20)),
			Power: at(mw), PowerLimit: at(int64(700000)), Energy: at(uint64(150000 * s)), ClockSM: at(1980 - 15*(s%10)), ClockMemory: at(int64(2619)), Temperature: at(40 + util/4),
			ThrottleKnown: true, PCIeSent: at(int64(1000000)), PCIeReceived: at(int64(2000000)), NVLinkSent: at(uint64(1000000 * s)), NVLinkReceived: at(uint64(1000000 * s)),
			Corrected: at(uint64(0)), Uncorrected: at(uint64(0)), ProcessesKnown: true,
		}
		if util > 80 {
			want.Throttled = []string{"sw_power_cap"}
		}
		if i == 0 {
			want.Corrected, want.Uncorrected = at(uint64(5)), at(uint64(1))
			want.Processes = []note.GPUProcess{{PID: 100, Memory: at(uint64(512 << 20))}, {PID: 200, Memory: at(uint64(1 << 30))}}
			for j := range want.Processes {
				// By the second: a look before in the same one has taken it.
				if got.Processes != nil && got.Processes[j].Utilization != nil {
					want.Processes[j].Utilization = at(util / 2)
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			g, _ := json.Marshal(got)
			w, _ := json.Marshal(want)
			t.Errorf("GPU %d in second %d:\n%s, want\n%s", i, s, g, w)
		}
	}
}

// The utilisation of processes, and of one that ends between the two calls.
func TestNVMLProcesses(t *testing.T) {
	g := startGPUs(t, rigLib(t))
	g.write("0 util 60", "0 process 100", "0 process 200", "1 no_process 1")
	g.look()
	used := func(lines ...string) []note.GPUProcess {
		t.Helper()
		g.write(append(lines, "0 util 60", "1 no_process 1")...)
		time.Sleep(1100 * time.Millisecond)
		return g.look().Samples[0].Processes
	}
	gib := at(uint64(1 << 30))
	for _, c := range []struct {
		name  string
		lines []string
		want  []note.GPUProcess
	}{
		{"both", []string{"0 process 100", "0 process 200"}, []note.GPUProcess{{PID: 100, Memory: gib, Utilization: at(int64(30))}, {PID: 200, Memory: gib, Utilization: at(int64(30))}}},
		{"one ended after the list", []string{"0 process 100", "0 listed 200"}, []note.GPUProcess{{PID: 100, Memory: gib, Utilization: at(int64(60))}, {PID: 200, Memory: gib}}},
		{"one came after the list", []string{"0 process 100", "0 used 300"}, []note.GPUProcess{{PID: 100, Memory: gib, Utilization: at(int64(30))}}},
		{"none", []string{"0 no_process 1"}, nil},
	} {
		if got := used(c.lines...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// Each call that the device does not support leaves out its values only, and says why.
func TestNVMLUnsupported(t *testing.T) {
	g := startGPUs(t, rigLib(t))
	base := []string{"0 util 50", "0 mj 7", "0 mem_gib 3", "0 no_process 1", "1 no_process 1"}
	for call, c := range map[string]struct{ fields, missing []string }{
		"utilization": {[]string{"Utilization", "MemoryActivity"}, []string{"utilization"}}, "memory_v2": {[]string{"MemoryUsed", "MemoryReserved"}, []string{"memory"}},
		"power": {[]string{"Power"}, []string{"power"}}, "power_limit": {[]string{"PowerLimit"}, []string{"power_limit"}}, "energy": {[]string{"Energy"}, []string{"energy"}},
		"clock": {[]string{"ClockSM", "ClockMemory"}, []string{"clock_sm", "clock_memory"}}, "temperature": {[]string{"Temperature"}, []string{"temperature"}}, "throttle": {[]string{"ThrottleKnown"}, []string{"throttle"}},
		"pcie": {[]string{"PCIeSent", "PCIeReceived"}, []string{"pcie_sent", "pcie_received"}}, "fields": {[]string{"NVLinkSent", "NVLinkReceived"}, []string{"nvlink_sent", "nvlink_received"}},
		"ecc": {[]string{"Corrected", "Uncorrected"}, []string{"ecc_corrected", "ecc_uncorrected"}}, "processes": {[]string{"ProcessesKnown"}, []string{"processes"}},
		"mig": {nil, []string{"mig"}}, "index": {nil, []string{"index"}}, "name": {nil, []string{"name"}}, "bus_id": {nil, []string{"bus_id"}},
	} {
		g.write(base...)
		g.look()
		for number, why := range map[int]string{3: nvml.ErrNotSupported.Error(), 4: nvml.ErrPermission.Error(), 999: "NVML error 999: Fake error"} {
			g.write(append([]string{fmt.Sprintf("0 fail_%s %d", call, number)}, base...)...)
			l := g.look()
			v := reflect.ValueOf(l.Samples[0])
			for i := range v.NumField() {
				name := v.Type().Field(i).Name
				switch name {
				case "Lost", "Throttled", "Processes", "ProcessesLeft":
					continue
				}
				gone := false
				for _, f := range c.fields {
					gone = gone || f == name
				}
				if v.Field(i).IsZero() != gone {
					t.Errorf("%s fails with %d: %s = %v", call, number, name, v.Field(i))
				}
			}
			missing := map[string]string{}
			if len(l.Facts) > 0 {
				missing = l.Facts[len(l.Facts)-1].Missing
			}
			want := map[string]string{}
			for _, m := range c.missing {
				want[m] = why
			}
			if !reflect.DeepEqual(missing, want) {
				t.Errorf("%s fails with %d: missing %v, want %v", call, number, missing, want)
			}
		}
	}
}

// A GPU falls off the bus: an event, and from then on a state. The other goes on.
func TestNVMLLost(t *testing.T) {
	g := startGPUs(t, rigLib(t), "FAKE_NVML_XID_AFTER=4.5")
	l := g.look()
	if l.Samples[0].Lost || l.Events != nil {
		t.Fatalf("lost already: %+v", l)
	}
	var events []nvml.Event
	for end := time.Now().Add(5 * time.Second); !l.Samples[0].Lost && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		l = g.look()
		events = append(events, l.Events...)
	}
	l = g.look()
	events = append(events, l.Events...)
	if want := []nvml.Event{{UUID: firstGPU, XID: 79}}; !reflect.DeepEqual(events, want) {
		t.Errorf("events %+v, want %+v", events, want)
	}
	if want := (note.GPUSample{UUID: firstGPU, Lost: true}); !reflect.DeepEqual(l.Samples[0], want) {
		t.Errorf("%+v, want %+v", l.Samples[0], want)
	}
	if l.Samples[1].Lost || l.Samples[1].Power == nil {
		t.Errorf("the other GPU: %+v", l.Samples[1])
	}
}

func TestNVMLInstances(t *testing.T) {
	g := startGPUs(t, rigLib(t))
	g.write("0 mig 1", "0 instances 2", "0 process 100", "1 no_process 1")
	l := g.look()
	if len(l.Samples) != 4 || len(l.Facts) < 4 {
		t.Fatalf("%+v", l)
	}
	parent, one, two := l.Samples[0], l.Samples[1], l.Samples[2]
	if parent.ProcessesKnown || parent.Power == nil || *parent.MemoryTotal != 80<<30 {
		t.Errorf("the GPU: %+v", parent)
	}
	if !one.ProcessesKnown || len(one.Processes) != 1 || one.Processes[0].PID != 100 || one.Power != nil || one.Utilization != nil || *one.MemoryTotal != 10<<30 {
		t.Errorf("the first instance: %+v", one)
	}
	if !two.ProcessesKnown || len(two.Processes) != 0 {
		t.Errorf("the second instance: %+v", two)
	}
	for _, f := range l.Facts {
		switch {
		case f.UUID == firstGPU && (f.MIG == nil || !*f.MIG), f.UUID == one.UUID && (f.Parent != firstGPU || *f.GPUInstance != 1 || *f.ComputeInstance != 0):
			t.Errorf("facts %+v", f)
		}
	}
	g.write("0 process 100", "1 no_process 1")
	if l = g.look(); len(l.Samples) != 2 || !l.Samples[0].ProcessesKnown {
		t.Errorf("MIG is off again: %+v", l.Samples)
	}
}

func TestNVMLAbsent(t *testing.T) {
	l := startGPUs(t, t.TempDir()).look()
	if l.Samples != nil || l.Kind == "no driver" {
		t.Skip("this host has the library")
	}
	if l.Kind != "no library" {
		t.Errorf("%+v, want that there is no library", l)
	}
}

// An old library lacks functions, and a program that calls one ends.
func TestNVMLOld(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "old.c")
	code := `
typedef int r;
static int gpu;
r nvmlInit_v2(void) { return 0; }
r nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(r e) { return "error"; }
r nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
r nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = &gpu; return 0; }
r nvmlDeviceGetUUID(void *d, char *s, unsigned n) { __builtin_strcpy(s, "GPU-old"); return 0; }
r nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 5000; return 0; }
`
	if err := os.WriteFile(src, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), src).CombinedOutput(); err != nil {
		t.Fatalf("building an old library: %v\n%s", err, out)
	}
	l := startGPUs(t, dir).look()
	if want := (note.GPUSample{UUID: "GPU-old", Power: at(int64(5000))}); len(l.Samples) != 1 || !reflect.DeepEqual(l.Samples[0], want) {
		t.Fatalf("%+v", l)
	}
	missing := l.Facts[len(l.Facts)-1].Missing
	if len(missing) < 15 {
		t.Errorf("missing %v", missing)
	}
	for what, why := range missing {
		if !strings.Contains(why, nvml.ErrNoFunction.Error()) {
			t.Errorf("%s: %s", what, why)
		}
	}
}
