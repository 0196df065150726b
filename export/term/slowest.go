package term

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"time"
)

// slowest keeps the n requests that took longest.
type slowest []request

func (h slowest) Len() int           { return len(h) }
func (h slowest) Less(i, j int) bool { return slower(&h[j], &h[i]) }
func (h slowest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *slowest) Push(x any)        { *h = append(*h, x.(request)) }
func (h *slowest) Pop() any {
	x := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return x
}

func slower(a, b *request) bool {
	if a.took().v != b.took().v {
		return a.took().v > b.took().v
	}
	if a.start != b.start {
		return a.start < b.start
	}
	return a.id < b.id
}

func (h *slowest) add(r request, n int) {
	if !r.took().ok || len(*h) == n && !slower(&r, &(*h)[0]) {
		return
	}
	// The texts may be parts of larger ones.
	r.id, r.model, r.outcome, r.finish = strings.Clone(r.id), strings.Clone(r.model), strings.Clone(r.outcome), strings.Clone(r.finish)
	heap.Push(h, r)
	if len(*h) > n {
		heap.Pop(h)
	}
}

func (s *Summary) slowestTable(p *page) {
	if len(s.slow) == 0 {
		return
	}
	list := slices.Clone(s.slow)
	slices.SortFunc(list, func(a, b request) int {
		if slower(&a, &b) {
			return -1
		}
		return 1
	})
	title := "SLOWEST REQUEST"
	if len(list) > 1 {
		title = fmt.Sprintf("SLOWEST %d OF %s REQUESTS", len(list), num(s.requests))
	}
	cols := []column{
		{"started", 12, false, func(r *request) string { return time.Unix(0, r.start).In(s.opt.Location).Format("15:04:05.000") }},
		{"id", 8, false, func(r *request) string { return r.shortID(8) }},
		{"status", 10, false, (*request).mark},
		{"tokens", 10, true, tokens},
		{"queue", 6, true, func(r *request) string { return r.queue.dur() }},
		{"prefill", 7, true, func(r *request) string { return r.prefill.dur() }},
		{"decode", 6, true, func(r *request) string { return r.decode.dur() }},
		{"total", 6, true, func(r *request) string { return r.took().dur() }},
	}
	used := -1
	for _, c := range cols {
		used += c.width + 1
	}
	bar := p.width - used - 2
	const least = 20
	legend := ""
	if bar >= least {
		legend = "  queue .  prefill #  decode =  other -"
	}
	p.heading(title)
	p.line(p.paint.dim(row(cols, func(c column) string { return c.name }) + legend))
	for i := range list {
		r := &list[i]
		line := row(cols, func(c column) string { return c.text(r) })
		if r.failed {
			line = p.paint.red(line)
		}
		if bar >= least {
			line += "  " + drawBar(p.paint, r, bar)
		}
		p.line(line)
	}
}

// drawBar shows in n columns where the time of a request went, each to its own
// scale. The part before the queue and the one after the last token are both
// "other".
func drawBar(c paint, r *request, n int) string {
	total := r.took().v
	if total <= 0 {
		return ""
	}
	parts := []struct {
		char  string
		paint func(string) string
		v     int64
	}{
		{".", c.yellow, r.queue.v}, {"#", c.blue, r.prefill.v}, {"=", c.green, r.decode.v},
		{"-", c.dim, total - r.queue.v - r.prefill.v - r.decode.v},
	}
	// Each boundary is rounded on its own, so that the bar's length is right.
	var b strings.Builder
	var at int64
	done := 0
	for _, p := range parts {
		at += max(p.v, 0)
		end := min(n, int((float64(at)/float64(total))*float64(n)+0.5))
		if end > done {
			b.WriteString(p.paint(strings.Repeat(p.char, end-done)))
			done = end
		}
	}
	return b.String()
}
