// Package capture has what the program py_hit and user space share about reading
// Python objects: layouts of interpreters, ops of plans and values of captures. It
// is a leaf, as package event is.
//
// The structs are those of bpf/include/python.h, field by field and without
// padding; a test compares them.
package capture

// Bounds of a plan; bpf/include/python.h.
const (
	MaxOps     = 192
	MaxNames   = 48
	MaxCodes   = 4
	MaxRegs    = 15 // one more is the program's own
	MaxName    = 64 // bytes of a name, more than any has
	MaxFrames  = 16 // frames looked at
	MaxStr     = 256
	MaxPlans   = 4 // plans of one code object
	MaxCallers = 8 // code objects that a probe can watch
	ItemChunk  = 16
	MaxSteps   = 352 // ops and chunks of items
	MaxBody    = 40  // ops that are run for each item
	MaxPer     = 20  // values of one item
	Identities = 4   // words of a code object's identity
)

// Form is how attributes of an instance are stored.
type Form = uint32

// Forms; enum py_form.
const (
	FormDict     Form = 0 // 3.10: in a dict
	FormPointers Form = 1 // 3.11: a dict or values, each with its pointer
	FormTagged   Form = 2 // 3.12: a dict or values, by a tagged pointer
	FormInline   Form = 3 // 3.13: a dict, or values behind the instance
)

// Process describes an interpreter. Offsets are -1 where the version has no such
// field.
type Process struct {
	Holder  uint64 // address of the pointer to the thread state that runs Python code
	Threads uint64 // address of the pointer to the newest thread state
	RefMask uint64 // bits of a reference in a frame that are the address

	None, True, False                                      uint64
	StrType, IntType, ListType, DictType                   uint64
	CellType, FloatType, SetType, FrozensetType, DequeType uint64

	Form           Form
	ThreadNative   int32
	ThreadCFrame   int32
	ThreadFrame    int32
	FrameCode      int32
	FramePrevious  int32
	FrameLocals    int32
	FrameOwner     int32
	CodeIdentity   int32
	CellRef        int32
	TypeName       int32
	TypeBasicSize  int32
	TypeFlags      int32
	TypeBase       int32
	TypeDictOffset int32
	TypeVersion    int32
	HeapKeys       int32
	VarSize        int32
	ListItems      int32
	TupleItems     int32
	FloatValue     int32
	LongTag        int32
	LongDigits     int32
	StrLength      int32
	StrState       int32
	StrASCII       int32
	StrCompact     int32
	StrData        int32
	StrKindShift   uint32
	StrCompactMask uint32
	StrASCIIMask   uint32
	StrReadyMask   uint32 // 0: always ready
	StrPlainMask   uint32 // bits of the state of an ASCII str,
	StrPlain       uint32 // and what they are
	DictUsed       int32
	DictKeys       int32
	ValuesStart    int32
	ValuesCapacity int32
	ValuesValid    int32
	SetUsed        int32
	SetMask        int32
	SetTable       int32
	ThreadNext     int32
	CUDA           uint32 // set by the loader
}

// Code is a code object and the words by which it is told from another one at the
// same address.
type Code struct {
	Addr     uint64
	Identity [Identities]uint64
}

// Name is the name of an attribute or a key.
type Name struct {
	Hash      uint64 // of the str in the process
	SlotClass uint64 // class that has it as a slot, or 0
	SlotName  uint64 // tp_name of that class
	Key, Seen uint64 // kept by the program
	Slot      uint32 // offset in an instance
	Len       uint32 // of ASCII text
}

// OpCode is what an op does.
type OpCode = uint8

// Codes of ops; enum py_op_code.
const (
	OpFrame  OpCode = 1  // Dst = frame of codes[A] among the B innermost
	OpLocal  OpCode = 2  // Dst = local A of the frame Src; B: may be in a cell
	OpAttr   OpCode = 3  // Dst = attribute names[A] of Src
	OpIndex  OpCode = 4  // Dst = element A of the list, tuple or deque Src
	OpKey    OpCode = 5  // Dst = value under the key names[A] of the dict Src
	OpValue  OpCode = 6  // send Src as Slot, a str of at most A bytes
	OpLen    OpCode = 7  // send the length of Src as Slot
	OpAddr   OpCode = 8  // send the address of Src as Slot
	OpItems  OpCode = 9  // send at most A items of Src as Slot, strs of at most B bytes
	OpSkip   OpCode = 10 // pass over the next A ops by what Src is: Slot says when
	OpPutOff OpCode = 11 // send 1 as Slot, and leave out the rest
)

// When OpSkip skips; enum py_skip. The address is B | C<<32.
const (
	SkipSame  = 0 // Src is the object in the register Dst
	SkipIs    = 1 // Src is the object at the address
	SkipIsNot = 2 // it is not, or missing
	SkipNone  = 3 // it is None, or missing
	SkipSet   = 4 // it is neither
	SkipDone  = 5 // nothing was put off since this op was there last
)

// What OpItems sends of each item; enum py_items, and in C of the op the indexes of
// up to two names.
const (
	ItemKey   = 1 // the key of a dict
	ItemValue = 2 // the value of a dict, the element of a list, tuple or set
	ItemAttrs = 4 // attributes of it: names[C>>8&0xff] and, if not NoName, names[C>>16&0xff]
	ItemLen   = 8 // of the second of these attributes its length
	// What the ops that follow send, C>>8&0xff of them, which find the item in register
	// MaxRegs, and C>>16&0xff values. An item of which they send nothing counts as not
	// there. There is no OpItems among them.
	ItemBody = 16
	NoName   = 0xff
)

// Op is a step of a plan.
type Op struct {
	Code           OpCode
	Dst, Src, Slot uint8
	A, B, C        uint32
}

// Plan is a compiled plan. Register 0 is the frame of Codes[0], which must be among
// the Depth innermost: else the plan does not run.
type Plan struct {
	OpCount uint32
	Depth   uint32
	PutOff  uint64 // kept by the program
	Codes   [MaxCodes]Code
	Ops     [MaxOps]Op
	Names   [MaxNames]Name
}

// Tag is the kind of a value.
type Tag uint8

// Tags; enum capture_tag.
const (
	TagInt     Tag = 1
	TagFloat   Tag = 2
	TagBool    Tag = 3
	TagStr1    Tag = 4 // Latin-1
	TagStr2    Tag = 5
	TagStr4    Tag = 6
	TagNone    Tag = 7
	TagAddr    Tag = 8
	TagMissing Tag = 9
	TagItems   Tag = 10
)

// Missing says why a value is not there.
type Missing uint8

// Reasons; enum capture_missing.
const (
	MissingFault Missing = 1 // the memory could not be read
	MissingFrame Missing = 2 // no such function among the innermost frames
	MissingUnset Missing = 3 // the variable or attribute is not set
	MissingType  Missing = 4 // the object is of another type
	MissingName  Missing = 5 // the object has no attribute or key of that name
	MissingLimit Missing = 6 // larger than the bound
	MissingBad   Missing = 7 // the memory does not hold what it should
	MissingStale Missing = 8 // another code object or class lies at the address
)

var missingNames = map[Missing]string{
	MissingFault: "fault", MissingFrame: "no_frame", MissingUnset: "unset", MissingType: "other_type",
	MissingName: "no_name", MissingLimit: "too_large", MissingBad: "bad_memory", MissingStale: "stale",
}

func (m Missing) String() string {
	if s, ok := missingNames[m]; ok {
		return s
	}
	return "unknown"
}
