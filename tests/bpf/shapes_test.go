package bpf_test

import (
	"os/exec"
	"reflect"
	"testing"

	"inferspan/bpf"
	"inferspan/bpf/event/capture"
	"inferspan/probes/attach"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
	"inferspan/tests/child"
)

// TestShapes reads an attribute of objects that have it elsewhere each time: the program
// remembers where it found one, and must see when that is no longer so. Classes change, and
// others come to lie where they were.
func TestShapes(t *testing.T) {
	const calls = 4000
	eachPython(t, func(t *testing.T, path string) {
		p := child.Start(t, exec.Command(path, "testdata/shapes.py"))
		if line := p.Line(); line != "ready" {
			t.Fatalf("%s: %q", path, line)
		}
		o := load(t, bpf.Options{RingBytes: 4 << 20})
		look := plan.New("look", plan.Func("__main__", "look"), 2)
		look.Local("want").Str("want", capture.MaxStr)
		look.Local("obj").Attr("value").Str("value", capture.MaxStr)
		other := look.Local("other")
		other.Attr("value").Str("other", capture.MaxStr)
		other.Attr("value").Str("again", capture.MaxStr)
		pid := p.PID()
		i, err := attach.AttachInterpreter(o, process(t, pid, target.RoleCore), openPython(t, pid), []attach.PythonProbe{
			{Callable: plan.Func("zlib", "crc32"), Watches: []attach.Watch{{Caller: look.Function(), Plans: []*plan.Plan{look}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer i.Close()
		if s := i.Report()[0]; !s.Attached || len(s.Watches[0].Plans[0].Dropped) > 0 {
			t.Fatalf("%s: %+v", path, s)
		}
		got := collect(t, o)
		if err := p.Send("go %d %d", calls, len(path)); err != nil {
			t.Fatal(err)
		}
		p.Line()
		all := decoded(t, i, got.end())
		if len(all) != calls {
			t.Errorf("%s: %d captures of %d calls", path, len(all), calls)
		}
		values := 0
		for n, m := range all {
			want, value := m["want"], m["value"]
			if want.Tag == capture.TagNone {
				if value.Tag != capture.TagMissing || value.Missing != capture.MissingName && value.Missing != capture.MissingUnset {
					t.Fatalf("%s: call %d: an attribute that is not there is %+v", path, n, value)
				}
				continue
			}
			values++
			want.Slot, value.Slot = 0, 0
			if !reflect.DeepEqual(want, value) {
				t.Fatalf("%s: call %d: %+v, want %+v", path, n, value, want)
			}
			one, two := m["other"], m["again"]
			one.Slot, two.Slot = 0, 0
			if !reflect.DeepEqual(one, two) {
				t.Fatalf("%s: call %d: read twice, %+v and %+v", path, n, one, two)
			}
		}
		if values < calls/2 {
			t.Errorf("%s: %d values", path, values)
		}
	})
}
