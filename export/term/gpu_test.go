package term

import (
	"bytes"
	"strings"
	"testing"

	"inferspan/correlate"
	"inferspan/correlate/signal"
)

func TestGPULines(t *testing.T) {
	s := NewSummary(Options{Width: 200})
	s.SetGPUs([]correlate.GPU{
		{Label: "gpu0", Model: "H100", Busy: signal.Some(0.456), MemoryUsed: signal.Some[int64](5 << 30), MemoryTotal: signal.Some[int64](80 << 30), Power: signal.Some(145.4), Energy: signal.Some(1234.6),
			Temperature: signal.Some[int64](65), Throttled: []string{"gpu_idle", "sw_power_cap"}, Uncorrected: 2,
			Missing: []signal.GPUMissing{{What: "ecc_corrected", Why: "x"}, {What: "name", Why: "y"}, {What: "power", Why: "x"}}},
		{Label: "gpu1", Lost: true, XIDs: []string{"79"}, Missing: []signal.GPUMissing{{What: "name", Why: "y"}}},
	}, []correlate.EngineEnergy{{Model: "m", Method: "sole", Joules: 50, Tokens: 100}, {Model: "n", Method: "process_utilization", Joules: 345678.4, Tokens: 10}, {Model: "o", Method: "sole", Joules: 5}})
	s.SetGPUWork([]correlate.EngineWork{{Model: "m", Loose: true, Nobody: 0.25, Outside: signal.Some(7.0), Phases: []correlate.PhaseWork{{Phase: "prefill", Seconds: 1.5, Joules: signal.Some(30.0)}, {Phase: "decode", Seconds: 3}}}})
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := `
GPUS
gpu0 H100: busy 46%, memory 5.0 of 80.0 GiB, 145 W, 1,235 J, 65 C, throttled: sw_power_cap, uncorrected ECC errors: 2
gpu1: XID 79, lost
m: 0.5 J per output token (derived: 50.0 J, 100 tokens, alone on its GPUs)
n: 34,568 J per output token (derived: 345,678 J, 10 tokens, its share by process utilization)
m: GPU time of steps: prefill 1.50s (30.0 J), decode 3.00s, 250ms of no request, 7.00 J between steps (derived: at most, from the beginning of a step to its outputs)
`
	if !strings.Contains(b.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", &b, want)
	}
	if notes := "\nNOTES\ngpu0: no ecc corrected, power: x\ngpu0, gpu1: no name: y\n"; !strings.Contains(b.String(), notes) {
		t.Errorf("got\n%s\nwant\n%s", &b, notes)
	}
}
