package vllm

import (
	"testing"

	"github.com/tinylib/msgp/msgp"

	"inferspan/correlate/signal"
)

func TestAdapter(t *testing.T) {
	lora := msgp.AppendArrayHeader(nil, 4)
	lora = msgp.AppendString(lora, "sql")
	lora = msgp.AppendInt(lora, 1)
	lora = msgp.AppendString(lora, "/adapters/sql")
	lora = msgp.AppendNil(lora)
	byName := msgp.AppendMapHeader(nil, 1)
	byName = msgp.AppendString(byName, "lora_name")
	byName = msgp.AppendString(byName, "sql")
	for _, tt := range []struct {
		name, want string
		in         []byte
		fails      bool
	}{
		{"none", "", msgp.AppendNil(nil), false},
		{"one", "sql", lora, false},
		{"of no fields", "", msgp.AppendArrayHeader(nil, 0), false},
		{"first field of another type", "", msgp.AppendInt(msgp.AppendArrayHeader(nil, 1), 7), false},
		{"another form", "", byName, false},
		{"cut", "sql", lora[:len(lora)-1], true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, x := &reader{b: tt.in}, &request{q: &signal.RequestAdded{}}
			x.field(r, fieldLoRA)
			if (r.err != nil) != tt.fails {
				t.Fatalf("error %v, want one: %v", r.err, tt.fails)
			}
			if x.q.Adapter != tt.want {
				t.Errorf("adapter %q, want %q", x.q.Adapter, tt.want)
			}
			if r.err == nil && len(r.b) != 0 {
				t.Errorf("%d bytes are left", len(r.b))
			}
		})
	}
}
