package nvml_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"inferspan/gpu/nvml"
	"inferspan/gpu/nvml/nvmltest"
	"inferspan/probes/note"
)

func p[T any](v T) *T { return &v }

func full() *nvmltest.Device {
	return &nvmltest.Device{
		ID: "GPU-a", Product: "H100", Bus: "00000000:01:00.0", Util: nvml.Utilization{GPU: 70, Memory: 35}, Mem: nvml.Memory{Total: 80, Used: 5, Reserved: 1},
		MW: 170000, LimitMW: 700000, MJ: 12345, SMClock: 1980, MemClock: 2619, Celsius: 57, Mask: 4 | 1<<40, PCIeSent: 10, PCIeReceived: 20, NVSent: 7, NVReceived: 8,
		CorrectedErrors: 3, UncorrectedErrors: 0, Procs: []nvml.Process{{PID: 10, Memory: 4, MemoryKnown: true}, {PID: 11}},
		Usage: []nvml.Usage{{PID: 10, SM: 50, Time: 100}},
	}
}

func all(uint32) bool { return true }

func reader(t *testing.T, local func(uint32) bool, gpus ...*nvmltest.Device) (*nvml.Reader, *nvmltest.Library) {
	t.Helper()
	l := nvmltest.New(gpus...)
	r, err := nvml.NewReader(l, local)
	if err != nil {
		t.Fatal(err)
	}
	return r, l
}

func TestSample(t *testing.T) {
	d := full()
	r, _ := reader(t, func(pid uint32) bool { return pid == 10 }, d)
	facts := r.Refresh()
	want := []note.GPUDevice{{UUID: "GPU-a", Index: p(int64(0)), Name: "H100", BusID: "00000000:01:00.0", Driver: "580.95.05", MIG: p(false)}}
	if !reflect.DeepEqual(facts, want) {
		t.Errorf("facts %+v, want %+v", facts, want)
	}
	if again := r.Refresh(); again != nil {
		t.Errorf("facts that have not changed came again: %+v", again)
	}
	r.Sample(false) // what the driver has of process utilisation from before is dropped
	d.Usage = append(d.Usage, nvml.Usage{PID: 10, SM: 40, Time: 200}, nvml.Usage{PID: 10, SM: 60, Time: 300})
	s, news := r.Sample(true)
	if news != nil {
		t.Errorf("news %+v", news)
	}
	sample := note.GPUSample{
		UUID: "GPU-a", Utilization: p(int64(70)), MemoryActivity: p(int64(35)), MemoryTotal: p(uint64(80)), MemoryUsed: p(uint64(5)), MemoryReserved: p(uint64(1)),
		Power: p(int64(170000)), PowerLimit: p(int64(700000)), Energy: p(uint64(12345)), ClockSM: p(int64(1980)), ClockMemory: p(int64(2619)), Temperature: p(int64(57)),
		Throttled: []string{"sw_power_cap", "unknown"}, ThrottleKnown: true, PCIeSent: p(int64(10)), PCIeReceived: p(int64(20)), NVLinkSent: p(uint64(7)), NVLinkReceived: p(uint64(8)),
		Corrected: p(uint64(3)), Uncorrected: p(uint64(0)), ProcessesKnown: true,
		Processes: []note.GPUProcess{{PID: 10, Memory: p(uint64(4)), Utilization: p(int64(50))}, {PID: 0}},
	}
	if len(s) != 1 || !reflect.DeepEqual(s[0], sample) {
		t.Errorf("sample %+v\nwant   %+v", s, sample)
	}
	// Nothing new from the driver: not known, not zero.
	if s, _ = r.Sample(false); s[0].Processes[0].Utilization != nil || s[0].PCIeSent != nil {
		t.Errorf("sample without news %+v", s[0])
	}
}

// Each call that fails leaves out its value and nothing else, with the reason.
func TestUnsupported(t *testing.T) {
	calls := map[string][]string{ // call of the fake: fields of the sample
		"Utilization": {"Utilization", "MemoryActivity"}, "Memory": {"MemoryTotal", "MemoryUsed", "MemoryReserved"}, "Power": {"Power"}, "PowerLimit": {"PowerLimit"},
		"Energy": {"Energy"}, "Clock": {"ClockSM", "ClockMemory"}, "Temperature": {"Temperature"}, "Throttle": {"Throttled", "ThrottleKnown"}, "PCIe": {"PCIeSent", "PCIeReceived"},
		"NVLink": {"NVLinkSent", "NVLinkReceived"}, "ECC": {"Corrected", "Uncorrected"}, "Processes": {"Processes", "ProcessesKnown"}, "Used": nil, "MIG": nil, "Index": nil,
	}
	for call, fields := range calls {
		t.Run(call, func(t *testing.T) {
			d := full()
			r, _ := reader(t, all, d)
			r.Refresh()
			whole, _ := r.Sample(true)
			for _, err := range []error{nvml.ErrNotSupported, nvml.ErrPermission, nvml.ErrNoFunction} {
				d.Fail = map[string]error{call: err}
				facts := r.Refresh()
				got, news := r.Sample(true)
				want := whole[0]
				v := reflect.ValueOf(&want).Elem()
				for _, f := range fields {
					v.FieldByName(f).SetZero()
				}
				if !reflect.DeepEqual(got[0], want) {
					t.Errorf("%v: %+v, want %+v", err, got[0], want)
				}
				facts = append(facts, news...)
				if len(facts) == 0 {
					t.Fatalf("%v: no facts with the reason", err)
				}
				reasons := facts[len(facts)-1].Missing
				if len(reasons) == 0 || len(reasons) > 2 {
					t.Errorf("reasons %v", reasons)
				}
				for what, why := range reasons {
					if why != err.Error() {
						t.Errorf("%s is missing since %q, want %q", what, why, err)
					}
				}
			}
			d.Fail = nil
			facts := r.Refresh()
			_, news := r.Sample(true)
			if facts = append(facts, news...); len(facts) == 0 || facts[len(facts)-1].Missing != nil {
				t.Errorf("it works again: facts %+v", facts)
			}
		})
	}
}

// Without the call that tells what is reserved it is not known what is used.
func TestOldMemory(t *testing.T) {
	d := full()
	d.Mem = nvml.Memory{Total: 80, OnlyTotal: true, Why: nvml.ErrNoFunction}
	r, _ := reader(t, all, d)
	r.Refresh()
	s, news := r.Sample(false)
	if s[0].MemoryTotal == nil || *s[0].MemoryTotal != 80 || s[0].MemoryUsed != nil || s[0].MemoryReserved != nil {
		t.Errorf("%+v", s[0])
	}
	if len(news) != 1 || news[0].Missing["memory"] != nvml.ErrNoFunction.Error() {
		t.Errorf("news %+v", news)
	}
}

func TestLost(t *testing.T) {
	d, other := full(), full()
	other.ID = "GPU-b"
	r, _ := reader(t, all, d, other)
	r.Refresh()
	d.Lost = true
	for range 2 {
		s, _ := r.Sample(true)
		if want := (note.GPUSample{UUID: "GPU-a", Lost: true}); len(s) != 2 || !reflect.DeepEqual(s[0], want) {
			t.Errorf("%+v, want %+v", s, want)
		}
		if s[1].Lost || s[1].Power == nil {
			t.Errorf("the other GPU: %+v", s[1])
		}
		if news := r.Refresh(); news != nil {
			t.Errorf("facts of a lost GPU: %+v", news)
		}
	}
	d.Lost = false
	if s, _ := r.Sample(false); s[0].Lost || s[0].Power == nil {
		t.Errorf("it is back: %+v", s[0])
	}
}

func TestMIG(t *testing.T) {
	d, m := full(), full()
	m.ID, m.GPUInstanceID, m.ComputeInstanceID = "MIG-1", 2, 0
	m.Fail = map[string]error{"Utilization": nvml.ErrNotSupported, "Power": nvml.ErrNotSupported}
	d.Split = []*nvmltest.Device{m}
	r, _ := reader(t, all, d)
	facts := r.Refresh()
	if len(facts) != 2 {
		t.Fatalf("facts %+v", facts)
	}
	if g := facts[0]; g.MIG == nil || !*g.MIG || g.Parent != "" {
		t.Errorf("the GPU: %+v", g)
	}
	if i := facts[1]; i.UUID != "MIG-1" || i.Parent != "GPU-a" || *i.Index != 0 || *i.GPUInstance != 2 || *i.ComputeInstance != 0 {
		t.Errorf("the instance: %+v", i)
	}
	s, _ := r.Sample(false)
	if len(s) != 2 || s[0].ProcessesKnown || !s[1].ProcessesKnown || s[1].Utilization != nil || s[1].Power != nil || s[1].MemoryUsed == nil {
		t.Errorf("samples %+v", s)
	}
	d.Split = nil
	r.Refresh()
	if s, _ := r.Sample(false); len(s) != 1 || !s[0].ProcessesKnown {
		t.Errorf("MIG is off again: %+v", s)
	}
}

// A process that ends between the two calls is in one of the answers only.
func TestProcessEnds(t *testing.T) {
	d := full()
	r, _ := reader(t, all, d)
	r.Refresh()
	r.Sample(false)
	d.Procs = []nvml.Process{{PID: 11, Memory: 9, MemoryKnown: true}}
	d.Usage = append(d.Usage, nvml.Usage{PID: 10, SM: 80, Time: 200})
	s, _ := r.Sample(false)
	if want := []note.GPUProcess{{PID: 11, Memory: p(uint64(9))}}; !reflect.DeepEqual(s[0].Processes, want) {
		t.Errorf("%+v, want %+v", s[0].Processes, want)
	}
}

func TestManyProcesses(t *testing.T) {
	d := full()
	d.Procs = make([]nvml.Process, note.MaxGPUProcesses+3)
	r, _ := reader(t, all, d)
	r.Refresh()
	if s, _ := r.Sample(false); len(s[0].Processes) != note.MaxGPUProcesses || s[0].ProcessesLeft != 3 {
		t.Errorf("%d processes, %d left out", len(s[0].Processes), s[0].ProcessesLeft)
	}
}

// A GPU that cannot be told from others is left out, and said; the others keep their numbers.
func TestNoUUID(t *testing.T) {
	d, other := full(), full()
	other.ID, d.Lost = "GPU-b", true
	r, _ := reader(t, all, d, other)
	if err := r.Problem(); !errors.Is(err, nvml.ErrLost) {
		t.Errorf("problem %v", err)
	}
	if f := r.Refresh(); len(f) != 1 || f[0].UUID != "GPU-b" || *f[0].Index != 1 {
		t.Errorf("%+v", f)
	}
	if _, err := nvml.NewReader(nvmltest.New(d), all); !errors.Is(err, nvml.ErrLost) {
		t.Errorf("no other GPU: %v", err)
	}
}

func TestNoGPU(t *testing.T) {
	if _, err := nvml.NewReader(nvmltest.New(), all); err == nil {
		t.Error("no error")
	}
}

func TestNoEvents(t *testing.T) {
	l := nvmltest.New(full())
	l.NoEvents = errors.New("no events here")
	r, err := nvml.NewReader(l, all)
	if err != nil {
		t.Fatal(err)
	}
	if f := r.Refresh(); f[0].Missing["xid"] != "no events here" {
		t.Errorf("%+v", f)
	}
}

func TestVisible(t *testing.T) {
	two := []nvml.Seen{{UUID: "GPU-aa", Name: "x"}, {UUID: "GPU-ab", Name: "x"}, {UUID: "GPU-b", Name: "x"}}
	mixed := []nvml.Seen{{UUID: "GPU-a", Name: "x"}, {UUID: "GPU-b", Name: "y"}}
	split := []nvml.Seen{{UUID: "GPU-a", Name: "x", Split: true}, {UUID: "MIG-1", Parent: "GPU-a"}, {UUID: "MIG-2", Parent: "GPU-a"}, {UUID: "GPU-b", Name: "x"}}
	env := func(kv ...string) map[string]string {
		m := map[string]string{}
		for _, s := range kv {
			k, v, _ := strings.Cut(s, "=")
			m[k] = v
		}
		return m
	}
	for _, c := range []struct {
		name      string
		all       []nvml.Seen
		env       map[string]string
		container bool
		want      string // UUIDs, or "?" for an error
	}{
		{"no variable", two, env(), false, "GPU-aa GPU-ab GPU-b"},
		{"indices", two, env("CUDA_VISIBLE_DEVICES=2, 0"), false, "GPU-b GPU-aa"},
		{"empty", two, env("CUDA_VISIBLE_DEVICES="), false, ""},
		{"ends at what is none", two, env("CUDA_VISIBLE_DEVICES=1,-1,0"), false, "GPU-ab"},
		{"ends beyond the last", two, env("CUDA_VISIBLE_DEVICES=1,3,0"), false, "GPU-ab"},
		{"UUID", two, env("CUDA_VISIBLE_DEVICES=GPU-b"), false, "GPU-b"},
		{"beginning of a UUID", two, env("CUDA_VISIBLE_DEVICES=GPU-ab"), false, "GPU-ab"},
		{"of several UUIDs", two, env("CUDA_VISIBLE_DEVICES=GPU-a"), false, "?"},
		{"several kinds, fastest first", mixed, env("CUDA_VISIBLE_DEVICES=0"), false, "?"},
		{"several kinds, by address", mixed, env("CUDA_VISIBLE_DEVICES=1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"), false, "GPU-b"},
		{"several kinds, all", mixed, env(), false, "GPU-a GPU-b"},
		{"instance", split, env("CUDA_VISIBLE_DEVICES=MIG-2"), false, "MIG-2"},
		{"index with instances", split, env("CUDA_VISIBLE_DEVICES=0"), false, "?"},
		{"instances and no variable", split, env(), false, "MIG-1 MIG-2 GPU-b"},
		{"container, not said", two, env("CUDA_VISIBLE_DEVICES=0"), true, "?"},
		{"container, void", two, env("NVIDIA_VISIBLE_DEVICES=void"), true, "?"},
		{"container, all", two, env("NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=1"), true, "GPU-ab"},
		{"container, none", two, env("NVIDIA_VISIBLE_DEVICES=none"), true, ""},
		{"container, indices", two, env("NVIDIA_VISIBLE_DEVICES=2,1"), true, "GPU-ab GPU-b"},
		{"container, index in container", two, env("NVIDIA_VISIBLE_DEVICES=1,2", "CUDA_VISIBLE_DEVICES=0"), true, "GPU-ab"},
		{"container, UUID", two, env("NVIDIA_VISIBLE_DEVICES=GPU-b"), true, "GPU-b"},
		{"container, unknown", two, env("NVIDIA_VISIBLE_DEVICES=GPU-z"), true, "?"},
		{"container, instance", split, env("NVIDIA_VISIBLE_DEVICES=0:1"), true, "MIG-2"},
		{"container, instance by UUID", split, env("NVIDIA_VISIBLE_DEVICES=MIG-1"), true, "MIG-1"},
		{"same container: that variable is not for us", two, env("NVIDIA_VISIBLE_DEVICES=7"), false, "GPU-aa GPU-ab GPU-b"},
	} {
		got, err := nvml.Visible(c.all, c.env, c.container)
		have := strings.Join(got, " ")
		if err != nil {
			have = "?"
		}
		if have != c.want {
			t.Errorf("%s: %q (%v), want %q", c.name, have, err, c.want)
		}
	}
}
