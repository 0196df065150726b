package sglang

import "testing"

// TestStagesRetracted: requests that are put back into the queue, to be computed again.
func TestStagesRetracted(t *testing.T) {
	again := map[timing]float64{stampLastPrefilled: 0, stampDecoded: 0, stampChunk: 0}
	checkStages(t, newScene, map[string]stageTest{
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
	})
}
