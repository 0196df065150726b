package term

import (
	"io"
	"strconv"
	"strings"
	"time"

	"inferspan/correlate/trace"
)

// Stream writes one line per request. It is for one goroutine.
type Stream struct {
	w     io.Writer
	opt   Options
	paint paint
	lines int
	tty   bool
	err   error
}

// NewStream returns a stream to w.
func NewStream(w io.Writer, o Options) *Stream {
	o.defaults()
	_, tty := terminal(w)
	return &Stream{w: w, opt: o, paint: paint(o.Color && tty), tty: tty}
}

// From wide columns on more is shown; what a line has beyond rest is the model's.
const wide, rest = 116, 104

type column struct {
	name  string
	width int
	right bool
	text  func(*request) string
}

func (s *Stream) columns() []column {
	clock, id := "15:04:05", 8
	if s.opt.Width >= wide {
		clock, id = "15:04:05.000", 16
	}
	cols := []column{
		{"started", len(clock), false, func(r *request) string { return time.Unix(0, r.start).In(s.opt.Location).Format(clock) }},
		{"id", id, false, func(r *request) string { return r.shortID(id) }},
	}
	if s.opt.Width >= wide {
		cols = append(cols, column{"model", min(24, s.opt.Width-rest), false, func(r *request) string { return Clean(r.model) }})
	}
	cols = append(cols, column{"status", 10, false, (*request).mark})
	if s.opt.Width >= wide {
		cols = append(cols, column{"finish", 8, false, func(r *request) string { return Clean(r.finish) }})
	}
	cols = append(cols,
		column{"tokens", 10, true, tokens},
		column{"TTFT", 6, true, func(r *request) string { return r.ttft.dur() }},
		column{"TPOT", 6, true, func(r *request) string { return r.tpot.dur() }},
		column{"queue", 6, true, func(r *request) string { return r.queue.dur() }},
		column{"prefill", 7, true, func(r *request) string { return r.prefill.dur() }},
		column{"decode", 6, true, func(r *request) string { return r.decode.dur() }},
	)
	if s.opt.Width >= wide {
		cols = append(cols, column{"total", 6, true, func(r *request) string { return r.took().dur() }})
	}
	return cols
}

// tokens writes prompt/output in at most 10 columns.
func tokens(r *request) string {
	if !r.prompt.ok && !r.output.ok {
		return "-"
	}
	if s := r.prompt.num() + "/" + r.output.num(); len(s) <= 10 {
		return s
	}
	return r.prompt.short() + "/" + r.output.short()
}

// short writes large numbers as 131k or 1.2M.
func (o opt) short() string {
	switch {
	case o.v >= 999_500:
		return strconv.FormatFloat(float64(o.v)/1e6, 'f', 1, 64) + "M"
	case o.v >= 10_000:
		return strconv.FormatInt((o.v+500)/1000, 10) + "k"
	}
	return o.num()
}

// Tree writes the line of a request. After a failed write it writes nothing more; see Err.
func (s *Stream) Tree(t *trace.Tree) {
	if len(t.Spans) == 0 || s.err != nil {
		return
	}
	r := read(t, func(*engineRequest) {})
	cols := s.columns()
	var b strings.Builder
	// Again from time to time where the first heading has scrolled away.
	const again = 50
	if s.lines == 0 || s.tty && s.lines%again == 0 {
		b.WriteString(s.paint.dim(row(cols, func(c column) string { return c.name })))
		b.WriteByte('\n')
	}
	s.lines++
	line := row(cols, func(c column) string { return c.text(&r) })
	switch {
	case r.failed:
		line = s.paint.red(line)
	case len(r.partial) > 0:
		line = s.paint.yellow(line)
	}
	b.WriteString(line)
	b.WriteByte('\n')
	_, s.err = io.WriteString(s.w, b.String())
}

// Err returns the error of the first failed write.
func (s *Stream) Err() error { return s.err }

func row(cols []column, text func(column) string) string {
	parts := make([]string, len(cols))
	for i, c := range cols {
		if c.right {
			parts[i] = right(text(c), c.width)
		} else {
			parts[i] = left(text(c), c.width)
		}
	}
	return strings.TrimRight(strings.Join(parts, " "), " ")
}
