package python

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"inferspan/probes/procfs"
)

var update = flag.Bool("update", false, "record testdata/*.image.gz from the interpreters on this machine")

// TestRecordImages makes the fixtures. They hold only what reading the zoo needs:
// no environment, no other memory.
func TestRecordImages(t *testing.T) {
	if !*update {
		t.Skip("only with -update")
	}
	eachPython(t, func(t *testing.T, python string) {
		pid := start(t, python, "-I", "-S").PID()
		maps, err := procfs.FS{}.Maps(pid)
		if err != nil {
			t.Fatal(err)
		}
		img, err := NewOpener(procfs.FS{}).findImage(pid, maps)
		if err != nil {
			t.Fatal(err)
		}
		rec := &recorder{mem: Process{PID: pid}, seen: make(map[uint64]byte)}
		in, err := attach(rec, img)
		if err != nil {
			t.Fatal(err)
		}
		checkZoo(t, in)
		if t.Failed() {
			return
		}
		m := &memImage{runtime: img.runtime, version: img.version, name: img.name, parts: rec.parts()}
		var b bytes.Buffer
		if err := m.encode(&b); err != nil {
			t.Fatal(err)
		}
		v, _, _ := strings.Cut(filepath.Base(t.Name()), " ")
		if err := os.WriteFile("testdata/"+v+".image.gz", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes seen, %d written", v, len(rec.seen), b.Len())
	})
}

func images(tb testing.TB) []string {
	names, err := filepath.Glob("testdata/*.image.gz")
	if err != nil || len(names) == 0 {
		tb.Fatalf("no images: %v", err)
	}
	sort.Strings(names)
	return names
}

// TestImages reads the recorded interpreters, on machines that have none, too.
func TestImages(t *testing.T) {
	for _, name := range images(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			in, err := readImage(t, name).open()
			if err != nil {
				t.Fatal(err)
			}
			checkZoo(t, in)
		})
	}
}

// TestNameless attaches to interpreters of which no symbol or file name tells the
// version.
func TestNameless(t *testing.T) {
	for _, name := range images(t) {
		if strings.Contains(name, "3.10") {
			continue // has no section of its own to be found by
		}
		m := readImage(t, name)
		in, err := attach(m, image{runtime: m.runtime, nameless: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want := filepath.Base(name); !strings.HasPrefix(want, in.Version[:4]) {
			t.Errorf("%s: attached as %s", name, in.Version)
		}
	}
}

// TestDebugOffsets changes what an interpreter says about itself.
func TestDebugOffsets(t *testing.T) {
	for v, table := range debugTables {
		set := func(m *memImage, word int, to uint64) {
			for i := range 8 {
				m.damage[m.runtime+uint64(8*word+i)] = byte(to >> (8 * i))
			}
		}
		word := func(name string) int {
			i := slices.IndexFunc(table.Fields, func(f debugField) bool { return f.Name == name })
			if i < 0 {
				t.Fatalf("no word for %s in %v", name, v)
			}
			return table.Fields[i].Word
		}
		for _, c := range []struct {
			what string
			word int
			to   uint64
			want string // "": it attaches
		}{
			{"nothing", word("InterpID"), uint64(layouts[v].InterpID), ""},
			{"cookie", 0, 0, "no debug offsets"},
			{"version", table.Version, 0x030b00f0, "debug offsets of version 0x30b00f0"},
			{"free-threaded", table.FreeThreaded, 1, "free-threaded"},
			{"size of a reference", word("ObjectType"), 16, "modified build"},
			{"objects", word("ListItems"), 32, "ListItems is at 32, not 24"},
			{"a place of nothing", word("CodeName"), 1 << 40, "debug offset of CodeName is 0x10000000000"},
			{"modules elsewhere", word("InterpModules"), uint64(layouts[v].InterpModules) + 8, "sys.modules"},
			{"frames elsewhere", word("FrameLocals"), uint64(layouts[v].FrameLocals) + 8, ""},
		} {
			m := readImage(t, "testdata/"+v.String()+".image.gz")
			m.damage = make(map[uint64]byte)
			set(m, c.word, c.to)
			in, err := m.open()
			if c.want == "" {
				if err != nil {
					t.Errorf("%v, %s: %v", v, c.what, err)
				} else if c.what != "nothing" && (in.layout.FrameLocals != int(c.to) || in.Offsets != "published by the interpreter, 1 not as in the headers") {
					t.Errorf("%v, %s: locals of frames at %d, %s", v, c.what, in.layout.FrameLocals, in.Offsets)
				}
				continue
			}
			if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %s: %v, want %q", v, c.what, err, c.want)
			}
		}
	}
}

// changing is a Memory in which one word changes at each read of it.
type changing struct {
	Memory
	addr  uint64
	after int // reads of it that are left alone
	n     int
	until int // reads of it after which it stays as it is; 0: never
}

func (c *changing) ReadAt(addr uint64, buf []byte) error {
	if err := c.Memory.ReadAt(addr, buf); err != nil {
		return err
	}
	if addr <= c.addr && c.addr+8 <= addr+uint64(len(buf)) {
		if c.n++; c.n > c.after && (c.until == 0 || c.n <= c.until) {
			b := buf[c.addr-addr:]
			binary.LittleEndian.PutUint64(b, le.Uint64(b)+uint64(c.n)<<4)
		}
	}
	return nil
}

// TestUnstable changes objects under the reader: it must give up with ErrUnstable,
// or give the right value once they hold still.
func TestUnstable(t *testing.T) {
	for _, name := range images(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			m := readImage(t, name)
			in, err := m.open()
			if err != nil {
				t.Fatal(err)
			}
			main, err := in.Module("__main__")
			if err != nil {
				t.Fatal(err)
			}
			get := func(name string) Value {
				v, err := main.Path(strings.Split(name, ".")...)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			l := in.layout
			list, dict, str, set := get("lst"), get("unicode_dict"), get("long_str"), get("a_set")
			items, err := in.u64(list.addr + uint64(l.ListItems))
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				what string
				addr uint64
				read func() error
			}{
				{"text of a str", str.addr + uint64(l.StrASCIISize) + 8, func() error { _, err := str.Str(); return err }},
				{"reference to a str", str.from.addr, func() error { _, err := str.Str(); return err }},
				{"element of a list", items, func() error { _, err := list.List(100); return err }},
				{"place of a list's elements", list.addr + uint64(l.ListItems), func() error { _, err := list.List(100); return err }},
				{"keys of a dict", dict.addr + uint64(l.DictKeys), func() error { _, err := dict.Items(100); return err }},
				{"keys of a dict that is searched", dict.addr + uint64(l.DictKeys), func() error { _, err := dict.Key("b"); return err }},
				{"size of a dict", dict.addr + uint64(l.DictUsed), func() error { _, err := dict.Items(100); return err }},
				{"table of a set", set.addr + uint64(l.SetTable), func() error { _, err := set.List(100); return err }},
			} {
				mem := in.mem
				in.mem = &changing{Memory: mem, addr: c.addr, after: 1}
				if err := c.read(); !errors.Is(err, ErrUnstable) && !errors.Is(err, ErrUnmapped) && !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s changes for good: %v", c.what, err)
				}
				in.mem = &changing{Memory: mem, addr: c.addr, after: 1, until: 3}
				if err := c.read(); err != nil {
					t.Errorf("%s changes twice: %v", c.what, err)
				}
				in.mem = mem
			}
		})
	}
}

// FuzzImage damages the memory of an interpreter and reads everything in it: no
// panic, a bounded number of reads, and what is returned is well-formed. Damage is a
// list of 4 bytes each: a part (2 bytes), a place in it, and the new byte.
func FuzzImage(f *testing.F) {
	var all []*memImage
	for i, name := range images(f) {
		all = append(all, readImage(f, name))
		f.Add(uint8(i), []byte{})
		for part := range uint16(40) {
			f.Add(uint8(i), []byte{byte(part * 6), byte(part * 6 >> 8), byte(part * 8), 0xff, byte(part), 0, 16, 1})
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, damage []byte) {
		src := all[int(which)%len(all)]
		m := &memImage{runtime: src.runtime, version: src.version, name: src.name, pages: src.pages, damage: make(map[uint64]byte)}
		for ; len(damage) >= 4; damage = damage[4:] {
			p := src.parts[(int(damage[0])|int(damage[1])<<8)%len(src.parts)]
			m.damage[p.addr+uint64(int(damage[2])%len(p.data))] = damage[3]
		}
		in, err := m.open()
		if (in == nil) == (err == nil) {
			t.Fatalf("open = %v, %v", in, err)
		}
		if err != nil {
			return
		}
		if in.Version == "" {
			t.Fatal("no version and no error")
		}
		walkAll(t, in)
		// The whole walk needs some 30,000 reads of the undamaged images.
		if m.reads > 1_000_000 {
			t.Fatalf("%d reads", m.reads)
		}
	})
}

// walkAll reads every attribute of __main__ and of its instances in all ways.
func walkAll(t *testing.T, in *Interp) {
	if fr, err := in.MainFrames(); err == nil {
		for _, f := range fr {
			if _, err := f.Local("local_text"); err == nil && f.Name == "" {
				t.Fatal("a local of a frame without name")
			}
			if c, err := f.Code(); (c == nil) == (err == nil) {
				t.Fatalf("code %v, %v", c, err)
			}
		}
	}
	main, err := in.Module("__main__")
	if err != nil {
		return
	}
	vars, err := main.Vars(500)
	if err != nil {
		return
	}
	for _, it := range vars {
		if _, err := it.Key.Str(); err != nil {
			continue
		}
		v := it.Value
		if p, err := v.Plain(300); err != nil && p != nil {
			t.Fatalf("value %v and error %v", p, err)
		}
		switch v.Kind() {
		case Type:
			if n, err := v.Name(); (n == "") == (err == nil) {
				t.Fatalf("name %q, %v", n, err)
			}
			_, _ = v.EnumMembers(20)
			_, _ = v.Vars(50)
		case Other:
			walkOther(t, v)
		case List, Tuple, Deque:
			if n, err := v.Len(); err == nil && n > 0 {
				if e, err := v.Index(n - 1); err == nil && e.Addr() == 0 {
					t.Fatal("an element without address")
				}
			}
			if l, err := v.List(50); err != nil && l != nil || len(l) > 50 {
				t.Fatalf("%d elements, %v", len(l), err)
			}
		case Dict:
			_, _ = v.Key("a")
			_, _ = v.IntKey(1)
			if items, err := v.Items(50); err != nil && items != nil || len(items) > 50 {
				t.Fatalf("%d entries, %v", len(items), err)
			}
		}
		walkCode(t, v)
		_ = fmt.Sprint(v.TypeName(), v.IsNone())
	}
}

func walkOther(t *testing.T, v Value) {
	if sub, err := v.Attrs(100); err == nil {
		for _, s := range sub {
			_, _ = s.Value.Plain(20)
		}
	}
	_, _ = v.Attr("class_attr")
	_, _ = v.Attr("a")
	if _, val, err := v.Enum(); (err == nil) != (val.Addr() != 0) {
		t.Fatalf("value %#x of a member of an Enum, %v", val.Addr(), err)
	}
	if fn, self, err := v.Method(); (err == nil) != (fn.Addr() != 0 && self.Addr() != 0) {
		t.Fatalf("method of %#x and %#x, %v", fn.Addr(), self.Addr(), err)
	}
}

// walkCode looks for code behind the object.
func walkCode(t *testing.T, v Value) {
	c, err := v.Callable()
	if (err == nil) != (c.Addr != 0) {
		t.Fatalf("C function %+v, %v", c, err)
	}
	if err == nil {
		if _, _, err := c.File(nil); err == nil {
			t.Fatal("a file without mappings")
		}
	}
	w, err := v.Unwrap()
	if err != nil {
		return
	}
	code, err := w.Code()
	if (err == nil) != (code != nil) {
		t.Fatalf("code %v, %v", code, err)
	}
	if err == nil {
		for _, l := range code.Locals {
			if i := code.Local(l.Name); i < 0 || code.Locals[i].Name != l.Name {
				t.Fatalf("local %q at %d", l.Name, i)
			}
		}
		_ = code.Check()
	}
}
