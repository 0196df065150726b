package correlate

import (
	"slices"
	"testing"

	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// What the probes left out for a while is named in the spans of requests of that time, and
// in those only; each change is a note.
func TestLeftOut(t *testing.T) {
	loops := []string{"decode_loop"}
	change := func(ms float64, less []string) *signal.ProbeChange {
		c := &signal.ProbeChange{At: at(ms), Engine: 1, PID: schPID, Probe: signal.DetailSteps, Active: true, Less: less}
		if len(less) > 0 {
			c.Why = "too dear"
		}
		return c
	}
	const why = ": the probes looked at less: too dear"
	for _, c := range []struct {
		name    string
		changes []*signal.ProbeChange
		tokens  int
		level   int
		want    []string
		notes   []string
	}{
		{"nothing", []*signal.ProbeChange{change(10, nil)}, 3, 4, nil, nil},
		{"all the time", []*signal.ProbeChange{change(10, nil), change(50, loops)}, 3, 4, []string{"decode_loop" + why},
			[]string{"detail steps seen without decode_loop in process 13885: too dear"}},
		{"told again", []*signal.ProbeChange{change(10, nil), change(50, loops), change(60, loops)}, 3, 4, []string{"decode_loop" + why},
			[]string{"detail steps seen without decode_loop in process 13885: too dear"}},
		{"until it began", []*signal.ProbeChange{change(10, nil), change(50, loops), change(90, nil)}, 3, 4, nil,
			[]string{"detail steps seen without decode_loop in process 13885: too dear", "detail steps seen whole again in process 13885"}},
		{"for a part, and more for another", []*signal.ProbeChange{change(10, nil), change(50, []string{"stages"}), change(105, loops), change(106, nil)}, 3, 4,
			[]string{"stages" + why, "decode_loop" + why}, []string{"detail steps seen without stages in process 13885: too dear",
				"detail steps seen without decode_loop in process 13885: too dear", "detail steps seen whole again in process 13885"}},
		{"when it was over", []*signal.ProbeChange{change(10, nil), change(400, loops)}, 3, 4, nil, []string{"detail steps seen without decode_loop in process 13885: too dear"}},
		{"at a level without rounds", []*signal.ProbeChange{change(10, nil), change(50, loops)}, 3, 1, nil, []string{"detail steps seen without decode_loop in process 13885: too dear"}},
		{"of another process", []*signal.ProbeChange{{At: at(10), Engine: 1, PID: sch1PID, Probe: signal.DetailSteps, Active: true, Less: loops, Why: "w"}}, 3, 4, nil,
			[]string{"detail steps seen without decode_loop in process 13886: w"}},
		{"taken out then", []*signal.ProbeChange{change(10, nil), change(50, loops), {At: at(60), Engine: 1, PID: schPID, Probe: signal.DetailSteps, Reason: "still"}, change(80, nil)}, 3, 4, nil,
			[]string{"detail steps seen without decode_loop in process 13885: too dear", "detail steps no longer seen in process 13885: still",
				"detail steps seen again in process 13885"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSGLang()
			i := 0
			put := func(before float64) {
				for ; i < len(c.changes) && c.changes[i].At < at(before); i++ {
					s.put(c.changes[i])
				}
			}
			put(100)
			played := newSGLang().chat(100, 7, "a_r", c.tokens)
			for _, x := range played.sig[2:] {
				if _, out := x.(*signal.StepOutput); out {
					put(150)
				}
				s.put(x)
			}
			put(9000)
			s.put(&signal.Detach{At: at(9000)})
			o := NewOptions()
			o.TraceLevel = c.level
			trees, _, _, cor := collect(t, o, s.sig)
			threads := 0
			for _, tree := range trees {
				for k := range tree.Spans {
					q := &tree.Spans[k]
					if label, _ := q.Attr(semconv.AttrThreadLabel).(string); label != "Scheduler" {
						continue
					}
					threads++
					list, _ := q.Attr(semconv.AttrInferspanUnavailable).([]string)
					if !slices.Equal(list, c.want) {
						t.Errorf("unavailable %q, want %q", list, c.want)
					}
					partial, _ := q.Attr(semconv.AttrInferspanPartial).([]string)
					if slices.Contains(partial, PartialStages) != (len(c.want) > 0) {
						t.Errorf("partial %q", partial)
					}
				}
			}
			if threads != 1 {
				t.Errorf("%d threads of the scheduler, want 1", threads)
			}
			var notes []string
			for _, n := range cor.Notes() {
				notes = append(notes, n.Text)
			}
			if !slices.Equal(notes, c.notes) {
				t.Errorf("notes %q, want %q", notes, c.notes)
			}
		})
	}
}
