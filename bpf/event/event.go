// Package event holds the records that the BPF programs send, as Go types, and
// their encoding. It is a leaf: it imports nothing of this module and embeds no
// object file, so that decoders, recordings and tests can use it anywhere.
//
// The layout is bpf/include/event.h; a test compares the two.
package event

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Kind tells what a record is.
type Kind uint32

// Kinds of records; the values of enum record_kind.
const (
	KindFrame   Kind = 1 // one ZeroMQ frame, or a chunk of a long one
	KindHTTP    Kind = 2 // bytes of one socket call, or a connection's end
	KindExit    Kind = 3 // a watched process exited
	KindLoss    Kind = 4 // totals of lost records, made by the agent
	KindClock   Kind = 5 // wall clock against monotonic clock, made by the agent
	KindCapture Kind = 6 // values read from Python objects at a probe
	KindNote    Kind = 7 // what else a replay has to know, made by the agent
	KindGPU     Kind = 8 // what a thread had its GPU do, at a point in time
)

func (k Kind) String() string {
	switch k {
	case KindFrame:
		return "frame"
	case KindHTTP:
		return "http"
	case KindExit:
		return "exit"
	case KindLoss:
		return "loss"
	case KindClock:
		return "clock"
	case KindCapture:
		return "capture"
	case KindNote:
		return "note"
	case KindGPU:
		return "gpu"
	}
	return fmt.Sprintf("kind(%d)", uint32(k))
}

// Direction of a frame, as seen from the process it was tapped in.
const (
	FrameSend = 1
	FrameRecv = 2
)

// Flags of a frame.
const (
	FrameMore    = 1 // another frame of the message follows
	FrameCut     = 2 // bytes are missing between the chunks of this frame
	FrameReceipt = 4 // only the last bytes were copied, to recognise the frame
)

// Direction of an HTTP record, as seen from the server.
const (
	HTTPRead  = 1
	HTTPWrite = 2
	HTTPClose = 3
)

// Flags of an HTTP record.
const (
	HTTPMidstream = 1 // the connection was open before it was first seen
	HTTPCut       = 2 // the call moved more bytes than were copied
	HTTPEOF       = 4 // with HTTPClose: the peer closed first
	HTTPReset     = 8 // with HTTPClose: the peer reset the connection
)

// Flags of a capture.
const (
	CaptureCut    = 1 // no room for all values
	CaptureReturn = 2 // taken when the probed function returned
)

// LossReason says why a record, or a part of one, is missing.
type LossReason int

// Reasons, in the order of the kernel's counters.
const (
	LossRingFull LossReason = iota
	LossFault
	LossMapFull
	LossUnmatched
	LossUnknownMsg
	LossTruncated
	LossReasons // number of reasons
)

var lossNames = [LossReasons]string{"ring_full", "fault", "map_full", "unmatched", "unknown_message", "truncated"}

func (r LossReason) String() string {
	if r >= 0 && r < LossReasons {
		return lossNames[r]
	}
	return fmt.Sprintf("loss(%d)", int(r))
}

// Header is common to all records.
type Header struct {
	Time uint64 // CLOCK_MONOTONIC, ns
	Kind Kind
	PID  uint32 // process, in the agent's PID namespace
	TID  uint32 // thread, in the agent's PID namespace
}

// Frame describes a ZeroMQ frame or a chunk of one.
type Frame struct {
	Sock  uint64 // address of the socket object in the process
	ID    uint64 // shared by the chunks of one frame
	Size  uint32 // size of the whole frame
	Off   uint32 // where Data begins within the frame
	Part  uint16 // position of the frame in its message, from 0
	Dir   uint8  // FrameSend or FrameRecv
	Flags uint8
}

// HTTP describes one socket call, a part of a long one, or a connection's end.
// Data is the bytes [Off, Off+len(Data)) of the stream in this direction; the
// parts of one call share Time. For an end, Off is how much was written in all.
type HTTP struct {
	Conn        uint64 // id of the connection
	Off         uint64 // bytes moved before Data in this direction
	SkippedLast uint64 // time of the latest call not copied, 0 if none
	Size        uint32 // bytes the record stands for: len(Data), or more with HTTPCut
	Skipped     uint32 // calls in this direction not copied since the last record
	FD          uint32
	LocalPort   uint16
	RemotePort  uint16
	Dir         uint8 // HTTPRead, HTTPWrite or HTTPClose
	Flags       uint8
}

// Capture describes values read from Python objects; Data is decoded by
// probes/python/plan.
type Capture struct {
	Code        uint64 // code object of the innermost Python frame
	ThreadState uint64
	Plan        uint32
	Probe       uint32
	Values      uint16 // in Data, those within items not counted
	Flags       uint16
	// Took is how long the probed function ran, ns, with what measuring adds; for
	// CaptureReturn. 0: not known.
	Took uint32
}

// TookMax stands for all durations that are as long or longer.
const TookMax = 1<<32 - 1

// Record is one decoded record. Only the part that Kind names is set. Data
// aliases the buffer given to Decode.
type Record struct {
	Header
	Frame   Frame
	HTTP    HTTP
	Capture Capture
	Code    uint32              // KindExit: wait status
	Lost    [LossReasons]uint64 // KindLoss: totals since attach
	Wall    uint64              // KindClock: CLOCK_REALTIME at Time, ns since the epoch
	GPU     GPU
	Note    uint32 // KindNote: what the JSON in Data is, a number of package note
	Data    []byte
}

// Sizes of the structs of event.h.
const (
	headerSize  = 24
	frameSize   = headerSize + 32
	httpSize    = headerSize + 48
	exitSize    = headerSize + 8
	lossSize    = headerSize + 8*int(LossReasons)
	clockSize   = headerSize + 8
	captureSize = headerSize + 32
	noteSize    = headerSize + 8
	gpuSize     = headerSize + 64 + 8*int(GPUCounts)
)

// MaxData is the largest payload of one record: BPF copies at most this much at a time.
const MaxData = 32 << 10

// ErrMalformed is returned for bytes that are not a record.
var ErrMalformed = errors.New("malformed record")

var le = binary.LittleEndian

// Decode reads one record from the start of b into r, reusing r. Bytes after the
// record's payload (the ring hands out fixed-size slots) are ignored.
func Decode(b []byte, r *Record) error {
	if len(b) < headerSize {
		return fmt.Errorf("%w: %d bytes, shorter than the header", ErrMalformed, len(b))
	}
	*r = Record{Header: Header{Time: le.Uint64(b), Kind: Kind(le.Uint32(b[8:])), PID: le.Uint32(b[12:]), TID: le.Uint32(b[16:])}}
	n := le.Uint32(b[20:])
	size := r.Kind.size()
	if size == 0 {
		return fmt.Errorf("%w: unknown kind %d", ErrMalformed, uint32(r.Kind))
	}
	if n > MaxData || len(b) < size+int(n) {
		return fmt.Errorf("%w: %s of %d bytes with a payload of %d", ErrMalformed, r.Kind, len(b), n)
	}
	p := b[headerSize:]
	switch r.Kind {
	case KindFrame:
		r.Frame = Frame{Sock: le.Uint64(p), ID: le.Uint64(p[8:]), Size: le.Uint32(p[16:]), Off: le.Uint32(p[20:]), Part: le.Uint16(p[24:]), Dir: p[26], Flags: p[27]}
	case KindHTTP:
		r.HTTP = HTTP{Conn: le.Uint64(p), Off: le.Uint64(p[8:]), SkippedLast: le.Uint64(p[16:]), Size: le.Uint32(p[24:]), Skipped: le.Uint32(p[28:]), FD: le.Uint32(p[32:]), LocalPort: le.Uint16(p[36:]), RemotePort: le.Uint16(p[38:]), Dir: p[40], Flags: p[41]}
	case KindExit:
		r.Code = le.Uint32(p)
	case KindLoss:
		for i := range r.Lost {
			r.Lost[i] = le.Uint64(p[8*i:])
		}
	case KindClock:
		r.Wall = le.Uint64(p)
	case KindCapture:
		r.Capture = Capture{Code: le.Uint64(p), ThreadState: le.Uint64(p[8:]), Plan: le.Uint32(p[16:]), Probe: le.Uint32(p[20:]), Values: le.Uint16(p[24:]), Flags: le.Uint16(p[26:]), Took: le.Uint32(p[28:])}
	case KindNote:
		r.Note = le.Uint32(p)
	case KindGPU:
		r.GPU.decode(p)
	}
	r.Data = b[size : size+int(n) : size+int(n)]
	return nil
}

// Append encodes r in the layout of event.h, without slack, and returns the
// extended buffer. Decode(Append(nil, r)) gives r back.
func Append(dst []byte, r *Record) []byte {
	dst = le.AppendUint64(dst, r.Time)
	dst = le.AppendUint32(dst, uint32(r.Kind))
	dst = le.AppendUint32(dst, r.PID)
	dst = le.AppendUint32(dst, r.TID)
	dst = le.AppendUint32(dst, uint32(len(r.Data)))
	switch r.Kind {
	case KindFrame:
		f := &r.Frame
		dst = le.AppendUint64(dst, f.Sock)
		dst = le.AppendUint64(dst, f.ID)
		dst = le.AppendUint32(dst, f.Size)
		dst = le.AppendUint32(dst, f.Off)
		dst = le.AppendUint16(dst, f.Part)
		dst = append(dst, f.Dir, f.Flags, 0, 0, 0, 0)
	case KindHTTP:
		h := &r.HTTP
		dst = le.AppendUint64(dst, h.Conn)
		dst = le.AppendUint64(dst, h.Off)
		dst = le.AppendUint64(dst, h.SkippedLast)
		dst = le.AppendUint32(dst, h.Size)
		dst = le.AppendUint32(dst, h.Skipped)
		dst = le.AppendUint32(dst, h.FD)
		dst = le.AppendUint16(dst, h.LocalPort)
		dst = le.AppendUint16(dst, h.RemotePort)
		dst = append(dst, h.Dir, h.Flags, 0, 0, 0, 0, 0, 0)
	case KindExit:
		dst = le.AppendUint32(dst, r.Code)
		dst = le.AppendUint32(dst, 0)
	case KindLoss:
		for _, n := range r.Lost {
			dst = le.AppendUint64(dst, n)
		}
	case KindClock:
		dst = le.AppendUint64(dst, r.Wall)
	case KindCapture:
		c := &r.Capture
		dst = le.AppendUint64(dst, c.Code)
		dst = le.AppendUint64(dst, c.ThreadState)
		dst = le.AppendUint32(dst, c.Plan)
		dst = le.AppendUint32(dst, c.Probe)
		dst = le.AppendUint16(dst, c.Values)
		dst = le.AppendUint16(dst, c.Flags)
		dst = le.AppendUint32(dst, c.Took)
	case KindNote:
		dst = le.AppendUint32(dst, r.Note)
		dst = le.AppendUint32(dst, 0)
	case KindGPU:
		dst = r.GPU.append(dst)
	}
	return append(dst, r.Data...)
}

func (k Kind) size() int {
	switch k {
	case KindFrame:
		return frameSize
	case KindHTTP:
		return httpSize
	case KindExit:
		return exitSize
	case KindLoss:
		return lossSize
	case KindClock:
		return clockSize
	case KindCapture:
		return captureSize
	case KindNote:
		return noteSize
	case KindGPU:
		return gpuSize
	}
	return 0
}
