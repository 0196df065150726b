package term

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"inferspan/correlate"
	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
	"inferspan/export"
)

// Summary gathers requests and writes a page about them. It is for one
// goroutine. Its memory is bounded whatever the number of requests.
type Summary struct {
	opt Options

	requests, engineRequests int
	outcomes                 map[string]int // by request.word
	failed                   map[string]bool
	models                   map[string]int
	partial                  map[string]int
	preempted, preemptions   int64
	prompt, cached, output   opt   // totals
	first, last              int64 // ns since the epoch
	derived, derivedE        bool  // some time to first token, some end to end

	steps                                         stepStats
	ttft, tpot, queue, prefill, decode, e2e, http dist
	prompts, cacheds, outputs                     dist

	slow    slowest
	elapsed time.Duration
	losses  []signal.LossCount
	queues  []export.Stats
	notes   []string
	gpus    []correlate.GPU
	energy  []correlate.EngineEnergy
	work    []correlate.EngineWork
	kernels []correlate.EngineKernels
}

// NewSummary returns an empty summary.
func NewSummary(o Options) *Summary {
	o.defaults()
	return &Summary{opt: o, outcomes: make(map[string]int), failed: make(map[string]bool), models: make(map[string]int), partial: make(map[string]int)}
}

// maxModels bounds the models that are told apart: clients choose the names.
const maxModels = 100

// Tree takes a request in. It keeps no part of t.
func (s *Summary) Tree(t *trace.Tree) {
	for i := range t.Steps {
		s.steps.add(&t.Steps[i])
	}
	if len(t.Spans) == 0 {
		return
	}
	r := read(t, func(e *engineRequest) {
		s.ttft.add(e.ttft)
		s.tpot.add(e.tpot)
		s.queue.add(e.queue)
		s.prefill.add(e.prefill)
		s.decode.add(e.decode)
		s.e2e.add(e.e2e)
	})
	s.requests++
	s.engineRequests += r.engineRequests
	word := r.word()
	s.outcomes[word]++
	s.failed[word] = s.failed[word] || r.failed
	if _, ok := s.models[r.model]; r.model != "" && (ok || len(s.models) < maxModels) {
		s.models[strings.Clone(r.model)]++
	}
	for _, p := range r.partial {
		s.partial[p]++
	}
	if r.preemptions > 0 {
		s.preempted++
		s.preemptions += r.preemptions
	}
	s.prompt.add(r.prompt)
	s.cached.add(r.cached)
	s.output.add(r.output)
	s.prompts.add(r.prompt)
	s.cacheds.add(r.cached)
	s.outputs.add(r.output)
	s.http.add(r.http)
	s.derived, s.derivedE = s.derived || r.derived, s.derivedE || r.derivedE
	if root := &t.Spans[0]; s.requests == 1 {
		s.first, s.last = root.Start, root.End
	} else {
		s.first, s.last = min(s.first, root.Start), max(s.last, root.End)
	}
	s.slow.add(r, s.opt.Slowest)
}

// SetElapsed says how long was looked; without it rates are over the time from
// the first request's start to the last one's end.
func (s *Summary) SetElapsed(d time.Duration) { s.elapsed = d }

// SetLosses sets what was lost before correlation.
func (s *Summary) SetLosses(l []signal.LossCount) { s.losses = l }

// SetExports sets the state of the export queues, whose drops are losses too.
func (s *Summary) SetExports(stats []export.Stats) { s.queues = stats }

// Note adds a line to the notes at the end.
func (s *Summary) Note(line string) { s.notes = append(s.notes, line) }

// Write writes the summary. Colours are used only if w is a terminal.
func (s *Summary) Write(w io.Writer) error {
	_, tty := terminal(w)
	p := page{paint: paint(s.opt.Color && tty), width: s.opt.Width}
	s.head(&p)
	if s.requests > 0 {
		s.latencies(&p)
		s.tokenTable(&p)
		s.slowestTable(&p)
	}
	s.stepTables(&p)
	s.gpuLines(&p)
	s.kernelTables(&p)
	s.lost(&p)
	s.noteLines(&p)
	if _, err := w.Write(p.Bytes()); err != nil {
		return fmt.Errorf("writing the summary: %w", err)
	}
	return nil
}

// page is text that is being laid out.
type page struct {
	bytes.Buffer
	paint paint
	width int
}

func (p *page) line(s string) {
	p.WriteString(strings.TrimRight(s, " "))
	p.WriteByte('\n')
}

func (p *page) heading(s string) { p.line("\n" + p.paint.bold(s)) }

// flow writes words one after the other and breaks the line before one that
// does not fit. The words may hold colours; widths are those of plain.
func (p *page) flow(indent string, plain, painted []string) {
	col := 0
	for i, word := range plain {
		if col > 0 && col+2+len(word) > p.width {
			p.WriteByte('\n')
			col = 0
		}
		if col == 0 {
			p.WriteString(indent)
			col = len(indent)
		} else {
			p.WriteString("  ")
			col += 2
		}
		p.WriteString(painted[i])
		col += len(word)
	}
	p.WriteByte('\n')
}

func (s *Summary) head(p *page) {
	d := s.elapsed
	if d <= 0 && s.requests > 0 {
		d = time.Duration(s.last - s.first)
	}
	text := "no requests"
	if s.requests > 0 {
		text = plural(s.requests, "request")
	}
	if d > 0 {
		text += " in " + dur(int64(d))
		if s.requests > 0 {
			text += " (" + per(float64(s.requests), d) + ")"
		}
	}
	if s.requests == 0 {
		p.line(p.paint.bold(text))
		return
	}
	from, to := time.Unix(0, s.first).In(s.opt.Location), time.Unix(0, s.last).In(s.opt.Location)
	p.line(p.paint.bold(text) + p.paint.dim(from.Format(", 2006-01-02 15:04:05")+to.Format(" to 15:04:05")))

	words := keys(s.outcomes)
	var plain, painted []string
	for _, w := range words {
		t := w + " " + num(s.outcomes[w])
		plain = append(plain, t)
		switch {
		case s.failed[w]:
			t = p.paint.red(t)
		case w == "ok":
			t = p.paint.green(t)
		}
		painted = append(painted, t)
	}
	p.flow("  ", plain, painted)

	text = "  tokens: " + totals(s.prompt, "prompt")
	if s.cached.ok && s.prompt.v > 0 {
		text += fmt.Sprintf(" (%.0f%% from cache)", 100*float64(s.cached.v)/float64(s.prompt.v))
	}
	text += ", " + totals(s.output, "output")
	if s.output.ok && d > 0 {
		text += " (" + per(float64(s.output.v), d) + ")"
	}
	p.line(text)
	if s.engineRequests > s.requests {
		p.line("  engine requests: " + num(s.engineRequests) + " (several candidates of one request count each)")
	}
	if s.preemptions > 0 {
		p.line(fmt.Sprintf("  preempted: %s, %s in all", plural(int(s.preempted), "request"), plural(int(s.preemptions), "time")))
	}
	if names := keys(s.models); len(names) > 0 {
		var list []string
		for _, n := range names {
			list = append(list, Cut(Clean(n), 40))
		}
		const show = 3
		if len(list) > show {
			list = append(list[:show], fmt.Sprintf("and %d more", len(list)-show))
		}
		p.line(Cut("  model: "+strings.Join(list, ", "), p.width))
	}
}

func totals(o opt, what string) string {
	if !o.ok {
		return what + " unknown"
	}
	return num(o.v) + " " + what
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return num(n) + " " + what
}

// keys returns the keys of m, the largest counts first.
func keys(m map[string]int) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(a, b)
	})
	return out
}

var quantiles = []float64{0.5, 0.9, 0.99}

func (s *Summary) table(p *page, title string, rows []distRow, format func(opt) string) {
	const name, count, value = 28, 9, 10
	p.heading(left(title, name) + right("n", count) + right("p50", value) + right("p90", value) + right("p99", value) + right("max", value))
	for _, r := range rows {
		if r.d.n == 0 {
			p.line(left(r.name, name) + right("-", count))
			continue
		}
		line := left(r.name, name) + right(num(r.d.n), count)
		for _, v := range r.d.at(quantiles...) {
			line += right(format(v), value)
		}
		p.line(line + right(format(known(r.d.max)), value))
	}
}

type distRow struct {
	name string
	d    *dist
}

func (s *Summary) latencies(p *page) {
	mark := map[bool]string{true: " *"}
	rows := []distRow{
		{"time to first token (TTFT)" + mark[s.derived], &s.ttft}, {"time per output token (TPOT)", &s.tpot}, {"queue", &s.queue},
		{"prefill", &s.prefill}, {"decode", &s.decode}, {"end to end" + mark[s.derivedE], &s.e2e},
	}
	if s.http.n > 0 {
		rows = append(rows, distRow{"HTTP request", &s.http})
	}
	s.table(p, "LATENCY", rows, opt.dur)
}

func (s *Summary) tokenTable(p *page) {
	s.table(p, "TOKENS PER REQUEST", []distRow{{"prompt", &s.prompts}, {"of these from cache", &s.cacheds}, {"output", &s.outputs}},
		func(o opt) string { return num(o.v) })
}

// partials says what the values of inferspan.partial mean.
var partials = map[string]string{
	"arrival":      "arrival not seen (it came before we looked, or was lost)",
	"outputs":      "first outputs not seen",
	"stages":       "stages in the engine not seen",
	"end":          "end not seen",
	"request":      "work in the engine not seen",
	"response":     "parts of the response not seen",
	"lost_records": "records were lost meanwhile",
	"evicted":      "given up: too many at once",
}

func (s *Summary) lost(p *page) {
	var lines, harmless []string
	for _, l := range s.losses {
		if l.N == 0 {
			continue
		}
		if line, ok := lossLine(l); ok {
			harmless = append(harmless, line)
		} else {
			lines = append(lines, line)
		}
	}
	for _, k := range keys(s.partial) {
		why, ok := partials[k]
		if !ok {
			why = words(k) + " not seen"
		}
		lines = append(lines, plural(s.partial[k], "request")+": "+why)
	}
	for i := range s.queues {
		q := &s.queues[i]
		for j, r := range export.Reasons {
			if n := q.Dropped[j]; n.Steps > 0 {
				lines = append(lines, fmt.Sprintf("%s not exported to %s: %s", plural(int(n.Steps), "step"), q.Name, words(string(r))))
			}
			if n := q.Dropped[j]; n.Spans > 0 || n.Logs > 0 {
				text := fmt.Sprintf("%s not exported to %s: %s", plural(int(n.Spans), "span"), q.Name, words(string(r)))
				if n.Logs > 0 {
					text += fmt.Sprintf(" (and %s)", plural(int(n.Logs), "log event"))
				}
				lines = append(lines, text)
			}
		}
	}
	p.heading("LOSSES")
	if len(lines) == 0 {
		p.line("none")
	}
	for _, l := range lines {
		p.line(p.paint.yellow(Cut(l, p.width)))
	}
	for _, l := range harmless {
		p.line(p.paint.dim(Cut(l, p.width)))
	}
}

func (s *Summary) noteLines(p *page) {
	var notes []string
	if s.derived || s.derivedE {
		notes = append(notes, "* some are worked out from when messages of the engine were sent or arrived: a moment before its own stamps, where it keeps such")
	}
	for _, d := range []*dist{&s.ttft, &s.http, &s.e2e} {
		if d.sampled() {
			notes = append(notes, fmt.Sprintf("percentiles are those of a uniform sample of %s values; n and max are exact", num(keep)))
			break
		}
	}
	notes = append(notes, s.notes...)
	notes = append(notes, s.gpuNotes()...)
	if len(notes) == 0 {
		return
	}
	p.heading("NOTES")
	for _, n := range notes {
		p.line(Wrap(n, "", p.width))
	}
}

// Wrap cleans text and breaks it into lines of at most width columns, all of which
// begin with indent, those after the first with two blanks more.
func Wrap(text, indent string, width int) string {
	lines := wrap(Clean(text), max(width-len(indent)-2, 1))
	return indent + strings.Join(lines, "\n"+indent+"  ")
}

// wrap breaks s into lines of at most n columns, longer words too.
func wrap(s string, n int) []string {
	var out []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= n:
			line += " " + word
		default:
			out = append(out, line)
			line = word
		}
		for r := []rune(line); len(r) > n; r = []rune(line) {
			out = append(out, string(r[:n]))
			line = string(r[n:])
		}
	}
	return append(out, line)
}
