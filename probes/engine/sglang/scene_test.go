package sglang

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"testing"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
	"inferspan/correlate/signal"
	"inferspan/probes/note"
	"inferspan/probes/python/plan"
)

// said writes signals down, a line for each.
type said struct {
	lines []string
	steps []signal.Step
}

func (w *said) emit(s signal.Signal) {
	switch s := s.(type) {
	case *signal.Stage:
		l := fmt.Sprintf("%s %s %d-%d", s.ID, s.Name, s.Start/1e6, s.End/1e6)
		if s.Round.OK {
			l += fmt.Sprintf(" #%d", s.Round.V)
		}
		if s.Retract {
			l += " again"
		}
		if s.Method != "" {
			l += " by " + s.Method
		}
		w.lines = append(w.lines, l)
	case *signal.Mark:
		l := fmt.Sprintf("%s %s at %d", s.ID, s.Name, s.At/1e6)
		if s.Name == signal.MarkSchedule {
			l += fmt.Sprintf(" %s %d of %d", s.Mode, s.Batch.V, s.Size.V)
		}
		w.lines = append(w.lines, l)
	case *signal.RequestTimes:
		w.lines = append(w.lines, fmt.Sprintf("%s times %d %d %d %d", s.ID, s.Created/1e6, s.Dispatched/1e6, s.First/1e6, s.Finished/1e6))
	case *signal.Step:
		w.steps = append(w.steps, *s)
		l := fmt.Sprintf("step %d %d-%d", s.Number.V, s.Schedule/1e6, s.Update/1e6)
		for _, q := range s.Requests {
			l += fmt.Sprintf(" %s:%d+%d/%d%d", q.ID, q.Computed.V, q.Tokens, q.Entry, q.Phase)
		}
		if s.Partial {
			l += " partial"
		}
		w.lines = append(w.lines, l)
	}
}

// scene plays the captures of a scheduler of 0.5.23. Times are ms.
type scene struct {
	t        testing.TB
	c        *Captures
	w        said
	number   int64
	slots    []string
	ends     []string
	decodes  map[int64]bool // batches that decode
	decoding []timing
}

const testPID = 7

func newScene(t testing.TB) *scene { return newSceneOf(t, decodeStats) }

// newSceneOf has a scheduler whose batches that decode show the stamps of decoding.
func newSceneOf(t testing.TB, decoding []timing) *scene {
	s := &scene{t: t, c: NewCaptures(1, "none"), decodes: map[int64]bool{}, decoding: decoding}
	list := func(slot string, at []timing, parts ...string) string {
		_, names := requestPaths(stampNames[:], at, parts)
		return slot + ":" + strings.Join(names, ",")
	}
	s.slots = []string{slotNumber, slotLaunch, slotQueue, slotSize, list(slotEntering, batchStats, enteringParts...), list(slotBefore, resultStats),
		list(slotsLeft[0], loopStats), list(slotsLeft[1], loopStats), list(slotDecoding, decoding, partAddr), slotNoDrafts, slotExtend, slotPrefix, slotMade, slotChunked, slotChunkedAt,
		slotPutOff, slotDueNumber, dueSlots.size, list(dueSlots.list, batchStats, enteringParts...), dueSlots.extend, dueSlots.prefix}
	_, decoded := stampPaths(stampNames[:], loopStats)
	s.ends = []string{slotNumber, slotDecoded + ":" + strings.Join(append(decoded, partAddr), ","), list(slotSent, resultStats), list(slotEnded, endStats),
		dueSlots.size, list(dueSlots.list, dueStats, enteringParts...), dueSlots.extend, dueSlots.prefix, slotChunked}
	abort := []string{slotID}
	abort = append(abort, stampNames[:]...)
	s.c.Plan(1, note.Plan{Name: planBatch, Slots: s.slots})
	s.c.Plan(2, note.Plan{Name: planOutputs, Slots: s.ends})
	s.c.Plan(3, note.Plan{Name: planAbort, Slots: abort})
	return s
}

// req is a request with its stamps, ms.
type req struct {
	id    string
	at    map[timing]float64
	parts []int64
}

func (s *scene) play(number uint32, at float64, slots []string, values map[string]plan.Value) {
	s.t.Helper()
	var all []plan.Value
	for n, name := range slots {
		key, _, _ := strings.Cut(name, ":")
		if v, ok := values[key]; ok {
			v.Slot = uint8(n)
			v.Values = slices.Clone(v.Values)
			for i := range v.Values {
				v.Values[i].Slot = uint8(n)
			}
			all = append(all, v)
		}
	}
	r := &event.Record{Header: event.Header{Kind: event.KindCapture, Time: uint64(at * 1e6), PID: testPID},
		Capture: event.Capture{Plan: number, Values: uint16(len(all))}, Data: plan.Append(nil, all)}
	if err := s.c.Capture(r, s.w.emit); err != nil {
		s.t.Fatal(err)
	}
}

func intValue(n int64) plan.Value     { return plan.Value{Tag: capture.TagInt, Int: n} }
func timeValue(ms float64) plan.Value { return plan.Value{Tag: capture.TagFloat, Float: ms / 1e3} }
func strValue(s string) plan.Value    { return plan.Value{Tag: capture.TagStr1, Str: s} }

// where is the address of the object of a request.
func (q req) where() plan.Value {
	h := fnv.New64a()
	h.Write([]byte(q.id))
	return plan.Value{Tag: capture.TagAddr, Addr: h.Sum64()}
}

// addressed adds where the requests of a list are; without their ids if named is false.
func addressed(reqs []req, at []timing, named bool) plan.Value {
	v := listValue(reqs, at, 0)
	all := plan.Value{Tag: capture.TagItems, Total: v.Total, Per: v.Per + 1}
	if !named {
		all.Per--
	}
	for n, q := range reqs {
		values := v.Values[n*v.Per : (n+1)*v.Per]
		if !named {
			values = values[1:]
		}
		all.Values = append(append(all.Values, values...), q.where())
	}
	return all
}

func listValue(reqs []req, at []timing, parts int) plan.Value {
	v := plan.Value{Tag: capture.TagItems, Total: len(reqs), Per: 1 + len(at) + parts}
	for _, q := range reqs {
		v.Values = append(v.Values, strValue(q.id))
		for _, k := range at {
			v.Values = append(v.Values, timeValue(q.at[k]))
		}
		for i := range parts {
			n := int64(0)
			if i < len(q.parts) {
				n = q.parts[i]
			}
			v.Values = append(v.Values, intValue(n))
		}
	}
	return v
}

// prefill plays the launch of a batch of prompts while queue results are to come, and
// decode that of a batch that decodes. before are the requests of the batch before.
func (s *scene) prefill(launch float64, queue int64, before []req, reqs ...req) {
	s.t.Helper()
	s.number++
	s.play(1, launch+1, s.slots, map[string]plan.Value{
		slotNumber: intValue(s.number), slotLaunch: timeValue(launch), slotQueue: intValue(queue), slotSize: intValue(int64(len(reqs))),
		slotEntering: listValue(reqs, batchStats, len(enteringParts)), slotBefore: listValue(before, resultStats, 0), slotNoDrafts: {Tag: capture.TagAddr, Addr: 1},
	})
}

func (s *scene) decode(launch float64, queue int64, reqs ...req) {
	s.t.Helper()
	s.decodeAnd(launch, queue, nil, reqs)
}

// decodeAnd is decode with more slots.
func (s *scene) decodeAnd(launch float64, queue int64, more map[string]plan.Value, reqs []req) {
	s.t.Helper()
	s.number++
	s.decodes[s.number] = true
	values := map[string]plan.Value{
		slotNumber: intValue(s.number), slotLaunch: timeValue(launch), slotQueue: intValue(queue), slotDecoding: addressed(reqs, s.decoding, true),
		slotNoDrafts: {Tag: capture.TagAddr, Addr: 1},
	}
	maps.Copy(values, more)
	s.play(1, launch+1, s.slots, values)
}

// decodeWithout plays the launch of a batch that decodes, of which some requests of the
// batch before are no part any more.
func (s *scene) decodeWithout(launch float64, queue int64, left []req, reqs ...req) {
	s.t.Helper()
	at := (s.number + 1) % 2 // by the number of this batch
	s.decodeAnd(launch, queue, map[string]plan.Value{
		slotsLeft[at]: listValue(left, loopStats, 0), slotsLeft[1-at]: {Tag: capture.TagMissing, Missing: capture.MissingType},
	}, reqs)
}

// sent plays a message with the outputs of a batch.
func (s *scene) sent(at float64, number int64, ended []req, reqs ...req) {
	s.t.Helper()
	slot, list := slotSent, listValue(reqs, resultStats, 0)
	if s.decodes[number] {
		slot, list = slotDecoded, addressed(reqs, loopStats, false)
	}
	s.play(2, at, s.ends, map[string]plan.Value{
		slotNumber: intValue(number), slot: list, slotEnded: listValue(ended, endStats, 0),
	})
}

// sentApart plays a message with outputs that are of no batch that was launched.
func (s *scene) sentApart(at float64, ended []req, reqs ...req) {
	s.t.Helper()
	s.play(2, at, s.ends, map[string]plan.Value{slotSent: listValue(reqs, resultStats, 0), slotEnded: listValue(ended, endStats, 0)})
}

// aborted plays the message that a request that is in no batch is given up.
func (s *scene) aborted(at float64, q req) {
	s.t.Helper()
	values := map[string]plan.Value{slotID: strValue(q.id)}
	for k, name := range stampNames {
		values[name] = timeValue(q.at[timing(k)])
	}
	s.play(3, at, append([]string{slotID}, stampNames[:]...), values)
}

// stagesOf gives what was said but for steps.
func (s *scene) stagesOf() []string {
	return slices.DeleteFunc(slices.Clone(s.w.lines), func(l string) bool { return strings.HasPrefix(l, "step") })
}

func with(q req, at map[timing]float64) req {
	out := req{id: q.id, at: map[timing]float64{}, parts: q.parts}
	for k, v := range q.at {
		out.at[k] = v
	}
	for k, v := range at {
		out.at[k] = v
	}
	return out
}
