package correlate

import (
	"cmp"
	"slices"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// A thread's stages come without their nesting. It is worked out as the engine's own
// tracer would have it: a stage that has both times when it is made is below the
// innermost one that is open when it ends.

// placed is a stage in its place.
type placed struct {
	*stage
	parent  int         // index in the list, -1: the thread
	prev    int         // stage of the first level before it, -1: none. Only first-level stages have one
	end     signal.Mono // as is, or the end of the thread
	last    bool        // it lasts until the end of the thread
	derived marks
	events  []mark
}

// Orders of what happens at one moment.
const (
	doNested = iota // the end of a stage inside of one that is about to close
	doClose
	doWhole
	doOpen
)

type action struct {
	at    signal.Mono
	order int
	i     int
}

// place puts the stages of t in order, parents before children, t ending at end.
// lost counts those that must be in another one that was not seen.
func place(t *thread, end signal.Mono) (list []placed, lost int) {
	all := slices.Clone(t.stages)
	all = append(all, unseenForwards(all)...)
	seen := len(t.stages) // those behind are not
	// A prefill after a retraction is whole when it comes, unless it is still the first.
	prefilled := slices.ContainsFunc(t.stages, func(s stage) bool { return s.def.name == semconv.NamePrefillForward && !s.retract })
	todo := make([]action, 0, len(all))
	for i := range all {
		s := &all[i]
		stop := cmp.Or(s.end, end)
		opens := s.def.opens && !(s.retract && prefilled && s.def.name == semconv.NamePrefillForward) || s.end == 0
		switch {
		case opens:
			todo = append(todo, action{s.start, doOpen, i})
			if stop > s.start {
				todo = append(todo, action{stop, doClose, i})
			}
		case s.def.nested:
			todo = append(todo, action{stop, doNested, i})
		default:
			todo = append(todo, action{stop, doWhole, i})
		}
	}
	slices.SortStableFunc(todo, func(a, b action) int { return cmp.Or(cmp.Compare(a.at, b.at), a.order-b.order) })

	list = make([]placed, 0, len(all))
	at := make([]int, len(all)) // index in list
	var open []int              // indices in list
	prev := -1
	for _, a := range todo {
		s := &all[a.i]
		if a.order == doClose {
			i := at[a.i]
			if k := slices.Index(open, i); k >= 0 {
				open = slices.Delete(open, k, k+1)
				if list[i].parent < 0 {
					prev = i
				}
			}
			continue
		}
		p := placed{stage: s, parent: -1, prev: -1, end: max(cmp.Or(s.end, end), s.start), last: s.end == 0}
		if n := len(open); n > 0 {
			p.parent = open[n-1]
		} else {
			p.prev = prev
		}
		if s.def.nested && p.parent < 0 {
			lost++
			continue
		}
		p.mark(a.i >= seen)
		at[a.i] = len(list)
		list = append(list, p)
		switch {
		case a.order == doOpen && p.end > s.start:
			open = append(open, len(list)-1)
		case p.parent < 0:
			prev = len(list) - 1
		}
	}
	return list, lost
}

// unseenForwards makes up the forward stages that stages were seen in and that were
// not seen themselves: those before our time.
func unseenForwards(all []stage) []stage {
	var prefill, decode stage
	inside := func(name string, at signal.Mono) bool {
		return slices.ContainsFunc(all, func(s stage) bool {
			return s.def.name == name && s.start <= at && (s.end == 0 || s.end >= at)
		})
	}
	var spans [2]bool // a prefill, a decode is there at all
	for i := range all {
		spans[0] = spans[0] || all[i].def.name == semconv.NamePrefillForward
		spans[1] = spans[1] || all[i].def.name == semconv.NameDecodeForward
	}
	for i := range all {
		s := &all[i]
		if !s.def.nested || s.end == 0 {
			continue
		}
		if s.def.name == semconv.NameChunkedPrefill {
			if !spans[0] || (!inside(semconv.NamePrefillForward, s.end) && !inside(semconv.NameDecodeForward, s.end)) {
				prefill.cover(s.start, s.end)
			}
		} else if !spans[1] && !inside(semconv.NamePrefillForward, s.end) {
			decode.cover(s.start, 0)
		}
	}
	var out []stage
	if prefill.start != 0 {
		prefill.def = stageDefs[semconv.NamePrefillForward]
		out = append(out, prefill)
	}
	if decode.start != 0 {
		decode.def = stageDefs[semconv.NameDecodeForward]
		out = append(out, decode)
	}
	for i := range out {
		out[i].n = -1
	}
	return out
}

func (s *stage) cover(from, to signal.Mono) {
	if s.start == 0 || from < s.start {
		s.start = from
	}
	s.end = max(s.end, to)
}

// mark notes what of the times is derived: unseen says all.
func (p *placed) mark(unseen bool) {
	switch {
	case unseen:
		p.derived.add(spanStart)
		if !p.last {
			p.derived.add(spanEnd)
		}
	case p.method == "":
	case p.def.name == semconv.NameDecodeWaiting:
		p.derived.add(spanEnd)
	case p.def.name == semconv.NameDecodeForward, p.def.name == semconv.NameDecodeLoop:
		p.derived.add(spanStart)
	default:
		p.derived.add(spanStart, spanEnd)
	}
}

// attend gives each mark to the innermost stage that covers it, and returns those
// that none covers.
func attend(list []placed, events []mark) (rest []mark) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b mark) int { return cmp.Compare(a.at, b.at) })
	// Most are in one of many stages that follow each other; the others are few.
	var inner, outer []int
	for i := range list {
		if list[i].def.nested {
			inner = append(inner, i)
		} else {
			outer = append(outer, i)
		}
	}
	slices.SortStableFunc(inner, func(a, b int) int { return cmp.Compare(list[a].end, list[b].end) })
	covers := func(i int, at signal.Mono) bool {
		return list[i].start <= at && (at < list[i].end || list[i].last && at == list[i].end)
	}
	next := 0
	for _, e := range events {
		for next < len(inner) && list[inner[next]].end <= e.at {
			next++
		}
		best := -1
		const near = 4 // stages that overlap by their stamps
		for i := next; i < len(inner) && i < next+near && best < 0; i++ {
			if covers(inner[i], e.at) {
				best = inner[i]
			}
		}
		for i := len(outer) - 1; i >= 0 && best < 0; i-- {
			if covers(outer[i], e.at) {
				best = outer[i]
			}
		}
		if best < 0 {
			rest = append(rest, e)
			continue
		}
		list[best].events = append(list[best].events, e)
	}
	return rest
}
