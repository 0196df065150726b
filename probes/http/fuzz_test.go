package httptap

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"inferspan/bpf/event"
)

// FuzzRecords feeds sequences of records: b holds operations of 4 bytes
// (connection and direction, flags, jump of the offset, length), each followed
// by that many bytes of payload.
func FuzzRecords(f *testing.F) {
	for _, name := range transcripts(f) {
		if strings.Contains(name, "_long") {
			continue
		}
		var b []byte
		for _, r := range transcript(f, name, 1) {
			for d := r.Data; ; {
				n := min(len(d), 255)
				b = append(b, r.HTTP.Dir, r.HTTP.Flags, 0, byte(n))
				b = append(b, d[:n]...)
				if d = d[n:]; len(d) == 0 {
					break
				}
			}
		}
		f.Add(b, true)
	}
	f.Add([]byte("\x01\x00\x00\x12GET / HTTP/1.1\r\n\r\n\x02\x00\x05\x03abc\x03\x04\x00\x00"), false)
	f.Fuzz(func(t *testing.T, b []byte, content bool) {
		records := decodeOps(b)
		p := newTestParser(Options{Content: content, MaxBody: 4096})
		p.tap.max = 3
		got := parse(p, records)
		check(t, got)
		for _, s := range got {
			if exchangeOf(s).Engine != 1 || exchangeOf(s).PID != testPID {
				t.Fatalf("names no exchange of ours: %s", show(s))
			}
		}
		if len(p.tap.conns) > 3 || p.contents.held < 0 || p.contents.held > maxContent {
			t.Fatalf("%d connections, %d bytes held", len(p.tap.conns), p.contents.held)
		}
		p.Detach(1<<60, noEmit)
		if p.contents.held != 0 {
			t.Fatalf("%d bytes held at the end", p.contents.held)
		}
		for _, out := range [][]event.Record{scrub(records), redact(records)} {
			for i := range out {
				if len(out[i].Data) != len(records[i].Data) {
					t.Fatal("length changed")
				}
			}
		}
		check(t, parse(newTestParser(Options{}), redact(records)))
		if once := scrub(records); !sameData(once, scrub(once)) {
			t.Fatal("scrubbing is not idempotent")
		}
	})
}

func decodeOps(b []byte) []event.Record {
	var out []event.Record
	var off [4][4]uint64
	for len(b) >= 4 {
		dir, conn := b[0]&3, b[0]>>2&3
		n := min(int(b[3]), len(b)-4)
		off[conn][dir] += uint64(b[2])
		r := event.Record{
			Header: event.Header{Time: uint64(len(out) + 1), Kind: event.KindHTTP, PID: testPID},
			HTTP:   event.HTTP{Conn: uint64(conn), Off: off[conn][dir], Size: uint32(n), Dir: dir, Flags: b[1]},
			Data:   b[4 : 4+n],
		}
		if b[1]&event.HTTPCut != 0 {
			r.HTTP.Size += binary.LittleEndian.Uint32(b[:4]) >> 20
		}
		if dir == 0 {
			r.Kind = event.KindExit
			r.PID += uint32(b[2] & 1)
		}
		off[conn][dir] += uint64(r.HTTP.Size)
		out = append(out, r)
		b = b[4+n:]
	}
	return out
}

func sameData(a, b []event.Record) bool {
	for i := range a {
		if !bytes.Equal(a[i].Data, b[i].Data) {
			return false
		}
	}
	return true
}

func FuzzHead(f *testing.F) {
	f.Add([]byte("GET /x?y HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h head
		if h.parse(b, true) && (len(h.method) == 0 || len(h.target) == 0 || h.length < -1) {
			t.Fatalf("%+v", h)
		}
		if h.parse(b, false) && (h.status < 100 || h.status > 999 || h.length < -1) {
			t.Fatalf("%+v", h)
		}
	})
}

func FuzzFraming(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\n"), uint8(3))
	f.Add([]byte("a;x=y\r\n0123456789\r\n0\r\nT: v\r\n\r\nrest"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		run := func(step int) (body []byte, used int, done, lost bool) {
			fr := framing{kind: bodyChunked}
			for used < len(b) {
				piece := b[used:min(len(b), used+step)]
				n, s, end := fr.next(piece)
				if n > len(piece) || n == 0 && !fr.lost() && !end {
					// An extension may end without bytes of its own.
					if n, _, _ = fr.next(piece); n == 0 {
						t.Fatalf("no progress at %d", used)
					}
				}
				if fr.lost() {
					return body, used, false, true
				}
				if s == spanBody {
					body = append(body, piece[:n]...)
				}
				used += n
				if end {
					return body, used, true, false
				}
			}
			return body, used, false, false
		}
		b1, _, d1, l1 := run(len(b) + 1)
		b2, _, d2, l2 := run(int(step) + 1)
		if !bytes.Equal(b1, b2) || d1 != d2 || l1 != l2 {
			t.Fatalf("depends on the split: %q %v %v, %q %v %v", b1, d1, l1, b2, d2, l2)
		}
	})
}
