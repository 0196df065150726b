package agent

import (
	"io"
	"testing"

	"inferspan/bpf/event"
	"inferspan/correlate/trace"
	"inferspan/export"
	"inferspan/export/prom"
	"inferspan/export/term"
	"inferspan/probes/note"
)

// FuzzGPUNotes: whatever a recording says of GPUs, values are numbers that are not negative
// but for temperatures, and can be shown.
func FuzzGPUNotes(f *testing.F) {
	f.Add(uint8(0), []byte(`{"uuid":"G","index":-1,"parent":"P","mig":true}`))
	f.Add(uint8(1), []byte(`{"samples":[{"uuid":"G","util":-1,"mj":18446744073709551615,"procs":[{"pid":7,"mem":1,"util":-5},{"pid":7,"mem":2}],"procs_known":true}]}`))
	f.Add(uint8(1), []byte(`{"samples":[{"uuid":"G","mj":9223372036854775807,"procs_known":true,"procs_left":-1},{"uuid":"G"},{"uuid":"H","lost":true}]}`))
	f.Add(uint8(2), []byte(`{"uuid":"G","xid":79}`))
	f.Add(uint8(3), []byte(`{"uuids":["G","",null]}`))
	f.Add(uint8(4), []byte(`{"kernels":[{"h":1,"n":5,"name":"_ZN2at6native4fillIfEEvPT_","by":"symbols"},{"h":2,"n":18446744073709551615},{"h":1,"rt":true,"n":3}],"beyond":9223372036854775807}`))
	f.Add(uint8(4), []byte(`{"kernels":[{"h":1,"n":9223372036854775807,"name":"_Z1av"},{"h":2,"n":9223372036854775807},{"h":1,"n":9,"name":"_Z1bv"},{"h":1,"n":2}],"beyond":9223372036854775807}`))
	f.Add(uint8(4), []byte(`{"kernels":[{"h":1,"n":5,"g":9,"name":"_Z1av"},{"h":1,"n":2,"g":18446744073709551615},{"h":1,"g":3,"name":"_Z1bv"}],"graphs":4,"g_unseen":18446744073709551615,"g_changed":1}`))
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		kinds := []note.Kind{note.KindGPUDevice, note.KindGPUSamples, note.KindGPUEvent, note.KindGPUVisible, note.KindGPUKernels}
		p := NewPipeline(Options{}, func(*trace.Tree) {})
		_ = p.Engine(gpuEngine(7))
		put := func(at uint64, k note.Kind, data []byte) {
			r := event.Record{Header: event.Header{Kind: event.KindNote, Time: at, PID: 7}, Note: uint32(k), Data: data}
			if err := p.Record(&r); err != nil {
				t.Fatal(err)
			}
		}
		whole := []byte(`{"samples":[{"uuid":"G","util":5,"mj":5,"procs":[{"pid":7,"mem":1,"util":5}],"procs_known":true}]}`)
		put(1e9, note.KindGPUSamples, whole)
		put(2e9, kinds[int(kind)%len(kinds)], data)
		check := func() {
			m := p.Metrics()
			for _, f := range m.Families {
				for _, p := range f.Points {
					if f.Name != "hw.temperature" && !(p.Value >= 0) {
						t.Errorf("%s = %v", f.Name, p.Value)
					}
				}
			}
			if err := prom.WriteText(io.Discard, &m, export.Defaults{}); err != nil {
				t.Error(err)
			}
		}
		check()
		put(3e9, kinds[int(kind)%len(kinds)], data)
		put(4e9, note.KindGPUSamples, whole)
		check()
		s := term.NewSummary(term.Options{})
		s.SetGPUs(p.GPUs())
		s.SetKernels(p.Kernels())
		for _, k := range p.Kernels() {
			if k.Launches < 0 || k.Unnamed < 0 || k.InGraphs < 0 || k.Unnamed > k.Launches+k.InGraphs || k.Beyond > k.Launches {
				t.Errorf("%+v", k)
			}
		}
		if err := s.Write(io.Discard); err != nil {
			t.Error(err)
		}
	})
}
