package term

import (
	"fmt"
	"slices"
	"strings"

	"inferspan/correlate"
)

// SetGPUs sets what was seen of GPUs, and of the energy of engines.
func (s *Summary) SetGPUs(gpus []correlate.GPU, energy []correlate.EngineEnergy) {
	s.gpus, s.energy = gpus, energy
}

// SetGPUWork sets what the steps of engines kept GPUs busy with.
func (s *Summary) SetGPUWork(work []correlate.EngineWork) { s.work = work }

// reasonsToSay are those for lowered clocks that say more than that there was little to do.
func reasonsToSay(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == "gpu_idle" || r == "applications_clocks_setting" })
}

// gpuLines writes a line for each GPU, broken where the page is narrow. What is not known is left out.
func (s *Summary) gpuLines(p *page) {
	if len(s.gpus)+len(s.work) == 0 {
		return
	}
	p.heading("GPUS")
	for i := range s.gpus {
		g := &s.gpus[i]
		var parts []string
		say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
		if g.Busy.OK {
			say("busy %.0f%%", 100*g.Busy.V)
		}
		switch {
		case g.MemoryUsed.OK && g.MemoryTotal.OK:
			say("memory %s of %s GiB", gib(g.MemoryUsed.V), gib(g.MemoryTotal.V))
		case g.MemoryTotal.OK:
			say("memory of %s GiB", gib(g.MemoryTotal.V))
		}
		if g.Power.OK {
			say("%.0f W", g.Power.V)
		}
		if g.Energy.OK {
			say("%s", joules(g.Energy.V))
		}
		if g.Temperature.OK {
			say("%d C", g.Temperature.V)
		}
		if r := reasonsToSay(g.Throttled); len(r) > 0 {
			say("throttled: %s", strings.Join(r, " "))
		}
		if len(g.XIDs) > 0 {
			say("XID %s", strings.Join(g.XIDs, " "))
		}
		if g.Uncorrected > 0 {
			say("uncorrected ECC errors: %s", num(g.Uncorrected))
		}
		if g.Lost {
			say("lost")
		}
		line := Cut(Clean(g.Label), 40)
		if g.Model != "" {
			line += " " + Cut(Clean(g.Model), 40)
		}
		line = Wrap(line+": "+strings.Join(parts, ", "), "", p.width)
		if g.Lost || len(g.XIDs) > 0 {
			line = p.paint.red(line)
		}
		p.line(line)
	}
	for _, e := range s.energy {
		if e.Tokens == 0 {
			continue
		}
		how := "alone on its GPUs"
		if e.Method != "sole" {
			how = "its share by " + words(e.Method)
		}
		p.line(Wrap(fmt.Sprintf("%s: %s per output token (derived: %s, %s tokens, %s)", e.Model, joules(e.Joules/float64(e.Tokens)), joules(e.Joules), num(int64(e.Tokens)), how), "", p.width))
	}
	s.workLines(p)
}

// joules writes an energy: a node of eight GPUs has some thousands each second.
func joules(v float64) string {
	if v < 0.995 {
		return fmt.Sprintf("%.3g J", v)
	}
	return digitsBig(v) + " J"
}

// workLines writes a line for each engine.
func (s *Summary) workLines(p *page) {
	for _, w := range s.work {
		var parts []string
		for _, x := range w.Phases {
			part := words(x.Phase) + " " + dur(int64(x.Seconds*1e9))
			if x.Joules.OK {
				part += " (" + joules(x.Joules.V) + ")"
			}
			parts = append(parts, part)
		}
		if w.Nobody > 0 {
			parts = append(parts, dur(int64(w.Nobody*1e9))+" of no request")
		}
		if w.Outside.OK {
			parts = append(parts, joules(w.Outside.V)+" between steps")
		}
		how := "from the first launch of a step to its outputs"
		if w.Loose {
			how = "from the beginning of a step to its outputs"
		}
		p.line(Wrap(fmt.Sprintf("%s: GPU time of steps: %s (derived: at most, %s)", w.Model, strings.Join(parts, ", "), how), "", p.width))
	}
}

// gpuNotes are lines about what GPUs do not tell, those with the same reason together.
func (s *Summary) gpuNotes() []string {
	type group struct{ what, why string }
	labels := make(map[group][]string)
	var order []group
	for i := range s.gpus {
		g := &s.gpus[i]
		by := make(map[string][]string)
		var reasons []string
		for _, m := range g.Missing {
			if by[m.Why] == nil {
				reasons = append(reasons, m.Why)
			}
			by[m.Why] = append(by[m.Why], words(m.What))
		}
		for _, why := range reasons {
			k := group{strings.Join(by[why], ", "), why}
			if labels[k] == nil {
				order = append(order, k)
			}
			labels[k] = append(labels[k], g.Label)
		}
	}
	var out []string
	for _, k := range order {
		out = append(out, fmt.Sprintf("%s: no %s: %s", strings.Join(labels[k], ", "), k.what, k.why))
	}
	return out
}

func gib(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<30)) }
