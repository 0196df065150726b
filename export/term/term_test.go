package term

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"inferspan/correlate/signal"
	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/internal/sample"
	"inferspan/tests/pty"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func options(width int) Options { return Options{Width: width, Location: time.UTC} }

func summary(o Options) *Summary {
	s := NewSummary(o)
	for _, t := range trees() {
		s.Tree(&t)
	}
	s.SetElapsed(10 * time.Second)
	s.SetLosses([]signal.LossCount{{Reason: "ring_full", N: 12345}, {Reason: "never", N: 0}})
	q := export.Stats{Name: "otlp"}
	q.Dropped[0] = export.Count{Spans: 50, Logs: 1}
	s.SetExports([]export.Stats{q})
	s.Note("gen_ai.latency.time_in_tokenize is not available: it needs a probe in the front end's interpreter, which this version does not have yet")
	return s
}

// trees adds to the sample what is unlike it.
func trees() []trace.Tree {
	ts := sample.Requests(220)
	odd := sample.Odd()
	partial := sample.Req{I: 900, Resource: sample.Resource(1), Model: "a-model-with-a-name-that-is-longer-than-any-column-would-like-it-to-be", Start: sample.Start + 9e9,
		Queue: 3_600e9, Prefill: 12e9, PerToken: 90e6, Prompt: 131072, Output: 4096, Outcome: "in_flight", Status: 200}.Tree()
	partial.Spans[1].Attrs = append(partial.Spans[1].Attrs, trace.Attr{Key: "inferspan.partial", Value: []string{"end", "lost_records"}})
	whole := &ts[7].Spans[1]
	whole.Attrs = append(whole.Attrs, trace.Attr{Key: "inferspan.partial", Value: []string{"outputs"}})
	return append(ts, odd, partial)
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("output differs from %s:\n%s", file, got)
	}
}

func checkWidth(t *testing.T, text []byte, width int) {
	t.Helper()
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(line); n > width {
			t.Errorf("%d columns, more than %d: %q", n, width, line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) || strings.HasSuffix(line, " ") {
			t.Errorf("bad characters in %q", line)
		}
	}
}

func TestSummaryGolden(t *testing.T) {
	for _, width := range []int{80, 120} {
		var b bytes.Buffer
		if err := summary(options(width)).Write(&b); err != nil {
			t.Fatal(err)
		}
		golden(t, fmt.Sprintf("summary-%d.txt", width), b.Bytes())
		checkWidth(t, b.Bytes(), width)
	}
}

func TestStepTables(t *testing.T) {
	s := NewSummary(options(80))
	for _, tr := range sample.Steps(40) {
		s.Tree(&tr)
	}
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "steps.txt", b.Bytes())
	checkWidth(t, b.Bytes(), 80)
}

func TestStreamGolden(t *testing.T) {
	ts := trees()
	for _, width := range []int{80, 120} {
		var b bytes.Buffer
		s := NewStream(&b, options(width))
		for _, tree := range append(ts[:20:20], ts[220:]...) {
			s.Tree(&tree)
		}
		golden(t, fmt.Sprintf("stream-%d.txt", width), b.Bytes())
		checkWidth(t, b.Bytes(), width)
	}
}

func TestNoRequests(t *testing.T) {
	s := NewSummary(options(80))
	s.SetElapsed(30 * time.Second)
	var b bytes.Buffer
	if err := s.Write(&b); err != nil || b.String() != "no requests in 30.0s\n\nLOSSES\nnone\n" {
		t.Errorf("%v %q", err, b.String())
	}
}

// A summary that is written twice says the same, and its memory does not grow with the input.
func TestSummaryIsBounded(t *testing.T) {
	s := NewSummary(options(80))
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range keep + 5000 {
		tree := sample.Req{I: i, Start: sample.Start + int64(i)*1e6, Queue: rng.Int64N(1e9), Prefill: 1e7, PerToken: 1e7, Prompt: 10, Output: 3, Outcome: "completed", Status: 200,
			Model: fmt.Sprint("m", i)}.Tree()
		s.Tree(&tree)
	}
	if len(s.queue.values) != keep || s.queue.n != keep+5000 || len(s.slow) != 10 || len(s.models) != maxModels {
		t.Errorf("%d values of %d, %d slow requests, %d models", len(s.queue.values), s.queue.n, len(s.slow), len(s.models))
	}
	// The sample is uniform: its median is near the real one (standard error 2 ms).
	if m := s.queue.at(0.5)[0].v; m < 480e6 || m > 520e6 {
		t.Errorf("median of the sample %v, want about 500 ms", dur(m))
	}
	var a, b bytes.Buffer
	if err := errors.Join(s.Write(&a), s.Write(&b)); err != nil || a.String() != b.String() {
		t.Errorf("written twice: %v\n%s\n%s", err, a.String(), b.String())
	}
	if !strings.Contains(a.String(), "percentiles are those of a uniform sample of 65,536 values") || !strings.Contains(a.String(), "70,536 requests in") {
		t.Errorf("got\n%s", a.String())
	}
}

func TestPercentilesAreExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 200 {
		n := 1 + rng.IntN(300)
		var d dist
		var all []int64
		for range n {
			v := rng.Int64N(1000)
			d.add(known(v))
			all = append(all, v)
		}
		d.add(opt{}) // unknown: not counted
		slices.Sort(all)
		for _, q := range []float64{0.5, 0.9, 0.99} {
			got := d.at(q)[0].v
			// By definition: at least q of the values are <= got, and fewer are < got.
			le, lt := 0, 0
			for _, v := range all {
				if v <= got {
					le++
				}
				if v < got {
					lt++
				}
			}
			if float64(le) < q*float64(n)-1e-9 || float64(lt) >= q*float64(n) {
				t.Fatalf("p%v of %v is %d: %d of %d are <=, %d are <", q*100, all, got, le, n, lt)
			}
		}
		if d.n != n || d.max != all[n-1] {
			t.Fatalf("n %d max %d", d.n, d.max)
		}
	}
	if d := new(dist); d.at(0.5)[0].ok {
		t.Error("percentile of nothing")
	}
}

// Beyond the bound every value has the same chance to be kept, late ones too.
func TestSampleIsUniform(t *testing.T) {
	var d dist
	for i := range 4 * keep {
		d.add(known(int64(i / keep)))
	}
	var count [4]int
	for _, v := range d.values {
		count[v]++
	}
	for i, n := range count { // standard error 0.7 %
		if n < keep/4*95/100 || n > keep/4*105/100 {
			t.Errorf("quarter %d holds %d of %d values", i, n, keep)
		}
	}
	if d.n != 4*keep || d.max != 3 || !d.sampled() {
		t.Errorf("n %d, max %d", d.n, d.max)
	}
}

func TestDur(t *testing.T) {
	for ns, want := range map[int64]string{
		0: "0ns", 1: "1ns", 999: "999ns", 1000: "1.00us", 9_994: "9.99us", 9_995: "10.0us", 99_949: "99.9us", 99_950: "100us",
		999_499: "999us", 999_500: "1.00ms", 28_700_501: "28.7ms", 999_499_999: "999ms", 999_500_000: "1.00s", 12_345_000_000: "12.3s",
		99_949_999_999: "99.9s", 99_950_000_000: "1m40s", 125e9: "2m05s", 3_599_499_999_999: "59m59s", 3_599_500_000_000: "1h00m", 5_400e9: "1h30m",
		-5: "-5ns", math.MaxInt64: "2562047h47m",
	} {
		if got := dur(ns); got != want {
			t.Errorf("%d: %s, want %s", ns, got, want)
		}
	}
}

func TestNum(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := num(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// Ids and names come from clients; none may drive the terminal or break the layout.
func TestHostileTexts(t *testing.T) {
	tree := sample.Req{I: 1, Start: sample.Start, Queue: 1e6, Prefill: 1e6, PerToken: 1e6, Prompt: 1, Output: 2, Status: 200,
		Model: "\x1b]0;owned\a\u200b\u202e模型\xff", Outcome: "\x1b[2J\nnew", Finish: "\r\b"}.Tree()
	for i := range tree.Spans[0].Attrs {
		if a := &tree.Spans[0].Attrs[i]; a.Key == "gen_ai.response.id" {
			a.Value = "\x1b[31m\u0301\u4e00-evil-\x00"
		}
	}
	for _, width := range []int{80, 140} {
		var b bytes.Buffer
		NewStreamTree(&b, width, &tree)
		s := NewSummary(options(width))
		s.Tree(&tree)
		s.Note("\x1b[5mnote")
		s.SetLosses([]signal.LossCount{{Reason: "\x1b[5m", N: 1}})
		if err := s.Write(&b); err != nil {
			t.Fatal(err)
		}
		checkWidth(t, b.Bytes(), width)
		if bytes.ContainsAny(b.Bytes(), "\x1b\a\u200b\u202e") {
			t.Errorf("got %q", b.Bytes())
		}
	}
}

func NewStreamTree(w io.Writer, width int, t *trace.Tree) { NewStream(w, options(width)).Tree(t) }

func TestEmptyTree(t *testing.T) {
	var b bytes.Buffer
	NewStreamTree(&b, 80, &trace.Tree{})
	NewSummary(Options{}).Tree(&trace.Tree{})
	if b.Len() != 0 {
		t.Errorf("got %q", b.String())
	}
}

type failing struct{ n int }

func (f *failing) Write([]byte) (int, error) { f.n++; return 0, errors.New("broken") }

func TestWriteErrors(t *testing.T) {
	f := &failing{}
	s := NewStream(f, options(80))
	tree := sample.Requests(1)[0]
	s.Tree(&tree)
	s.Tree(&tree)
	if s.Err() == nil || f.n != 1 {
		t.Errorf("%v after %d writes", s.Err(), f.n)
	}
	if err := NewSummary(options(80)).Write(f); err == nil || err.Error() != "writing the summary: broken" {
		t.Errorf("got %v", err)
	}
}

func TestColours(t *testing.T) {
	user, tty := pty.Open(t, 132)
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	o := OptionsFor(tty)
	if o.Width != 132 || !o.Color {
		t.Fatalf("got %+v", o)
	}
	o.Location = time.UTC
	s := summary(o)
	var plain bytes.Buffer
	if err := s.Write(&plain); err != nil || bytes.Contains(plain.Bytes(), []byte("\x1b")) {
		t.Errorf("colours go into a file: %v", err)
	}
	done := make(chan []byte)
	go func() {
		var all []byte
		buf := make([]byte, 4096)
		for !bytes.HasSuffix(all, []byte("END")) {
			n, err := user.Read(buf)
			if err != nil {
				break
			}
			all = append(all, buf[:n]...)
		}
		done <- bytes.TrimSuffix(all, []byte("END"))
	}()
	if err := s.Write(tty); err != nil {
		t.Fatal(err)
	}
	if _, err := tty.WriteString("END"); err != nil {
		t.Fatal(err)
	}
	coloured := bytes.ReplaceAll(<-done, []byte("\r\n"), []byte("\n"))
	bare := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAll(coloured, nil)
	if len(bare) == len(coloured) || !bytes.Equal(bare, plain.Bytes()) {
		t.Errorf("on a terminal:\n%s\nnot:\n%s", bare, plain.Bytes())
	}
	for k, v := range map[string]string{"NO_COLOR": "1", "TERM": "dumb"} {
		t.Run(k, func(t *testing.T) {
			t.Setenv(k, v)
			if OptionsFor(tty).Color {
				t.Error("colours are on")
			}
		})
	}
	t.Setenv("COLUMNS", "100")
	if o := OptionsFor(&plain); o.Color || o.Width != 100 {
		t.Errorf("not a terminal: %+v", o)
	}
}

// TestShow writes to the terminal, to be looked at: go test -c, then run the
// binary with -test.run TestShow -show.
func TestShow(t *testing.T) {
	if !*show {
		t.Skip("only with -show")
	}
	o := OptionsFor(os.Stdout)
	stream := NewStream(os.Stdout, o)
	for _, tree := range trees()[200:] {
		stream.Tree(&tree)
	}
	fmt.Println()
	if err := summary(o).Write(os.Stdout); err != nil {
		t.Fatal(err)
	}
}

var show = flag.Bool("show", false, "write to the terminal, to be looked at")

func BenchmarkSummary(b *testing.B) {
	ts := sample.Requests(1000)
	s := NewSummary(options(80))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s.Tree(&ts[i%len(ts)])
		i++
	}
}

func TestLosses(t *testing.T) {
	for _, tt := range []struct {
		lost []signal.LossCount
		want string
	}{
		{nil, ""},
		{[]signal.LossCount{{Reason: "ring_full", N: 0}}, ""},
		{[]signal.LossCount{{Reason: "truncated", N: 3}, {Reason: "message_missing_start", N: 1}}, ""},
		{[]signal.LossCount{{Reason: "ring_full", N: 1234}, {Reason: "truncated", N: 3}, {Reason: "fault", N: 1}}, "lost: ring full 1,234, fault 1"},
	} {
		if got := Losses(tt.lost); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.lost, got, tt.want)
		}
	}
}

// What comes with normal traffic is said, and not called a loss.
func TestSummaryEverydayLosses(t *testing.T) {
	s := NewSummary(Options{})
	s.SetLosses([]signal.LossCount{{Reason: "truncated", N: 2}, {Reason: "map_full", N: 1}})
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(b.String(), "LOSSES\n")
	if want := "1 record lost: map full\n2 long payloads copied in part (over 256 KiB)\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s.SetLosses([]signal.LossCount{{Reason: "truncated", N: 2}})
	b.Reset()
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(b.String(), "LOSSES\nnone\n2 long payloads copied in part (over 256 KiB)\n") {
		t.Errorf("got %q", b.String())
	}
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct{ text, indent, want string }{
		{"one two\x1b three four", "  ", "  one two?\n    three four"},
		{"short abcdefghijklmnopqrstuvwxyz.", "", "short\n  abcdefghijkl\n  mnopqrstuvwx\n  yz."},
		{"", " ", " "},
	} {
		if got := Wrap(tt.text, tt.indent, 14); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.text, got, tt.want)
		}
	}
}
