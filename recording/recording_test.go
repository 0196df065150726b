package recording

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"inferspan/bpf/event"
	"inferspan/probes/target"
)

var testMeta = Meta{Tool: "test", Started: time.Unix(1700000000, 0).UTC(), Redacted: true}

func testRecord(i int) *event.Record {
	return &event.Record{
		Header: event.Header{Time: uint64(i), Kind: event.KindFrame, PID: 7, TID: 8},
		Frame:  event.Frame{Sock: 1, ID: uint64(i), Size: 2000, Dir: event.FrameSend},
		Data:   bytes.Repeat([]byte(fmt.Sprintf("%06d", i)), 300),
	}
}

// write makes a recording of n records with facts at the start and in the middle.
func write(t testing.TB, n int) []byte {
	var buf bytes.Buffer
	w, err := NewWriter(&buf, testMeta)
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(w.Engine(&target.Engine{ID: 1, Kind: "vllm"}))
	check(w.Tokenizer(Tokenizer{Engine: 1, JSON: []byte(`{"a":1}`)}))
	for i := range n {
		if i == n/2 {
			check(w.Engine(&target.Engine{ID: 2, Kind: "vllm"}))
		}
		check(w.Record(testRecord(i)))
	}
	check(w.Close())
	return buf.Bytes()
}

// read returns the kinds of items in order ("e1", "t1", "r<time>") and the final error.
func read(b []byte) (items []string, err error) {
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for {
		it, err := r.Next()
		if err != nil {
			return items, err
		}
		switch {
		case it.Engine != nil:
			items = append(items, fmt.Sprintf("e%d", it.Engine.ID))
		case it.Tokenizer != nil:
			items = append(items, fmt.Sprintf("t%d", it.Tokenizer.Engine))
		default:
			var rec event.Record
			if err := event.Decode(it.Record, &rec); err != nil {
				return items, err
			}
			items = append(items, fmt.Sprintf("r%d", rec.Time))
		}
	}
}

func TestRoundTrip(t *testing.T) {
	const n = 1000
	b := write(t, n)
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if r.Meta() != testMeta {
		t.Errorf("meta %+v, want %+v", r.Meta(), testMeta)
	}
	items, err := read(b)
	if err != io.EOF {
		t.Fatalf("error %v, want EOF", err)
	}
	want := []string{"e1", "t1"}
	for i := range n {
		if i == n/2 {
			want = append(want, "e2")
		}
		want = append(want, fmt.Sprintf("r%d", i))
	}
	if !reflect.DeepEqual(items, want) {
		t.Errorf("items differ: %d, want %d", len(items), len(want))
	}
	if len(b) > n*1800/4 {
		t.Errorf("%d bytes: not compressed", len(b))
	}
}

// Every cut of the file gives ErrTruncated (or ErrFormat within the header), and
// what comes before the fault is a prefix of the whole.
func TestTruncated(t *testing.T) {
	b := write(t, 600)
	all, _ := read(b)
	for cut := 0; cut < len(b); cut += 1 + cut/50 {
		items, err := read(b[:cut])
		want := ErrTruncated
		if cut < headerLen {
			want = ErrFormat
		}
		if !errors.Is(err, want) {
			t.Fatalf("cut at %d: error %v, want %v", cut, err, want)
		}
		if len(items) > len(all) || !reflect.DeepEqual(items, append([]string(nil), all[:len(items)]...)) && len(items) > 0 {
			t.Fatalf("cut at %d: not a prefix", cut)
		}
	}
	if items, _ := read(b[:len(b)-1]); len(items) != len(all) {
		t.Errorf("only the last byte missing: %d of %d items", len(items), len(all))
	}
}

// A changed byte anywhere after the header is noticed.
func TestCorrupt(t *testing.T) {
	b := write(t, 50)
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 0x10
		_, err := read(c)
		switch {
		case err == nil || err == io.EOF:
			t.Fatalf("byte %d changed: not noticed", i)
		case !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrFormat):
			t.Fatalf("byte %d changed: error %v", i, err)
		}
	}
	if _, err := read(append(bytes.Clone(b), 'x')); !errors.Is(err, ErrCorrupt) {
		t.Errorf("bytes after the end: error %v", err)
	}
}

func TestNotARecording(t *testing.T) {
	newer := write(t, 0)
	newer[8] = Version + 1
	for name, c := range map[string]struct {
		in   []byte
		want string
	}{
		"empty":   {nil, "shorter than its header"},
		"text":    {[]byte("{\"trace_id\": \"00\"}\n"), "no recording header"},
		"newline": {bytes.Replace(write(t, 0), []byte("\r\n"), []byte("\n"), 1), "no recording header"},
		"newer":   {newer, "this build reads up to 1"},
	} {
		_, err := NewReader(bytes.NewReader(c.in))
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want ErrFormat with %q", name, err, c.want)
		}
	}
}

type failWriter struct{ n int }

var errDisk = errors.New("no space left on device")

func (w *failWriter) Write(b []byte) (int, error) {
	if w.n -= len(b); w.n < 0 {
		return 0, errDisk
	}
	return len(b), nil
}

func TestWriteErrorSticks(t *testing.T) {
	w, err := NewWriter(&failWriter{n: 500}, testMeta)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		if err = w.Record(testRecord(i)); err != nil {
			break
		}
	}
	if !errors.Is(err, errDisk) {
		t.Fatalf("error %v, want the disk's", err)
	}
	if err := w.Close(); !errors.Is(err, errDisk) {
		t.Errorf("Close: %v, want the disk's", err)
	}
}

func FuzzReader(f *testing.F) {
	b := write(f, 3)
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewReader(bytes.NewReader(b))
		if err != nil {
			if r != nil {
				t.Fatal("a reader and an error")
			}
			return
		}
		for n := 0; ; n++ {
			it, err := r.Next()
			if err != nil {
				if it.Engine != nil || it.Tokenizer != nil || it.Record != nil {
					t.Fatal("an item and an error")
				}
				if _, again := r.Next(); again != err {
					t.Fatalf("the error changed from %v to %v", err, again)
				}
				return
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	data := write(b, 5000)
	b.SetBytes(5000 * 1800)
	for b.Loop() {
		r, err := NewReader(bytes.NewReader(data))
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := r.Next(); err != nil {
				break
			}
		}
	}
}
