package bpf

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf/btf"

	"inferspan/bpf/event"
)

// layout lists every field of a struct of event.h, with what sets the Go field
// that is encoded there. Fields named pad are zero.
var layout = map[string][]struct {
	field string
	set   func(*event.Record, uint64)
}{
	"frame_rec": {
		{"sock", func(r *event.Record, v uint64) { r.Frame.Sock = v }},
		{"frame", func(r *event.Record, v uint64) { r.Frame.ID = v }},
		{"size", func(r *event.Record, v uint64) { r.Frame.Size = uint32(v) }},
		{"off", func(r *event.Record, v uint64) { r.Frame.Off = uint32(v) }},
		{"part", func(r *event.Record, v uint64) { r.Frame.Part = uint16(v) }},
		{"dir", func(r *event.Record, v uint64) { r.Frame.Dir = uint8(v) }},
		{"flags", func(r *event.Record, v uint64) { r.Frame.Flags = uint8(v) }},
		{"pad", nil},
	},
	"http_rec": {
		{"conn", func(r *event.Record, v uint64) { r.HTTP.Conn = v }},
		{"off", func(r *event.Record, v uint64) { r.HTTP.Off = v }},
		{"skipped_last", func(r *event.Record, v uint64) { r.HTTP.SkippedLast = v }},
		{"size", func(r *event.Record, v uint64) { r.HTTP.Size = uint32(v) }},
		{"skipped", func(r *event.Record, v uint64) { r.HTTP.Skipped = uint32(v) }},
		{"fd", func(r *event.Record, v uint64) { r.HTTP.FD = uint32(v) }},
		{"lport", func(r *event.Record, v uint64) { r.HTTP.LocalPort = uint16(v) }},
		{"rport", func(r *event.Record, v uint64) { r.HTTP.RemotePort = uint16(v) }},
		{"dir", func(r *event.Record, v uint64) { r.HTTP.Dir = uint8(v) }},
		{"flags", func(r *event.Record, v uint64) { r.HTTP.Flags = uint8(v) }},
		{"pad", nil},
		{"pad2", nil},
	},
	"exit_rec":  {{"code", func(r *event.Record, v uint64) { r.Code = uint32(v) }}, {"pad", nil}},
	"clock_rec": {{"wall", func(r *event.Record, v uint64) { r.Wall = v }}},
	"capture_rec": {
		{"code", func(r *event.Record, v uint64) { r.Capture.Code = v }},
		{"thread_state", func(r *event.Record, v uint64) { r.Capture.ThreadState = v }},
		{"plan", func(r *event.Record, v uint64) { r.Capture.Plan = uint32(v) }},
		{"probe", func(r *event.Record, v uint64) { r.Capture.Probe = uint32(v) }},
		{"values", func(r *event.Record, v uint64) { r.Capture.Values = uint16(v) }},
		{"flags", func(r *event.Record, v uint64) { r.Capture.Flags = uint16(v) }},
		{"took", func(r *event.Record, v uint64) { r.Capture.Took = uint32(v) }},
	},
	"gpu_rec": {
		{"object", func(r *event.Record, v uint64) { r.GPU.Object = v }},
		{"entry", func(r *event.Record, v uint64) { r.GPU.Entry = v }},
		{"recorded", func(r *event.Record, v uint64) { r.GPU.Recorded = v }},
		{"first", func(r *event.Record, v uint64) { r.GPU.First = v }},
		{"last", func(r *event.Record, v uint64) { r.GPU.Last = v }},
		{"counts", nil}, // below
		{"recorder", func(r *event.Record, v uint64) { r.GPU.Recorder = uint32(v) }},
		{"result", func(r *event.Record, v uint64) { r.GPU.Result = uint32(v) }},
		{"plan", func(r *event.Record, v uint64) { r.GPU.Plan = uint32(v) }},
		{"epoch", func(r *event.Record, v uint64) { r.GPU.Epoch = uint32(v) }},
		{"what", func(r *event.Record, v uint64) { r.GPU.What = event.GPUWhat(v) }},
		{"flags", func(r *event.Record, v uint64) { r.GPU.Flags = uint16(v) }},
		{"marks", func(r *event.Record, v uint64) { r.GPU.Marks = uint32(v) }},
	},
	"note_rec": {{"what", func(r *event.Record, v uint64) { r.Note = uint32(v) }}, {"pad", nil}},
}

var headerLayout = []struct {
	field string
	set   func(*event.Record, uint64)
}{
	{"ts", func(r *event.Record, v uint64) { r.Time = v }},
	{"pid", func(r *event.Record, v uint64) { r.PID = uint32(v) }},
	{"tid", func(r *event.Record, v uint64) { r.TID = uint32(v) }},
}

var kinds = map[string]event.Kind{
	"frame_rec": event.KindFrame, "http_rec": event.KindHTTP, "exit_rec": event.KindExit,
	"loss_rec": event.KindLoss, "clock_rec": event.KindClock,
	"capture_rec": event.KindCapture, "note_rec": event.KindNote, "gpu_rec": event.KindGPU,
}

func cStruct(t *testing.T, types *btf.Spec, name string) *btf.Struct {
	t.Helper()
	var s *btf.Struct
	if err := types.TypeByName(name, &s); err != nil {
		t.Fatalf("struct %s in the object: %v", name, err)
	}
	return s
}

func member(t *testing.T, s *btf.Struct, name string) (off, size int) {
	t.Helper()
	for _, m := range s.Members {
		if m.Name == name {
			n, err := btf.Sizeof(m.Type)
			if err != nil {
				t.Fatal(err)
			}
			return int(m.Offset.Bytes()), n
		}
	}
	t.Fatalf("struct %s has no field %s", s.Name, name)
	return 0, 0
}

func uintAt(b []byte, off, size int) uint64 {
	var v [8]byte
	copy(v[:], b[off:off+size])
	return binary.LittleEndian.Uint64(v[:])
}

// TestLayout compares event.h, as compiled, with what package event encodes: each
// field by its place, width and neighbours.
func TestLayout(t *testing.T) {
	spec, err := loadTracer()
	if err != nil {
		t.Fatal(err)
	}
	header := cStruct(t, spec.Types, "rec_header")
	for name, fields := range layout {
		s := cStruct(t, spec.Types, name)
		if len(s.Members) != len(fields)+1 {
			t.Errorf("struct %s has %d fields besides the header, the test knows %d", name, len(s.Members)-1, len(fields))
		}
		if off, size := member(t, s, "h"); off != 0 || size != int(header.Size) {
			t.Errorf("struct %s does not begin with the header", name)
		}
		check := func(field string, off, size int, set func(*event.Record, uint64)) {
			r := event.Record{Header: event.Header{Kind: kinds[name]}}
			zero := event.Append(nil, &r)
			if len(zero) != int(s.Size) {
				t.Fatalf("struct %s has %d bytes, package event encodes %d", name, s.Size, len(zero))
			}
			if set == nil {
				return
			}
			const v = 0xA1A2A3A4A5A6A7A8
			set(&r, v)
			got := event.Append(nil, &r)
			want := append([]byte(nil), zero...)
			var le [8]byte
			binary.LittleEndian.PutUint64(le[:], v)
			copy(want[off:off+size], le[:])
			if string(got) != string(want) {
				t.Errorf("struct %s, field %s at %d of %d bytes:\nevent.h   % x\nencoded   % x", name, field, off, size, want, got)
			}
		}
		for _, f := range fields {
			off, size := member(t, s, f.field)
			check(f.field, off, size, f.set)
		}
		for _, f := range headerLayout {
			off, size := member(t, header, f.field)
			check("h."+f.field, off, size, f.set)
		}
		r := event.Record{Header: event.Header{Kind: kinds[name]}, Data: []byte("payload")}
		b := event.Append(nil, &r)
		if off, size := member(t, header, "kind"); uintAt(b, off, size) != uint64(kinds[name]) {
			t.Errorf("struct %s: kind is encoded elsewhere", name)
		}
		if off, size := member(t, header, "len"); uintAt(b, off, size) != uint64(len(r.Data)) {
			t.Errorf("struct %s: len is encoded elsewhere", name)
		}
	}
	loss := cStruct(t, spec.Types, "loss_rec")
	r := event.Record{Header: event.Header{Kind: event.KindLoss}}
	for i := range r.Lost {
		r.Lost[i] = uint64(1000 + i)
	}
	b := event.Append(nil, &r)
	off, size := member(t, loss, "lost")
	if len(b) != int(loss.Size) || size != 8*len(r.Lost) {
		t.Fatalf("loss_rec has %d bytes with %d of counters, package event encodes %d with %d", loss.Size, size, len(b), 8*len(r.Lost))
	}
	for i := range r.Lost {
		if got := uintAt(b, off+8*i, 8); got != r.Lost[i] {
			t.Errorf("loss counter %d: %d, want %d", i, got, r.Lost[i])
		}
	}
}

// TestGPUCounts: the counters of a GPU record, each in its place.
func TestGPUCounts(t *testing.T) {
	spec, err := loadTracer()
	if err != nil {
		t.Fatal(err)
	}
	s := cStruct(t, spec.Types, "gpu_rec")
	r := event.Record{Header: event.Header{Kind: event.KindGPU}}
	for i := range r.GPU.Counts {
		r.GPU.Counts[i] = uint64(1000 + i)
	}
	b := event.Append(nil, &r)
	off, size := member(t, s, "counts")
	if size != 8*len(r.GPU.Counts) {
		t.Fatalf("gpu_rec has %d bytes of counters, package event encodes %d", size, 8*len(r.GPU.Counts))
	}
	for i := range r.GPU.Counts {
		if got := uintAt(b, off+8*i, 8); got != r.GPU.Counts[i] {
			t.Errorf("counter %d: %d, want %d", i, got, r.GPU.Counts[i])
		}
	}
}

// TestEnums compares the numbers of event.h with the constants of Go.
func TestEnums(t *testing.T) {
	spec, err := loadTracer()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]uint64{
		"record_kind": {"REC_FRAME": uint64(event.KindFrame), "REC_HTTP": uint64(event.KindHTTP), "REC_EXIT": uint64(event.KindExit),
			"REC_LOSS": uint64(event.KindLoss), "REC_CLOCK": uint64(event.KindClock),
			"REC_CAPTURE": uint64(event.KindCapture), "REC_NOTE": uint64(event.KindNote), "REC_GPU": uint64(event.KindGPU)},
		"gpu_what":  {"GPU_MARK": uint64(event.GPUMark), "GPU_SYNC_EVENT": uint64(event.GPUSyncEvent), "GPU_SYNC_STREAM": uint64(event.GPUSyncStream), "GPU_SYNC_CONTEXT": uint64(event.GPUSyncContext)},
		"gpu_flags": {"GPU_LAUNCHES": event.GPULaunches, "GPU_SLEPT": event.GPUSlept, "GPU_CONTINUES": event.GPUContinues},
		"gpu_count": {"GPU_KERNELS": uint64(event.GPUKernels), "GPU_KERNELS_EX": uint64(event.GPUKernelsEx), "GPU_COOPERATIVE": uint64(event.GPUCooperative),
			"GPU_GRAPHS": uint64(event.GPUGraphs), "GPU_GRAPHS_UNKNOWN": uint64(event.GPUGraphsUnknown), "GPU_GRAPH_KERNELS": uint64(event.GPUGraphKernels), "GPU_CAPTURED": uint64(event.GPUCaptured),
			"GPU_COPIES_IN": uint64(event.GPUCopiesIn), "GPU_COPIES_OUT": uint64(event.GPUCopiesOut), "GPU_COPIES_DEVICE": uint64(event.GPUCopiesDevice), "GPU_COPIES_OTHER": uint64(event.GPUCopiesOther),
			"GPU_BYTES_IN": uint64(event.GPUBytesIn), "GPU_BYTES_OUT": uint64(event.GPUBytesOut), "GPU_BYTES_DEVICE": uint64(event.GPUBytesDevice), "GPU_BYTES_OTHER": uint64(event.GPUBytesOther),
			"GPU_RECORDS": uint64(event.GPURecords), "GPU_COUNTS": uint64(event.GPUCounts)},
		"frame_dir":   {"FRAME_SEND": event.FrameSend, "FRAME_RECV": event.FrameRecv},
		"frame_flags": {"FRAME_MORE": event.FrameMore, "FRAME_CUT": event.FrameCut, "FRAME_RECEIPT": event.FrameReceipt},
		"http_dir":    {"HTTP_READ": event.HTTPRead, "HTTP_WRITE": event.HTTPWrite, "HTTP_CLOSE": event.HTTPClose},
		"http_flags": {"HTTP_MIDSTREAM": event.HTTPMidstream, "HTTP_CUT": event.HTTPCut, "HTTP_EOF": event.HTTPEOF,
			"HTTP_RESET": event.HTTPReset},
		"loss_reason": {"LOSS_RING_FULL": uint64(event.LossRingFull), "LOSS_FAULT": uint64(event.LossFault), "LOSS_MAP_FULL": uint64(event.LossMapFull),
			"LOSS_UNMATCHED": uint64(event.LossUnmatched), "LOSS_UNKNOWN_MSG": uint64(event.LossUnknownMsg),
			"LOSS_TRUNCATED": uint64(event.LossTruncated), "LOSS_REASONS": uint64(event.LossReasons)},
		"target_role": {"ROLE_CORE": uint64(RoleCore), "ROLE_RECEIPT": uint64(RoleReceipt), "ROLE_HTTP": uint64(RoleHTTP), "ROLE_SEND": uint64(RoleSend)},
	}
	for name, values := range want {
		var e *btf.Enum
		if err := spec.Types.TypeByName(name, &e); err != nil {
			t.Errorf("enum %s in the object: %v", name, err)
			continue
		}
		if len(e.Values) != len(values) {
			t.Errorf("enum %s has %d members, the test knows %d", name, len(e.Values), len(values))
		}
		for _, v := range e.Values {
			if got, ok := values[v.Name]; !ok || got != v.Value {
				t.Errorf("enum %s: %s is %d in C, %d in Go", name, v.Name, v.Value, got)
			}
		}
	}
}
