package vllm

import (
	"testing"

	"inferspan/correlate/signal"
)

func TestIDs(t *testing.T) {
	none := signal.Opt[int]{}
	for _, tt := range []struct {
		internal, external string
		has                bool // the version has external ids
		ext, response      string
		child              signal.Opt[int]
	}{
		// From 0.14: internal id with a random suffix, external id beside it.
		{"chatcmpl-90df43731f7ac314-b62eb48f", "chatcmpl-90df43731f7ac314", true, "chatcmpl-90df43731f7ac314", "chatcmpl-90df43731f7ac314", none},
		{"2_chatcmpl-90df43731f7ac314-b62eb48f", "chatcmpl-90df43731f7ac314", true, "chatcmpl-90df43731f7ac314", "chatcmpl-90df43731f7ac314", signal.Some(2)},
		{"1_chatcmpl-90df43731f7ac314", "chatcmpl-90df43731f7ac314", true, "chatcmpl-90df43731f7ac314", "chatcmpl-90df43731f7ac314", signal.Some(1)},
		{"chatcmpl-90df43731f7ac314_3-b62eb48f", "chatcmpl-90df43731f7ac314_3", true, "chatcmpl-90df43731f7ac314_3", "chatcmpl-90df43731f7ac314", none},
		{"chatcmpl-my_3-b62eb48f", "chatcmpl-my_3", true, "chatcmpl-my_3", "chatcmpl-my_3", none},
		{"cmpl-90df43731f7ac314-0-b62eb48f", "cmpl-90df43731f7ac314-0", true, "cmpl-90df43731f7ac314-0", "cmpl-90df43731f7ac314", none},
		{"cmpl-my-req-42-12-b62eb48f", "cmpl-my-req-42-12", true, "cmpl-my-req-42-12", "cmpl-my-req-42", none},
		{"11_cmpl-a-1-b62eb48f", "cmpl-a-1", true, "cmpl-a-1", "cmpl-a", signal.Some(11)},
		{"resp_90df43731f7ac314_0-b62eb48f", "resp_90df43731f7ac314_0", true, "resp_90df43731f7ac314_0", "resp_90df43731f7ac314", none},
		{"embd-a-3-b62eb48f", "embd-a-3", true, "embd-a-3", "embd-a", none},
		{"embd-a-prompt-0-chunk-2-b62eb48f", "embd-a-prompt-0-chunk-2", true, "embd-a-prompt-0-chunk-2", "embd-a", none},
		{"score-a-0-b62eb48f", "score-a-0", true, "score-a-0", "score-a", none},
		{"generate-tokens-a-1-b62eb48f", "generate-tokens-a-1", true, "generate-tokens-a-1", "generate-tokens-a-1", none},
		{"own-b62eb48f", "own", true, "own", "own", none},
		{"chatcmpl-x-b62eb48f", "", true, "chatcmpl-x-b62eb48f", "chatcmpl-x", none},
		// Before.
		{"chatcmpl-90df43731f7ac31490df43731f7ac314", "", false, "chatcmpl-90df43731f7ac31490df43731f7ac314", "chatcmpl-90df43731f7ac31490df43731f7ac314", none},
		{"1_chatcmpl-90df-b62eb48f", "", false, "1_chatcmpl-90df-b62eb48f", "chatcmpl-90df-b62eb48f", signal.Some(1)},
		{"cmpl-90df-0", "", false, "cmpl-90df-0", "cmpl-90df", none},
		{"0_cmpl-90df-1", "", false, "0_cmpl-90df-1", "cmpl-90df", signal.Some(0)},
		{"resp_my_3", "", false, "resp_my_3", "resp_my_3", none},
		// The class LLM has no HTTP.
		{"0-84f4343d", "0", true, "0", "", none},
		{"1_7-84f4343d", "7", true, "7", "", signal.Some(1)},
		{"12", "", false, "12", "", none},
		{"3_12", "", false, "3_12", "", signal.Some(3)},
	} {
		ext, response, child := ids(tt.internal, tt.external, tt.has)
		if ext != tt.ext || response != tt.response || child != tt.child {
			t.Errorf("ids(%q, %q) = %q, %q, %v, want %q, %q, %v", tt.internal, tt.external, ext, response, child, tt.ext, tt.response, tt.child)
		}
	}
}
