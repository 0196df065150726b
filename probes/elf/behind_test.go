package elf

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

func TestBehind(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		want       []int
	}{
		// zmq_msg_send of libzmq 4.3.5.
		{"a check, the work, an error", "41 55 41 54 55 53 48 83 ec 08 48 85 f6 74 51 49 89 fc 48 89 f7 48 89 f5 41 89 d5 e8 e0 3c fd ff" +
			" 84 c0 74 3c 4c 89 e7 e8 f4 91 f8 ff 44 89 ea 4c 89 e6 48 89 ef 48 89 c3 e8 93 60 fd ff 85 c0 78 2a 48 81 fb fe ff ff 7f" +
			" b8 ff ff ff 7f 0f 46 c3 48 83 c4 08 5b 5d 41 5c 41 5d c3 0f 1f 44 00 00 e8 db 86 f8 ff c7 00 58 00 00 00 b8 ff ff ff ff eb de",
			[]int{0x3f, 0x70}},
		{"one call", "53 e8 00 00 00 00 85 c0 74 00 5b c3", []int{8}},
		{"none behind the call", "53 e8 00 00 00 00 5b c3", nil},
		{"behind one of two", "e8 00 00 00 00 74 08 e8 00 00 00 00 74 01 c3 c3", []int{12}},
		{"one of two ways has none", "85 ff 74 08 e8 00 00 00 00 74 01 c3 e8 00 00 00 00 c3", nil},
		{"no call", "85 ff 74 01 c3 c3", nil},
		{"loop behind the call", "e8 00 00 00 00 ff c8 75 fc c3", nil},
		{"loop over the call", "e8 00 00 00 00 75 f9 eb 00 c3", nil},
		{"tail call", "e8 00 00 00 00 74 05 e9 00 10 00 00 c3", nil},
		{"switch", "e8 00 00 00 00 74 02 ff e0 c3", nil},
		{"cold part", "e8 00 00 00 00 0f 84 00 10 00 00 c3", nil},
		{"into an instruction", "e8 00 00 00 00 74 ff c3", nil},
		{"never returns", "74 07 e8 00 00 00 00 eb 00 c3 e8 00 00 00 00", []int{7}},
		{"system call", "e8 00 00 00 00 74 00 0f 05 c3", nil},
		{"vector instruction", "e8 00 00 00 00 74 00 c5 f8 77 c3", nil},
		{"empty", "", nil},
	} {
		code, err := hex.DecodeString(strings.ReplaceAll(tt.code, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := behindX86(code); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
}

// FuzzBehind checks that what is found is emulated, calls nothing and is behind a call.
func FuzzBehind(f *testing.F) {
	for _, s := range []string{"53e80000000085c074005bc3", "e8000000007408e8000000007401c3c3", "e800000000ffc875fcc3"} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		if len(code) > 1<<10 {
			return
		}
		for _, at := range behindX86(code) {
			if at <= 0 || at >= len(code) || !emulates(code[at:]) || code[at] == 0xe8 {
				t.Fatalf("%d in % x", at, code)
			}
		}
	})
}
