package event

import (
	"cmp"
	"slices"
)

// GPUWhat says at which point a GPU record was made.
type GPUWhat uint16

// Points; the values of enum gpu_what.
const (
	GPUMark        GPUWhat = 1 // a capture on the thread; Header.Time is that of the capture
	GPUSyncEvent   GPUWhat = 2 // cuEventSynchronize returned, at Header.Time
	GPUSyncStream  GPUWhat = 3 // cuStreamSynchronize
	GPUSyncContext GPUWhat = 4 // cuCtxSynchronize
)

// Flags of a GPU record.
const (
	GPULaunches = 1 // launches of kernels and copies are counted, not only graphs
	GPUSlept    = 2 // of a synchronise: the thread gave up its CPU in it
	// From how many epochs before this one on, if not more, marks, graphs, events and waits
	// were counted without a break: GPU.Continues.
	GPUContinues = 0xff00
)

// GPUCount is the index of a counter.
type GPUCount int

// Counters; the values of enum gpu_count.
const (
	GPUKernels GPUCount = iota
	GPUKernelsEx
	GPUCooperative
	GPUGraphs
	GPUGraphsUnknown
	GPUGraphKernels
	GPUCaptured
	GPUCopiesIn
	GPUCopiesOut
	GPUCopiesDevice
	GPUCopiesOther
	GPUBytesIn
	GPUBytesOut
	GPUBytesDevice
	GPUBytesOther
	GPURecords
	GPUCounts // number of counters
)

// GPU is what a thread had its GPU do since it was first seen, and, of a synchronise,
// what it waited for. Times are CLOCK_MONOTONIC in ns.
type GPU struct {
	Object   uint64 // synchronise: handle of the event or stream
	Entry    uint64 // synchronise: when it was called
	Recorded uint64 // synchronise: when the event was last recorded before, 0 if not seen
	// First and Last launch, of those that are counted, since the thread's last mark;
	// 0 if there was none.
	First, Last uint64
	Counts      [GPUCounts]uint64
	Recorder    uint32 // synchronise: the thread that recorded the event, with Recorded
	Result      uint32 // synchronise: CUresult, 0 if done
	Plan        uint32 // mark: plan of the capture
	Epoch       uint32 // differences of counters are of one epoch; 1 is the first of the process
	What        GPUWhat
	Flags       uint16
	Marks       uint32 // marks of the thread so far, this one included
}

// Continues tells from how many epochs before this one on, at least, all but launches was
// counted without a break.
func (g *GPU) Continues() uint32 { return uint32(g.Flags & GPUContinues >> 8) }

// GPUBurst is launches with no event recorded in between.
type GPUBurst struct{ First, Last uint64 }

// GPUBursts is how many are behind a mark at most.
const GPUBursts = 8

// Bursts are the first bursts of a thread since its mark before this one, in their order, from
// the data of the mark's record: later ones may be missing if there are GPUBursts. In older
// recordings they are the latest ones, and earlier ones may be missing: the first one does not
// begin with First then.
func (r *Record) Bursts() (bursts [GPUBursts]GPUBurst, n int) {
	for b := r.Data; len(b) >= 16 && n < GPUBursts; b = b[16:] {
		bursts[n] = GPUBurst{le.Uint64(b), le.Uint64(b[8:])}
		n++
	}
	slices.SortFunc(bursts[:n], func(a, b GPUBurst) int { return cmp.Compare(a.First, b.First) })
	return bursts, n
}

func (g *GPU) decode(p []byte) {
	*g = GPU{Object: le.Uint64(p), Entry: le.Uint64(p[8:]), Recorded: le.Uint64(p[16:]), First: le.Uint64(p[24:]), Last: le.Uint64(p[32:])}
	p = p[40:]
	for i := range g.Counts {
		g.Counts[i] = le.Uint64(p[8*i:])
	}
	p = p[8*len(g.Counts):]
	g.Recorder, g.Result, g.Plan, g.Epoch = le.Uint32(p), le.Uint32(p[4:]), le.Uint32(p[8:]), le.Uint32(p[12:])
	g.What, g.Flags, g.Marks = GPUWhat(le.Uint16(p[16:])), le.Uint16(p[18:]), le.Uint32(p[20:])
}

func (g *GPU) append(dst []byte) []byte {
	for _, v := range []uint64{g.Object, g.Entry, g.Recorded, g.First, g.Last} {
		dst = le.AppendUint64(dst, v)
	}
	for _, v := range g.Counts {
		dst = le.AppendUint64(dst, v)
	}
	for _, v := range []uint32{g.Recorder, g.Result, g.Plan, g.Epoch} {
		dst = le.AppendUint32(dst, v)
	}
	dst = le.AppendUint16(dst, uint16(g.What))
	dst = le.AppendUint16(dst, g.Flags)
	return le.AppendUint32(dst, g.Marks)
}
