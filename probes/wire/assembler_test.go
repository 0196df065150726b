package wire

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"slices"
	"testing"

	"inferspan/bpf/event"
)

// rec describes a frame record in a test.
type rec struct {
	sock  uint64
	frame uint64
	part  uint16
	size  uint32
	off   uint32
	data  string
	flags uint8
}

func (r rec) record(t uint64) event.Record {
	return event.Record{Header: event.Header{Time: t, Kind: event.KindFrame, PID: 7, TID: 8},
		Frame: event.Frame{Sock: r.sock, ID: r.frame, Size: r.size, Off: r.off, Part: r.part, Dir: event.FrameRecv, Flags: r.flags}, Data: []byte(r.data)}
}

// text shows a message: parts by "|", the gap of a cut part by "..".
func text(m *Message) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d:", m.Sock)
	for i, p := range m.Parts {
		if i > 0 {
			b.WriteByte('|')
		}
		b.Write(p.Head)
		if !p.Whole() {
			fmt.Fprintf(&b, "..%s/%d", p.Tail, p.Size)
		}
	}
	return b.String()
}

const (
	more = event.FrameMore
	cut  = event.FrameCut
)

func TestAssembler(t *testing.T) {
	drops := func(why ...Drop) (d [Drops]uint64) {
		for _, w := range why {
			d[w]++
		}
		return d
	}
	for _, tt := range []struct {
		name string
		in   []rec
		want []string
		drop [Drops]uint64
	}{
		{name: "one record", in: []rec{{1, 1, 0, 3, 0, "abc", 0}}, want: []string{"1:abc"}},
		{name: "empty frame", in: []rec{{1, 1, 0, 0, 0, "", 0}}, want: []string{"1:"}},
		{name: "two parts", in: []rec{{1, 1, 0, 1, 0, "a", more}, {1, 2, 1, 2, 0, "bc", 0}}, want: []string{"1:a|bc"}},
		{name: "empty part", in: []rec{{1, 1, 0, 0, 0, "", more}, {1, 2, 1, 2, 0, "bc", 0}}, want: []string{"1:|bc"}},
		{name: "chunks", in: []rec{{1, 1, 0, 5, 0, "ab", 0}, {1, 1, 0, 5, 2, "cd", 0}, {1, 1, 0, 5, 4, "e", 0}}, want: []string{"1:abcde"}},
		{name: "chunks of the second part", in: []rec{{1, 1, 0, 1, 0, "t", more}, {1, 2, 1, 4, 0, "ab", 0}, {1, 2, 1, 4, 2, "cd", 0}}, want: []string{"1:t|abcd"}},
		{name: "gap before the last chunk", in: []rec{{1, 1, 0, 9, 0, "ab", cut}, {1, 1, 0, 9, 2, "cd", cut}, {1, 1, 0, 9, 7, "yz", cut}}, want: []string{"1:abcd..yz/9"}},
		{name: "gap, then another part", in: []rec{{1, 1, 0, 9, 0, "ab", cut | more}, {1, 1, 0, 9, 7, "yz", cut | more}, {1, 2, 1, 1, 0, "p", 0}}, want: []string{"1:ab..yz/9|p"}},
		{name: "aux frames are short", in: []rec{{1, 1, 0, 1, 0, "a", more}, {1, 2, 1, 1, 0, "b", more}, {1, 3, 2, 900, 0, "cc", more}, {1, 4, 3, 900, 0, "dd", 0}}, want: []string{"1:a|b|cc../900|dd../900"}},
		{name: "sockets interleave", in: []rec{{1, 1, 0, 2, 0, "a", 0}, {2, 2, 0, 2, 0, "x", 0}, {3, 3, 0, 1, 0, "-", 0}, {1, 1, 0, 2, 1, "b", 0}, {2, 2, 0, 2, 1, "y", 0}}, want: []string{"3:-", "1:ab", "2:xy"}},
		{name: "lost chunk", in: []rec{{1, 1, 0, 5, 0, "ab", 0}, {1, 1, 0, 5, 4, "e", 0}, {1, 2, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropChunk)},
		{name: "lost chunk of a cut frame", in: []rec{{1, 1, 0, 90, 0, "ab", cut}, {1, 1, 0, 90, 4, "ef", cut}, {1, 1, 0, 90, 88, "yz", cut}, {1, 2, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropChunk)},
		{name: "lost last chunk", in: []rec{{1, 1, 0, 5, 0, "ab", 0}, {1, 2, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropChunk)},
		{name: "lost first chunk", in: []rec{{1, 1, 0, 4, 2, "cd", 0}, {1, 2, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropStart)},
		{name: "lost part", in: []rec{{1, 1, 0, 1, 0, "a", more}, {1, 3, 2, 1, 0, "c", 0}, {1, 4, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropPart)},
		{name: "lost last part", in: []rec{{1, 1, 0, 1, 0, "a", more}, {1, 4, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropPart)},
		{name: "lost first part", in: []rec{{1, 2, 1, 1, 0, "b", more}, {1, 3, 2, 1, 0, "c", 0}, {1, 4, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropStart)},
		{name: "lost first part and last", in: []rec{{1, 2, 1, 1, 0, "b", more}, {1, 4, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropStart)},
		{name: "part twice", in: []rec{{1, 1, 0, 1, 0, "a", more}, {1, 2, 1, 1, 0, "b", more}, {1, 2, 1, 1, 0, "b", 0}}, drop: drops(DropBad)},
		{name: "bytes beyond the size", in: []rec{{1, 1, 0, 1, 0, "abc", 0}, {1, 4, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropBad)},
		{name: "size changes", in: []rec{{1, 1, 0, 4, 0, "ab", 0}, {1, 1, 0, 5, 2, "cde", 0}}, drop: drops(DropBad)},
		{name: "frame without bytes", in: []rec{{1, 1, 0, 4, 0, "", 0}, {1, 2, 0, 1, 0, "n", 0}}, want: []string{"1:n"}, drop: drops(DropChunk)},
	} {
		for _, keep := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, " keep=", keep), func(t *testing.T) {
				a := NewAssembler(Limits{}, keep)
				var got []string
				for i, r := range tt.in {
					x := r.record(uint64(100 + i))
					a.Put(&x, func(m *Message) {
						got = append(got, text(m))
						if m.End != x.Time || m.Begin > m.End || m.PID != 7 || m.TID != 8 || m.Dir != event.FrameRecv {
							t.Errorf("message %+v", m)
						}
						if keep {
							checkRecords(t, m)
						}
					})
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("got %q, want %q", got, tt.want)
				}
				if d := a.Stats().Dropped; d != tt.drop {
					t.Errorf("dropped %v, want %v", d, tt.drop)
				}
				if n, b := a.Pending(); n != 0 || b != 0 {
					t.Errorf("%d messages of %d bytes pending", n, b)
				}
			})
		}
	}
}

// checkRecords checks that the records of a message hold the bytes of its parts.
func checkRecords(t *testing.T, m *Message) {
	t.Helper()
	parts := make([][]byte, len(m.Parts))
	for i := range m.Records {
		parts[m.Records[i].Frame.Part] = append(parts[m.Records[i].Frame.Part], m.Records[i].Data...)
	}
	for i, p := range m.Parts {
		if !bytes.Equal(parts[i], append(bytes.Clone(p.Head), p.Tail...)) {
			t.Errorf("part %d is %q, its records hold %q", i, p.Head, parts[i])
		}
	}
}

func TestReceipt(t *testing.T) {
	a := NewAssembler(Limits{}, false)
	frame := bytes.Repeat([]byte("0123456789"), 50)
	whole := rec{1, 1, 0, 500, 0, string(frame), 0}.record(1)
	receipt := rec{9, 2, 0, 500, 0, string(frame[372:]), event.FrameReceipt | more}.record(2)
	var keys []uint64
	a.Put(&whole, func(m *Message) { keys = append(keys, m.Key()) })
	a.Put(&receipt, func(m *Message) {
		if !m.Receipt || !m.More || m.First != 0 || m.Parts[0].Size != 500 || len(m.Parts[0].Tail) != 128 {
			t.Errorf("receipt %+v", m)
		}
		keys = append(keys, m.Key())
	})
	if len(keys) != 2 || keys[0] == 0 || keys[0] != keys[1] {
		t.Errorf("keys %x", keys)
	}
	if st := a.Stats(); st.Messages != 1 || st.Receipts != 1 {
		t.Errorf("totals %+v", st)
	}
}

func TestKey(t *testing.T) {
	h := fnv.New64a()
	h.Write([]byte{0x10, 0x27, 0, 0}) // 10000
	tail := bytes.Repeat([]byte{1, 2, 3, 4}, 32)
	h.Write(tail)
	if got := Key(10000, tail); got != h.Sum64() {
		t.Errorf("key %x, want %x", got, h.Sum64())
	}
	if Key(10000, append([]byte("earlier bytes"), tail...)) != Key(10000, tail) {
		t.Error("bytes before the last 128 change the key")
	}
	if Key(0, nil) == 0 || Key(10000, tail) == Key(10001, tail) {
		t.Error("size does not change the key")
	}
	cutMessage := Message{Parts: []Part{{Size: 900, Head: make([]byte, 300), Tail: tail}}}
	if cutMessage.Key() != Key(900, tail) {
		t.Error("the key of a cut message is not that of its last bytes")
	}
	cutMessage.Parts[0].Tail = tail[:100]
	if cutMessage.Key() != 0 {
		t.Error("a message without its last bytes has a key")
	}
}

// TestLimits checks that memory stays bounded and that the oldest message goes first.
func TestLimits(t *testing.T) {
	a := NewAssembler(Limits{Streams: 4, Bytes: 100}, false)
	var got []string
	put := func(r rec) {
		x := r.record(1)
		a.Put(&x, func(m *Message) { got = append(got, text(m)) })
		if n, b := a.Pending(); n > 4 || b > 100 {
			t.Fatalf("%d messages of %d bytes pending", n, b)
		}
	}
	for s := range uint64(6) {
		put(rec{s, s, 0, 2, 0, "a", 0})
	}
	for s := range uint64(6) {
		put(rec{s, s, 0, 2, 1, "b", 0})
	}
	if want := []string{"2:ab", "3:ab", "4:ab", "5:ab"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if d := a.Stats().Dropped; d[DropMemory] != 2 || d[DropStart] != 2 {
		t.Errorf("dropped %v", d)
	}
	got = nil
	put(rec{1, 1, 0, 61, 0, string(make([]byte, 60)), 0})
	put(rec{2, 2, 0, 61, 0, string(make([]byte, 60)), 0}) // takes the place of the first
	put(rec{1, 1, 0, 61, 60, "x", 0})
	put(rec{2, 2, 0, 61, 60, "x", 0})
	put(rec{3, 3, 0, 200, 0, string(make([]byte, 150)), 0}) // never fits
	put(rec{3, 3, 0, 200, 150, string(make([]byte, 50)), 0})
	if len(got) != 1 || a.Stats().Dropped[DropMemory] != 4 {
		t.Errorf("got %d messages, dropped %v", len(got), a.Stats().Dropped)
	}
}

func TestExit(t *testing.T) {
	a := NewAssembler(Limits{}, false)
	x := rec{1, 1, 0, 2, 0, "a", 0}.record(1)
	a.Put(&x, nil)
	a.Put(&event.Record{Header: event.Header{Kind: event.KindExit, PID: 8}}, nil)
	if n, _ := a.Pending(); n != 1 {
		t.Error("another process's exit drops the message")
	}
	a.Put(&event.Record{Header: event.Header{Kind: event.KindExit, PID: 7}}, nil)
	if n, b := a.Pending(); n != 0 || b != 0 || a.Stats().Dropped[DropExit] != 1 {
		t.Error("exit leaves the message")
	}
}

func TestAllocs(t *testing.T) {
	a := NewAssembler(Limits{}, false)
	x := []event.Record{rec{1, 1, 0, 1, 0, "t", more}.record(1), rec{1, 2, 1, 60000, 0, string(make([]byte, 30000)), 0}.record(2),
		rec{1, 2, 1, 60000, 30000, string(make([]byte, 30000)), 0}.record(3), rec{2, 3, 0, 3, 0, "abc", 0}.record(4)}
	n := 0
	emit := func(*Message) { n++ }
	allocs := testing.AllocsPerRun(100, func() {
		for i := range x {
			a.Put(&x[i], emit)
		}
	})
	if allocs != 0 || n == 0 {
		t.Errorf("%v allocations for %d messages", allocs, n)
	}
}

// FuzzAssembler builds messages, loses and repeats some of their records, and
// checks what comes out. If nothing was lost it is what went in. Else each frame
// is one that was sent at that place of a message: where the end of a message and
// the beginning of the next are both lost, what is left of them looks like one.
func FuzzAssembler(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4}, []byte{})
	f.Add([]byte{200, 3, 30, 90, 7, 1}, []byte{1, 0, 2})
	f.Add([]byte{255, 255, 250, 251, 252, 9, 9, 9}, []byte{0, 0, 0, 1, 1, 2, 0, 1})
	f.Fuzz(func(t *testing.T, shape, fate []byte) {
		if len(shape) > 64 {
			shape = shape[:64]
		}
		const chunk, keepHead, keepTail = 16, 64, 16
		var recs []event.Record
		var want []string
		sent := map[string]bool{} // frames, with their place
		frame := uint64(0)
		for i, s := range shape {
			sock, parts := uint64(s&1), 1+int(s>>1&1)
			id := ""
			for p := range parts {
				frame++
				data := bytes.Repeat([]byte{byte(i), byte(p), byte(frame)}, int(s>>2))
				head, tail := data, []byte(nil)
				flags := uint8(0)
				if p < parts-1 {
					flags = more
				}
				if len(data) > keepHead+keepTail {
					head, tail = data[:keepHead], data[len(data)-keepTail:]
					flags |= cut
				}
				for off := 0; off < len(head) || off == 0; off += chunk {
					recs = append(recs, rec{sock, frame, uint16(p), uint32(len(data)), uint32(off), string(head[off:min(off+chunk, len(head))]), flags}.record(frame))
				}
				if tail != nil {
					recs = append(recs, rec{sock, frame, uint16(p), uint32(len(data)), uint32(len(data) - len(tail)), string(tail), flags}.record(frame))
				}
				part := fmt.Sprintf("|%d:%x..%x", len(data), head, tail)
				id += part
				sent[fmt.Sprint(p, part)] = true
				for off := chunk; tail != nil && off < len(head); off += chunk {
					// A chunk lost next to the gap makes a wider gap.
					sent[fmt.Sprintf("%d|%d:%x..%x", p, len(data), head[:off], tail)] = true
				}
			}
			want = append(want, fmt.Sprint(sock, id))
		}
		var lossy []event.Record
		lost := false
		for i, r := range recs {
			n := byte(0)
			if i < len(fate) {
				n = fate[i] % 3
			}
			switch n {
			case 0:
				lossy = append(lossy, r)
			case 1:
				lost = true
			case 2:
				lost = true
				lossy = append(lossy, r, r)
			}
		}
		for _, l := range []Limits{{}, {Streams: 1, Bytes: 200, Parts: 2}} {
			a := NewAssembler(l, l.Bytes == 0)
			var got []string
			for i := range lossy {
				a.Put(&lossy[i], func(m *Message) {
					s := fmt.Sprint(m.Sock)
					for i, p := range m.Parts {
						part := fmt.Sprintf("|%d:%x..%x", p.Size, p.Head, p.Tail)
						if !sent[fmt.Sprint(i, part)] {
							t.Fatalf("frame %d %s was never sent", i, part)
						}
						s += part
					}
					got = append(got, s)
					if l.Bytes == 0 {
						checkRecords(t, m)
					}
				})
				if n, b := a.Pending(); l.Bytes > 0 && (n > l.Streams || b > l.Bytes) {
					t.Fatalf("%d messages of %d bytes pending", n, b)
				}
			}
			if st := a.Stats(); uint64(len(got)) != st.Messages {
				t.Fatalf("%d messages, counted %d", len(got), st.Messages)
			}
			if n, b := a.Pending(); !lost && l.Bytes == 0 && (!slices.Equal(got, want) || n != 0 || b != 0) {
				t.Fatalf("got %q, want %q, %d pending with %d bytes", got, want, n, b)
			}
		}
	})
}

func BenchmarkAssembler(b *testing.B) {
	a := NewAssembler(Limits{}, false)
	x := []event.Record{rec{1, 1, 0, 1, 0, "t", more}.record(1), rec{1, 2, 1, 400, 0, string(make([]byte, 400)), 0}.record(2),
		rec{2, 3, 0, 1500, 0, string(make([]byte, 1500)), 0}.record(4)}
	emit := func(*Message) {}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		a.Put(&x[i%3], emit)
	}
}
