package bpf_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/target"
)

// BenchmarkTap measures what a tapped send or receive costs the engine: CPU time
// for traps, copy and ring, with a reader at work.
func BenchmarkTap(b *testing.B) {
	needRoot(b)
	path := compileStub(b)
	for _, bb := range []struct {
		what   int
		name   string
		size   int
		tapped bool
	}{
		{0, "send", 600, false}, {0, "send", 600, true}, {0, "send", 4000, true}, {0, "send", 30000, true},
		{1, "recv", 600, false}, {1, "recv", 600, true}, {1, "recv", 30000, true},
	} {
		b.Run(fmt.Sprintf("%s/size=%d/tapped=%v", bb.name, bb.size, bb.tapped), func(b *testing.B) {
			d := startDriver(b, path)
			var o *bpf.Objects
			read := make(chan int)
			if bb.tapped {
				o = load(b, bpf.Options{})
				attachTo(b, o, process(b, d.PID(), target.RoleCore))
				go func() {
					n := 0
					var r event.Record
					for !errors.Is(o.Reader().Read(&r), os.ErrClosed) {
						n++
					}
					read <- n
				}()
			}
			ns, err := strconv.ParseFloat(d.Do("loop %d %d %d", bb.what, b.N, bb.size), 64)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(ns/float64(b.N), "ns/call")
			b.ReportMetric(0, "ns/op")
			if bb.tapped {
				lost := losses(b, o)
				o.Close()
				b.ReportMetric(float64(lost[event.LossRingFull])/float64(b.N), "lost/call")
				<-read
			}
		})
	}
}
