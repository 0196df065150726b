package httptap

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/signal"
)

var update = flag.Bool("update", false, "write golden files")

// wire makes the records of one connection.
type wire struct {
	conn  uint64
	flags uint8
	off   [4]uint64
	out   []event.Record
}

const testPID = 77

func (w *wire) record(ts uint64, dir uint8, data []byte) *event.Record {
	r := event.Record{
		Header: event.Header{Time: ts, Kind: event.KindHTTP, PID: testPID, TID: testPID},
		HTTP: event.HTTP{
			Conn: w.conn, Off: w.off[dir], Size: uint32(len(data)), LocalPort: 8000, RemotePort: 40000, Dir: dir, Flags: w.flags,
		},
		Data: data,
	}
	w.off[dir] += uint64(len(data))
	w.out = append(w.out, r)
	return &w.out[len(w.out)-1]
}

// call adds a read or write, as several records if it is longer than one holds.
func (w *wire) call(ts uint64, dir uint8, data string) {
	b := []byte(data)
	for len(b) > event.MaxData {
		w.record(ts, dir, b[:event.MaxData])
		b = b[event.MaxData:]
	}
	w.record(ts, dir, b)
}

func (w *wire) read(ts uint64, data string)  { w.call(ts, event.HTTPRead, data) }
func (w *wire) write(ts uint64, data string) { w.call(ts, event.HTTPWrite, data) }

// skip moves n bytes in calls calls that are not copied; the next record says so.
func (w *wire) skip(dir uint8, n uint64) { w.off[dir] += n }

func (w *wire) close(ts uint64, flags uint8) {
	w.record(ts, event.HTTPClose, nil).HTTP.Flags |= flags
}

// transcript reads a file of testdata.
func transcript(tb testing.TB, name string, conn uint64) []event.Record {
	tb.Helper()
	f, err := os.Open(name)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	w := wire{conn: conn}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		p := strings.SplitN(s.Text(), " ", 3)
		us, err := strconv.ParseUint(p[0], 10, 64)
		if err != nil {
			tb.Fatal(err)
		}
		ts := 1e9 + us*1000
		data := ""
		if len(p) == 3 {
			if data, err = strconv.Unquote(p[2]); err != nil {
				tb.Fatalf("%s: %v", name, err)
			}
		}
		switch p[1] {
		case "read":
			w.read(ts, data)
		case "write":
			w.write(ts, data)
		case "eof":
			w.close(ts, event.HTTPEOF)
		case "reset":
			w.close(ts, event.HTTPReset)
		case "close":
			w.close(ts, 0)
		default:
			tb.Fatalf("%s: unknown call %q", name, p[1])
		}
	}
	if s.Err() != nil {
		tb.Fatal(s.Err())
	}
	return w.out
}

func transcripts(tb testing.TB) []string {
	tb.Helper()
	names, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(names) == 0 {
		tb.Fatalf("no transcripts: %v", err)
	}
	return names
}

func newTestParser(o Options) *Parser {
	return New(o, func(pid uint32) (signal.EngineID, bool) { return 1, pid == testPID })
}

// clone copies a signal, which is valid only during the call.
func clone(s signal.Signal) signal.Signal {
	switch s := s.(type) {
	case *signal.ExchangeBegin:
		c := *s
		return &c
	case *signal.ExchangeFirst:
		c := *s
		return &c
	case *signal.ExchangeEnd:
		c := *s
		c.FinishReasons = slices.Clone(s.FinishReasons)
		c.Calls = slices.Clone(s.Calls)
		return &c
	}
	panic(fmt.Sprintf("unexpected signal %T", s))
}

func parse(p *Parser, records []event.Record) []signal.Signal {
	var out []signal.Signal
	for i := range records {
		r := records[i]
		r.Data = bytes.Clone(r.Data)
		p.Put(&r, func(s signal.Signal) { out = append(out, clone(s)) })
		for j := range r.Data {
			r.Data[j] = '#' // nothing may refer to a record after Put
		}
	}
	return out
}

// show prints the fields of a signal that are set.
func show(s signal.Signal) string {
	v := reflect.ValueOf(s).Elem()
	return v.Type().Name() + fields(v)
}

func fields(v reflect.Value) string {
	var b strings.Builder
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		if f.IsZero() {
			continue
		}
		switch {
		case name == "Exchange":
			fmt.Fprintf(&b, " #%d", f.FieldByName("Seq").Uint())
		case strings.HasPrefix(f.Type().Name(), "Opt["):
			if f.FieldByName("OK").Bool() {
				fmt.Fprintf(&b, " %s=%#v", name, f.FieldByName("V").Interface())
			}
		case f.Kind() == reflect.Struct:
			fmt.Fprintf(&b, " %s{%s}", name, strings.TrimSpace(fields(f)))
		case name == "Calls":
			fmt.Fprintf(&b, " %s=%+v", name, f.Interface())
		case f.Kind() == reflect.Slice:
			fmt.Fprintf(&b, " %s=%q", name, f.Interface())
		case f.Kind() == reflect.String:
			fmt.Fprintf(&b, " %s=%q", name, f.String())
		default:
			fmt.Fprintf(&b, " %s=%v", name, f.Interface())
		}
	}
	return b.String()
}

func showAll(s []signal.Signal) string {
	var b strings.Builder
	for _, x := range s {
		b.WriteString(show(x))
		b.WriteByte('\n')
	}
	return b.String()
}

// showContents prints what only a parser with Content gives.
func showContents(s []signal.Signal) string {
	var b strings.Builder
	for _, x := range s {
		switch x := x.(type) {
		case *signal.ExchangeBegin:
			fmt.Fprintf(&b, "#%d input %s\n", x.Exchange.Seq, x.Body.Messages)
		case *signal.ExchangeEnd:
			fmt.Fprintf(&b, "#%d output %s %s\n", x.Exchange.Seq, x.Content, x.ErrorMessage)
			for _, c := range x.Calls {
				fmt.Fprintf(&b, "#%d call %d of %d: %s(%s)\n", x.Exchange.Seq, c.Index, c.Choice, c.Name, c.Arguments)
			}
		}
	}
	return b.String()
}

func TestTranscripts(t *testing.T) {
	for _, name := range transcripts(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			records := transcript(t, name, 5)
			got := showAll(parse(newTestParser(Options{}), records)) + "\n" +
				showContents(parse(newTestParser(Options{Content: true}), records))
			golden := strings.TrimSuffix(name, ".txt") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func fieldsOf(v any) string { return fields(reflect.ValueOf(v)) }
