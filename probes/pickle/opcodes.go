package pickle

// Opcodes: those of pickle protocols 2 to 5, as pickletools names them. The
// textual ones of protocols 0 and 1 are refused, but for GLOBAL.
const (
	opMark            = '('
	opStop            = '.'
	opPop             = '0'
	opPopMark         = '1'
	opDup             = '2'
	opBinFloat        = 'G'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opNone            = 'N'
	opBinPersID       = 'Q'
	opReduce          = 'R'
	opBinString       = 'T'
	opShortBinString  = 'U'
	opBinUnicode      = 'X'
	opBinBytes        = 'B'
	opShortBinBytes   = 'C'
	opAppend          = 'a'
	opBuild           = 'b'
	opGlobal          = 'c'
	opDict            = 'd'
	opAppends         = 'e'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opList            = 'l'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opSetItem         = 's'
	opTuple           = 't'
	opSetItems        = 'u'
	opEmptyDict       = '}'
	opEmptyList       = ']'
	opEmptyTuple      = ')'
	opProto           = 0x80
	opNewObj          = 0x81
	opExt1            = 0x82
	opExt2            = 0x83
	opExt4            = 0x84
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opLong4           = 0x8b
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opNewObjEx        = 0x92
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
	opByteArray8      = 0x96
	opNextBuffer      = 0x97
	opReadOnlyBuffer  = 0x98
)

// sizes is how many bytes of an argument follow an opcode; noOp is none that we
// know. Payloads with a length have that many bytes of length.
const noOp = 0xff

var sizes = func() (s [256]uint8) {
	for i := range s {
		s[i] = noOp
	}
	for n, ops := range map[uint8][]byte{
		0: {opMark, opStop, opPop, opPopMark, opDup, opNone, opBinPersID, opReduce, opAppend, opBuild, opDict, opAppends, opList, opSetItem,
			opTuple, opSetItems, opEmptyDict, opEmptyList, opEmptyTuple, opNewObj, opTuple1, opTuple2, opTuple3, opNewTrue, opNewFalse,
			opEmptySet, opAddItems, opFrozenSet, opNewObjEx, opStackGlobal, opMemoize, opNextBuffer, opReadOnlyBuffer, opGlobal},
		1: {opBinInt1, opShortBinString, opShortBinBytes, opBinGet, opBinPut, opProto, opExt1, opLong1, opShortBinUnicode},
		2: {opBinInt2, opExt2},
		4: {opBinInt, opBinString, opBinUnicode, opBinBytes, opLongBinGet, opLongBinPut, opExt4, opLong4},
		8: {opBinFloat, opBinUnicode8, opBinBytes8, opFrame, opByteArray8},
	} {
		for _, op := range ops {
			s[op] = n
		}
	}
	return s
}()

// scalars are the encodings that may stand in a raw chunk: kind<<4 | bytes that
// follow the first one; 0 is none.
var pickleScalars = func() (s [256]uint8) {
	s[opNone] = uint8(None) << 4
	s[opNewTrue], s[opNewFalse] = uint8(Bool)<<4, uint8(Bool)<<4
	s[opBinInt1], s[opBinInt2], s[opBinInt] = uint8(Int)<<4|1, uint8(Int)<<4|2, uint8(Int)<<4|4
	s[opBinFloat] = uint8(Float)<<4 | 8
	return s
}()

var mpScalars = func() (s [256]uint8) {
	for i := range 0x80 {
		s[i] = uint8(Int) << 4
	}
	for i := 0xe0; i < 0x100; i++ {
		s[i] = uint8(Int) << 4
	}
	s[mpNil] = uint8(None) << 4
	s[mpFalse], s[mpTrue] = uint8(Bool)<<4, uint8(Bool)<<4
	for i := range 4 {
		s[mpUint8+i] = uint8(Int)<<4 | 1<<i
		s[mpInt8+i] = uint8(Int)<<4 | 1<<i
	}
	s[mpFloat32], s[mpFloat64] = uint8(Float)<<4|4, uint8(Float)<<4|8
	return s
}()

// scalar is the kind of a scalar by its first byte, and how many bytes follow;
// Invalid for all else.
func (d *Decoder) scalar(op byte) (Kind, int) {
	t := &pickleScalars
	if d.msgpack {
		t = &mpScalars
	}
	return Kind(t[op] >> 4), int(t[op] & 15)
}

// scalars tells how many scalars b begins with and where they end. Of a scalar
// that b cuts, nothing is counted.
func scalars(b []byte, table *[256]uint8, most int) (end, n int) {
	for end < len(b) && n < most {
		s := table[b[end]]
		if s == 0 {
			break
		}
		next := end + 1 + int(s&15)
		if next > len(b) {
			break
		}
		end = next
		n++
	}
	return end, n
}
