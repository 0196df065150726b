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
		list(slotsLeft[0], loopStats), list(slotsLeft[1], loopStats), list(slotDecoding, decoding, partAddr), slotNoDrafts, slotExtend, slotPrefix, slotMade, slotChunked, slotChunkedAt}
	_, decoded := stampPaths(stampNames[:], loopStats)
	s.ends = []string{slotNumber, slotDecoded + ":" + strings.Join(append(decoded, partAddr), ","), list(slotSent, resultStats), list(slotEnded, endStats)}
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

// TestHanded is TestStages for a server whose requests have their prefill elsewhere.
func TestHanded(t *testing.T) {
	a := req{id: "a", at: map[timing]float64{stampReceived: 10, stampPrealloc: 11, stampIncoming: 13, stampQueued: 16, stampForward: 17, stampLastForward: 17, stampPrebuilt: 19}}
	before := `a decode_prepare 10-11
a decode_bootstrap 11-13
a decode_transferred 13-16
`
	decoded := func(at float64) req { return with(a, map[timing]float64{stampDecoded: at}) }
	first := func(s *scene) {
		s.decode(20, 0, a)
		s.decode(22, 1, a)
		s.sent(25, 1, nil, decoded(24))
	}
	end := func(s *scene) {
		s.decode(26, 1, decoded(24))
		s.sent(30, 2, []req{with(decoded(28), map[timing]float64{stampCompleted: 29})})
	}
	both := `a decode_waiting 16-17
a decode_forward 17-0
a fake_output 17-19
a schedule at 20 decode 1 of 1
a schedule at 22 decode 2 of 1
a decode_loop 19-24 #0
a schedule at 26 decode 3 of 1
` + before + `a decode_loop 24-28 #1
a complete at 29`
	for name, test := range map[string]struct {
		play func(*scene)
		want string
	}{
		"one that does not stream": {func(s *scene) {
			first(s)
			end(s)
		}, both},
		"one that streams": {func(s *scene) {
			s.sentApart(19.5, nil, a)
			first(s)
			end(s)
		}, both},
		"ended by the token of the prefill": {func(s *scene) {
			s.sentApart(20, []req{with(a, map[timing]float64{stampForward: 20, stampCompleted: 20})})
		}, before + `a decode_waiting 16-17
a decode_forward 17-0
a fake_output 17-19
a complete at 20`},
		"put back": {func(s *scene) {
			first(s)
			back := with(a, map[timing]float64{stampQueued: 30, stampLastForward: 35, stampPrebuilt: 36})
			s.decode(37, 0, back)
			s.sent(40, 3, []req{with(back, map[timing]float64{stampDecoded: 38, stampCompleted: 39})})
		}, `a decode_waiting 16-17
a decode_forward 17-0
a fake_output 17-19
a schedule at 20 decode 1 of 1
a schedule at 22 decode 2 of 1
a decode_loop 19-24 #0
a retract at 30
a fake_output 35-36 again
a schedule at 37 decode 3 of 1
` + before + `a decode_loop 36-38 #1 again
a complete at 39`},
		"seen in the middle": {func(s *scene) {
			s.decode(26, 1, decoded(24))
			s.sent(30, 1, nil, decoded(28))
		}, `a decode_waiting 16-17
a decode_forward 17-0
a fake_output 17-19
a schedule at 26 decode 1 of 1
a decode_loop 24-28`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSceneOf(t, handedStats)
			test.play(s)
			if got := strings.Join(s.stagesOf(), "\n"); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// TestStages compares with what the methods of SchedulerReqTimeStats would trace.
func TestStages(t *testing.T) {
	arrived := req{id: "a", at: map[timing]float64{stampReceived: 10, stampQueued: 11, stampForward: 12, stampLastForward: 12}}
	prefilled := with(arrived, map[timing]float64{stampPrefilled: 20, stampLastPrefilled: 20})
	again := map[timing]float64{stampLastPrefilled: 0, stampDecoded: 0, stampChunk: 0}
	decoded := func(at float64) req { return with(prefilled, map[timing]float64{stampDecoded: at}) }
	for name, test := range map[string]struct {
		play func(*scene)
		want string
	}{
		"one at a time": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.sent(21, 1, nil, prefilled)
			s.decode(23, 0, prefilled)
			s.sent(27, 2, nil, decoded(26))
			s.decode(28, 0, decoded(26))
			s.sent(32, 3, []req{with(decoded(30), map[timing]float64{stampCompleted: 31})})
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a prefill_forward 12-20
a decode_waiting 20-23 by batch_launch
a decode_forward 23-0 by batch_launch
a schedule at 23 decode 2 of 1
a decode_loop 23-26 #0 by batch_launch
a schedule at 28 decode 3 of 1
a decode_loop 26-30 #1
a complete at 31`},
		"overlapping": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.decode(18, 1, arrived)
			s.sent(21, 1, nil, prefilled)
			s.decode(23, 1, prefilled)
			s.sent(27, 2, nil, decoded(26))
			s.decode(28, 1, decoded(26))
			s.sent(32, 3, []req{with(decoded(30), map[timing]float64{stampCompleted: 31})})
			// One more result of a request that has ended.
			s.sent(33, 4, []req{with(decoded(30), map[timing]float64{stampCompleted: 31})})
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 18 decode 2 of 1
a prefill_forward 12-20
a decode_forward 20-0
a schedule at 23 decode 3 of 1
a decode_loop 23-26 #0 by batch_launch
a schedule at 28 decode 4 of 1
a decode_loop 26-30 #1
a complete at 31`},
		"without a message, and the last two results": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.decode(18, 1, arrived)
			s.decode(23, 1, prefilled)
			s.decode(28, 1, decoded(26))
			s.sent(36, 4, []req{with(decoded(34), map[timing]float64{stampCompleted: 35})})
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 18 decode 2 of 1
a prefill_forward 12-20
a decode_forward 20-0
a schedule at 23 decode 3 of 1
a decode_loop 23-26 #0 by batch_launch
a schedule at 28 decode 4 of 1
a unseen at 36
a complete at 35`},
		"ends by its length beside others": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.decode(18, 1, arrived)
			s.decode(23, 1, prefilled)
			b := req{id: "b", at: map[timing]float64{stampReceived: 2, stampQueued: 3, stampForward: 4, stampLastForward: 4, stampPrefilled: 5, stampLastPrefilled: 5, stampDecoded: 26}}
			s.decodeWithout(28, 1, []req{decoded(26), {id: "gone", at: map[timing]float64{stampDecoded: 6}}, b}, b)
			s.sent(36, 3, []req{with(decoded(34), map[timing]float64{stampCompleted: 35})})
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 18 decode 2 of 1
a prefill_forward 12-20
a decode_forward 20-0
a schedule at 23 decode 3 of 1
a decode_loop 23-26 #0 by batch_launch
b schedule at 28 decode 4 of 1
a decode_loop 26-34 #1
a complete at 35`},
		"put back, as the next batch shows": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.decode(18, 1, arrived)
			s.decode(23, 1, prefilled)
			b := req{id: "b", at: map[timing]float64{stampLastPrefilled: 5, stampDecoded: 26}}
			s.decodeWithout(28, 1, []req{with(decoded(0), nil)}, b)
			back := with(prefilled, map[timing]float64{stampQueued: 27, stampLastForward: 35, stampLastPrefilled: 0})
			s.prefill(36, 1, nil, back)
			s.decode(41, 0, with(back, map[timing]float64{stampLastPrefilled: 40}))
			s.sent(46, 6, nil, with(back, map[timing]float64{stampLastPrefilled: 40, stampDecoded: 45}))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 18 decode 2 of 1
a prefill_forward 12-20
a decode_forward 20-0
a schedule at 23 decode 3 of 1
a unseen at 29
b schedule at 28 decode 4 of 1
a retract at 27
a schedule at 36 prefill 5 of 1
a prefill_forward 35-40 again
a decode_waiting 40-41 again by batch_launch
a decode_forward 41-0 again by batch_launch
a schedule at 41 decode 6 of 1
a decode_loop 41-45 #1 again by batch_launch`},
		"prefill of another between": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.decode(18, 1, arrived)
			s.decode(23, 1, prefilled)
			b := req{id: "b", at: map[timing]float64{stampReceived: 24, stampQueued: 25, stampForward: 27, stampLastForward: 27}}
			s.prefill(28, 1, []req{decoded(26)}, b)
			s.decode(32, 1, decoded(30), b)
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 18 decode 2 of 1
a prefill_forward 12-20
a decode_forward 20-0
a schedule at 23 decode 3 of 1
a decode_loop 23-26 #0 by batch_launch
b request_process 24-25
b prefill_waiting 25-27
b schedule at 28 prefill 4 of 1
a decode_loop 26-30 #1
a schedule at 32 decode 5 of 2
b schedule at 32 decode 5 of 2`},
		"in chunks, overlapping, of an engine that traces": {func(s *scene) {
			s.prefill(13, 0, nil, req{id: "a", at: arrived.at, parts: []int64{1}})
			s.prefill(15, 1, nil, arrived)
			s.prefill(17, 1, []req{with(arrived, map[timing]float64{stampChunk: 16})})
			s.sent(21, 2, nil, with(prefilled, map[timing]float64{stampChunk: 16}))
			s.decode(23, 1, decoded(22))
			s.sent(27, 4, nil, decoded(26))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 15 prefill 2 of 1
a chunked_prefill 12-16
a chunked_prefill 16-20
a prefill_forward 12-20
a decode_waiting 20-22
a decode_forward 22-0
a schedule at 23 decode 4 of 1
a decode_loop 22-26 #0`},
		"ends with its first output": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.sent(22, 1, []req{with(prefilled, map[timing]float64{stampCompleted: 21})})
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a prefill_forward 12-20
a complete at 21`},
		"in chunks": {func(s *scene) {
			s.prefill(13, 0, nil, with(req{id: "a", at: arrived.at, parts: []int64{1}}, nil))
			s.prefill(15, 0, nil, with(req{id: "a", at: arrived.at, parts: []int64{1}}, map[timing]float64{stampChunk: 14}))
			s.prefill(17, 0, nil, with(arrived, map[timing]float64{stampChunk: 16}))
			s.sent(21, 3, nil, with(prefilled, map[timing]float64{stampChunk: 16}))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a chunked_prefill 12-14
a schedule at 15 prefill 2 of 1
a chunked_prefill 14-16
a schedule at 17 prefill 3 of 1
a chunked_prefill 16-20
a prefill_forward 12-20`},
		"in chunks, the last of which is seen late": {func(s *scene) {
			s.prefill(13, 0, nil, with(req{id: "a", at: arrived.at, parts: []int64{1}}, nil))
			s.prefill(15, 1, nil, with(arrived, nil))
			s.decode(21, 0, prefilled)
			s.sent(27, 3, []req{with(decoded(26), map[timing]float64{stampChunk: 16, stampCompleted: 26})})
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 15 prefill 2 of 1
a prefill_forward 12-20
a decode_waiting 20-21 by batch_launch
a decode_forward 21-0 by batch_launch
a schedule at 21 decode 3 of 1
a chunked_prefill 12-16
a chunked_prefill 16-20
a decode_loop 21-26 #0 by batch_launch
a complete at 26`},
		"put back": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.sent(21, 1, nil, prefilled)
			s.decode(23, 0, prefilled)
			s.sent(27, 2, nil, decoded(26))
			back := with(decoded(26), map[timing]float64{stampQueued: 30, stampLastForward: 35})
			s.prefill(36, 0, nil, with(req{id: "a", at: back.at, parts: []int64{0, 2}}, again))
			s.sent(41, 3, nil, with(back, map[timing]float64{stampLastPrefilled: 40, stampDecoded: 0}))
			s.decode(43, 0, with(back, map[timing]float64{stampLastPrefilled: 40, stampDecoded: 0}))
			s.sent(48, 4, []req{with(back, map[timing]float64{stampLastPrefilled: 40, stampDecoded: 46, stampCompleted: 47})})
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a prefill_forward 12-20
a decode_waiting 20-23 by batch_launch
a decode_forward 23-0 by batch_launch
a schedule at 23 decode 2 of 1
a decode_loop 23-26 #0 by batch_launch
a retract at 30
a schedule at 36 prefill 3 of 1
a prefill_forward 35-40 again
a decode_waiting 40-43 again by batch_launch
a decode_forward 43-0 again by batch_launch
a schedule at 43 decode 4 of 1
a decode_loop 43-46 #1 again by batch_launch
a complete at 47`},
		"put back behind a prefill of which nothing was sent": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.decode(18, 1, arrived)
			back := with(prefilled, map[timing]float64{stampQueued: 22, stampLastForward: 35, stampLastPrefilled: 0})
			s.prefill(36, 0, nil, back)
			s.sent(41, 3, nil, with(back, map[timing]float64{stampLastPrefilled: 40}))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 18 decode 2 of 1
a prefill_forward 12-20
a decode_forward 20-0
a retract at 22
a schedule at 36 prefill 3 of 1
a prefill_forward 35-40 again`},
		"the same, of a prompt in chunks": {func(s *scene) {
			s.prefill(13, 0, nil, req{id: "a", at: arrived.at, parts: []int64{1}})
			s.prefill(15, 0, nil, with(arrived, map[timing]float64{stampChunk: 14}))
			s.decode(18, 1, arrived)
			s.prefill(36, 0, nil, with(prefilled, map[timing]float64{stampQueued: 22, stampLastForward: 35, stampLastPrefilled: 0}))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a chunked_prefill 12-14
a schedule at 15 prefill 2 of 1
a schedule at 18 decode 3 of 1
a chunked_prefill 14-20
a prefill_forward 12-20
a decode_forward 20-0
a retract at 22
a schedule at 36 prefill 4 of 1`},
		"the same, with a chunk that was not seen": {func(s *scene) {
			s.prefill(13, 0, nil, req{id: "a", at: arrived.at, parts: []int64{1}})
			s.prefill(15, 1, nil, arrived)
			s.decode(18, 1, arrived)
			s.prefill(36, 0, nil, with(prefilled, map[timing]float64{stampQueued: 22, stampLastForward: 35, stampLastPrefilled: 0}))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 15 prefill 2 of 1
a schedule at 18 decode 3 of 1
a unseen at 37
a prefill_forward 12-20
a decode_forward 20-0
a retract at 22
a schedule at 36 prefill 4 of 1`},
		"put back before its prefill had a result": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			back := with(arrived, map[timing]float64{stampQueued: 16, stampLastForward: 25})
			s.prefill(26, 0, nil, back)
			s.decode(31, 1, back)
			s.decode(36, 1, with(back, map[timing]float64{stampLastPrefilled: 33}))
			s.sent(41, 3, nil, with(back, map[timing]float64{stampLastPrefilled: 33, stampDecoded: 40}))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a retract at 16
a schedule at 26 prefill 2 of 1
a schedule at 31 decode 3 of 1
a prefill_forward 12-33 again
a decode_forward 33-0 again
a schedule at 36 decode 4 of 1
a decode_loop 36-40 #0 again by batch_launch`},
		"put back with a result of which nothing was sent": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.decode(18, 1, arrived)
			s.decode(23, 1, prefilled)
			back := with(prefilled, map[timing]float64{stampQueued: 28, stampLastForward: 35, stampLastPrefilled: 0})
			s.prefill(36, 0, nil, back)
			s.decode(41, 0, with(back, map[timing]float64{stampLastPrefilled: 40}))
			s.sent(46, 5, nil, with(back, map[timing]float64{stampLastPrefilled: 40, stampDecoded: 45}))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 18 decode 2 of 1
a prefill_forward 12-20
a decode_forward 20-0
a schedule at 23 decode 3 of 1
a unseen at 37
a retract at 28
a schedule at 36 prefill 4 of 1
a prefill_forward 35-40 again
a decode_waiting 40-41 again by batch_launch
a decode_forward 41-0 again by batch_launch
a schedule at 41 decode 5 of 1
a decode_loop 41-45 #1 again by batch_launch`},
		"given up in the queue": {func(s *scene) {
			s.aborted(20, req{id: "a", at: map[timing]float64{stampReceived: 10, stampQueued: 11}})
		}, `a request_process 10-11`},
		"given up between two chunks": {func(s *scene) {
			chunk := req{id: "a", at: arrived.at, parts: []int64{1}}
			s.prefill(13, 0, nil, chunk)
			s.prefill(15, 0, nil, with(chunk, map[timing]float64{stampChunk: 14}))
			s.aborted(20, with(chunk, map[timing]float64{stampChunk: 16}))
			s.prefill(22, 0, []req{with(chunk, map[timing]float64{stampChunk: 21})})
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a chunked_prefill 12-14
a schedule at 15 prefill 2 of 1
a chunked_prefill 14-16
a prefill_forward 12-0`},
		"given up after it was put back": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.sent(21, 1, nil, prefilled)
			s.aborted(30, with(prefilled, map[timing]float64{stampQueued: 25, stampLastForward: 0, stampLastPrefilled: 0}))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a prefill_forward 12-20
a retract at 25`},
		"captures were lost": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.decode(18, 1, arrived)
			s.decode(23, 1, prefilled)
			s.number++
			s.decode(33, 1, decoded(30))
			s.decode(38, 1, decoded(35))
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a schedule at 18 decode 2 of 1
a prefill_forward 12-20
a decode_forward 20-0
a schedule at 23 decode 3 of 1
a schedule at 33 decode 5 of 1
a schedule at 38 decode 6 of 1`},
		"seen in the middle": {func(s *scene) {
			s.decode(23, 1, decoded(22))
			s.decode(28, 1, decoded(26))
			s.decode(33, 1, decoded(31))
		}, `a schedule at 23 decode 1 of 1
a schedule at 28 decode 2 of 1
a decode_loop 26-31
a schedule at 33 decode 3 of 1`},
		"prefill side": {func(s *scene) {
			a := req{id: "a", at: map[timing]float64{stampReceived: 10, stampBootstrap: 11, stampQueued: 13, stampForward: 14, stampLastForward: 14}}
			s.prefill(15, 0, nil, a)
			done := map[timing]float64{stampPrefilled: 20, stampLastPrefilled: 20, stampTransfer: 21, stampTransferred: 25, stampCompleted: 26}
			s.sentApart(27, []req{with(a, done)})
		}, `a prefill_prepare 10-11
a prefill_bootstrap 11-13
a prefill_waiting 13-14
a schedule at 15 prefill 1 of 1
a prefill_forward 14-20
a prefill_transfer_kv_cache 21-25
a complete at 26`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			test.play(s)
			if got := strings.Join(s.stagesOf(), "\n"); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// TestStepLaunched: a step says when it had been launched, and whether that was all.
func TestStepLaunched(t *testing.T) {
	const batch, launch, outputs = 1, 2, 3
	slots := []string{slotNumber, slotLaunch, slotSample, "decoding:rid"}
	missing := func(why capture.Missing) plan.Value { return plan.Value{Tag: capture.TagMissing, Missing: why} }
	for _, c := range []struct {
		name string
		plan uint32
		mark signal.StepMark
		// delay_sample_func
		sample plan.Value
		want   signal.Step
	}{
		{"overlap", batch, signal.StepLaunched, plan.Value{Tag: capture.TagNone}, signal.Step{Schedule: 10e6, Launched: 12e6}},
		{"a function that samples later", batch, signal.StepLaunched, missing(capture.MissingType), signal.Step{Schedule: 10e6, Launched: 12e6, More: true}},
		{"a result without one", batch, signal.StepLaunched, missing(capture.MissingName), signal.Step{Schedule: 10e6, Launched: 12e6}},
		{"no overlap", launch, signal.StepBegins, missing(capture.MissingName), signal.Step{Schedule: 12e6}},
	} {
		s := &scene{t: t, c: NewCaptures(1, "none"), decodes: map[int64]bool{}}
		s.c.Plan(batch, note.Plan{Name: planBatch, Slots: slots})
		s.c.Plan(launch, note.Plan{Name: planLaunch, Slots: slots})
		s.c.Plan(outputs, note.Plan{Name: planOutputs, Slots: []string{slotNumber}})
		if m := s.c.StepMark(c.plan); m != c.mark || s.c.StepMark(outputs) != signal.StepUnmarked {
			t.Errorf("%s: marked %d, want %d", c.name, m, c.mark)
		}
		s.play(c.plan, 12, slots, map[string]plan.Value{slotNumber: intValue(1), slotLaunch: timeValue(10), slotSample: c.sample, slotDecoding: listValue([]req{{id: "a"}}, nil, 0)})
		s.play(outputs, 15, []string{slotNumber}, map[string]plan.Value{slotNumber: intValue(1)})
		if got := s.w.steps; len(got) != 1 {
			t.Errorf("%s: %d steps", c.name, len(got))
		} else if g := got[0]; g.Schedule != c.want.Schedule || g.Launched != c.want.Launched || g.More != c.want.More || g.Update != 15e6 {
			t.Errorf("%s: %+v, want %+v", c.name, g, c.want)
		}
	}
}
