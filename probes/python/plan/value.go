package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"

	"inferspan/bpf/event"
	"inferspan/bpf/event/capture"
)

// ErrMalformed is wrapped by errors about bytes that are not a capture.
var ErrMalformed = errors.New("malformed capture")

// Value is a value of a capture.
type Value struct {
	Tag     capture.Tag
	Slot    uint8
	Missing capture.Missing // TagMissing: why
	Int     int64           // TagInt; TagBool: 0 or 1
	Float   float64         // TagFloat
	Str     string          // TagStr1, TagStr2, TagStr4; lone surrogates become U+FFFD
	Addr    uint64          // TagAddr
	// TagItems: how many items the container had, those left out by a condition not
	// counted, how many values each has here, and these values, item after item. There are fewer than Total where the plan's bound
	// or the record's room ended.
	Total  int
	Per    int
	Values []Value
}

// Complete reports whether all items of a container are there.
func (v *Value) Complete() bool { return v.Tag == capture.TagItems && v.Count() == v.Total }

// Count is the number of items of a container that are there.
func (v *Value) Count() int {
	if v.Per == 0 {
		return 0
	}
	return len(v.Values) / v.Per
}

// IsStr reports whether the value is a str.
func (v *Value) IsStr() bool {
	return v.Tag == capture.TagStr1 || v.Tag == capture.TagStr2 || v.Tag == capture.TagStr4
}

func (v *Value) String() string {
	switch v.Tag {
	case capture.TagInt:
		return fmt.Sprint(v.Int)
	case capture.TagFloat:
		return fmt.Sprint(v.Float)
	case capture.TagBool:
		return fmt.Sprint(v.Int != 0)
	case capture.TagStr1, capture.TagStr2, capture.TagStr4:
		return fmt.Sprintf("%q", v.Str)
	case capture.TagNone:
		return "None"
	case capture.TagAddr:
		return fmt.Sprintf("at %#x", v.Addr)
	case capture.TagMissing:
		return "missing: " + v.Missing.String()
	case capture.TagItems:
		s := fmt.Sprintf("%d of %d:", v.Count(), v.Total)
		for i := range v.Values {
			s += " " + v.Values[i].String()
		}
		return s
	}
	return "nothing"
}

// Capture is a decoded capture. Decode reuses its memory.
type Capture struct {
	Values []Value // in the order of the plan's ops; slots that were cut off are not there
	slots  [256]uint16
	items  []Value
}

// Slot returns the value of a slot by its number, nil if it is not there.
func (c *Capture) Slot(n int) *Value {
	if n < 0 || n >= len(c.slots) || c.slots[n] == 0 {
		return nil
	}
	return &c.Values[c.slots[n]-1]
}

var le = binary.LittleEndian

// Decode decodes the payload of a record of a capture.
func (c *Capture) Decode(r *event.Record) error {
	if r.Kind != event.KindCapture {
		return fmt.Errorf("%w: a record of kind %s", ErrMalformed, r.Kind)
	}
	*c = Capture{Values: c.Values[:0], items: c.items[:0]}
	b := r.Data
	type span struct{ value, from, to int }
	var spans []span
	for len(b) > 0 {
		v, rest, err := decodeValue(b)
		if err != nil {
			return err
		}
		if c.slots[v.Slot] != 0 {
			return fmt.Errorf("%w: slot %d twice", ErrMalformed, v.Slot)
		}
		b = rest
		if v.Tag == capture.TagItems {
			n := v.Int * int64(v.Per)
			from := len(c.items)
			for range n {
				var item Value
				if item, b, err = decodeValue(b); err != nil {
					return err
				}
				if item.Tag == capture.TagItems || item.Slot != v.Slot {
					return fmt.Errorf("%w: an item with tag %d and slot %d in slot %d", ErrMalformed, item.Tag, item.Slot, v.Slot)
				}
				c.items = append(c.items, item)
			}
			v.Int = 0
			spans = append(spans, span{len(c.Values), from, len(c.items)})
		}
		c.Values = append(c.Values, v)
		c.slots[v.Slot] = uint16(len(c.Values))
	}
	if len(c.Values) > int(r.Capture.Values) || len(c.Values) < int(r.Capture.Values) && r.Capture.Flags&event.CaptureCut == 0 {
		return fmt.Errorf("%w: %d values, not %d", ErrMalformed, len(c.Values), r.Capture.Values)
	}
	for _, s := range spans {
		c.Values[s.value].Values = c.items[s.from:s.to:s.to]
	}
	return nil
}

// fixed are the lengths of values that have only one; the rest is negative.
var fixed = [...]int{0: -1, capture.TagInt: 8, capture.TagFloat: 8, capture.TagBool: 1, capture.TagStr1: -1, capture.TagStr2: -1, capture.TagStr4: -1,
	capture.TagNone: 0, capture.TagAddr: 8, capture.TagMissing: 1, capture.TagItems: 12}

// Append encodes values as the kernel does: the payload of a capture.
func Append(dst []byte, values []Value) []byte {
	for i := range values {
		v := &values[i]
		at := len(dst)
		dst = append(dst, byte(v.Tag), v.Slot, 0, 0)
		switch v.Tag {
		case capture.TagInt:
			dst = le.AppendUint64(dst, uint64(v.Int))
		case capture.TagFloat:
			dst = le.AppendUint64(dst, math.Float64bits(v.Float))
		case capture.TagBool:
			dst = append(dst, byte(v.Int))
		case capture.TagAddr:
			dst = le.AppendUint64(dst, v.Addr)
		case capture.TagMissing:
			dst = append(dst, byte(v.Missing))
		case capture.TagStr1:
			for _, r := range v.Str {
				dst = append(dst, byte(r))
			}
		case capture.TagStr2:
			for _, r := range v.Str {
				dst = le.AppendUint16(dst, uint16(r))
			}
		case capture.TagStr4:
			for _, r := range v.Str {
				dst = le.AppendUint32(dst, uint32(r))
			}
		case capture.TagItems:
			dst = le.AppendUint32(dst, uint32(v.Count()))
			dst = le.AppendUint32(dst, uint32(v.Total))
			dst = le.AppendUint32(dst, uint32(v.Per))
		}
		le.PutUint16(dst[at+2:], uint16(len(dst)-at-4))
		dst = Append(dst, v.Values)
	}
	return dst
}

// decodeValue decodes the first value of b. For items, Int is how many follow.
func decodeValue(b []byte) (v Value, rest []byte, err error) {
	if len(b) < 4 {
		return v, nil, fmt.Errorf("%w: %d bytes left", ErrMalformed, len(b))
	}
	v.Tag, v.Slot = capture.Tag(b[0]), b[1]
	n := int(le.Uint16(b[2:]))
	b = b[4:]
	if int(v.Tag) >= len(fixed) || v.Tag == 0 || n > len(b) || fixed[v.Tag] >= 0 && fixed[v.Tag] != n {
		return v, nil, fmt.Errorf("%w: tag %d with %d bytes, %d are left", ErrMalformed, v.Tag, n, len(b))
	}
	d := b[:n]
	switch v.Tag {
	case capture.TagInt:
		v.Int = int64(le.Uint64(d))
	case capture.TagFloat:
		v.Float = math.Float64frombits(le.Uint64(d))
	case capture.TagBool:
		if d[0] > 1 {
			return v, nil, fmt.Errorf("%w: bool of %d", ErrMalformed, d[0])
		}
		v.Int = int64(d[0])
	case capture.TagAddr:
		v.Addr = le.Uint64(d)
	case capture.TagMissing:
		v.Missing = capture.Missing(d[0])
	case capture.TagStr1, capture.TagStr2, capture.TagStr4:
		var valid bool
		if v.Str, valid, err = decodeStr(v.Tag, d); err != nil {
			return v, nil, err
		}
		if !valid { // the memory was not that of a str
			v.Tag, v.Missing = capture.TagMissing, capture.MissingBad
		}
	case capture.TagItems:
		count, total, per := le.Uint32(d), le.Uint32(d[4:]), le.Uint32(d[8:])
		if per == 0 || per > capture.MaxPer || count > total || int64(count)*int64(per)*4 > int64(len(b)-n) {
			return v, nil, fmt.Errorf("%w: %d of %d items of %d values in %d bytes", ErrMalformed, count, total, per, len(b)-n)
		}
		v.Int, v.Total, v.Per = int64(count), int(total), int(per)
	}
	return v, b[n:], nil
}

// decodeStr decodes the code points of a str; valid is false if some of them are none.
func decodeStr(tag capture.Tag, d []byte) (s string, valid bool, err error) {
	width := 1
	switch {
	case tag == capture.TagStr2:
		width = 2
	case tag == capture.TagStr4:
		width = 4
	case ascii(d):
		return string(d), true, nil
	}
	if len(d)%width != 0 {
		return "", false, fmt.Errorf("%w: str of %d bytes with tag %d", ErrMalformed, len(d), tag)
	}
	r := make([]rune, len(d)/width)
	for i := range r {
		var c uint32
		switch width {
		case 1:
			c = uint32(d[i])
		case 2:
			c = uint32(le.Uint16(d[2*i:]))
		default:
			c = le.Uint32(d[4*i:])
		}
		if c > utf8.MaxRune {
			return "", false, nil
		}
		if r[i] = rune(c); utf16.IsSurrogate(r[i]) {
			r[i] = utf8.RuneError
		}
	}
	return string(r), true, nil
}

func ascii(d []byte) bool {
	for _, c := range d {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
