package sglang

import "testing"

// TestPrefillSide: the server that computes prompts, and hands their caches over.
func TestPrefillSide(t *testing.T) {
	checkStages(t, newScene, map[string]stageTest{
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
	})
}

// TestHanded: the server whose requests have their prefill elsewhere.
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
	handed := func(t testing.TB) *scene { return newSceneOf(t, handedStats) }
	checkStages(t, handed, map[string]stageTest{
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
	})
}
