package vllmtest

import (
	"encoding/binary"
	"fmt"
	"math"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
)

// Addr is the address of an object in a made-up capture.
type Addr uint64

// Missing is a value that a made-up capture does not have.
type Missing capture.Missing

// Items are the items of a container in a made-up capture: each a []any of as many
// values. More is how many the container has beyond these.
type Items struct {
	Of   [][]any
	Per  int
	More int
}

// Slot is a value of a made-up capture: an int, float64, bool, string, nil for None,
// Addr, Missing or Items.
type Slot struct {
	Name  string
	Value any
}

// Capture makes the record of a capture whose plan has the given slots, in order.
// Values of slots that the plan lacks panic.
func Capture(time uint64, pid, plan uint32, slots []string, values ...Slot) event.Record {
	r := event.Record{Header: event.Header{Time: time, Kind: event.KindCapture, PID: pid, TID: pid}}
	r.Capture.Plan, r.Capture.Values = plan, uint16(len(values))
	for _, v := range values {
		at := -1
		for i, name := range slots {
			if name == v.Name {
				at = i
			}
		}
		if at < 0 {
			panic("no slot " + v.Name)
		}
		r.Data = appendValue(r.Data, uint8(at), v.Value)
	}
	return r
}

func appendValue(b []byte, slot uint8, v any) []byte {
	le := binary.LittleEndian
	head := func(t capture.Tag, data []byte) []byte {
		b = append(b, byte(t), slot)
		b = le.AppendUint16(b, uint16(len(data)))
		return append(b, data...)
	}
	switch v := v.(type) {
	case int:
		return head(capture.TagInt, le.AppendUint64(nil, uint64(v)))
	case float64:
		return head(capture.TagFloat, le.AppendUint64(nil, math.Float64bits(v)))
	case bool:
		if v {
			return head(capture.TagBool, []byte{1})
		}
		return head(capture.TagBool, []byte{0})
	case string:
		return head(capture.TagStr1, []byte(v))
	case nil:
		return head(capture.TagNone, nil)
	case Addr:
		return head(capture.TagAddr, le.AppendUint64(nil, uint64(v)))
	case Missing:
		return head(capture.TagMissing, []byte{byte(v)})
	case Items:
		d := le.AppendUint32(nil, uint32(len(v.Of)))
		d = le.AppendUint32(d, uint32(len(v.Of)+v.More))
		b = head(capture.TagItems, le.AppendUint32(d, uint32(v.Per)))
		for _, item := range v.Of {
			if len(item) != v.Per {
				panic(fmt.Sprintf("%d values in an item, want %d", len(item), v.Per))
			}
			for _, x := range item {
				b = appendValue(b, slot, x)
			}
		}
		return b
	}
	panic(fmt.Sprintf("a value of type %T", v))
}
