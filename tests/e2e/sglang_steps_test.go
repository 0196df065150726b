package e2e

import (
	"fmt"
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
	compareBatches(t, file, readBatches(t, log), steps, call, roomy)
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

func compareBatches(t *testing.T, file string, truth map[int64]*batchTruth, least int, call, roomy bool) {
	f := &faults{t: t}
	var first, last int64
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
}
