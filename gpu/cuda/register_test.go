package cuda

import (
	"encoding/binary"
	"slices"
	"testing"
)

// lea is lea reg, [rip+disp32] with the three bytes of a register, at an address.
func lea(reg string, at, to uint64) []byte {
	return binary.LittleEndian.AppendUint32([]byte(reg), uint32(to-at-7))
}

const (
	rsi, rdx = "\x48\x8d\x35", "\x48\x8d\x15"
	base     = 0x10000
)

func TestRegistered(t *testing.T) {
	call := []byte{0xe8, 1, 2, 3, 4}
	var code []byte
	emit := func(b []byte) { code = append(code, b...) }
	at := func() uint64 { return base + uint64(len(code)) }
	emit([]byte{0x53}) // push rbx
	emit(lea(rdx, at(), 0x30000))
	emit([]byte{0x45, 0x31, 0xc9}) // xor r9d, r9d
	emit([]byte{0x48, 0x89, 0xd1}) // mov rcx, rdx
	emit(lea(rsi, at(), 0x8000))
	emit(call)
	emit(call) // something else
	emit(lea(rsi, at(), 0x8100))
	emit(call) // no name
	emit(lea(rsi, at(), 0x8200))
	emit(lea(rdx, at(), 0x30100))
	emit([]byte{0x48, 0x89, 0xc6}) // mov rsi, rax: which function is not known
	emit(call)
	emit(lea(rsi, at(), 0x8300))
	emit(lea(rdx, at(), 0x30200))
	emit(call)
	emit([]byte{0x06}) // not understood
	emit(lea(rsi, at(), 0x8400))
	emit(lea(rdx, at(), 0x30300))
	emit(call)
	want := []registration{{0x8000, 0x30000}, {0x8300, 0x30200}}
	if got := registered(code, base); !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// FuzzRegistered: whatever a library has there, there is at most one registration for five
// bytes of a call.
func FuzzRegistered(f *testing.F) {
	f.Add(append(append(lea(rdx, base, 0x30000), lea(rsi, base+7, 0x8000)...), 0xe8, 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, code []byte) {
		if got := registered(code, base); len(got) > len(code)/2 {
			t.Errorf("%d of %d bytes", len(got), len(code))
		}
	})
}
