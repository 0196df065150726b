package sglang

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"inferspan/probes/target"
	"inferspan/probes/wire"
)

// TestRuns reads what servers sent for a few requests, and redacts it: one with
// SGLANG_USE_PICKLE_IPC=0, and one with two tokenizer workers. There the workers send
// to a router, which sends the same on.
func TestRuns(t *testing.T) {
	t.Run("msgpack", func(t *testing.T) {
		testRun(t, "testdata/real-0.5.23-msgpack.jsonl", 1, map[string]int{"TokenizedGenerateReqInput": 7, "BatchTokenIDOutput": 7,
			"BatchStrOutput": 7, "AbortReq": 2, "FlushCacheReqInput": 1, "FlushCacheReqOutput": 1, "ShutdownReq": 1})
	})
	t.Run("workers", func(t *testing.T) {
		testRun(t, "testdata/real-0.5.23-workers.jsonl", 2, map[string]int{"TokenizedGenerateReqInput": 18, "BatchTokenIDOutput": 9,
			"BatchStrOutput": 9, "AbortReq": 4, "FlushCacheReqInput": 2, "FlushCacheReqOutput": 2, "ShutdownReq": 2,
			"FreezeGCReq": 6, "TokenizerWorkerRegistrationReq": 2})
	})
}

func testRun(t *testing.T, file string, workers int, wantClasses map[string]int) {
	c := codec(t, "0.5.23")
	worker := map[string]string{}
	classes := map[string]int{}
	prompts := map[string]int64{}
	tokens, texts := map[string]int64{}, map[string]int64{}
	finish := map[string]string{}
	for _, s := range load(t, file) {
		m, err := c.Decode(whole(s.Frame))
		if err != nil {
			t.Fatal(err)
		}
		classes[m.Class]++
		for _, r := range m.Requests {
			prompts[r.ID], worker[r.ID] = r.PromptTokens.V, r.Worker
			if (r.Worker != "") != (workers > 1) {
				t.Errorf("%s: worker %q", r.ID, r.Worker)
			}
		}
		for _, o := range m.Outputs {
			id := string(o.ID)
			if string(o.Worker) != worker[id] {
				t.Errorf("%s: goes to worker %q, was sent by %q", id, o.Worker, worker[id])
			}
			if o.PromptTokens.V != prompts[id] {
				t.Errorf("%s: %d prompt tokens, was sent with %d", id, o.PromptTokens.V, prompts[id])
			}
			sum := tokens
			if m.Kind == KindTexts {
				sum = texts
			}
			if sum[id] += o.NumTokens.V; sum[id] != o.CompletionTokens.V {
				t.Errorf("%s: %d tokens in all, %d counted", id, sum[id], o.CompletionTokens.V)
			}
			if o.Finish != nil {
				finish[id] = o.Finish.Type
			}
		}
		if m.Kind == KindAbort && m.Abort.ID != "tap-abort" {
			t.Errorf("%+v", m.Abort)
		}
		want := blanked(shown(t, m))
		r, err := NewRedactor(&target.Engine{Version: s.Version})
		if err != nil {
			t.Fatal(err)
		}
		part := whole(slices.Clone(s.Frame))
		r.message(&wire.Message{Parts: []wire.Part{*part}})
		if m, err = c.Decode(part); err != nil {
			t.Fatal(err)
		}
		if d := differs("message", want, shown(t, m)); d != "" || bytes.Contains(part.Head, []byte("secret")) {
			t.Errorf("redacted: %s", d)
		}
	}
	if !maps.Equal(classes, wantClasses) {
		t.Errorf("got %v, want %v", classes, wantClasses)
	}
	all := map[string]bool{}
	for _, w := range worker {
		all[w] = true
	}
	if len(all) != workers {
		t.Errorf("workers %v", all)
	}
	if prompts["tap-long"] != 1500 || tokens["tap-1"] != 4 || finish["tap-1"] != "length" || finish["tap-b2"] != "length" {
		t.Error(prompts, tokens, finish)
	}
}
