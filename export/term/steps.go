package term

import (
	"inferspan/correlate/trace"
)

// stepStats sums up the steps of engine cores, where they are handed over.
type stepStats struct {
	duration, run, gap       dist // ns
	requests                 dist
	prefill, decode, resumed dist // tokens, of steps that have some
	preempted, steps         int
}

func (s *stepStats) add(t *trace.Step) {
	s.steps++
	if t.Start != 0 && t.End >= t.Start {
		s.duration.add(known(t.End - t.Start))
	}
	if t.Dispatch != 0 && t.End >= t.Dispatch {
		s.run.add(known(t.End - t.Dispatch))
	}
	if t.Gap.OK && !t.Idle {
		s.gap.add(known(max(t.Gap.V, 0)))
	}
	s.preempted += len(t.Preempted)
	if t.Partial {
		return
	}
	if n := len(t.Requests); n > 0 {
		s.requests.add(known(int64(n)))
	}
	var prefill, decode, resumed opt
	whole := true
	for i := range t.Requests {
		q := &t.Requests[i]
		n := opt{q.Tokens.V, q.Tokens.OK}
		whole = whole && n.ok
		switch q.Kind {
		case trace.StepPrefill, trace.StepPrefillChunk:
			prefill.add(n)
		case trace.StepDecode:
			decode.add(n)
		case trace.StepResumed:
			resumed.add(n)
		}
	}
	if whole {
		s.prefill.add(prefill)
		s.decode.add(decode)
		s.resumed.add(resumed)
	}
}

// stepTables writes what the steps were like, if there were any.
func (s *Summary) stepTables(p *page) {
	t := &s.steps
	if t.steps == 0 {
		return
	}
	times := []distRow{{"duration", &t.duration}, {"gap to the next step", &t.gap}}
	if t.run.n > 0 {
		times = []distRow{{"dispatch to outputs", &t.run}}
		if t.duration.n > 0 && t.gap.n > 0 {
			times = append(times, distRow{"duration, where known", &t.duration}, distRow{"gap, where known", &t.gap})
		}
	}
	s.table(p, "SCHEDULER STEPS", times, opt.dur)
	rows := []distRow{{"requests in a step", &t.requests}, {"tokens: prefill", &t.prefill}, {"tokens: decode", &t.decode}}
	if t.resumed.n > 0 {
		rows = append(rows, distRow{"tokens: after preemption", &t.resumed})
	}
	s.table(p, "IN A STEP", rows, func(o opt) string { return num(o.v) })
	if t.preempted > 0 {
		p.line("  preempted: " + plural(t.preempted, "request"))
	}
}
