package python

import (
	"compress/gzip"
	"io"
	"os"
	"slices"
	"testing"
	"time"
)

// memImage is what a reader saw of a process: a Memory to read it again. Bytes that
// were not seen are zero on pages of which something was seen.
type memImage struct {
	runtime, version uint64
	name             minor
	parts            []part
	pages            map[uint64][]byte
	damage           map[uint64]byte
	reads            int
}

type part struct {
	addr uint64
	data []byte
}

const pageSize = 4096

func (m *memImage) index() {
	m.pages = make(map[uint64][]byte)
	for _, p := range m.parts {
		for i, b := range p.data {
			a := p.addr + uint64(i)
			pg := m.pages[a/pageSize]
			if pg == nil {
				pg = make([]byte, pageSize)
				m.pages[a/pageSize] = pg
			}
			pg[a%pageSize] = b
		}
	}
}

func (m *memImage) ReadAt(addr uint64, buf []byte) error {
	m.reads++
	for i := range buf {
		a := addr + uint64(i)
		pg := m.pages[a/pageSize]
		if pg == nil {
			return ErrUnmapped
		}
		buf[i] = pg[a%pageSize]
		if b, ok := m.damage[a]; ok {
			buf[i] = b
		}
	}
	return nil
}

// encode writes the image: three words, then address, length and bytes of each part.
func (m *memImage) encode(w io.Writer) error {
	z := gzip.NewWriter(w)
	var b []byte
	b = le.AppendUint64(b, m.runtime)
	b = le.AppendUint64(b, m.version)
	b = le.AppendUint64(b, uint64(m.name[0])<<8|uint64(m.name[1]))
	for _, p := range m.parts {
		b = le.AppendUint64(b, p.addr)
		b = le.AppendUint32(b, uint32(len(p.data)))
		b = append(b, p.data...)
	}
	if _, err := z.Write(b); err != nil {
		return err
	}
	return z.Close()
}

func readImage(tb testing.TB, path string) *memImage {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		tb.Fatal(err)
	}
	m := &memImage{runtime: le.Uint64(b), version: le.Uint64(b[8:])}
	m.name = minor{int(le.Uint64(b[16:]) >> 8), int(le.Uint64(b[16:]) & 0xff)}
	for b = b[24:]; len(b) > 0; {
		n := 12 + int(le.Uint32(b[8:]))
		m.parts = append(m.parts, part{le.Uint64(b), b[12:n]})
		b = b[n:]
	}
	m.index()
	return m
}

func (m *memImage) open() (*Interp, error) {
	in, err := attach(m, image{runtime: m.runtime, version: m.version, name: m.name})
	if in != nil {
		in.pause = func(time.Duration) {}
	}
	return in, err
}

// recorder is a Memory that keeps what it reads.
type recorder struct {
	mem  Memory
	seen map[uint64]byte
}

func (r *recorder) ReadAt(addr uint64, buf []byte) error {
	if err := r.mem.ReadAt(addr, buf); err != nil {
		return err
	}
	for i, b := range buf {
		r.seen[addr+uint64(i)] = b
	}
	return nil
}

// parts joins the bytes that were read.
func (r *recorder) parts() []part {
	addrs := make([]uint64, 0, len(r.seen))
	for a := range r.seen {
		addrs = append(addrs, a)
	}
	slices.Sort(addrs)
	var out []part
	for _, a := range addrs {
		if n := len(out); n > 0 && out[n-1].addr+uint64(len(out[n-1].data)) == a {
			out[n-1].data = append(out[n-1].data, r.seen[a])
			continue
		}
		out = append(out, part{a, []byte{r.seen[a]}})
	}
	return out
}
