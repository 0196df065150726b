package sglang

import (
	"slices"
	"strings"
	"testing"

	"inferspan/probes/note"
	"inferspan/probes/python/plan"
)

// dim has the scene's batches and outputs captured by the plans of a level from now on.
type dim struct {
	*scene
	level int
}

// have are the stamps of a level.
func (d *dim) have() []string {
	switch d.level {
	case 0:
		return stampNames[:]
	case 1:
		return slices.DeleteFunc(slices.Clone(stampNames[:]), func(n string) bool { return n == stampNames[stampDecoded] })
	}
	return nil
}

// decoding are the stamps of a batch that decodes.
func (d *dim) decoding() []timing {
	if d.level > 0 {
		return nil
	}
	return decodeStats
}

func (d *dim) stats(all []timing) []timing {
	return slices.DeleteFunc(slices.Clone(all), func(k timing) bool { return !has(d.have(), stampNames[k]) })
}

// plans gives the slots of the two plans as requests names them, and announces them.
func (d *dim) plans() (number uint32, batch, outputs []string) {
	list := func(to []string, slot string, at []timing, parts ...string) []string {
		paths, names := requestPaths(d.have(), at, parts)
		if len(paths) == 1 && slot != slotEntering && slot != slotDecoding {
			return to
		}
		return append(to, slot+":"+strings.Join(names, ","))
	}
	batch = list([]string{slotNumber, slotLaunch, slotQueue, slotSize, slotNoDrafts}, slotEntering, batchStats, enteringParts...)
	batch = list(list(batch, slotBefore, resultStats), slotDecoding, d.decoding())
	_, ended := requestPaths(d.have(), endStats, nil)
	outputs = append(list(list([]string{slotNumber}, slotDecoded, loopStats), slotSent, resultStats), slotEnded+":"+strings.Join(ended, ","))
	number = uint32(10 + 2*d.level)
	d.c.Plan(number, note.Plan{Name: planBatch, Slots: batch, Level: d.level})
	d.c.Plan(number+1, note.Plan{Name: planOutputs, Slots: outputs, Level: d.level})
	return number, batch, outputs
}

func (d *dim) prefill(launch float64, reqs ...req) {
	n, slots, _ := d.plans()
	d.number++
	d.play(n, launch+1, slots, map[string]plan.Value{
		slotNumber: intValue(d.number), slotLaunch: timeValue(launch), slotQueue: intValue(0), slotSize: intValue(int64(len(reqs))), slotNoDrafts: {Tag: 1, Addr: 1},
		slotEntering: listValue(reqs, d.stats(batchStats), len(enteringParts)), slotBefore: listValue(nil, d.stats(resultStats), 0),
	})
}

func (d *dim) decode(launch float64, reqs ...req) {
	n, slots, _ := d.plans()
	d.number++
	d.decodes[d.number] = true
	d.play(n, launch+1, slots, map[string]plan.Value{
		slotNumber: intValue(d.number), slotLaunch: timeValue(launch), slotQueue: intValue(0), slotDecoding: listValue(reqs, d.decoding(), 0), slotNoDrafts: {Tag: 1, Addr: 1},
	})
}

func (d *dim) sent(at float64, ended []req, reqs ...req) {
	n, _, slots := d.plans()
	all := append(slices.Clone(reqs), ended...)
	slot, stats := slotSent, resultStats
	if d.decodes[d.number] {
		slot, stats = slotDecoded, loopStats
	}
	d.play(n+1, at, slots, map[string]plan.Value{slotNumber: intValue(d.number), slot: listValue(all, d.stats(stats), 0), slotEnded: listValue(ended, d.stats(endStats), 0)})
}

// TestLighter: what lighter plans leave out is missing, whatever was seen before and after,
// and nothing else is said in its place.
func TestLighter(t *testing.T) {
	arrived := req{id: "a", at: map[timing]float64{stampReceived: 10, stampQueued: 11, stampForward: 12, stampLastForward: 12}}
	prefilled := with(arrived, map[timing]float64{stampPrefilled: 20, stampLastPrefilled: 20})
	decoded := func(at float64) req { return with(prefilled, map[timing]float64{stampDecoded: at}) }
	over := with(decoded(73), map[timing]float64{stampCompleted: 75})
	for _, c := range []struct {
		name   string
		levels [7]int // of the prefill and of each round
		want   string // but for schedule and complete
	}{
		{"all", [7]int{}, "request_process 10-11|prefill_waiting 11-12|prefill_forward 12-20|decode_waiting 20-22 by batch_launch|decode_forward 22-0 by batch_launch|" +
			"decode_loop 22-23 #0 by batch_launch|decode_loop 23-33 #1|decode_loop 33-43 #2|decode_loop 43-53 #3|decode_loop 53-63 #4|decode_loop 63-73 #5"},
		{"no rounds", [7]int{1, 1, 1, 1, 1, 1, 1}, "request_process 10-11|prefill_waiting 11-12|prefill_forward 12-20|decode_waiting 20-22 by batch_launch|decode_forward 22-0 by batch_launch"},
		{"no rounds for a while", [7]int{0, 0, 1, 1, 1, 0, 0}, "request_process 10-11|prefill_waiting 11-12|prefill_forward 12-20|decode_waiting 20-22 by batch_launch|decode_forward 22-0 by batch_launch|" +
			"decode_loop 22-23 #0 by batch_launch|unseen|decode_loop 53-63 #4|decode_loop 63-73 #5"},
		{"one round without", [7]int{0, 0, 0, 1, 0, 0, 0}, "request_process 10-11|prefill_waiting 11-12|prefill_forward 12-20|decode_waiting 20-22 by batch_launch|decode_forward 22-0 by batch_launch|" +
			"decode_loop 22-23 #0 by batch_launch|decode_loop 23-33 #1|decode_loop 33-43 #2|decode_loop 43-53 #3|decode_loop 53-63 #4|decode_loop 63-73 #5"},
		{"no times", [7]int{2, 2, 2, 2, 2, 2, 2}, ""},
		{"no times for a while", [7]int{0, 0, 2, 2, 2, 0, 0}, "request_process 10-11|prefill_waiting 11-12|prefill_forward 12-20|decode_waiting 20-22 by batch_launch|decode_forward 22-0 by batch_launch|" +
			"decode_loop 22-23 #0 by batch_launch|decode_loop 53-63|decode_loop 63-73"},
		{"times from the middle on", [7]int{2, 2, 2, 2, 1, 0, 0}, "decode_loop 53-63|request_process 10-11|prefill_waiting 11-12|decode_loop 63-73"},
		{"less and less", [7]int{0, 0, 1, 1, 2, 2, 2}, "request_process 10-11|prefill_waiting 11-12|prefill_forward 12-20|decode_waiting 20-22 by batch_launch|decode_forward 22-0 by batch_launch|" +
			"decode_loop 22-23 #0 by batch_launch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &dim{newScene(t), c.levels[0]}
			d.prefill(13, arrived)
			d.sent(21, nil, prefilled)
			now := prefilled
			for k := range 6 {
				d.level = c.levels[k+1]
				d.decode(22+10*float64(k), now)
				if now = decoded(23 + 10*float64(k)); k < 5 {
					d.sent(24+10*float64(k), nil, now)
				} else {
					d.sent(76, []req{over})
				}
			}
			var got []string
			for _, l := range d.stagesOf() {
				l = strings.TrimPrefix(l, "a ")
				if strings.HasPrefix(l, "unseen") {
					l = "unseen"
				}
				if !strings.HasPrefix(l, "schedule") && !strings.HasPrefix(l, "complete") {
					got = append(got, l)
				}
			}
			if all := strings.Join(got, "|"); all != c.want {
				t.Errorf("stages\n%s\nwant\n%s", all, c.want)
			}
			// Which requests are in a step, and when it began, is known at each level.
			for i, s := range d.w.steps {
				if launch := float64(s.Schedule) / 1e6; s.Partial || len(s.Requests) != 1 || launch != []float64{13, 22, 32, 42, 52, 62, 72}[i] {
					t.Errorf("step %d: %+v", i, s)
				}
			}
			if len(d.w.steps) != 7 {
				t.Errorf("%d steps, want 7", len(d.w.steps))
			}
		})
	}
}
