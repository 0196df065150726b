package pickle

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// show writes a value like testdata/zoo.py does.
func show(v Value, path ...ref) string {
	if !v.raw && slices.Contains(path, v.ref) {
		return "^"
	}
	if !v.raw && v.ref >= refFixed {
		path = append(slices.Clone(path), v.ref)
	}
	many := func(v Value) string {
		var parts []string
		for x := range v.Items() {
			parts = append(parts, show(x, path...))
		}
		if k := v.Kind(); k == Set || k == FrozenSet {
			slices.Sort(parts)
		}
		return strings.Join(parts, ", ")
	}
	b, _ := v.Bytes()
	switch v.Kind() {
	case None:
		return "None"
	case Bool:
		if b, _ := v.Bool(); b {
			return "True"
		}
		return "False"
	case Int:
		if i, ok := v.Int(); ok {
			return fmt.Sprint(i)
		}
		return "long:" + hex.EncodeToString(b)
	case Float:
		f, _ := v.Float()
		return "float:" + hex.EncodeToString(binary.BigEndian.AppendUint64(nil, math.Float64bits(f)))
	case String:
		s, _ := v.Text()
		return "str:" + hex.EncodeToString(s)
	case Bytes, ByteArray:
		return v.Kind().String() + ":" + hex.EncodeToString(b)
	case List:
		return "[" + many(v) + "]"
	case Tuple:
		return "(" + many(v) + ")"
	case Set, FrozenSet:
		return v.Kind().String() + "{" + many(v) + "}"
	case Dict:
		var parts []string
		for k, x := range v.Pairs() {
			parts = append(parts, show(k, path...)+": "+show(x, path...))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case Global:
		m, n := v.Name()
		return "<" + string(m) + " " + string(n) + ">"
	case Object:
		s := "call " + show(v.Callee(), path...) + show(v.Args(), path...)
		if k := v.KwArgs(); k.Kind() != Invalid {
			s += "**" + show(k, path...)
		}
		if st := v.State(); st.Kind() != Invalid {
			s += " state=" + show(st, path...)
		}
		items, pairs := v.Added()
		if items.Kind() != Invalid {
			s += " items=" + show(items, path...)
		}
		if pairs.Kind() != Invalid {
			s += " pairs=" + show(pairs, path...)
		}
		return s
	}
	return v.Kind().String()
}

type sample struct {
	Name     string
	Protocol int
	Pickle   []byte
	Want     string
	python   string
}

// zoo loads pickles that real interpreters made.
func zoo(tb testing.TB) []sample {
	files, err := filepath.Glob("testdata/zoo-*.jsonl")
	if err != nil || len(files) == 0 {
		tb.Fatal("no samples", err)
	}
	var out []sample
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			tb.Fatal(err)
		}
		sc := bufio.NewScanner(f)
		sc.Buffer(nil, 1<<24)
		for sc.Scan() {
			s := sample{python: name}
			if err := json.Unmarshal(sc.Bytes(), &s); err != nil {
				tb.Fatal(err)
			}
			z, err := zlib.NewReader(bytes.NewReader(s.Pickle))
			if err != nil {
				tb.Fatal(err)
			}
			if s.Pickle, err = io.ReadAll(z); err != nil {
				tb.Fatal(err)
			}
			out = append(out, s)
		}
		f.Close()
	}
	return out
}

func shown(v Value) string {
	s := show(v)
	if len(s) > 2000 {
		h := sha256.Sum256([]byte(s))
		return "sha256:" + hex.EncodeToString(h[:])
	}
	return s
}

func TestZoo(t *testing.T) {
	var d Decoder
	for _, s := range zoo(t) {
		v, err := d.Decode(s.Pickle, nil, len(s.Pickle))
		if err != nil {
			t.Errorf("%s: %s, protocol %d: %v", s.python, s.Name, s.Protocol, err)
			continue
		}
		if got := shown(v); got != s.Want {
			t.Errorf("%s: %s, protocol %d:\n got %.300s\nwant %.300s", s.python, s.Name, s.Protocol, got, s.Want)
		}
	}
}

// TestCut: of a stream that is cut anywhere reading says so, at an offset inside.
func TestCut(t *testing.T) {
	var d Decoder
	for _, s := range zoo(t) {
		step := max(1, len(s.Pickle)/200)
		for n := 0; n < len(s.Pickle); n += step {
			_, err := d.Decode(s.Pickle[:n], nil, len(s.Pickle))
			var e *Error
			if !errors.Is(err, ErrTruncated) || !errors.As(err, &e) || e.Offset > n {
				t.Fatalf("%s, protocol %d, cut at %d of %d: %v", s.Name, s.Protocol, n, len(s.Pickle), err)
			}
		}
	}
}

// TestGap: bytes missing within a str, bytes or bytearray are stepped over, and
// all else reads the same.
func TestGap(t *testing.T) {
	text := strings.Repeat("t", 5000)
	var p []byte
	p = append(p, 0x80, 4, opEmptyDict, opMemoize, opMark)
	p = append(p, opShortBinUnicode, 1, 'a', opMemoize, opBinUnicode)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(text)))
	start := len(p)
	p = append(p, text...)
	p = append(p, opMemoize, opShortBinUnicode, 1, 'b', opMemoize, opBinGet, 1, opSetItems, opStop)
	var d Decoder
	for _, c := range []struct{ head, tail int }{{start, 100}, {start + 10, 100}, {start + 10, len(p) - start - 4000}} {
		v, err := d.Decode(p[:c.head], p[len(p)-c.tail:], len(p))
		if err != nil {
			t.Fatal(c, err)
		}
		if got := show(v); got != "{str:61: str:, str:62: str:61}" || v.Get("a").Len() != len(text) {
			t.Fatal(c, got)
		}
		if _, ok := v.Get("a").Text(); ok {
			t.Fatal("a text with bytes missing was given")
		}
	}
	// A gap that ends in the middle of the opcodes is none of that.
	v, err := d.Decode(p[:start+10], p[len(p)-6:], len(p))
	if !errors.Is(err, ErrTruncated) {
		t.Fatal(err)
	}
	if got := show(v); got != "{str:61: str:}" || v.Complete() || v.Get("a").Len() != len(text) {
		t.Fatal(got)
	}
}

// TestPartial: what was complete before the end is there, at each place of a cut.
func TestPartial(t *testing.T) {
	var d Decoder
	for _, s := range zoo(t) {
		if s.Protocol != 5 || s.Name != "dataclass" && s.Name != "mixed" {
			continue
		}
		for n := range len(s.Pickle) {
			v, err := d.Decode(s.Pickle[:n], nil, len(s.Pickle))
			if err == nil {
				t.Fatal("no error")
			}
			got := show(v)
			switch {
			case s.Name == "mixed" && n == len(s.Pickle)-1:
				if got != s.Want {
					t.Fatal(got)
				}
			case s.Name == "mixed" && v.Kind() == List && v.Len() > 3:
				if !strings.HasPrefix(got, "[1, str:61, 2, None") || n < len(s.Pickle)-2 && v.Complete() {
					t.Fatal(n, got, v.Complete())
				}
			case s.Name == "dataclass" && v.Kind() == Object && v.State().Len() > 0:
				if x, ok := v.State().Get("x").Int(); !ok || x != 1 || n < len(s.Pickle)-1 && v.Complete() {
					t.Fatal(n, got)
				}
			}
		}
	}
}

// TestTail: the end of a stream without its beginning.
func TestTail(t *testing.T) {
	var d Decoder
	want := "{str:61: 1, str:62: [opaque, 2], str:63: call <m n>() state={str:78: 3}}"
	tail := "\x8c\x01a\x94K\x01\x8c\x01b\x94]\x94(h\x07K\x02e\x8c\x01c\x94\x8c\x01m\x94\x8c\x01n\x94\x93\x94)\x81\x94}\x94\x8c\x01x\x94K\x03sb"
	for _, end := range []string{"u.", "ub.", "u\x86\x94R\x94."} {
		v, err := d.DecodeTail([]byte(tail+end), 1000)
		if err != nil || show(v) != want {
			t.Errorf("%q: %s, %v", end, show(v), err)
		}
	}
	for _, bad := range []string{tail, tail + "u", tail + "u.x", tail[4:] + "u.", "K\x01" + tail + "u.", tail + "e.", "."} {
		if v, err := d.DecodeTail([]byte(bad), 1000); err == nil {
			t.Errorf("%q gave %s", bad, show(v))
		}
	}
}

// TestHostile: streams that claim or ask for more than they have.
func TestHostile(t *testing.T) {
	rep := func(s string, n int) []byte { return bytes.Repeat([]byte(s), n) }
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"empty":             {nil, ErrTruncated},
		"unknown opcode":    {[]byte("\x80\x04\xff."), ErrOpcode},
		"protocol 0":        {[]byte("I1\n."), ErrOpcode},
		"protocol 9":        {[]byte("\x80\x09N."), ErrMalformed},
		"huge bytes":        {[]byte("\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff."), ErrTruncated},
		"huge str":          {[]byte("\x80\x04X\xff\xff\xff\xff."), ErrTruncated},
		"huge memo index":   {[]byte("\x80\x04Nr\xff\xff\xff\xff."), ErrMalformed},
		"memo never set":    {[]byte("\x80\x04h\x01."), ErrMalformed},
		"pop of nothing":    {[]byte("\x80\x040."), ErrMalformed},
		"append to nothing": {[]byte("\x80\x04Na."), ErrMalformed},
		"append to a str":   {[]byte("\x80\x04\x8c\x01aNa."), ErrMalformed},
		"past the mark":     {[]byte("\x80\x04]N(a."), ErrMalformed},
		"odd pairs":         {[]byte("\x80\x04}(Nu."), ErrMalformed},
		"call of an int":    {[]byte("\x80\x04K\x01)R."), ErrMalformed},
		"state of a list":   {[]byte("\x80\x04]}b."), ErrMalformed},
		"two values":        {[]byte("\x80\x04NN."), ErrMalformed},
		"open mark":         {[]byte("\x80\x04N(."), ErrMalformed},
		"trailing":          {[]byte("\x80\x04N.x"), ErrTrailing},
		"marks":             {rep("(", 100000), ErrTruncated},
		"dicts":             {rep("}", 100000), ErrTruncated},
		"nested lists":      {append(rep("]", 100000), append(rep("a", 99999), '.')...), nil},
		"doubling":          {append([]byte("]"), append(rep("2\x942a", 1), '.')...), ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			var d Decoder
			_, err := d.Decode(c.b, nil, len(c.b))
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if got := d.memory(); got > 64*len(c.b)+4096 {
				t.Errorf("%d bytes of memory for %d", got, len(c.b))
			}
		})
	}
}

// memory is what a Decoder uses for its last stream.
func (d *Decoder) memory() int {
	return 20*len(d.nodes) + 20*len(d.chunks) + 4*(len(d.items)+len(d.memo)+len(d.stack)+len(d.marks)+len(d.work)) + 24*len(d.objs) + len(d.seen)
}

func TestBlank(t *testing.T) {
	var d Decoder
	for _, s := range zoo(t) {
		b := slices.Clone(s.Pickle)
		v, err := d.Decode(b, nil, len(b))
		if err != nil {
			t.Fatal(err)
		}
		d.Keep(v)
		d.Blank(nil)
		if !bytes.Equal(b, s.Pickle) {
			t.Fatalf("%s: what was to be kept changed", s.Name)
		}
		d.Blank(nil)
		if _, err = d.Decode(b, nil, len(b)); err != nil {
			t.Fatalf("%s: after blanking: %v", s.Name, err)
		}
		names := map[uint32]bool{}
		for i := range d.nodes {
			if n := &d.nodes[i]; n.kind == Global {
				names[n.a], names[n.b] = true, true
			}
		}
		for i := int(refFixed); i < len(d.nodes); i++ {
			n := Value{d: &d, ref: ref(i)}
			if x, ok := n.Int(); ok && x != 0 {
				t.Fatalf("%s: %d stayed", s.Name, x)
			}
			if x, ok := n.Text(); ok && len(bytes.Trim(x, "x")) > 0 && !names[uint32(i)] {
				t.Fatalf("%s: %q stayed", s.Name, x)
			}
		}
	}
}

// FuzzDecode reads any bytes in each way. Nothing fails but by an error, memory
// stays in proportion, blanking changes neither lengths nor structure.
func FuzzDecode(f *testing.F) {
	for _, s := range zoo(f) {
		if len(s.Pickle) < 2000 && s.python == "testdata/zoo-3.13.jsonl" {
			f.Add(s.Pickle, uint16(0), uint16(0), s.Protocol == 5)
			f.Add(s.Pickle, uint16(len(s.Pickle)/2), uint16(5), false)
		}
	}
	f.Add([]byte("\x93\xa1a\x93\x01\x02\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x81\xa1k\xc7\x06\x01\x00\x00\x00\x00ab"), uint16(0), uint16(0), true)
	f.Fuzz(func(t *testing.T, b []byte, cut, gap uint16, msgpack bool) {
		head, tail := b, []byte(nil)
		if n := int(cut); n > 0 && n+int(gap) < len(b) {
			head, tail = slices.Clone(b[:n]), slices.Clone(b[n+int(gap):])
		}
		var d Decoder
		decode := func() (Value, error) {
			if msgpack {
				return d.DecodeMsgpack(head, tail, len(b), func(code int8) bool { return code == 1 })
			}
			return d.Decode(head, tail, len(b))
		}
		v, err := decode()
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Offset > len(b)) {
			t.Fatalf("error without a place: %v", err)
		}
		if got := d.memory(); got > 64*len(b)+4096 {
			t.Fatalf("%d bytes of memory for %d", got, len(b))
		}
		touch(v, 5)
		kind, n := v.Kind(), v.Len()
		d.Blank(err)
		again, err2 := decode()
		if err == nil && (err2 != nil || again.Kind() != kind || again.Len() != n) {
			t.Fatalf("blanked: %v, %v of %d, was %v of %d", err2, again.Kind(), again.Len(), kind, n)
		}
		if v, err := d.DecodeTail(b, 7); err == nil {
			touch(v, 5)
		}
	})
}

func touch(v Value, depth int) {
	v.Int()
	v.Float()
	v.Text()
	v.Bytes()
	v.Bool()
	v.Name()
	if depth == 0 {
		return
	}
	n := 0
	for x := range v.Items() {
		if n++; n < 20 {
			touch(x, depth-1)
			touch(v.Index(n-1), depth-1)
		}
	}
	for k, x := range v.Pairs() {
		if n++; n > 20 {
			break
		}
		touch(k, depth-1)
		touch(x, depth-1)
	}
	touch(v.Callee(), depth-1)
	touch(v.Args(), depth-1)
	touch(v.State(), depth-1)
	v.Get("a")
}

// tokenList is a pickle of a dict with a list of n token ids.
func tokenList(n int) []byte {
	p := []byte{0x80, 4, opEmptyDict, opMemoize, opMark, opShortBinUnicode, 3, 'i', 'd', 's', opMemoize, opEmptyList, opMemoize}
	for i := 0; i < n; i += 1000 {
		p = append(p, opMark)
		for k := range min(1000, n-i) {
			p = append(p, opBinInt2)
			p = binary.LittleEndian.AppendUint16(p, uint16(i+k))
		}
		p = append(p, opAppends)
	}
	return append(p, opShortBinUnicode, 1, 'n', opMemoize, opBinInt1, 5, opSetItems, opStop)
}

func TestTokenList(t *testing.T) {
	var d Decoder
	p := tokenList(100_500)
	v, err := d.Decode(p, nil, len(p))
	if err != nil {
		t.Fatal(err)
	}
	ids, ok := v.Get("ids").AppendInts(nil)
	if !ok || len(ids) != 100_500 || v.Get("ids").Len() != len(ids) || ids[70_000] != 70_000&0xffff {
		t.Fatal(len(ids), ok)
	}
	if x, ok := v.Get("ids").Index(70_000).Int(); !ok || x != ids[70_000] {
		t.Fatal(x)
	}
	if len(d.nodes) > 20 {
		t.Errorf("%d values were built", len(d.nodes))
	}
	if n := testing.AllocsPerRun(10, func() { d.Decode(p, nil, len(p)) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTokenList(b *testing.B) {
	p := tokenList(100_000)
	var d Decoder
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		v, err := d.Decode(p, nil, len(p))
		if err != nil || v.Get("ids").Len() != 100_000 {
			b.Fatal(err)
		}
	}
}
