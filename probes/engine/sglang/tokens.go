package sglang

import (
	"encoding/binary"

	"inferspan/correlate/signal"
	"inferspan/probes/pickle"
)

// Token ids are a list in older versions and an array.array since, mostly of
// type "q".

// array finds the type code and the bytes of an array.array.
func array(v pickle.Value) (code, raw pickle.Value, ok bool) {
	switch v.Kind() {
	case pickle.Object:
		// array._array_reconstructor(array.array, type code, format, bytes)
		if v.NameIs("array", "_array_reconstructor") {
			return v.Args().Index(1), v.Args().Index(3), true
		}
	case pickle.Tuple:
		// The extension of the MessagePack codec.
		if v.Len() == 2 && v.Index(1).Kind() == pickle.Bytes {
			return v.Index(0), v.Index(1), true
		}
	}
	return pickle.Value{}, pickle.Value{}, false
}

// itemSize is the size of an item by its type code, in bytes, on Linux.
func itemSize(code pickle.Value) int {
	switch c, _ := code.Text(); string(c) {
	case "b", "B":
		return 1
	case "h", "H":
		return 2
	case "i", "I":
		return 4
	case "l", "L", "q", "Q":
		return 8
	}
	return 0
}

// countTokens is how many token ids a value has, without reading them; they may
// be among the bytes that are missing.
func countTokens(v pickle.Value) signal.Opt[int64] {
	if code, raw, ok := array(v); ok {
		size := itemSize(code)
		if size == 0 || raw.Kind() != pickle.Bytes || raw.Len()%size != 0 {
			return signal.Opt[int64]{}
		}
		return signal.Some(int64(raw.Len() / size))
	}
	if isList(v) {
		return signal.Some(int64(v.Len()))
	}
	return signal.Opt[int64]{}
}

// appendTokens appends token ids; ok is false if they are not all there.
func appendTokens(dst []int64, v pickle.Value) (ids []int64, ok bool) {
	code, raw, is := array(v)
	if !is {
		return v.AppendInts(dst)
	}
	b, ok := raw.Bytes()
	size := itemSize(code)
	if !ok || size == 0 || len(b)%size != 0 {
		return dst, false
	}
	for ; len(b) > 0; b = b[size:] {
		switch size {
		case 1:
			dst = append(dst, int64(b[0]))
		case 2:
			dst = append(dst, int64(binary.LittleEndian.Uint16(b)))
		case 4:
			dst = append(dst, int64(binary.LittleEndian.Uint32(b)))
		case 8:
			dst = append(dst, int64(binary.LittleEndian.Uint64(b)))
		}
	}
	return dst, true
}
