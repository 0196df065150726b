package plan

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
)

// samples has a value of each kind, no slot twice.
func samples() []Value {
	str := func(slot uint8, tag capture.Tag, s string) Value { return Value{Tag: tag, Slot: slot, Str: s} }
	item := func(v Value) Value { v.Slot = 40; return v }
	return []Value{
		{Tag: capture.TagInt, Slot: 0, Int: math.MinInt64}, {Tag: capture.TagInt, Slot: 1, Int: math.MaxInt64}, {Tag: capture.TagInt, Slot: 2},
		{Tag: capture.TagFloat, Slot: 3, Float: -1.5e300}, {Tag: capture.TagFloat, Slot: 4, Float: math.Inf(1)},
		{Tag: capture.TagBool, Slot: 5, Int: 1}, {Tag: capture.TagBool, Slot: 6}, {Tag: capture.TagNone, Slot: 7},
		str(8, capture.TagStr1, ""), str(9, capture.TagStr1, "request"), str(10, capture.TagStr1, "caf\u00e9"),
		str(11, capture.TagStr2, "\u043f\u0440\u0438"), str(12, capture.TagStr4, "\U0001f600"),
		{Tag: capture.TagAddr, Slot: 13, Addr: 0x7f0011223344}, {Tag: capture.TagMissing, Slot: 14, Missing: capture.MissingType},
		{Tag: capture.TagItems, Slot: 255, Total: 0, Per: 1},
		{Tag: capture.TagItems, Slot: 40, Total: 5, Per: 2, Values: []Value{
			item(str(0, capture.TagStr1, "a")), item(Value{Tag: capture.TagInt, Int: 7}), item(Value{Tag: capture.TagMissing, Missing: capture.MissingFault}), item(Value{Tag: capture.TagNone}),
		}},
	}
}

func record(values []Value) *event.Record {
	return &event.Record{Header: event.Header{Kind: event.KindCapture}, Capture: event.Capture{Values: uint16(len(values))}, Data: Append(nil, values)}
}

func TestDecode(t *testing.T) {
	want := samples()
	c := Capture{Values: []Value{{Slot: 77}}, items: []Value{{}, {}}} // of an earlier use
	c.slots[77] = 1
	if err := c.Decode(record(want)); err != nil {
		t.Fatal(err)
	}
	if len(c.Values) != len(want) {
		t.Fatalf("%d values, want %d", len(c.Values), len(want))
	}
	for i := range want {
		if len(c.Values[i].Values) == 0 {
			c.Values[i].Values = nil
		}
		if !reflect.DeepEqual(c.Values[i], want[i]) {
			t.Errorf("value %d: %+v, want %+v", i, c.Values[i], want[i])
		}
		if v := c.Slot(int(want[i].Slot)); v != &c.Values[i] {
			t.Errorf("slot %d is %v", want[i].Slot, v)
		}
	}
	if c.Slot(77) != nil || c.Slot(-1) != nil || c.Slot(256) != nil {
		t.Error("a slot that the capture does not have is there")
	}
	for n, s := range map[int]string{0: "-9223372036854775808", 5: "true", 7: "None", 10: `"café"`, 14: "missing: other_type", 40: `2 of 5: "a" 7 missing: fault None`} {
		if got := c.Slot(n).String(); got != s {
			t.Errorf("slot %d prints as %s, want %s", n, got, s)
		}
	}
	if v := c.Slot(40); v.Complete() || v.Count() != 2 {
		t.Errorf("2 of 5 items: complete %v, count %d", v.Complete(), v.Count())
	}
	if v := c.Slot(255); !v.Complete() {
		t.Error("an empty container is not complete")
	}
}

// TestCut decodes a capture that had no room for its last values.
func TestCut(t *testing.T) {
	r := record(samples())
	r.Capture.Values += 2
	var c Capture
	if err := c.Decode(r); !errors.Is(err, ErrMalformed) {
		t.Errorf("values are missing and it is not cut: %v", err)
	}
	r.Capture.Flags = event.CaptureCut
	if err := c.Decode(r); err != nil {
		t.Error(err)
	}
}

func TestMalformed(t *testing.T) {
	for name, data := range map[string][]byte{
		"short head":        {1, 0, 8},
		"no tag":            {0, 0, 0, 0},
		"unknown tag":       {11, 0, 0, 0},
		"short int":         {1, 0, 4, 0, 1, 2, 3, 4},
		"longer than it is": {1, 0, 8, 0, 1, 2, 3, 4},
		"bool of 2":         {3, 0, 1, 0, 2},
		"odd str":           {5, 0, 3, 0, 1, 2, 3},
		"slot twice":        {7, 5, 0, 0, 7, 5, 0, 0},
		"items of none":     {10, 0, 12, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0},
		"more than all":     {10, 0, 12, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0},
		"fewer than said":   {10, 0, 12, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0},
		"item of another":   {10, 0, 12, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7, 1, 0, 0},
		"items in items": {10, 0, 12, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0,
			10, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0},
		"count overflows": {10, 0, 12, 0, 255, 255, 255, 255, 255, 255, 255, 255, 4, 0, 0, 0},
	} {
		var c Capture
		r := &event.Record{Header: event.Header{Kind: event.KindCapture}, Capture: event.Capture{Values: 1}, Data: data}
		if err := c.Decode(r); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", name, err)
		}
	}
	var c Capture
	if err := c.Decode(&event.Record{Header: event.Header{Kind: event.KindFrame}}); !errors.Is(err, ErrMalformed) {
		t.Errorf("another record: %v", err)
	}
	// The text of memory that is no str: missing, and the rest is as it was.
	data := append([]byte{6, 0, 4, 0, 0, 0, 0x11, 0}, 7, 1, 0, 0)
	if err := c.Decode(&event.Record{Header: event.Header{Kind: event.KindCapture}, Capture: event.Capture{Values: 2}, Data: data}); err != nil ||
		c.Slot(0).Missing != capture.MissingBad || c.Slot(1).Tag != capture.TagNone {
		t.Errorf("code point beyond Unicode: %v, %v", err, c.Values)
	}
}

// TestReuse checks that decoding into the same Capture allocates no more than texts.
func TestReuse(t *testing.T) {
	var values []Value
	for range 200 {
		values = append(values, Value{Tag: capture.TagInt, Int: 5})
	}
	r := record([]Value{{Tag: capture.TagItems, Total: 200, Per: 1, Values: values}})
	var c Capture
	if err := c.Decode(r); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := c.Decode(r); err != nil {
			t.Error(err)
		}
	}); n > 1 {
		t.Errorf("%.0f allocations", n)
	}
}

func FuzzDecode(f *testing.F) {
	all := record(samples())
	f.Add(all.Data, all.Capture.Values, uint16(0))
	for _, v := range samples() {
		f.Add(Append(nil, []Value{v}), uint16(1), uint16(event.CaptureCut))
	}
	f.Fuzz(func(t *testing.T, data []byte, values, flags uint16) {
		r := &event.Record{Header: event.Header{Kind: event.KindCapture}, Capture: event.Capture{Values: values, Flags: flags}, Data: data}
		var c Capture
		if err := c.Decode(r); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("error %v", err)
			}
			return
		}
		for i := range c.Values {
			v := &c.Values[i]
			if c.Slot(int(v.Slot)) != v {
				t.Errorf("slot %d is not value %d", v.Slot, i)
			}
			if v.Tag == capture.TagItems && (v.Count() > v.Total || v.Count()*v.Per != len(v.Values)) {
				t.Errorf("%d of %d items in %d values", v.Count(), v.Total, len(v.Values))
			}
			_ = v.String()
		}
		// What was decoded says all that the bytes say, but for surrogates.
		if again := Append(nil, c.Values); len(again) > len(data) {
			t.Errorf("%d bytes decode to what takes %d", len(data), len(again))
		} else if exact(c.Values) && !bytes.Equal(again, data) {
			t.Errorf("decoded % x, encoded % x", data, again)
		}
	})
}

// exact reports whether no value lost something in decoding.
func exact(values []Value) bool {
	for _, v := range values {
		if v.Tag == capture.TagMissing && v.Missing == capture.MissingBad || v.Tag == capture.TagFloat && math.IsNaN(v.Float) || !exact(v.Values) {
			return false
		}
		for _, r := range v.Str {
			if r == '\ufffd' {
				return false
			}
		}
	}
	return true
}
