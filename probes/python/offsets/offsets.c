// Prints the layout of one CPython version as a Go composite literal. Compiled by
// gen.sh against the headers of an installed interpreter; never linked into anything.
#define Py_BUILD_CORE 1
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <structmember.h>
#include <frameobject.h>
#if PY_VERSION_HEX < 0x030b0000
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
// 3.10 keeps this struct in Objects/dict-common.h, which is not installed.
struct _dictkeysobject {
	Py_ssize_t dk_refcnt;
	Py_ssize_t dk_size;
	void *dk_lookup;
	Py_ssize_t dk_usable;
	Py_ssize_t dk_nentries;
	char dk_indices[];
};
#else
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif

#define F(name, v) printf("\t\t%s: %ld,\n", #name, (long)(v))
#define O(name, type, member) F(name, offsetof(type, member))
#define NONE(name) printf("\t\t%s: -1,\n", #name)

// The position of a bit field has no offsetof: set it and look.
static long lowbit(const void *p)
{
	unsigned v;
	memcpy(&v, p, sizeof v);
	return v ? __builtin_ctz(v) : -1;
}
#define BIT(name, member)                                                      \
	do {                                                                   \
		PyASCIIObject o;                                               \
		memset(&o, 0, sizeof o);                                       \
		o.state.member = 1;                                            \
		F(name, lowbit(&o.state));                                     \
	} while (0)

int main(void)
{
	printf("\t{%d, %d}: {\n", PY_MAJOR_VERSION, PY_MINOR_VERSION);
	O(RuntimeMain, _PyRuntimeState, interpreters.main);
#if PY_VERSION_HEX >= 0x030c0000
	O(InterpModules, PyInterpreterState, imports.modules);
#else
	O(InterpModules, PyInterpreterState, modules);
#endif
#if PY_VERSION_HEX >= 0x030b0000
	O(InterpThreads, PyInterpreterState, threads.head);
	O(ThreadNativeID, PyThreadState, native_thread_id);
#else
	O(InterpThreads, PyInterpreterState, tstate_head);
	NONE(ThreadNativeID);
#endif
	O(ThreadNext, PyThreadState, next);
#if PY_VERSION_HEX >= 0x030d0000
	NONE(ThreadCFrame);
	O(ThreadFrame, PyThreadState, current_frame);
#elif PY_VERSION_HEX >= 0x030b0000
	O(ThreadCFrame, PyThreadState, cframe);
	O(ThreadFrame, _PyCFrame, current_frame);
#else
	NONE(ThreadCFrame);
	O(ThreadFrame, PyThreadState, frame);
#endif
#if PY_VERSION_HEX >= 0x030d0000
	O(FrameCode, _PyInterpreterFrame, f_executable);
#elif PY_VERSION_HEX >= 0x030b0000
	O(FrameCode, _PyInterpreterFrame, f_code);
#else
	O(FrameCode, PyFrameObject, f_code);
#endif
#if PY_VERSION_HEX >= 0x030b0000
	O(FramePrevious, _PyInterpreterFrame, previous);
	O(FrameLocals, _PyInterpreterFrame, localsplus);
	O(CodeQualname, PyCodeObject, co_qualname);
	O(CodeLocalNames, PyCodeObject, co_localsplusnames);
#else
	O(FramePrevious, PyFrameObject, f_back);
	O(FrameLocals, PyFrameObject, f_localsplus);
	NONE(CodeQualname);
	O(CodeLocalNames, PyCodeObject, co_varnames);
#endif
	O(CodeName, PyCodeObject, co_name);
	O(CodeFilename, PyCodeObject, co_filename);

	O(TypeName, PyTypeObject, tp_name);
	O(TypeBasicSize, PyTypeObject, tp_basicsize);
	O(TypeItemSize, PyTypeObject, tp_itemsize);
	O(TypeFlags, PyTypeObject, tp_flags);
	O(TypeDict, PyTypeObject, tp_dict);
	O(TypeMRO, PyTypeObject, tp_mro);
	O(TypeDictOffset, PyTypeObject, tp_dictoffset);
	O(TypeDescrSet, PyTypeObject, tp_descr_set);
	O(HeapTypeKeys, PyHeapTypeObject, ht_cached_keys);

	O(VarSize, PyVarObject, ob_size);
	O(ListItems, PyListObject, ob_item);
	O(TupleItems, PyTupleObject, ob_item);
	O(BytesData, PyBytesObject, ob_sval);
	O(FloatValue, PyFloatObject, ob_fval);
#if PY_VERSION_HEX >= 0x030c0000
	O(LongTag, PyLongObject, long_value.lv_tag);
	O(LongDigits, PyLongObject, long_value.ob_digit);
#else
	NONE(LongTag);
	O(LongDigits, PyLongObject, ob_digit);
#endif
	O(StrLength, PyASCIIObject, length);
	O(StrState, PyASCIIObject, state);
	F(StrASCIISize, sizeof(PyASCIIObject));
	F(StrCompactSize, sizeof(PyCompactUnicodeObject));
	O(StrData, PyUnicodeObject, data.any);
	BIT(StrKindShift, kind);
	BIT(StrCompactBit, compact);
	BIT(StrASCIIBit, ascii);
#if PY_VERSION_HEX < 0x030c0000
	BIT(StrReadyBit, ready);
#else
	NONE(StrReadyBit);
#endif
	O(DictUsed, PyDictObject, ma_used);
	O(DictKeys, PyDictObject, ma_keys);
	O(DictValues, PyDictObject, ma_values);
#if PY_VERSION_HEX >= 0x030b0000
	O(KeysLog2Size, struct _dictkeysobject, dk_log2_size);
	O(KeysLog2IndexBytes, struct _dictkeysobject, dk_log2_index_bytes);
	O(KeysKind, struct _dictkeysobject, dk_kind);
	NONE(KeysSize);
#else
	NONE(KeysLog2Size);
	NONE(KeysLog2IndexBytes);
	NONE(KeysKind);
	O(KeysSize, struct _dictkeysobject, dk_size);
#endif
	O(KeysUsable, struct _dictkeysobject, dk_usable);
	O(KeysEntries, struct _dictkeysobject, dk_nentries);
	O(KeysIndices, struct _dictkeysobject, dk_indices);
#if PY_VERSION_HEX >= 0x030b0000
	O(ValuesStart, struct _dictvalues, values);
#else
	F(ValuesStart, 0);
#endif
#if PY_VERSION_HEX >= 0x030d0000
	O(ValuesCapacity, struct _dictvalues, capacity);
	O(ValuesValid, struct _dictvalues, valid);
#else
	NONE(ValuesCapacity);
	NONE(ValuesValid);
#endif
	O(CellRef, PyCellObject, ob_ref);
	O(SetFill, PySetObject, fill);
	O(SetUsed, PySetObject, used);
	O(SetMask, PySetObject, mask);
	O(SetTable, PySetObject, table);
	O(MemberDef, PyMemberDescrObject, d_member);
	O(MemberType, PyMemberDef, type);
	O(MemberOffset, PyMemberDef, offset);
	printf("\t},\n");
	return 0;
}
