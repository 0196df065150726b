package sample

import "inferspan/correlate/trace"

// Steps returns trees with n steps of a core: chunks of a prompt, then decoding.
// Every seventh was seen in part only.
func Steps(n int) []trace.Tree {
	res := Resource(4243)
	known := func(v int64) trace.Int { return trace.Int{V: v, OK: true} }
	trees := make([]trace.Tree, n)
	for i := range trees {
		at := Start + int64(i)*12*ms
		s := trace.Step{
			Resource: res, EngineIndex: 1, Number: known(int64(1000 + i)), Start: at, End: at + 10*ms + int64(i%5)*ms/2, Gap: known(ms),
			Running: known(2), Waiting: known(int64(i % 2)), Blocks: known(100), FreeBlocks: known(60), FreeAfter: known(59),
			Requests: []trace.StepRequest{{ID: "chatcmpl-0-ab12", RequestID: "chatcmpl-0", Tokens: known(1), Computed: known(int64(40 + i)), Kind: trace.StepDecode}},
		}
		switch {
		case i%7 == 6:
			s.Gap, s.Partial, s.End, s.Requests, s.FreeAfter = trace.Int{}, true, 0, nil, trace.Int{}
		case i < 3:
			s.Requests = append(s.Requests, trace.StepRequest{ID: "chatcmpl-1-cd34", Tokens: known(512), Computed: known(int64(512 * i)), Kind: trace.StepPrefillChunk})
		case i == 3:
			s.Gap, s.Idle = known(300*ms), true
			s.Requests = append(s.Requests, trace.StepRequest{ID: "chatcmpl-1-cd34", Tokens: known(37), Computed: known(1536), Kind: trace.StepPrefill})
		case i == 4:
			s.Gap = known(-2 * ms)
			s.Preempted = []string{"chatcmpl-1-cd34"}
		case i == 5:
			s.Requests = append(s.Requests, trace.StepRequest{ID: "chatcmpl-1-cd34", Kind: trace.StepResumed})
		}
		total := int64(0)
		for _, q := range s.Requests {
			total += q.Tokens.V
		}
		s.Tokens = known(total)
		trees[i] = trace.Tree{Steps: []trace.Step{s}}
	}
	return trees
}
