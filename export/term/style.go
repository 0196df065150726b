// Package term shows requests to a person: a summary of a run, and one line per
// request while it lasts.
//
// Texts that come from clients and engines (ids, model names) are cut and
// cleaned of control characters, so that they cannot drive the terminal.
package term

import (
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Options says how to write. The zero value writes plain text, 80 columns wide.
type Options struct {
	Width    int  // columns; less than 80 counts as 80
	Color    bool // use ANSI colours where the writer is a terminal
	Slowest  int  // requests in the summary's list of the slowest; 0: 10
	Location *time.Location
}

// OptionsFor returns the options that suit w: the terminal's width, and colours
// if w is a terminal, NO_COLOR is not set and TERM is not dumb.
func OptionsFor(w io.Writer) Options {
	o := Options{Width: 80}
	if cols, ok := terminal(w); ok {
		if cols > 0 { // 0: the terminal does not know, as of "docker exec -t" by a program
			o.Width = cols
		}
		o.Color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	} else if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil {
		o.Width = n
	}
	return o
}

// terminal tells whether w is a terminal, and how wide.
func terminal(w io.Writer) (cols int, ok bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, false
	}
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(ws.Col), true
}

func (o *Options) defaults() {
	const most = 200 // wider lines are hard to follow
	o.Width = min(max(o.Width, 80), most)
	if o.Slowest <= 0 {
		o.Slowest = 10
	}
	if o.Location == nil {
		o.Location = time.Local
	}
}

// paint writes ANSI colours, or nothing.
type paint bool

func (p paint) in(code, s string) string {
	if !p || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p paint) bold(s string) string   { return p.in("1", s) }
func (p paint) dim(s string) string    { return p.in("2", s) }
func (p paint) red(s string) string    { return p.in("31", s) }
func (p paint) yellow(s string) string { return p.in("33", s) }
func (p paint) blue(s string) string   { return p.in("34", s) }
func (p paint) green(s string) string  { return p.in("32", s) }

// left and right pad s to n columns; longer texts are cut.
func left(s string, n int) string {
	s = Cut(s, n)
	return s + strings.Repeat(" ", n-utf8.RuneCountInString(s))
}

func right(s string, n int) string {
	s = Cut(s, n)
	return strings.Repeat(" ", n-utf8.RuneCountInString(s)) + s
}

// Cut shortens s to n columns; a tilde stands for what is missing.
func Cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n < 1 {
		return ""
	}
	i := 0
	for range n - 1 {
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	return s[:i] + "~"
}

// Clean makes a text of unknown origin fit for a terminal: what could drive it, or
// would not take one column, becomes a question mark.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) || unicode.Is(unicode.Mn, r) || r >= 0x1100 {
			return '?' // from 0x1100 on characters may take two columns
		}
		return r
	}, s)
}

// dur writes nanoseconds with three digits that count, in at most 6 columns
// below 100 hours.
func dur(ns int64) string {
	neg := ""
	if ns < 0 { // a span of a clock that went back
		neg, ns = "-", -ns
	}
	// Each limit is where rounding would give one digit more.
	for _, u := range []struct {
		unit, limit float64
		name        string
	}{{1, 999.5, "ns"}, {1e3, 999.5, "us"}, {1e6, 999.5, "ms"}, {1e9, 99.95, "s"}} {
		if v := float64(ns) / u.unit; v < u.limit {
			return neg + digits(v, u.unit == 1) + u.name
		}
	}
	sec := ns / 1e9
	if ns%1e9 >= 5e8 {
		sec++
	}
	if sec < 3600 {
		return neg + strconv.FormatInt(sec/60, 10) + "m" + two(sec%60) + "s"
	}
	minutes := (sec + 30) / 60
	return neg + strconv.FormatInt(minutes/60, 10) + "h" + two(minutes%60) + "m"
}

func two(n int64) string {
	if n < 10 {
		return "0" + strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n, 10)
}

// digits writes v, below 1000, with three digits that count.
func digits(v float64, whole bool) string {
	switch {
	case whole || v >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// num writes n with commas between thousands.
func num[T int | int64 | uint64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// per writes n per second, "" if that says nothing.
func per(n float64, d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return digitsBig(n/d.Seconds()) + "/s"
}

func digitsBig(v float64) string {
	if v >= 999.5 {
		return num(int64(v + 0.5))
	}
	return digits(v, false)
}
