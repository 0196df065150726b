package e2e

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// gpuOp is a line of the log of the fake GPU (tests/gpu/rig/README.md). Times are wall
// times here.
type gpuOp struct {
	Op, Name        string
	Tid             int
	Graph           int64
	Grid            [3]int
	Bytes           int64
	Enq, Start, End int64
}

// gpuLog reads the log from the byte on where an earlier read ended.
func gpuLog(t *testing.T, log string, from int) (ops []gpuOp, end int) {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1]
	// On a busy host time may pass between two reads: the nearest ones count, as in the tracer.
	off, nearest := int64(0), int64(math.MaxInt64)
	for range 20 {
		var before, wall, after unix.Timespec
		if unix.ClockGettime(unix.CLOCK_MONOTONIC, &before) != nil || unix.ClockGettime(unix.CLOCK_REALTIME, &wall) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &after) != nil {
			t.Fatal("no clocks")
		}
		if d := after.Nano() - before.Nano(); d < nearest {
			off, nearest = wall.Nano()-before.Nano()-d/2, d
		}
	}
	for line := range bytes.Lines(b[from:]) {
		var o gpuOp
		if err := json.Unmarshal(line, &o); err != nil {
			t.Fatalf("%s: %v", log, err)
		}
		o.Enq, o.Start, o.End = o.Enq+off, o.Start+off, o.End+off
		ops = append(ops, o)
	}
	slices.SortStableFunc(ops, func(a, b gpuOp) int { return int(min(max(a.Enq-b.Enq, -1), 1)) })
	return ops, len(b)
}

// eventAt is the first event that was recorded from then on, nil if there is none.
func eventAt(ops []gpuOp, at int64) *gpuOp {
	for i := range ops {
		if o := &ops[i]; o.Op == "event_record" && o.Graph == 0 && at != 0 && o.Enq >= at {
			return o
		}
	}
	return nil
}
