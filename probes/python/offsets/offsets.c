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
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe_structs.h>
#endif
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

#if PY_VERSION_HEX >= 0x030d0000
#define D(name, member) printf("\t\t{\"%s\", %ld},\n", name, (long)(offsetof(_Py_DebugOffsets, member) / 8))

// The words of _Py_DebugOffsets that stand for members of layout, and their
// positions in it.
static void debug(void)
{
	printf("\t{%d, %d}: {Words: %ld, Version: %ld, FreeThreaded: %ld, Fields: []debugField{\n", PY_MAJOR_VERSION,
	       PY_MINOR_VERSION, (long)(sizeof(_Py_DebugOffsets) / 8), (long)(offsetof(_Py_DebugOffsets, version) / 8),
	       (long)(offsetof(_Py_DebugOffsets, free_threaded) / 8));
	D("RuntimeHead", runtime_state.interpreters_head);
	D("InterpID", interpreter_state.id);
	D("InterpNext", interpreter_state.next);
	D("InterpModules", interpreter_state.imports_modules);
	D("InterpThreads", interpreter_state.threads_head);
	D("InterpGIL", interpreter_state.ceval_gil);
	D("ThreadNext", thread_state.next);
	D("ThreadFrame", thread_state.current_frame);
	D("ThreadNativeID", thread_state.native_thread_id);
	D("FramePrevious", interpreter_frame.previous);
	D("FrameCode", interpreter_frame.executable);
	D("FrameLocals", interpreter_frame.localsplus);
	D("FrameOwner", interpreter_frame.owner);
	D("FrameInstr", interpreter_frame.instr_ptr);
	D("CodeFilename", code_object.filename);
	D("CodeName", code_object.name);
	D("CodeQualname", code_object.qualname);
	D("CodeFirstLine", code_object.firstlineno);
	D("CodeArgCount", code_object.argcount);
	D("CodeLocalNames", code_object.localsplusnames);
	D("CodeLocalKinds", code_object.localspluskinds);
	D("ObjectType", pyobject.ob_type);
	D("TypeName", type_object.tp_name);
	D("TypeFlags", type_object.tp_flags);
	D("TupleItems", tuple_object.ob_item);
	D("VarSize", tuple_object.ob_size);
	D("ListItems", list_object.ob_item);
	D("DictKeys", dict_object.ma_keys);
	D("DictValues", dict_object.ma_values);
	D("FloatValue", float_object.ob_fval);
	D("LongTag", long_object.lv_tag);
	D("LongDigits", long_object.ob_digit);
	D("BytesData", bytes_object.ob_sval);
	D("StrState", unicode_object.state);
	D("StrLength", unicode_object.length);
	D("StrASCIISize", unicode_object.asciiobject_size);
#if PY_VERSION_HEX >= 0x030e0000
	D("SetUsed", set_object.used);
	D("SetTable", set_object.table);
	D("SetMask", set_object.mask);
#endif
	printf("\t}},\n");
}
#else
static void debug(void)
{
}
#endif

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1) {
		debug();
		return 0;
	}
	printf("\t{%d, %d}: {\n", PY_MAJOR_VERSION, PY_MINOR_VERSION);
	O(RuntimeMain, _PyRuntimeState, interpreters.main);
	O(RuntimeHead, _PyRuntimeState, interpreters.head);
	O(InterpID, PyInterpreterState, id);
	O(InterpNext, PyInterpreterState, next);
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
#if PY_VERSION_HEX >= 0x030c0000
	NONE(RuntimeGIL);
	O(InterpGIL, PyInterpreterState, ceval.gil);
#else
	O(RuntimeGIL, _PyRuntimeState, ceval.gil);
	NONE(InterpGIL);
#endif
	O(GILHolder, struct _gil_runtime_state, last_holder);
	O(GILLocked, struct _gil_runtime_state, locked);
	O(GILSwitches, struct _gil_runtime_state, switch_number);
#if PY_VERSION_HEX >= 0x030d0000
	O(FrameInstr, _PyInterpreterFrame, instr_ptr);
#elif PY_VERSION_HEX >= 0x030b0000
	O(FrameInstr, _PyInterpreterFrame, prev_instr);
#else
	O(FrameInstr, PyFrameObject, f_lasti);
#endif
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
#if PY_VERSION_HEX >= 0x030b0000
	O(FrameOwner, _PyInterpreterFrame, owner);
#else
	NONE(FrameOwner);
#endif
#if PY_VERSION_HEX >= 0x030e0000
	F(FrameTags, 1); // references in frames are tagged (pycore_stackref.h)
#else
	F(FrameTags, 0);
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
	O(CodeConsts, PyCodeObject, co_consts);
	O(CodeFilename, PyCodeObject, co_filename);
	O(CodeFlags, PyCodeObject, co_flags);
	O(CodeArgCount, PyCodeObject, co_argcount);
	O(CodeFirstLine, PyCodeObject, co_firstlineno);
#if PY_VERSION_HEX >= 0x030b0000
	O(CodeLocalKinds, PyCodeObject, co_localspluskinds);
	NONE(CodeCellVars);
	NONE(CodeFreeVars);
#else
	NONE(CodeLocalKinds);
	O(CodeCellVars, PyCodeObject, co_cellvars);
	O(CodeFreeVars, PyCodeObject, co_freevars);
#endif
	O(FuncCode, PyFunctionObject, func_code);
	O(FuncQualname, PyFunctionObject, func_qualname);
	O(FuncDict, PyFunctionObject, func_dict);
	O(FuncModule, PyFunctionObject, func_module);
	O(MethodFunc, PyMethodObject, im_func);
	O(MethodSelf, PyMethodObject, im_self);
	O(CFuncDef, PyCFunctionObject, m_ml);
	O(CFuncSelf, PyCFunctionObject, m_self);
	O(DescrType, PyDescrObject, d_type);
	O(DescrName, PyDescrObject, d_name);
	O(DescrMethod, PyMethodDescrObject, d_method);
	O(DescrBase, PyWrapperDescrObject, d_base);
	O(DescrWrapped, PyWrapperDescrObject, d_wrapped);
	O(DefName, PyMethodDef, ml_name);
	O(DefFunc, PyMethodDef, ml_meth);
	O(DefFlags, PyMethodDef, ml_flags);

	O(TypeName, PyTypeObject, tp_name);
	O(TypeBasicSize, PyTypeObject, tp_basicsize);
	O(TypeItemSize, PyTypeObject, tp_itemsize);
	O(TypeFlags, PyTypeObject, tp_flags);
	O(TypeDict, PyTypeObject, tp_dict);
	O(TypeMRO, PyTypeObject, tp_mro);
	O(TypeDictOffset, PyTypeObject, tp_dictoffset);
	O(TypeDescrSet, PyTypeObject, tp_descr_set);
	O(TypeVectorcall, PyTypeObject, tp_vectorcall_offset);
	O(TypeSubclasses, PyTypeObject, tp_subclasses);
#if PY_VERSION_HEX >= 0x030d0000
	O(InterpStaticTypes, PyInterpreterState, types.builtins.initialized);
	F(InterpStaticCount, _Py_MAX_MANAGED_STATIC_BUILTIN_TYPES);
	O(InterpExtTypes, PyInterpreterState, types.for_extensions.initialized);
	F(InterpExtCount, _Py_MAX_MANAGED_STATIC_EXT_TYPES);
	F(StaticSize, sizeof(managed_static_type_state));
	O(StaticType, managed_static_type_state, type);
	O(StaticDict, managed_static_type_state, tp_dict);
#elif PY_VERSION_HEX >= 0x030c0000
	O(InterpStaticTypes, PyInterpreterState, types.builtins);
	F(InterpStaticCount, _Py_MAX_STATIC_BUILTIN_TYPES);
	NONE(InterpExtTypes);
	NONE(InterpExtCount);
	F(StaticSize, sizeof(static_builtin_state));
	O(StaticType, static_builtin_state, type);
	O(StaticDict, static_builtin_state, tp_dict);
#else
	NONE(InterpStaticTypes);
	NONE(InterpStaticCount);
	NONE(InterpExtTypes);
	NONE(InterpExtCount);
	NONE(StaticSize);
	NONE(StaticType);
	NONE(StaticDict);
#endif
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
	O(StrHash, PyASCIIObject, hash);
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
	O(ValuesSize, struct _dictvalues, size);
	O(ValuesValid, struct _dictvalues, valid);
#else
	NONE(ValuesCapacity);
	NONE(ValuesSize);
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
