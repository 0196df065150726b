package target

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestBlank(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"api key", "vllm serve m --api-key s1 --port 1", "vllm serve m --api-key *** --port 1"},
		{"several api keys", "vllm serve m --api-key s1 s2 --port 1", "vllm serve m --api-key *** *** --port 1"},
		{"with equals", "vllm serve m --api-key=s1 --hf-token=s2", "vllm serve m --api-key=*** --hf-token=***"},
		{"underscores", "vllm serve m --api_key s1 --hf_token s2", "vllm serve m --api_key *** --hf_token ***"},
		{"last", "vllm serve m --hf-token s1", "vllm serve m --hf-token ***"},
		{"harmless options", "vllm serve m --max-num-batched-tokens 10 --ssl-keyfile k.pem --tokenizer t --max-tokens=5", "vllm serve m --max-num-batched-tokens 10 --ssl-keyfile k.pem --tokenizer t --max-tokens=5"},
		{"password of another kind", "x --db-password p --client-secret=s", "x --db-password *** --client-secret=***"},
		{"JSON", `x --cfg {"a":1,"hf_token":"s\"1","b":"c"}`, `x --cfg {"a":1,"hf_token":"***","b":"c"}`},
		{"URL", "x --otlp-traces-endpoint https://u:p@host:4318/v1", "x --otlp-traces-endpoint https://***@host:4318/v1"},
		{"variable", "env HF_TOKEN=s1 API_KEY=s2 PATH=/bin vllm", "env HF_TOKEN=*** API_KEY=*** PATH=/bin vllm"},
		{"by its form", "x --other hf_abcdefghijklmnopqrst sk-abcdefghijklmnop1234", "x --other *** ***"},
		{"title", "VLLM::EngineCore", "VLLM::EngineCore"},
	} {
		in := strings.Split(c.in, " ")
		keep := slices.Clone(in)
		if got := strings.Join(Blank(in), " "); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		if !slices.Equal(in, keep) {
			t.Errorf("%s: the argument was changed", c.name)
		}
	}
	if Blank(nil) != nil {
		t.Error("Blank(nil) is not nil")
	}
}

func TestFlags(t *testing.T) {
	f := flags{strings.Fields("python vllm serve org/model --served-model-name a b --port=8000 --disable_log_stats --tokenizer /t")}
	if m, ok := f.model(); m != "org/model" || !ok {
		t.Errorf("model = %q, %v", m, ok)
	}
	if got := f.values("--served-model-name"); !reflect.DeepEqual(got, []string{"a", "b"}) {
		t.Errorf("served names = %q", got)
	}
	if v, ok := f.value("--port"); v != "8000" || !ok {
		t.Errorf("port = %q, %v", v, ok)
	}
	if !f.has("--disable-log-stats") || f.has("--absent") {
		t.Error("has is wrong")
	}
	if v, ok := f.value("--absent"); ok {
		t.Errorf("absent = %q", v)
	}
	f = flags{strings.Fields("python -m vllm.entrypoints.openai.api_server --model=m2")}
	if m, ok := f.model(); m != "m2" || !ok {
		t.Errorf("model = %q, %v", m, ok)
	}
	if m, ok := (flags{strings.Fields("vllm serve --port 1")}).model(); ok {
		t.Errorf("no model = %q", m)
	}
}
