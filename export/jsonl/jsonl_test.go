package jsonl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/internal/sample"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var _ export.Sink = (*Sink)(nil)

func encode(trees ...trace.Tree) []byte {
	var b bytes.Buffer
	s := New(&b)
	if err := s.Export(context.Background(), trees); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	for _, c := range []struct {
		name  string
		trees []trace.Tree
	}{
		{"requests", sample.Requests(18)},
		{"odd", []trace.Tree{sample.Odd()}},
		{"steps", sample.Steps(9)},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := encode(c.trees...)
			file := filepath.Join("testdata", c.name+".jsonl")
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
				t.Errorf("output differs from %s; run with -update and look at the difference", file)
			}
			for i, line := range bytes.Split(bytes.TrimSuffix(got, []byte("\n")), []byte("\n")) {
				if !json.Valid(line) || !utf8.Valid(line) {
					t.Errorf("line %d is not JSON: %s", i+1, line)
				}
			}
		})
	}
}

// Resources get what the agent's configuration adds, and nothing else.
func TestDefaults(t *testing.T) {
	own := &trace.Resource{Attrs: []trace.Attr{{Key: "inferspan.engine.kind", Value: "vllm"}, {Key: "host.name", Value: "a"}}}
	named := &trace.Resource{Attrs: []trace.Attr{{Key: "service.name", Value: "theirs"}}}
	for _, c := range []struct {
		d    export.Defaults
		want string
	}{
		{export.Defaults{}, `{"host.name":"a","inferspan.engine.kind":"vllm"} {"service.name":"theirs"} {}`},
		{export.Defaults{ServiceName: "mine"}, `{"host.name":"a","inferspan.engine.kind":"vllm","service.name":"mine"} {"service.name":"theirs"} {}`},
		{export.Defaults{Attrs: []trace.Attr{{Key: "host.name", Value: "b"}, {Key: "zone", Value: "c"}}},
			`{"host.name":"a","inferspan.engine.kind":"vllm","service.name":"vllm","zone":"c"} {"host.name":"b","service.name":"theirs","zone":"c"} {}`},
	} {
		var b bytes.Buffer
		s := New(&b)
		s.SetDefaults(c.d)
		if err := s.Write(&trace.Tree{Spans: []trace.Span{{Resource: own}, {Resource: named}, {}}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range bytes.Lines(b.Bytes()) {
			var x struct{ Resource json.RawMessage }
			if err := json.Unmarshal(line, &x); err != nil {
				t.Fatal(err)
			}
			got = append(got, string(x.Resource))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v:\n%s\nwant\n%s", c.d, strings.Join(got, " "), c.want)
		}
	}
}

// What a reader of the lines gets back must be what was put in.
func TestReadBack(t *testing.T) {
	var got struct {
		Attributes map[string]any
		Resource   map[string]any
		Name       string
		Status     struct{ Code, Message string }
		Start      int64  `json:"start_unix_nano"`
		Parent     string `json:"parent_span_id"`
		Dropped    int    `json:"dropped_events"`
		Events     []struct {
			Name       string
			Time       int64 `json:"time_unix_nano"`
			Attributes map[string]any
		}
	}
	tree := sample.Odd()
	line, _, _ := bytes.Cut(encode(tree), []byte("\n"))
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	s := &tree.Spans[0]
	if want := strings.ToValidUTF8(s.Name, "\ufffd"); got.Name != want {
		t.Errorf("name %q, want %q", got.Name, want)
	}
	if got.Status.Message != s.Message || got.Status.Code != "ERROR" || got.Start != s.Start || got.Dropped != 3 || got.Parent != "0900000000000000" {
		t.Errorf("got %+v", got)
	}
	for key, want := range map[string]string{
		"int.big": "-9223372036854775808", "double.whole": "2.0", "double.tiny": "1e-300", "double.big": "1e+22",
		"double.third": "0.3333333333333333", "bool": "true", "same": "last", "ints": "[1 -2]", "doubles": "[0.5 -1.0]",
		"empty": "[]", "strings": "[x  \ufffd(]", "z.string": "a&b<c>",
	} {
		if v := fmt.Sprint(got.Attributes[key]); v != want {
			t.Errorf("%s: %s, want %s", key, v, want)
		}
	}
	if len(got.Events) != 1 || got.Events[0].Time != s.Events[0].Time || len(got.Events[0].Attributes) != 1 {
		t.Errorf("events %+v", got.Events)
	}
}

func TestFloat(t *testing.T) {
	for f, want := range map[float64]string{
		0: "0.0", math.Copysign(0, -1): "-0.0", 1: "1.0", 0.1: "0.1", 1e20: "100000000000000000000.0",
		1e21: "1e+21", 1e-7: "1e-07", math.Inf(1): `"Infinity"`, math.Inf(-1): `"-Infinity"`,
	} {
		if got := string(appendFloat(nil, f)); got != want {
			t.Errorf("%v: %s, want %s", f, got, want)
		}
	}
	if got := string(appendFloat(nil, math.NaN())); got != `"NaN"` {
		t.Errorf("NaN: %s", got)
	}
}

func FuzzString(f *testing.F) {
	for _, s := range []string{"", "plain", "\x00\x1f\x7f", "\"\\", "\u2028\u2029", "\xff\xfe", "\xed\xa0\x80", "\U0001F600", "a\xc3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := appendString(nil, s)
		var back string
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("%q -> %s: %v", s, b, err)
		}
		// encoding/json replaces each bad byte too.
		want, _ := json.Marshal(s)
		var wantBack string
		if err := json.Unmarshal(want, &wantBack); err != nil {
			t.Fatal(err)
		}
		if back != wantBack {
			t.Fatalf("%q came back as %q, want %q", s, back, wantBack)
		}
		if bytes.ContainsAny(b, "\n\r") {
			t.Fatalf("%q: line break in %q", s, b)
		}
	})
}

func FuzzFloat(f *testing.F) {
	f.Add(uint64(0))
	f.Add(math.Float64bits(1e21))
	f.Add(math.Float64bits(123456789.125))
	f.Fuzz(func(t *testing.T, bits uint64) {
		v := math.Float64frombits(bits)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return
		}
		b := string(appendFloat(nil, v))
		back, err := strconv.ParseFloat(b, 64)
		if err != nil || math.Float64bits(back) != bits {
			t.Fatalf("%v -> %s -> %v %v", v, b, back, err)
		}
		if !strings.ContainsAny(b, ".e") || !json.Valid([]byte(b)) {
			t.Fatalf("%v -> %s", v, b)
		}
	})
}

type failing struct {
	after int // bytes taken before the failure
	calls int
}

func (f *failing) Write(p []byte) (int, error) {
	f.calls++
	if len(p) <= f.after {
		f.after -= len(p)
		return len(p), nil
	}
	n := f.after
	f.after = 0
	return n, errors.New("broken")
}

func TestWriteErrorIsReportedOnceAndStays(t *testing.T) {
	w := &failing{after: 100}
	s := New(w)
	err := s.Export(context.Background(), sample.Requests(1))
	if err == nil || err.Error() != "writing spans: broken" {
		t.Fatalf("got %v", err)
	}
	calls := w.calls
	if again := s.Export(context.Background(), sample.Requests(1)); again != err || w.calls != calls {
		t.Errorf("after a failed write: error %v, %d more writes", again, w.calls-calls)
	}
	if got := s.Close(context.Background()); got != err {
		t.Errorf("close: %v", got)
	}
}

// A file-size limit stands in for a full disk: the write comes back short and the next one fails.
func TestFullDisk(t *testing.T) {
	trees := sample.Requests(80)
	whole := encode(trees[:10]...)
	for _, c := range []struct {
		name string
		run  func(s *Sink) error
		kept func(n int64) bool
	}{
		{"export", func(s *Sink) error {
			ctx := context.Background()
			if err := s.Export(ctx, trees[:10]); err != nil {
				t.Fatal(err)
			}
			return s.Export(ctx, trees[10:])
		}, func(n int64) bool { return n == int64(len(whole)) }},
		{"write", func(s *Sink) error {
			for i := range trees {
				if err := s.Write(&trees[i]); err != nil {
					return err
				}
			}
			return s.Flush()
		}, func(n int64) bool { return n > 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			limitFileSize(t, uint64(len(whole)+chunk*3/2)) // fails in the second write of the batch
			name := filepath.Join(t.TempDir(), "spans.jsonl")
			s, err := Create(name)
			if err != nil {
				t.Fatal(err)
			}
			err = c.run(s)
			if err == nil || !errors.Is(err, syscall.EFBIG) || strings.Count(err.Error(), name) != 1 {
				t.Fatalf("got %v", err)
			}
			if got := s.Close(context.Background()); got != err {
				t.Errorf("close: %v", got)
			}
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(encode(trees...), data) || !bytes.HasSuffix(data, []byte("\n")) || !c.kept(int64(len(data))) {
				t.Errorf("file of %d bytes is not a run of whole lines", len(data))
			}
		})
	}
}

func limitFileSize(t *testing.T, n uint64) {
	t.Helper()
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
			t.Fatal(err)
		}
		signal.Reset(syscall.SIGXFSZ)
	})
}

func TestDeviceFull(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer f.Close()
	err = New(f).Export(context.Background(), sample.Requests(1))
	if err == nil || err.Error() != "writing /dev/full: no space left on device" {
		t.Errorf("got %v", err)
	}
}

func TestAppendedFileIsNotCut(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(name, []byte("other\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if s := New(f); s.file != nil {
		t.Error("a file opened for appending may be cut back")
	}
}

func TestAllocations(t *testing.T) {
	trees := sample.Requests(4)
	var e encoder
	var b []byte
	n := testing.AllocsPerRun(100, func() {
		b = b[:0]
		for i := range trees {
			b = e.tree(b, &trees[i])
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per run, want 0", n)
	}
}

func BenchmarkEncode(b *testing.B) {
	trees := sample.Requests(256)
	spans := 0
	for i := range trees {
		spans += len(trees[i].Spans)
	}
	var e encoder
	var buf []byte
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		buf = buf[:0]
		for i := range trees {
			buf = e.tree(buf, &trees[i])
		}
		n += spans
	}
	b.SetBytes(int64(len(buf)))
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "spans/s")
}
