package correlate

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// Probes that cost too much look at less for a while. What that leaves out is named in the
// spans that lack it.

// lesser is a time in which less was looked at in a process.
type lesser struct {
	names    []string // of stages or attributes, or in words
	why      string
	from, to signal.Mono // to: 0 while it lasts
}

// maxLesser bounds the times that are kept of a process: the latest matter to requests that
// run.
const maxLesser = 16

// lighter follows what is left out of a detail.
func (c *Correlator) lighter(d *detail, s *signal.ProbeChange) {
	had := d.leftOut(s.PID)
	var names []string
	if s.Active {
		names = s.Less
	}
	if slices.Equal(had, names) {
		return
	}
	d.lighten(s.PID, names, s.Why, s.At)
	if !s.Active {
		return // that says more
	}
	text := "detail " + s.Probe
	if len(names) > 0 {
		text += " seen without " + strings.Join(names, ", ")
	} else {
		text += " seen whole again"
	}
	if s.PID != 0 {
		text += " in process " + strconv.FormatUint(uint64(s.PID), 10)
	}
	if s.Why != "" {
		text += ": " + s.Why
	}
	c.addNote(s.At, text)
}

// leftOut is what is left out in a process now.
func (d *detail) leftOut(pid uint32) []string {
	if l := d.less[pid]; len(l) > 0 && l[len(l)-1].to == 0 {
		return l[len(l)-1].names
	}
	return nil
}

// lighten notes what is left out in a process from now on.
func (d *detail) lighten(pid uint32, names []string, why string, at signal.Mono) {
	l := d.less[pid]
	if n := len(l); n > 0 && l[n-1].to == 0 {
		l[n-1].to = at
	}
	if len(names) > 0 {
		if len(l) >= maxLesser {
			l = slices.Delete(l, 0, 1)
		}
		if d.less[pid] != nil || len(d.less) < maxDetails {
			d.less[pid] = append(l, lesser{names: slices.Clone(names), why: why, from: at})
		}
	}
}

// reducedPoints tells in how many processes what is left out now.
func (d *detail) reducedPoints(f families, e *engine) {
	if len(d.less) == 0 {
		return
	}
	var now []labelled // what, why
	for _, pid := range slices.Sorted(maps.Keys(d.less)) {
		l := d.less[pid]
		if l[len(l)-1].to != 0 {
			continue
		}
		for _, name := range l[len(l)-1].names {
			counter(&now, name, l[len(l)-1].why).n++
		}
	}
	if now == nil {
		now = []labelled{{}}
	}
	for _, x := range now {
		f.add(semconv.MetricIDOwnDetailReduced, float64(x.n), e.res, d.name, x.a, x.b)
	}
}

// lesserOf gives what was left out of a detail in a process at some time between two, with
// the reason. to is 0 if that is not over.
func (e *engine) lesserOf(name string, pid uint32, from, to signal.Mono) (names, why []string) {
	d := e.detail(name)
	if d == nil {
		return nil, nil
	}
	for _, l := range d.less[pid] {
		if l.to != 0 && l.to < from || to != 0 && l.from > to {
			continue
		}
		for _, n := range l.names {
			if !slices.Contains(names, n) {
				names, why = append(names, n), append(why, "the probes looked at less: "+l.why)
			}
		}
	}
	return names, why
}

// lessOf says why not all was looked at in r's core during all of r, "" if it was.
func (r *request) lessOf(detail string) string {
	_, why := r.core.eng.lesserOf(detail, r.core.PID, r.added, r.endAt)
	if len(why) == 0 {
		return ""
	}
	return why[0]
}

// lessStages names the stages that a scheduler's thread lacks since they were not looked at.
func (b *threadBuilder) lessStages(t *thread) (out []string) {
	if t.kind != threadScheduler {
		return nil
	}
	r := b.v.r
	names, why := r.core.eng.lesserOf(signal.DetailSteps, t.pid, t.from, max(r.endAt, t.to))
	for i, n := range names {
		d := stageDefs[n]
		decode := n == semconv.NameDecodeLoop || n == semconv.NameDecodeForward || n == semconv.NameDecodeWaiting
		switch {
		case d == nil:
		case d.level > r.level, decode && b.v.tokens.OK && b.v.tokens.V < 2:
			continue // there is none
		case n != semconv.NameDecodeLoop && slices.ContainsFunc(t.stages, func(s stage) bool { return s.def == d }):
			continue // it was seen all the same
		}
		out = append(out, n+": "+why[i])
	}
	return out
}
