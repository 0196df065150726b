// Prints the part of the layout of one CPython version that captures need in the
// kernel, as a Go composite literal. Compiled by gen.sh like offsets.c.
#define Py_BUILD_CORE 1
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe_structs.h>
#include <internal/pycore_stackref.h>
#endif

#define F(name, v) printf("\t\t%s: %ld,\n", #name, (long)(v))
#define O(name, type, member) F(name, offsetof(type, member))
#define NONE(name) printf("\t\t%s: -1,\n", #name)

int main(void)
{
	printf("\t{%d, %d}: {\n", PY_MAJOR_VERSION, PY_MINOR_VERSION);
#if PY_VERSION_HEX >= 0x030c0000
	NONE(RuntimeCurrent);
	O(InterpGIL, PyInterpreterState, ceval.gil);
	O(GILHolder, struct _gil_runtime_state, last_holder);
#else
	O(RuntimeCurrent, _PyRuntimeState, gilstate.tstate_current);
	NONE(InterpGIL);
	NONE(GILHolder);
#endif
#if PY_VERSION_HEX >= 0x030e0000
	F(RefTags, Py_TAG_BITS);
#else
	F(RefTags, 0);
#endif
	O(TypeBase, PyTypeObject, tp_base);
	O(TypeVersion, PyTypeObject, tp_version_tag);
	printf("\t},\n");
	return 0;
}
