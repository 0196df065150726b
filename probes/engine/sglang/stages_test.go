package sglang

import (
	"strings"
	"testing"
)

// stageTest is what a scheduler does, and what is said of its requests' stages.
type stageTest struct {
	play func(*scene)
	want string
}

// checkStages plays each of the tests in a scene of its own.
func checkStages(t *testing.T, begin func(testing.TB) *scene, tests map[string]stageTest) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			test.play(s)
			if got := strings.Join(s.stagesOf(), "\n"); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// The request of most tests, before its prefill and after.
var (
	arrived   = req{id: "a", at: map[timing]float64{stampReceived: 10, stampQueued: 11, stampForward: 12, stampLastForward: 12}}
	prefilled = with(arrived, map[timing]float64{stampPrefilled: 20, stampLastPrefilled: 20})
)

// decoded is the request with the result of a batch that decodes.
func decoded(at float64) req { return with(prefilled, map[timing]float64{stampDecoded: at}) }

// TestStages compares with what the methods of SchedulerReqTimeStats would trace, as do
// the tests of what is not as usual.
func TestStages(t *testing.T) {
	checkStages(t, newScene, map[string]stageTest{
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
		"ends with its first output": {func(s *scene) {
			s.prefill(13, 0, nil, arrived)
			s.sent(22, 1, []req{with(prefilled, map[timing]float64{stampCompleted: 21})})
		}, `a request_process 10-11
a prefill_waiting 11-12
a schedule at 13 prefill 1 of 1
a prefill_forward 12-20
a complete at 21`},
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
	})
}

// TestStagesAborted: requests that are given up while they are in no batch.
func TestStagesAborted(t *testing.T) {
	checkStages(t, newScene, map[string]stageTest{
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
	})
}
