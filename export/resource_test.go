package export

import (
	"reflect"
	"testing"

	"inferspan/correlate/trace"
)

func TestDefaults(t *testing.T) {
	vllm := []trace.Attr{{Key: "inferspan.engine.kind", Value: "vllm"}, {Key: "process.pid", Value: int64(7)}}
	named := append([]trace.Attr{{Key: "service.name", Value: "chat-prod"}}, vllm...)
	for _, c := range []struct {
		name string
		flag string
		env  map[string]string
		res  *trace.Resource
		want map[string]any
	}{
		{"the engine's kind", "", nil, &trace.Resource{Attrs: vllm},
			map[string]any{"inferspan.engine.kind": "vllm", "process.pid": int64(7), "service.name": "vllm"}},
		{"the process's own name wins", "flag", map[string]string{"OTEL_SERVICE_NAME": "agent"}, &trace.Resource{Attrs: named},
			map[string]any{"inferspan.engine.kind": "vllm", "process.pid": int64(7), "service.name": "chat-prod"}},
		{"flag before variable", "flag", map[string]string{"OTEL_SERVICE_NAME": "agent"}, &trace.Resource{Attrs: vllm},
			map[string]any{"inferspan.engine.kind": "vllm", "process.pid": int64(7), "service.name": "flag"}},
		{"variable before the attribute list", "", map[string]string{"OTEL_SERVICE_NAME": "agent", "OTEL_RESOURCE_ATTRIBUTES": "service.name=list"}, &trace.Resource{},
			map[string]any{"service.name": "agent"}},
		{"attribute list", "", map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "service.name=list, k8s.cluster.name=a%2Cb ,process.pid=99"}, &trace.Resource{Attrs: vllm},
			map[string]any{"inferspan.engine.kind": "vllm", "process.pid": int64(7), "service.name": "list", "k8s.cluster.name": "a,b"}},
		{"nothing known", "", nil, &trace.Resource{}, map[string]any{"service.name": "unknown_service"}},
		{"the agent", "", nil, nil, map[string]any{"service.name": "inferspan"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := DefaultsFromEnv(c.flag, func(k string) string { return c.env[k] })
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]any{}
			last := ""
			for _, a := range d.Apply(c.res) {
				if a.Key <= last {
					t.Errorf("%s after %s", a.Key, last)
				}
				last = a.Key
				got[a.Key] = a.Value
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestParseResourceAttributesErrors(t *testing.T) {
	for _, s := range []string{"novalue", "=x", "a=%zz"} {
		if got, err := ParseResourceAttributes(s); err == nil || got != nil {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}
