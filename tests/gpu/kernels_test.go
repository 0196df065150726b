package gpu

import (
	"maps"
	"path/filepath"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/gpu/cuda"
	"inferspan/probes/target"
	"inferspan/tests/child"
	"inferspan/tests/gpu/rig"
)

// kernelApp is a running apps/kernels.c.
type kernelApp struct {
	*child.Process
	t   *testing.T
	log string
}

const kernelRounds = 20

func startKernels(t *testing.T, when string, env ...string) *kernelApp {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	cmd := rig.Traced(t, "kernels", append(env, "FAKE_CUDA_LOG="+log, "FAKE_CUDA_KERNEL_NS=100")...)
	cmd.Args = append(cmd.Args, "20", when)
	k := &kernelApp{child.Start(t, cmd), t, log}
	k.Expect("ready")
	return k
}

// launch has it launch.
func (k *kernelApp) launch() {
	k.t.Helper()
	if s := k.Do(""); s != "done" {
		k.t.Fatalf("kernels says %q", s)
	}
}

// logged counts the kernels in the log by name, those in graphs left out.
func (k *kernelApp) logged() map[string]uint64 {
	n := map[string]uint64{}
	for _, o := range operations(k.t, k.log) {
		if o.Op == "kernel" && o.Graph == 0 {
			n[o.Name]++
		}
	}
	return n
}

// kernels returns what was counted by name, "" for those without one, and how names are
// known.
func kernels(t *testing.T, p *cuda.Probes) (n map[string]uint64, by map[string]string) {
	t.Helper()
	var k cuda.Kernels
	for range 4 { // names are searched for meanwhile
		var err error
		if k, err = p.Kernels(nil, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(250 * time.Millisecond)
	}
	if k.Uncounted.Launches+k.Uncounted.Names != 0 {
		t.Errorf("not counted: %+v", k.Uncounted)
	}
	n, by = map[string]uint64{}, map[string]string{}
	for _, one := range k.Kernels {
		if one.Launches > 0 {
			n[one.Name] += one.Launches
		}
		by[one.Name] = one.By
	}
	return n, by
}

func less(a, b map[string]uint64) map[string]uint64 {
	out := maps.Clone(a)
	for k, v := range b {
		out[k] -= v
		if out[k] == 0 {
			delete(out, k)
		}
	}
	return out
}

// TestKernelNames: what is counted by kernel is what the log has, by name, and which names
// are known is as the ways to them allow.
func TestKernelNames(t *testing.T) {
	for _, tt := range []struct {
		name, when, alias string
		settled           map[string]uint64 // launches by name and round, when all is known
		by                map[string]string // of those with names
	}{
		{name: "early", when: "early", alias: "0",
			settled: map[string]uint64{"_Z9attentionPf": 1, "_Z4gemmPfi": 2, "unified_attention": 3, "_Z6rotaryPf": 4, "softmax": 5},
			by: map[string]string{"_Z9attentionPf": cuda.ByRegistration, "_Z4gemmPfi": cuda.ByRegistration, "unified_attention": cuda.ByRegistration,
				"_Z6rotaryPf": cuda.ByRegistration, "softmax": cuda.ByRegistration}},
		{name: "late", when: "late", alias: "0",
			settled: map[string]uint64{"_Z9attentionPf": 1, "_Z4gemmPfi": 2, "": 7, "softmax": 5},
			by:      map[string]string{"_Z9attentionPf": cuda.BySymbols, "_Z4gemmPfi": cuda.BySymbols, "softmax": cuda.BySymbols}},
		// cuLaunchKernel is reached by another function: what goes by there is counted at the runtime.
		{name: "late, counted at the runtime", when: "late", alias: "1",
			settled: map[string]uint64{"_Z9attentionPf": 1, "_Z4gemmPfi": 2, "": 7, "softmax": 5},
			by:      map[string]string{"_Z9attentionPf": cuda.BySymbols, "_Z4gemmPfi": cuda.BySymbols, "softmax": cuda.BySymbols}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			app := startKernels(t, tt.when, "FAKE_CUDA_ALIAS="+tt.alias)
			stats, err := bpf.EnableStats()
			if err != nil {
				t.Fatal(err)
			}
			defer stats.Close()
			objs, p := attached(t, app.PID(), cuda.All)
			before := app.logged()
			app.launch() // with early the functions, and each once
			first, _ := kernels(t, p)
			if want := less(app.logged(), before); tt.alias == "0" && sum(first) != sum(want) {
				t.Errorf("first look: %v, the log has %v", first, want)
			}
			if _, err := p.Settle(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				app.launch()
				kernels(t, p)
			}
			last, _ := kernels(t, p)
			before = app.logged()
			for range 3 {
				app.launch()
				now, by := kernels(t, p)
				want := less(app.logged(), before)
				if want["unified_attention"] != 3*kernelRounds || want["_Z4gemmPfi"] != 2*kernelRounds {
					t.Fatalf("the log has %v", want)
				}
				got, settled := less(now, last), map[string]uint64{}
				for name, n := range tt.settled {
					settled[name] = n * kernelRounds
					if name != "" && want[name] != settled[name] || by[name] != tt.by[name] {
						t.Errorf("%s: the log has %d; known by %q, want %q", name, want[name], by[name], tt.by[name])
					}
				}
				if !maps.Equal(got, settled) {
					t.Errorf("launched %v, want %v; the log has %v", got, settled, want)
				}
				last, before = now, app.logged()
			}
			runs, err := objs.Stats()
			if err != nil {
				t.Fatal(err)
			}
			after := runs[string(bpf.ProgCUDAPairEnd)].Runs
			app.launch()
			if runs, err = objs.Stats(); err != nil {
				t.Fatal(err)
			}
			if runs[string(bpf.ProgCUDAPairEnd)].Runs != after {
				t.Errorf("the runtime's launches are looked at still, when all that can be known is")
			}
		})
	}
}

func sum(n map[string]uint64) (all uint64) {
	for _, v := range n {
		all += v
	}
	return all
}

// TestKernelsOneLook: those who ask at much the same time have what they launched from one
// look at the counts, each once, and who asks for what is there now has that.
func TestKernelsOneLook(t *testing.T) {
	objs, err := bpf.Load(bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer objs.Close()
	var apps []*launcher
	var probes []*cuda.Probes
	for range 2 {
		l := startLauncher(t)
		p, err := cuda.Attach(objs, &target.Process{PID: l.PID()}, cuda.All)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		apps, probes = append(apps, l), append(probes, p)
	}
	look := func(i int, age time.Duration) cuda.Kernels {
		t.Helper()
		k, err := probes[i].Kernels(nil, age)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	counted := func(what string, k cuda.Kernels, lines int) {
		t.Helper()
		n := uint64(0)
		for _, one := range k.Kernels {
			n += one.Launches
		}
		if n != uint64(lines*launches*rounds) {
			t.Errorf("%s: %d launches, want %d", what, n, lines*launches*rounds)
		}
	}
	for _, l := range apps {
		l.launch()
	}
	first := look(0, time.Minute)
	counted("the first of the one", first, 1)
	apps[1].launch()
	other := look(1, time.Minute)
	counted("the other's of that look", other, 1)
	again := look(1, time.Minute)
	counted("the other's next", again, 2)
	if other.At != first.At || again.At <= first.At {
		t.Errorf("looks at %d, %d and %d: the second is to be the first", first.At, other.At, again.At)
	}
	apps[0].launch()
	counted("the one's of that look", look(0, time.Minute), 1)
	apps[0].launch()
	counted("the one's at once", look(0, 0), 3)
	if err := probes[1].Close(); err != nil {
		t.Fatal(err)
	}
	if k := look(1, time.Minute); len(k.Kernels) > 0 {
		t.Errorf("of one whose probes are out: %+v", k)
	}
}
