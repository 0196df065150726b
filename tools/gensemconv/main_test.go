package main

import (
	"bytes"
	"os"
	"testing"
)

func TestGeneratedFileIsCurrent(t *testing.T) {
	want, err := generate("../../spec")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../correlate/semconv/names_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("correlate/semconv/names_gen.go is out of date: run go generate ./correlate/semconv")
	}
}

func TestGoName(t *testing.T) {
	for in, want := range map[string]string{
		"gen_ai.request.id":   "GenAIRequestID",
		"gen_ai.latency.e2e":  "GenAILatencyE2E",
		"vllm.v1.llm_request": "VLLMV1LLMRequest",
		"WAIT":                "Wait",
		"gen_ai.client.inference.operation.details": "GenAIClientInferenceOperationDetails",
		"genai_llm_usage_tokens":                    "GenAILLMUsageTokens",
		"inferspan.request.child_index":             "InferspanRequestChildIndex",
	} {
		if got := goName(in); got != want {
			t.Errorf("goName(%q) = %q, want %q", in, got, want)
		}
	}
}
