package elf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func words(ws ...uint32) []byte {
	var b []byte
	for _, w := range ws {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func TestExits(t *testing.T) {
	const base = 0x1000
	for _, tt := range []struct {
		name    string
		machine elf.Machine
		code    []byte
		want    Exits
		err     error
	}{
		{"ret", elf.EM_X86_64, []byte{0x31, 0xc0, 0xc3}, Exits{Returns: []uint64{base + 2}}, nil},
		{"ret with prefix", elf.EM_X86_64, []byte{0x90, 0xf3, 0xc3}, Exits{Returns: []uint64{base + 1}}, nil},
		{"ret imm16", elf.EM_X86_64, []byte{0xc2, 0x08, 0x00}, Exits{Returns: []uint64{base}}, nil},
		{"ret byte within an operand", elf.EM_X86_64, []byte{0xb8, 0xc3, 0xc3, 0xc3, 0xc3, 0xc3}, Exits{Returns: []uint64{base + 5}}, nil},
		{"two returns and a jump within", elf.EM_X86_64, []byte{0x74, 0x01, 0xc3, 0xc3}, Exits{Returns: []uint64{base + 2, base + 3}}, nil},
		{"a tail jump", elf.EM_X86_64, []byte{0x74, 0x05, 0xe9, 0x00, 0x10, 0x00, 0x00, 0xc3}, Exits{Returns: []uint64{base + 7}, Outside: 1}, nil},
		{"a conditional jump backwards out", elf.EM_X86_64, []byte{0x74, 0xf0, 0xc3}, Exits{Returns: []uint64{base + 2}, Outside: 1}, nil},
		{"jump by register", elf.EM_X86_64, []byte{0xff, 0xe0}, Exits{Indirect: 1}, nil},
		{"call", elf.EM_X86_64, []byte{0xe8, 0x00, 0x10, 0x00, 0x00, 0xc3}, Exits{Returns: []uint64{base + 5}}, nil},
		{"endbr64", elf.EM_X86_64, []byte{0xf3, 0x0f, 0x1e, 0xfa, 0xc3}, Exits{Returns: []uint64{base + 4}}, nil},
		{"vzeroupper", elf.EM_X86_64, []byte{0xc5, 0xf8, 0x77, 0xc3}, Exits{}, ErrDecode},
		{"undefined", elf.EM_X86_64, []byte{0x06, 0xc3}, Exits{}, ErrDecode},
		{"cut", elf.EM_X86_64, []byte{0xe9, 0x00}, Exits{}, ErrDecode},

		{"ret", elf.EM_AARCH64, words(0xd503201f, 0xd65f03c0), Exits{Returns: []uint64{base + 4}}, nil},
		{"ret x5", elf.EM_AARCH64, words(0xd65f00a0), Exits{Returns: []uint64{base}}, nil},
		{"retaa, retab", elf.EM_AARCH64, words(0xd65f0bff, 0xd65f0fff), Exits{Returns: []uint64{base, base + 4}}, nil},
		{"b within", elf.EM_AARCH64, words(0x14000001, 0xd65f03c0), Exits{Returns: []uint64{base + 4}}, nil},
		{"b to the end is out", elf.EM_AARCH64, words(0xd65f03c0, 0x14000001), Exits{Returns: []uint64{base}, Outside: 1}, nil},
		{"b backwards out", elf.EM_AARCH64, words(0x17ffffff), Exits{Outside: 1}, nil},
		{"b.eq, cbz, tbnz out", elf.EM_AARCH64, words(0x54000800, 0xb4000800, 0x37080800, 0xd65f03c0), Exits{Returns: []uint64{base + 12}, Outside: 3}, nil},
		{"b.ne within, backwards", elf.EM_AARCH64, words(0xd503201f, 0x54ffffe1, 0xd65f03c0), Exits{Returns: []uint64{base + 8}}, nil},
		{"br, braaz, braa", elf.EM_AARCH64, words(0xd61f0200, 0xd61f081f, 0xd71f0a11), Exits{Indirect: 3}, nil},
		{"bl, blr, blraaz", elf.EM_AARCH64, words(0x94000400, 0xd63f0200, 0xd63f081f, 0xd65f03c0), Exits{Returns: []uint64{base + 12}}, nil},
		{"not whole", elf.EM_AARCH64, []byte{0xc0, 0x03}, Exits{}, ErrDecode},
	} {
		decode := exitsX86
		if tt.machine == elf.EM_AARCH64 {
			decode = exitsARM64
		}
		got, err := decode(tt.code, base)
		if !errors.Is(err, tt.err) || !slices.Equal(got.Returns, tt.want.Returns) || got.Outside != tt.want.Outside || got.Indirect != tt.want.Indirect {
			t.Errorf("%s %s: %+v, %v, want %+v, %v", tt.machine, tt.name, got, err, tt.want, tt.err)
		}
	}
}

const source = `
int other(int);
__attribute__((noinline)) int plain(int a, int b) { return a < b ? other(a) + 1 : 7; }
__attribute__((noinline)) int tail(int a) { return other(a + 1); }
static int hidden(int a) { return other(a) * 3; }
int (*user)(int) = hidden;
int variable = 5;
`

// compile builds a shared library for this machine.
func compile(t testing.TB, flags ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler")
	}
	dir := t.TempDir()
	c, so := filepath.Join(dir, "a.c"), filepath.Join(dir, "a.so")
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-O2", "-fPIC", "-shared", "-o", so, c}, flags...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return so
}

func open(t testing.TB, path string) *File {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFunc(t *testing.T) {
	path := compile(t)
	f := open(t, path)
	for _, tt := range []struct {
		name     string
		complete bool
	}{{"plain", true}, {"tail", false}, {"hidden", true}} {
		fn, err := f.Func(tt.name)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		e, err := f.Exits(fn)
		if err != nil || e.Complete() != tt.complete {
			t.Errorf("%s: %+v, %v, want complete %v", tt.name, e, err, tt.complete)
		}
		for _, at := range e.Returns {
			if at < fn.Offset || at >= fn.Offset+fn.Size {
				t.Errorf("%s: return at %#x is outside of %#x+%#x", tt.name, at, fn.Offset, fn.Size)
			}
		}
	}
	for _, name := range []string{"other", "variable", "absent", "", "plai"} {
		if fn, err := f.Func(name); !errors.Is(err, ErrNoSymbol) {
			t.Errorf("%q: %+v, %v, want ErrNoSymbol", name, fn, err)
		}
	}
	stripped := open(t, compile(t, "-s"))
	if _, err := stripped.Func("plain"); err != nil {
		t.Errorf("an exported function of a stripped library: %v", err)
	}
	if _, err := stripped.Func("hidden"); !errors.Is(err, ErrNoSymbol) {
		t.Errorf("a static function of a stripped library: %v, want ErrNoSymbol", err)
	}
}

func TestNewErrors(t *testing.T) {
	for name, b := range map[string]string{
		"empty": "", "text": "#!/bin/sh\n", "header only": "\x7fELF\x02\x01\x01", "32 bit": "\x7fELF\x01\x01\x01" + strings.Repeat("\x00", 64),
	} {
		if f, err := New(strings.NewReader(b)); f != nil || !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
}

// FuzzFile checks that damaged files give an error or a function whose places are
// inside of the file, and that reading stays bounded.
func FuzzFile(f *testing.F) {
	b, err := os.ReadFile(compile(f, "-Wl,-z,max-page-size=4096", "-Wl,-z,noseparate-code", "-s"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, "plain")
	f.Add(b[:len(b)/2], "tail")
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		file, err := New(bytes.NewReader(b))
		if (file == nil) == (err == nil) {
			t.Fatalf("%v and %v", file, err)
		}
		if err != nil {
			return
		}
		err = file.Symbols(func(s Symbol) bool { return s.Name == "" }, func(s Symbol) {
			if !bytes.Contains(b, []byte(s.Name+"\x00")) {
				t.Fatalf("%+v is not in the file", s)
			}
		})
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Fatal(err)
		}
		fn, err := file.Func(name)
		if err != nil {
			if fn != (Func{}) {
				t.Fatalf("%+v and %v", fn, err)
			}
			return
		}
		e, err := file.Exits(fn)
		if err != nil {
			if len(e.Returns)+e.Outside+e.Indirect > 0 {
				t.Fatalf("%+v and %v", e, err)
			}
			return
		}
		for _, at := range e.Returns {
			if at < fn.Offset || at >= fn.Offset+fn.Size || at >= uint64(len(b)) {
				t.Fatalf("a return at %#x of %+v in %d bytes", at, fn, len(b))
			}
		}
	})
}
