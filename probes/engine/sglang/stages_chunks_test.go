package sglang

import "testing"

// TestStagesOfChunks: prompts that are computed in several batches.
func TestStagesOfChunks(t *testing.T) {
	checkStages(t, newScene, map[string]stageTest{
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
	})
}
