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
		unknown    bool
	}{
		{"none", "", msgp.AppendNil(nil), false, false},
		{"one", "sql", lora, false, false},
		{"of no fields", "", msgp.AppendArrayHeader(nil, 0), false, true},
		{"first field of another type", "", msgp.AppendInt(msgp.AppendArrayHeader(nil, 1), 7), false, true},
		{"another form", "", byName, false, true},
		{"cut", "sql", lora[:len(lora)-1], true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, x := &reader{b: tt.in}, &request{q: &signal.RequestAdded{AdapterUnknown: true}}
			x.field(r, fieldLoRA)
			if (r.err != nil) != tt.fails {
				t.Fatalf("error %v, want one: %v", r.err, tt.fails)
			}
			if x.q.Adapter != tt.want {
				t.Errorf("adapter %q, want %q", x.q.Adapter, tt.want)
			}
			if x.q.AdapterUnknown != tt.unknown {
				t.Errorf("unknown %v, want %v", x.q.AdapterUnknown, tt.unknown)
			}
			if r.err == nil && len(r.b) != 0 {
				t.Errorf("%d bytes are left", len(r.b))
			}
		})
	}
}
