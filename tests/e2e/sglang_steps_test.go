package e2e

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"inferspan/correlate/signal"
)

// TestSGLangSteps compares the steps read from outside with the batches that the
// scheduler logs from inside: every request of every batch.
func TestSGLangSteps(t *testing.T) {
	needSGLang(t)
	chunks := []string{"--chunked-prefill-size", "64"}
	small := append([]string{"--max-total-tokens", "1500", "--schedule-conservativeness", "0.1"}, chunks...)
	for _, c := range []struct {
		name  string
		call  bool // a step begins at the call that reads the clock, not at the engine's stamp
		roomy bool // nothing is put back
		flags []string
	}{
		{name: "overlap", flags: small},
		{name: "no overlap", call: true, flags: append([]string{"--disable-overlap-schedule"}, small...)},
		// With little room the scheduler itself ends here, out of memory.
		{name: "mixed chunks", roomy: true, flags: append([]string{"--enable-mixed-chunk"}, chunks...)},
	} {
		t.Run(c.name, func(t *testing.T) { sglangSteps(t, 1000, c.call, c.roomy, c.flags) })
	}
}

func sglangSteps(t *testing.T, steps int, call, roomy bool, flags []string) {
	log, logging := stepLog(t, "sglang")
	e := startWith(t, serveSGLang, logging, append(slices.Clone(flags), "--sleep-on-idle")...)
	file := filepath.Join(outDir(t), "run.isr")
	stop := e.record(t, file)
	mixedLoads(t, e, log, steps+countLines(t, log), "min_tokens")
	stop()
	truth := readBatches(t, log)
	first := compareBatches(t, file, truth, steps, call, roomy)
	compareCounts(t, file, truth, first)
}

// compareCounts compares what requests that ended by their length tell of the steps that they
// were in: none is behind it then, as there may be of others that had been launched.
func compareCounts(t *testing.T, file string, truth map[int64]*batchTruth, first int64) {
	lines := filepath.Join(outDir(t), "steps.jsonl")
	if out, err := exec.Command(binary, "replay", file, "--steps", "1", "--to", "jsonl", "-o", lines).CombinedOutput(); err != nil {
		t.Fatalf("replay: %v\n%s", err, out)
	}
	in := map[string][]int64{}
	for _, n := range slices.Sorted(maps.Keys(truth)) {
		for _, id := range truth[n].Reqs {
			in[id] = append(in[id], n)
		}
	}
	f := faults{t: t}
	compared := 0
	for _, s := range readSpans(t, lines) {
		if s.text("inferspan.finish_reason") != "length" || s.Attrs["inferspan.partial"] != nil {
			continue
		}
		steps := in[s.text("rid")]
		if len(steps) == 0 {
			f.add("%s: is in no step of the log", s.Name)
			continue
		}
		if reason := fmt.Sprint(s.Attrs["inferspan.unavailable"]); steps[0] <= first && strings.Contains(reason, "inferspan.steps.count: ") {
			continue // what the first batch that is seen is to its requests is not known
		}
		compared++
		for name, want := range map[string]int64{"count": int64(len(steps)), "first": steps[0], "last": steps[len(steps)-1]} {
			if got, ok := s.number("inferspan.steps." + name); !ok || int64(got) != want {
				f.add("%s: steps.%s is %v, want %d: %v", s.Name, name, s.Attrs["inferspan.steps."+name], want, s.Attrs["inferspan.unavailable"])
			}
		}
	}
	if compared < 30 {
		f.add("%d requests were compared", compared)
	}
	f.end("requests")
	t.Logf("%d requests were in as many steps as the scheduler logged", compared)
}

// batchTruth is a batch as the scheduler logged it.
type batchTruth struct {
	Begin          int64
	Launch         float64 // s
	Mode           string
	Reqs           []string
	Extend, Prefix []int64
	More           []bool
	Made, Back     []int64

	// Of another line: when its result had been taken, s, and what had ended by then.
	EndOf    int64 `json:"end_of"`
	At       float64
	Finished []string
	ended    *batchTruth
}

func readBatches(t *testing.T, log string) map[int64]*batchTruth {
	t.Helper()
	out := make(map[int64]*batchTruth)
	eachLine(t, log, func(b *batchTruth) {
		if b.Begin != 0 {
			out[b.Begin] = b
		} else if w := out[b.EndOf]; w != nil {
			w.ended = b
		}
	})
	return out
}

func compareBatches(t *testing.T, file string, truth map[int64]*batchTruth, least int, call, roomy bool) (first int64) {
	f := &faults{t: t}
	var last int64
	var launched float64 // when the batch before was
	seen := map[int64]bool{}
	whole := map[string]bool{} // requests that were in a batch with the rest of their prompt
	modes := map[string]int{}
	n, requests, chunks, partial, ends, unknown, resumed := 0, 0, 0, 0, 0, 0, 0
	var late []float64
	signalsOf(t, file, func(s signal.Signal) {
		g, ok := s.(*signal.Step)
		if !ok {
			return
		}
		n++
		w := truth[g.Number.V]
		if !g.Number.OK || w == nil {
			f.add("step %v is not in the log", g.Number)
			return
		}
		if first == 0 {
			first = w.Begin
		}
		if seen[w.Begin] || last > w.Begin {
			f.add("step %d after step %d", w.Begin, last)
		}
		last = w.Begin
		seen[w.Begin] = true
		modes[w.Mode]++
		// Between a call and the read of the clock the thread may be kept from running.
		begin, launch := float64(g.Schedule), w.Launch*1e9
		if begin > launch+1000 || begin < launch-1000 && (!call || begin < launched) {
			f.add("step %d begins %.3f ms from its launch", w.Begin, (begin-launch)/1e6)
		}
		launched = launch
		if g.Update != 0 && w.ended != nil {
			ends++
			d := w.ended.At*1e9 - float64(g.Update)
			late = append(late, d)
			if float64(g.Update) < w.Launch*1e9 || d < -1e6 {
				f.add("step %d ends %.3f ms after its result was taken", w.Begin, -d/1e6)
			}
		}
		if g.Partial {
			partial++
			return
		}
		var got []string
		for i := range g.Requests {
			got = append(got, string(g.Requests[i].ID))
		}
		if !slices.Equal(got, w.Reqs) {
			f.add("step %d (%s) has requests %v, want %v", w.Begin, w.Mode, got, w.Reqs)
			return
		}
		for i := range g.Requests {
			q := &g.Requests[i]
			requests++
			tokens, computed := int64(1), signal.Opt[int64]{}
			phase := signal.StepDecode
			if w.Extend != nil {
				tokens, computed = w.Extend[i], signal.Some(w.Prefix[i])
				switch {
				case w.Back[i] > 0:
					phase = signal.StepRecompute
				case w.Made[i] > 0, whole[w.Reqs[i]]: // its first token may still be on its way
				case w.More[i]:
					phase = signal.StepPrefillChunk
					chunks++
				default:
					phase = signal.StepPrefillEnd
					whole[w.Reqs[i]] = true
				}
			}
			if q.Tokens != tokens || q.Computed != computed {
				f.add("step %d (%s): request %s: %d tokens after %v, want %d after %v", w.Begin, w.Mode, q.ID, q.Tokens, q.Computed, tokens, computed)
			}
			if q.Entry == signal.StepResumed {
				resumed++
			}
			if q.Phase == signal.StepPhaseUnknown {
				unknown++
			} else if q.Phase != phase {
				f.add("step %d (%s): request %s: phase %d, want %d (more %v, made %d, back %d)", w.Begin, w.Mode, q.ID, q.Phase, phase, w.More[i], w.Made[i], w.Back[i])
			}
		}
	})
	missed := 0
	for i := first; i <= last; i++ {
		if truth[i] != nil && !seen[i] {
			missed++
		}
	}
	if missed > 0 {
		f.add("%d steps from %d to %d were not seen", missed, first, last)
	}
	if n < least {
		f.add("%d steps were seen, want %d", n, least)
	}
	if chunks == 0 || resumed == 0 && !roomy {
		f.add("%d chunks of prompts, %d requests back after they were put back: the load is too light", chunks, resumed)
	}
	if partial > 0 {
		f.add("%d steps are not whole", partial)
	}
	f.end("steps")
	sort.Float64s(late)
	var delay strings.Builder
	if len(late) > 0 {
		fmt.Fprintf(&delay, "; their results had been taken %.3f ms (p50), %.3f ms (max) later", late[len(late)/2]/1e6, late[len(late)-1]/1e6)
	}
	t.Logf("%d steps (%s) with %d requests: %d chunks of prompts, %d resumed, %d of unknown phase, %d not whole; of %d the end is known%s",
		n, counted(modes), requests, chunks, resumed, unknown, partial, ends, &delay)
	return first
}
