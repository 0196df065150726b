package elf

import (
	"debug/elf"
	"encoding/hex"
	"strings"
	"testing"
)

func TestEmulated(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		want       int
	}{
		{"push at the entry", "55 48 89 e5 5d c3", 0},
		{"push behind a move", "48 89 f8 41 54 c3", 3},
		{"call behind room on the stack", "48 83 ec 18 31 f6 48 8d 7c 24 08 e8 00 00 00 00 48 83 c4 18 c3", 11},
		{"call behind control-flow protection", "f3 0f 1e fa 48 83 ec 08 e8 00 00 00 00 c3", 8},
		{"conditional jump", "85 ff 74 01 c3 c3", 2},
		{"near conditional jump", "85 ff 0f 84 01 00 00 00 c3 c3", 2},
		{"nop", "48 89 f8 90 c3", 3},
		{"a long nop is executed", "0f 1f 40 00 55 c3", 4},
		{"nothing", "48 89 f8 c3", 0},
		{"push behind the return", "31 c0 c3 55 c3", 0},
		{"push behind an indirect call", "ff d0 55 c3", 0},
		{"loop to the call", "48 83 ec 08 e8 00 00 00 00 75 f9 c3", 0},
		{"loop behind the call", "48 83 ec 08 e8 00 00 00 00 75 fe c3", 4},
		{"loop to the entry", "48 83 ec 08 e8 00 00 00 00 75 f5 c3", 0},
		{"switch", "48 83 ec 08 e8 00 00 00 00 ff e0", 0},
		{"cold part", "48 83 ec 08 e8 00 00 00 00 0f 84 00 10 00 00 c3", 0},
		{"tail call", "48 83 ec 08 e8 00 00 00 00 e9 00 10 00 00", 4},
		{"vector instruction", "c5 f8 77 55 c3", 0},
		{"vector instruction later", "48 89 f8 55 c5 f8 77 c3", 0},
		{"far away", strings.Repeat("48 89 f8 ", 50) + "55 c3", 0},
		{"cut", "48 83 ec 08 e8 00", 0},
		{"empty", "", 0},
	} {
		code, err := hex.DecodeString(strings.ReplaceAll(tt.code, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := emulatedX86(code); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// FuzzEmulated checks that what is found is an instruction that is emulated, reached
// from the entry without a jump, and that the bytes before it do not matter to that.
func FuzzEmulated(f *testing.F) {
	for _, s := range []string{"4883ec1831f6488d7c2408e8000000004883c418c3", "4889f84154c3", "85ff7401c3c3"} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		at := emulatedX86(code)
		if at < 0 || at > maxPrologue || at > 0 && (at >= len(code) || !emulates(code[at:])) {
			t.Fatalf("%d in % x", at, code)
		}
		if at == 0 {
			return
		}
		e, err := exitsX86(code[:at], 0)
		if err != nil || len(e.Returns)+e.Outside+e.Indirect > 0 {
			t.Fatalf("%d in % x: before it %+v, %v", at, code, e, err)
		}
	})
}

// TestEmulatedFile looks at compiled functions.
func TestEmulatedFile(t *testing.T) {
	f := open(t, compile(t))
	for _, name := range []string{"plain", "tail", "hidden"} {
		fn, err := f.Func(name)
		if err != nil {
			t.Fatal(err)
		}
		at, ok := f.Emulated(fn)
		if at < fn.Offset || at >= fn.Offset+fn.Size || at > fn.Offset && !ok {
			t.Errorf("%s: %#x is not in it, %#x+%#x", name, at, fn.Offset, fn.Size)
		}
		if f.elf.Machine == elf.EM_AARCH64 && at != fn.Offset {
			t.Errorf("%s: %#x, want the entry", name, at)
		}
	}
	if at, ok := f.Emulated(Func{Offset: 77, Size: 1 << 30}); at != 77 || ok {
		t.Errorf("a function that cannot be read: %#x, %v, want its entry", at, ok)
	}
}

func TestKeeps(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		args       int // of so many it keeps all, and not of one more; 6: of all, -1: of none
	}{
		{"nothing", "", 6},
		{"control-flow protection", "f3 0f 1e fa", 6},
		{"third argument made", "31 d2", 2},
		{"part of the third argument", "b6 01", 2},
		{"arguments moved on", "49 89 c8 48 89 d1", 3},
		{"moved to another register", "48 89 f8", 6},
		{"read from the stack", "48 8b 44 24 18 4c 8b 54 24 20", 6},
		{"compared with memory", "81 3d 00 00 00 00 00 ba 1c 32", 6},
		{"room on the stack", "48 83 ec 18", -1},
		{"written to the stack", "48 89 7c 24 08", -1},
		{"first argument", "48 8d 7c 24 08", 0},
		{"popped", "5f", -1},
		{"exchanged", "48 87 f7", -1},
		{"vector instruction", "c5 f8 77", -1},
		{"cut", "48 8b", -1},
	} {
		code, err := hex.DecodeString(strings.ReplaceAll(tt.code, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		for args := range 7 {
			if got, want := keepsX86(code, args), args <= tt.args; got != want {
				t.Errorf("%s: of %d arguments %v, want %v", tt.name, args, got, want)
			}
		}
	}
}
