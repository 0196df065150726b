package python

import (
	"fmt"

	"inferspan/bpf/event/capture"
)

// captureLayout has offsets that only captures need, as layout.
type captureLayout struct {
	RuntimeCurrent int // 3.10, 3.11: _PyRuntimeState.gilstate.tstate_current
	InterpGIL      int // 3.12+: PyInterpreterState.ceval.gil
	GILHolder      int // 3.12+: last_holder of that
	RefTags        int // bits of a reference in a frame that are not the address
	TypeBase       int
	TypeVersion    int // 0 there: none was given, or it was withdrawn
}

// CaptureLayout returns what the kernel side has to know about the interpreter.
// ErrUnsupported says, with the reason, that it cannot be told.
func (in *Interp) CaptureLayout() (capture.Process, error) {
	p, err := retry(func() (capture.Process, error) { return in.captureProcess() })
	if err != nil {
		return capture.Process{}, fmt.Errorf("preparing captures from Python %s: %w", in.Version, err)
	}
	return p, nil
}

func (in *Interp) captureProcess() (capture.Process, error) {
	l := &in.layout
	var v minor
	if _, err := fmt.Sscanf(in.Version, "%d.%d", &v[0], &v[1]); err != nil {
		return capture.Process{}, fmt.Errorf("version %q: %w", in.Version, ErrUnsupported)
	}
	c, ok := captureLayouts[v]
	if !ok {
		return capture.Process{}, fmt.Errorf("%w %v", ErrUnsupported, v)
	}
	p := capture.Process{
		RefMask: ^uint64(c.RefTags), None: in.none, True: in.true_, False: in.false_,
		StrType: in.strType, IntType: in.intType, ListType: in.listType, DictType: in.dictType, FloatType: in.floatType, SetType: in.setType, FrozensetType: in.frozensetType,
		Threads: in.addr + uint64(l.InterpThreads), ThreadNext: int32(l.ThreadNext),
		ThreadNative: int32(l.ThreadNativeID), ThreadCFrame: int32(l.ThreadCFrame), ThreadFrame: int32(l.ThreadFrame),
		FrameCode: int32(l.FrameCode), FramePrevious: int32(l.FramePrevious), FrameLocals: int32(l.FrameLocals), FrameOwner: int32(l.FrameOwner),
		CodeIdentity: int32(l.CodeLocalNames), CellRef: int32(l.CellRef),
		TypeName: int32(l.TypeName), TypeBasicSize: int32(l.TypeBasicSize), TypeFlags: int32(l.TypeFlags), TypeBase: int32(c.TypeBase),
		TypeDictOffset: int32(l.TypeDictOffset), TypeVersion: int32(c.TypeVersion), HeapKeys: int32(l.HeapTypeKeys),
		VarSize: int32(l.VarSize), ListItems: int32(l.ListItems), TupleItems: int32(l.TupleItems),
		FloatValue: int32(l.FloatValue), LongTag: int32(l.LongTag), LongDigits: int32(l.LongDigits),
		StrLength: int32(l.StrLength), StrState: int32(l.StrState), StrASCII: int32(l.StrASCIISize), StrCompact: int32(l.StrCompactSize), StrData: int32(l.StrData),
		StrKindShift: uint32(l.StrKindShift), StrCompactMask: 1 << l.StrCompactBit, StrASCIIMask: 1 << l.StrASCIIBit,
		DictUsed: int32(l.DictUsed), DictKeys: int32(l.DictKeys),
		ValuesStart: int32(l.ValuesStart), ValuesCapacity: int32(l.ValuesCapacity), ValuesValid: int32(l.ValuesValid),
		SetUsed: int32(l.SetUsed), SetMask: int32(l.SetMask), SetTable: int32(l.SetTable),
	}
	if l.StrReadyBit >= 0 {
		p.StrReadyMask = 1 << l.StrReadyBit
	}
	switch {
	case l.KeysSize >= 0:
		p.Form = capture.FormDict
	case l.ValuesValid >= 0:
		p.Form = capture.FormInline
	case l.LongTag >= 0:
		p.Form = capture.FormTagged
	default:
		p.Form = capture.FormPointers
	}
	p.StrPlainMask = p.StrCompactMask | p.StrASCIIMask | p.StrReadyMask | 7<<p.StrKindShift
	p.StrPlain = p.StrCompactMask | p.StrASCIIMask | p.StrReadyMask | 1<<p.StrKindShift
	// What the kernel side takes for granted, to read several members at once.
	type places [5]int
	keys := places{8, l.KeysEntries, l.KeysIndices}
	want := places{8, 32, 40}
	if l.KeysSize < 0 {
		keys, want = places{l.KeysLog2Size, l.KeysLog2IndexBytes, l.KeysKind, l.KeysEntries, l.KeysIndices}, places{8, 9, 10, 24, 32}
	}
	if keys != want || l.KeysSize >= 0 && l.KeysSize != 8 || l.VarSize != 16 || l.LongDigits != 24 || l.StrLength != 16 || l.StrState != 32 ||
		l.DictValues != l.DictKeys+8 || l.ValuesCapacity > 7 || l.ValuesValid > 7 {
		return capture.Process{}, fmt.Errorf("%w %v: members of objects lie where captures do not expect them", ErrUnsupported, v)
	}
	var err error
	if p.Holder, err = in.holder(c); err != nil {
		return capture.Process{}, err
	}
	// Absent where the program did not import it; then there is no such object.
	for _, t := range []struct {
		to           *uint64
		module, name string
	}{{&p.CellType, "types", "CellType"}, {&p.DequeType, "_collections", "deque"}} {
		if v, err := in.Path(t.module, t.name); err == nil && v.isType() {
			*t.to = v.addr
		}
	}
	return p, nil
}

// holder returns the address of the pointer to the thread state that runs Python
// code, after a check of what is there.
func (in *Interp) holder(c captureLayout) (uint64, error) {
	if c.RuntimeCurrent >= 0 {
		addr := in.img.runtime + uint64(c.RuntimeCurrent)
		for range 64 { // 0 at times, while no thread runs Python code
			current, err := in.u64(addr)
			if err != nil {
				return 0, err
			}
			if current == 0 {
				continue
			}
			ok, err := in.hasThread(current)
			if err != nil || ok {
				return addr, err
			}
		}
		if current, err := in.u64(addr); err != nil || current == 0 {
			return addr, err // an idle process
		}
		return 0, fmt.Errorf("%w %s: the current thread is none of the threads", ErrUnsupported, in.Version)
	}
	gil, err := in.u64(in.addr + uint64(c.InterpGIL))
	if err != nil {
		return 0, err
	}
	// struct _gil_runtime_state begins with the switch interval in microseconds.
	interval, err := in.u64(gil)
	if err != nil {
		return 0, err
	}
	addr := gil + uint64(c.GILHolder)
	current, err := in.u64(addr)
	if err != nil {
		return 0, err
	}
	ok, err := in.hasThread(current)
	if err != nil {
		return 0, err
	}
	// The last holder can be a thread that has ended, in a process that is idle since.
	if !ok && (interval == 0 || interval > maxSwitchInterval) {
		return 0, fmt.Errorf("%w %s: the lock is not where it is expected", ErrUnsupported, in.Version)
	}
	return addr, nil
}

// maxSwitchInterval is beyond what anybody sets (sys.setswitchinterval), in
// microseconds; the default is 5000.
const maxSwitchInterval = 3600_000_000

// hasThread reports whether the interpreter has a thread state at addr.
func (in *Interp) hasThread(addr uint64) (bool, error) {
	l := &in.layout
	ts, err := in.u64(in.addr + uint64(l.InterpThreads))
	for range maxThreads {
		if err != nil || ts == 0 {
			return false, err
		}
		if ts == addr {
			return true, nil
		}
		ts, err = in.u64(ts + uint64(l.ThreadNext))
	}
	return false, nil
}

// CaptureCode returns what identifies the code object in the kernel.
func (c *Code) CaptureCode() (capture.Code, error) {
	out := capture.Code{Addr: c.obj.addr}
	l := &c.obj.in.layout
	b := make([]byte, 8*len(out.Identity))
	if err := c.obj.in.read(out.Addr+uint64(l.CodeLocalNames), b); err != nil {
		return capture.Code{}, err
	}
	for i := range out.Identity {
		out.Identity[i] = u64at(b, 8*i)
	}
	return out, c.obj.still()
}

// Slot returns where instances of a class have an attribute that is a slot or
// another member that refers to an object, and the address of the class's name in C.
// ErrNotFound if the class has none of that name.
func (v Value) Slot(name string) (offset uint64, cname uint64, err error) {
	if err := v.need(flagType, "type"); err != nil {
		return 0, 0, err
	}
	in := v.in
	t, err := in.typeInfo(v.addr)
	if err != nil {
		return 0, 0, err
	}
	descr, err := in.classAttr(t, name)
	if err != nil {
		return 0, 0, err
	}
	if descr.TypeName() != "member_descriptor" {
		return 0, 0, fmt.Errorf("attribute %s of class %s: %w", name, v.typeNameOf(), ErrNotFound)
	}
	l := &in.layout
	b, err := descr.object(l.MemberDef + 8)
	if err != nil {
		return 0, 0, err
	}
	def := make([]byte, l.MemberOffset+8)
	if err := in.read(u64at(b, l.MemberDef), def); err != nil {
		return 0, 0, err
	}
	off := u64at(def, l.MemberOffset)
	if kind := le.Uint32(def[l.MemberType:]); kind != memberObject && kind != memberObjectEx {
		return 0, 0, fmt.Errorf("member %s of class %s has the C type %d: %w", name, v.typeNameOf(), kind, ErrComputed)
	}
	if off < objSize || off >= uint64(t.basicSize) {
		return 0, 0, corrupt(descr.addr, "offset of a member")
	}
	return off, t.name, nil
}

// CodeAt describes the code object at an address that a capture or a count of hits
// has. It may be gone meanwhile, and another one be there: the answer is for people.
func (in *Interp) CodeAt(addr uint64) (*Code, error) {
	v, err := in.value(addr, nil)
	if err != nil {
		return nil, err
	}
	if !v.builtin("code") {
		return nil, v.wrongType("code")
	}
	return v.Code()
}
