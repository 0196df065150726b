package bpf_test

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"inferspan/bpf"
	"inferspan/bpf/event"
	"inferspan/probes/attach"
	"inferspan/probes/python/plan"
	"inferspan/probes/target"
	"inferspan/tests/child"
)

// timedCalls calls a C function and prints the size of its input and, in ns, between
// what reads of the clock the call lay. The first line of input names the function.
const timedCalls = `
import binascii, math, sys, time, zlib
calls = {"crc32": binascii.crc32, "adler32": zlib.adler32, "factorial": math.factorial}
def work(f, size, argument):
    before = time.perf_counter_ns()
    f(argument)
    return time.perf_counter_ns() - before
print("ready", flush=True)
name = sys.stdin.readline().strip()
for i in range(300):
    size = 1 + i * 37 % 200
    argument = size if name == "factorial" else b"x" * (size * 1000)
    print(size, work(calls[name], size, argument))
try: # a call that ends by an exception ends
    work(calls[name], 777, "wrong")
except TypeError: pass
print("done", flush=True)
sys.stdin.readline()
`

// TestTimedCalls compares how long calls take by the probes with what the program
// itself measures around them.
func TestTimedCalls(t *testing.T) {
	eachPython(t, func(t *testing.T, path string) {
		o := load(t, bpf.Options{})
		prog := child.Start(t, exec.Command(path, "-c", timedCalls))
		prog.Expect("ready")
		work := plan.Func("__main__", "work")
		p := plan.New("work", work, 1)
		p.Local("size").Value("size")
		// Which of the functions is left by its own return instructions is up to the compiler.
		var i *attach.Interpreter
		var err error
		name, reasons := "", ""
		for _, fn := range []plan.Function{plan.Func("binascii", "crc32"), plan.Func("zlib", "adler32"), plan.Func("math", "factorial")} {
			i, err = attach.AttachInterpreter(o, process(t, prog.PID(), target.RoleCore), openPython(t, prog.PID()), []attach.PythonProbe{
				{Callable: fn, Timed: true, Watches: []attach.Watch{{Caller: work, Plans: []*plan.Plan{p}}}}})
			if err != nil {
				t.Fatal(err)
			}
			if s := i.Report()[0]; s.Attached {
				name = fn.Path[0]
				break
			} else {
				reasons += "; " + s.Callable + ": " + s.Reason
			}
			i.Close()
		}
		if name == "" {
			t.Skipf("no function can be timed%s", reasons)
		}
		defer i.Close()
		status := i.Report()[0]
		c := collect(t, o)
		if err := prog.Send("%s", name); err != nil {
			t.Fatal(err)
		}
		var sizes, around []int64
		for line := prog.Line(); line != "done"; line = prog.Line() {
			w := strings.Fields(line)
			size, _ := strconv.ParseInt(w[0], 10, 64)
			ns, _ := strconv.ParseInt(w[1], 10, 64)
			sizes, around = append(sizes, size), append(around, ns)
		}
		var got []event.Record
		for _, r := range c.end() {
			if r.Kind == event.KindCapture {
				got = append(got, r)
			}
		}
		if len(sizes) != 300 || len(got) != 301 {
			t.Fatalf("%d calls, %d captures, want 300 and one more", len(sizes), len(got))
		}
		var d plan.Capture
		var sum uint64
		var rest []int64
		for n, r := range got {
			if err := d.Decode(&r); err != nil {
				t.Fatal(err)
			}
			size := d.Slot(0)
			if r.Capture.Flags&event.CaptureReturn == 0 || r.Capture.Took == 0 || size == nil {
				t.Fatalf("capture %d: %+v, %v", n, r.Capture, size)
			}
			sum += uint64(r.Capture.Took)
			if n == 300 {
				if size.Int != 777 {
					t.Errorf("the last call has the size %v", size)
				}
				continue
			}
			took := int64(r.Capture.Took) - int64(status.Overhead)
			if size.Int != sizes[n] || took > around[n] {
				t.Errorf("call %d: size %v, took %d ns; the program says %d, less than %d ns", n, size, took, sizes[n], around[n])
			}
			rest = append(rest, around[n]-took)
		}
		slices.Sort(rest)
		// What lies around a call: two reads of the clock, the traps at entry and return.
		if m := rest[len(rest)/2]; m < 0 || m > int64(60*time.Microsecond) {
			t.Errorf("the program measures %d ns more, at the median", m)
		}
		calls, ns, err := i.ProbeTimes(0)
		if err != nil || calls != 301 || ns != sum {
			t.Errorf("in all %d calls of %d ns, %v; want 301 of %d", calls, ns, err, sum)
		}
		if err := i.Detach(0, "why"); err != nil {
			t.Fatal(err)
		}
		if calls, ns, err := i.ProbeTimes(0); calls != 0 || ns != 0 || err != nil {
			t.Errorf("without the probe: %d calls of %d ns, %v", calls, ns, err)
		}
		t.Logf("Python %s, %s: measuring adds %v; the program measures %d ns more", openPython(t, prog.PID()).Version, name, status.Overhead, rest[len(rest)/2])
	})
}
