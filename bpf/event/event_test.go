package event

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

// samples has one record of each kind with every field set, none like another.
func samples() []Record {
	h := func(k Kind) Header {
		return Header{Time: 0x1112131415161718, Kind: k, PID: 0x21222324, TID: 0x31323334}
	}
	data := []byte("payload")
	return []Record{
		{Header: h(KindFrame), Data: data, Frame: Frame{Sock: 0x4142434445464748, ID: 0x5152535455565758, Size: 0x61626364,
			Off: 0x71727374, Part: 0x8182, Dir: FrameRecv, Flags: FrameMore | FrameReceipt}},
		{Header: h(KindHTTP), Data: data, HTTP: HTTP{Conn: 0x4142434445464748, Off: 0x5152535455565758, SkippedLast: 0x6162636465666768,
			Size: 0x71727374, Skipped: 0x81828384, FD: 0x91929394, LocalPort: 0xa1a2, RemotePort: 0xb1b2, Dir: HTTPClose, Flags: HTTPEOF}},
		{Header: h(KindExit), Data: []byte{}, Code: 0x41424344},
		{Header: h(KindLoss), Data: []byte{}, Lost: [LossReasons]uint64{1, 2, 3, 4, 5, 0x4142434445464748}},
		{Header: h(KindClock), Data: []byte{}, Wall: 0x4142434445464748},
		{Header: h(KindNote), Data: data, Note: 0x41424344},
		{Header: h(KindGPU), Data: []byte{}, GPU: GPU{Object: 1, Entry: 2, Recorded: 3, First: 4, Last: 5, Counts: [GPUCounts]uint64{6, 7, 15: 8}, Recorder: 9, Result: 10, Plan: 11, Epoch: 12, What: GPUSyncEvent, Flags: GPUSlept, Marks: 13}},
		{Header: h(KindCapture), Data: data, Capture: Capture{Code: 0x4142434445464748, ThreadState: 0x5152535455565758, Plan: 0x61626364,
			Probe: 0x71727374, Values: 0x8182, Flags: CaptureCut | CaptureReturn}},
		{Header: h(KindFrame), Data: bytes.Repeat([]byte{7}, MaxData)},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, want := range samples() {
		b := Append([]byte("before"), &want)
		if !bytes.HasPrefix(b, []byte("before")) {
			t.Fatalf("%s: Append wrote over what was there", want.Kind)
		}
		b = b[len("before"):]
		for _, slack := range []int{0, 1, 300} {
			got := Record{Code: 9, Wall: 9, Frame: Frame{Sock: 9}, HTTP: HTTP{Conn: 9}, Capture: Capture{Code: 9}, Note: 9, Lost: [LossReasons]uint64{9}} // of an earlier use
			if err := Decode(append(bytes.Clone(b), make([]byte, slack)...), &got); err != nil {
				t.Errorf("%s with %d bytes of slack: %v", want.Kind, slack, err)
			} else if !reflect.DeepEqual(got, want) {
				t.Errorf("%s with %d bytes of slack: %+v, want %+v", want.Kind, slack, got, want)
			}
		}
	}
}

// TestDataIsConfined checks that appending to Data does not write into the buffer.
func TestDataIsConfined(t *testing.T) {
	r := samples()[0]
	b := append(Append(nil, &r), "next record"...)
	var got Record
	if err := Decode(b, &got); err != nil {
		t.Fatal(err)
	}
	_ = append(got.Data, "overflow"...)
	if !bytes.HasSuffix(b, []byte("next record")) {
		t.Error("appending to Data changed the buffer")
	}
	b[len(b)-len("next record")-1] = '!'
	if !bytes.HasSuffix(got.Data, []byte("!")) {
		t.Error("Data is a copy, documented as an alias")
	}
}

func TestMalformed(t *testing.T) {
	for _, r := range samples() {
		b := Append(nil, &r)
		for n := range b {
			if n > 200 {
				break
			}
			var got Record
			if err := Decode(b[:n], &got); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s cut to %d of %d bytes: %v, want ErrMalformed", r.Kind, n, len(b), err)
			}
		}
		for name, patch := range map[string]struct {
			at    int
			value uint32
		}{
			"no kind": {8, 0}, "unknown kind": {8, 9}, "longer than the buffer": {20, uint32(len(r.Data) + 1)},
			"longer than any payload": {20, MaxData + 1}, "length overflows": {20, math.MaxUint32},
		} {
			bad := bytes.Clone(b)
			le.PutUint32(bad[patch.at:], patch.value)
			var got Record
			if err := Decode(bad, &got); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s, %s: %v, want ErrMalformed", r.Kind, name, err)
			}
		}
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for k := KindFrame; k <= KindClock; k++ {
		seen[k.String()] = true
	}
	for r := LossReason(0); r < LossReasons; r++ {
		seen[r.String()] = true
	}
	if len(seen) != int(KindClock)+int(LossReasons) {
		t.Errorf("names are not distinct: %v", seen)
	}
	for name := range seen {
		if name == "" || strings.Contains(name, "(") {
			t.Errorf("a known value is called %q", name)
		}
	}
	for _, s := range []string{Kind(77).String(), LossReason(77).String(), LossReason(-1).String()} {
		if !strings.Contains(s, "7") && !strings.Contains(s, "-1") {
			t.Errorf("an unknown value is called %q", s)
		}
	}
}

// FuzzDecode checks that any bytes give a record or an error, that a record has no
// more than the buffer had, and that it survives a round trip.
func FuzzDecode(f *testing.F) {
	for _, r := range samples() {
		f.Add(Append(nil, &r))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		if err := Decode(b, &r); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error %v", err)
			}
			return
		}
		again := Append(nil, &r)
		if len(again) > len(b) || len(r.Data) > MaxData {
			t.Fatalf("a record of %d bytes out of %d", len(again), len(b))
		}
		var s Record
		if err := Decode(again, &s); err != nil || !reflect.DeepEqual(r, s) {
			t.Fatalf("%+v becomes %+v, %v", r, s, err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	r := samples()[0]
	buf := Append(nil, &r)
	b.ReportAllocs()
	for b.Loop() {
		if err := Decode(buf, &r); err != nil {
			b.Fatal(err)
		}
	}
}
