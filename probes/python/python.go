// Package python reads the objects of a running CPython interpreter from outside,
// with process_vm_readv: the process is neither stopped nor written to.
//
// Open finds the interpreter among the mappings of a process and checks what it
// found by walking to sys.modules['sys']. From there, Module, Attr, Index and the
// like follow references as Python would, but run none of its code: a property or
// any other descriptor that computes its value gives ErrComputed.
//
// The process runs on while it is read. Every read of more than one word is
// checked against a second look; a value that does not hold still gives
// ErrUnstable after a few tries. Nothing read is trusted: types, sizes and
// addresses are checked, and lengths, counts and depths are bounded. The result
// is the value that Python would see, or an error.
//
// CPython 3.10 to 3.14 with the global lock, 64-bit, little-endian. Only the main
// interpreter is read, subinterpreters are not.
//
// An Interp and its Values may be used by several goroutines at once if the
// Memory under it may.
package python

import (
	"errors"
	"fmt"

	"inferspan/probes/procfs"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrNotPython says that no interpreter is mapped.
	ErrNotPython = errors.New("not a Python process")
	// ErrUnsupported says that there is an interpreter but not one that can be read.
	ErrUnsupported = errors.New("unsupported Python")
	// ErrGone says that the process ended.
	ErrGone = procfs.ErrGone
	// ErrUnmapped says that an address cannot be read. In a running process it
	// means what ErrUnstable means, or that the object was not one.
	ErrUnmapped = errors.New("address is not mapped")
	// ErrUnstable says that the object changed on each try to read it.
	ErrUnstable = errors.New("object changes while it is read")
	// ErrNotFound says that there is no such module, attribute, key or index.
	ErrNotFound = errors.New("not found")
	// ErrType says that the object is of another type than the call needs.
	ErrType = errors.New("wrong type")
	// ErrReplaced says that a function runs another code object than it did.
	ErrReplaced = errors.New("code was replaced")
	// ErrComputed says that Python code or C code would compute the attribute.
	ErrComputed = errors.New("attribute is computed")
	// ErrLimit says that the object is larger than the bound.
	ErrLimit = errors.New("too large")
	// ErrCorrupt says that memory does not hold what its type says. Reading
	// freed memory gives this, too.
	ErrCorrupt = errors.New("not a valid object")
)

// Bounds on what is read of one object.
const (
	maxStr     = 4 << 20 // bytes of a str or bytes
	maxItems   = 1 << 20 // elements of a container
	maxMRO     = 128     // classes in a method resolution order
	maxFrames  = 512     // frames of a thread
	maxThreads = 4096
	maxName    = 256 // bytes of a type's name
	tries      = 6   // looks at an object that changes
)

// Memory is the memory of a process or an image of it. ReadAt fills buf with the
// bytes from addr on, or fails: ErrUnmapped if some of them cannot be read,
// ErrGone if there is no process any more.
type Memory interface {
	ReadAt(addr uint64, buf []byte) error
}

// batchMemory is a Memory that can read many places in one call. It reads size
// bytes at each address into consecutive parts of buf and returns how many
// addresses it read: fewer than all when the next one cannot be read.
type batchMemory interface {
	ReadBatch(addrs []uint64, size int, buf []byte) (int, error)
}

type minor [2]int // major, minor

func (m minor) String() string { return fmt.Sprintf("%d.%d", m[0], m[1]) }

// layout has the offsets of struct members in one minor version; -1 if the
// version has no such member. Patch releases keep them.
type layout struct {
	RuntimeMain        int // _PyRuntimeState.interpreters.main
	RuntimeHead        int // the list of interpreters, newest first
	InterpID           int
	InterpNext         int
	InterpModules      int
	InterpThreads      int
	RuntimeGIL         int // 3.10, 3.11: the global lock
	InterpGIL          int // 3.12+: pointer to it
	GILHolder          int // thread state that has or had it last
	GILLocked          int
	GILSwitches        int
	ThreadNativeID     int
	ThreadNext         int
	ThreadCFrame       int // 3.11, 3.12: the frame hangs off another struct
	ThreadFrame        int // in the thread state, or in that struct
	FrameOwner         int // 3.11+
	FrameTags          int // 1 if references in frames have tag bits (3.14+)
	FrameInstr         int // changes with every instruction that is executed
	FrameCode          int
	FramePrevious      int
	FrameLocals        int
	CodeQualname       int
	CodeLocalNames     int
	CodeName           int
	CodeConsts         int
	CodeFilename       int
	CodeFlags          int
	CodeArgCount       int
	CodeFirstLine      int
	CodeLocalKinds     int // 3.11+
	CodeCellVars       int // 3.10
	CodeFreeVars       int // 3.10
	FuncCode           int
	FuncQualname       int
	FuncDict           int
	FuncModule         int
	MethodFunc         int
	MethodSelf         int
	CFuncDef           int
	CFuncSelf          int
	DescrType          int
	DescrName          int
	DescrMethod        int
	DescrBase          int
	DescrWrapped       int
	DefName            int
	DefFunc            int
	DefFlags           int
	TypeName           int
	TypeBasicSize      int
	TypeItemSize       int
	TypeFlags          int
	TypeDict           int
	TypeMRO            int
	TypeDictOffset     int
	TypeDescrSet       int
	TypeVectorcall     int
	TypeSubclasses     int // 3.12+, built-in types: their number
	InterpStaticTypes  int // 3.12+: array of what static types have for each interpreter
	InterpStaticCount  int
	InterpExtTypes     int // 3.13+: the same for types of extension modules
	InterpExtCount     int
	StaticSize         int // of an element of these arrays
	StaticType         int
	StaticDict         int
	HeapTypeKeys       int
	VarSize            int
	ListItems          int
	TupleItems         int
	BytesData          int
	FloatValue         int
	LongTag            int // 3.12+: digits and sign; before: VarSize
	LongDigits         int
	StrLength          int
	StrHash            int
	StrState           int
	StrASCIISize       int
	StrCompactSize     int
	StrData            int
	StrKindShift       int
	StrCompactBit      int
	StrASCIIBit        int
	StrReadyBit        int
	DictUsed           int
	DictKeys           int
	DictValues         int
	KeysLog2Size       int // 3.11+
	KeysLog2IndexBytes int
	KeysKind           int
	KeysSize           int // 3.10
	KeysUsable         int
	KeysEntries        int
	KeysIndices        int
	ValuesStart        int
	ValuesCapacity     int // 3.13+
	ValuesSize         int // 3.13+
	ValuesValid        int
	CellRef            int
	SetFill            int
	SetUsed            int
	SetMask            int
	SetTable           int
	MemberDef          int
	MemberType         int
	MemberOffset       int
}

// Flags of a type (Include/object.h).
const (
	flagStatic       = 1 << 1 // 3.12+
	flagInlineValues = 1 << 2 // 3.13+
	flagManagedDict  = 1 << 4 // 3.11+
	flagHeapType     = 1 << 9
	flagVectorcall   = 1 << 11
	flagLong         = 1 << 24
	flagList         = 1 << 25
	flagTuple        = 1 << 26
	flagBytes        = 1 << 27
	flagUnicode      = 1 << 28
	flagDict         = 1 << 29
	flagType         = 1 << 31
)

// frameTags are the tag bits of references in frames; both set: a number
// (Include/internal/pycore_stackref.h).
const frameTags = 3

// Offsets in PyObject; the same in all supported builds (not Py_TRACE_REFS,
// which the check on attach finds out).
const (
	objType = 8
	objSize = 16
)
