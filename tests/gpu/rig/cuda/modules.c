/*
 * Modules, libraries and the functions in them. Nothing is loaded: a module has every
 * function and variable that it is asked for.
 */
#include "driver.h"

struct variable {
	struct variable *next;
	char *name;
	void *start;
	size_t bytes;
};

struct module {
	pthread_mutex_t lock;
	struct function *functions;
	struct variable *variables;
};

static struct module *new_module(void)
{
	struct module *m = calloc(1, sizeof *m);

	pthread_mutex_init(&m->lock, NULL);
	return m;
}

static struct function *function_of(struct module *m, const char *name)
{
	struct function *f;

	pthread_mutex_lock(&m->lock);
	for (f = m->functions; f; f = f->next)
		if (!strcmp(f->name, name))
			break;
	if (!f) {
		f = calloc(1, sizeof *f);
		f->magic = FUNCTION_MAGIC;
		f->name = strdup(name);
		f->module = m;
		if (config()->emulate)
			f->emulation = emulation_of(name, &f->width);
		f->next = m->functions;
		m->functions = f;
	}
	pthread_mutex_unlock(&m->lock);
	return f;
}

static CUresult variable_of(struct module *m, const char *name, CUdeviceptr *p, size_t *bytes)
{
	struct variable *v;

	pthread_mutex_lock(&m->lock);
	for (v = m->variables; v; v = v->next)
		if (!strcmp(v->name, name))
			break;
	if (!v) {
		v = calloc(1, sizeof *v);
		v->name = strdup(name);
		v->bytes = 65536; /* its true size is in the module, which is not read */
		v->start = allocate(v->bytes, DEVICE_MEMORY);
		v->next = m->variables;
		m->variables = v;
	}
	pthread_mutex_unlock(&m->lock);
	if (p)
		*p = (CUdeviceptr)v->start;
	if (bytes)
		*bytes = v->bytes;
	return v->start ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult load(CUmodule *m, const void *image)
{
	*m = (CUmodule)new_module();
	trace("cuModuleLoad(%p) -> %p", image, (void *)*m);
	return CUDA_SUCCESS;
}

API CUresult cuModuleLoad(CUmodule *m, const char *file)
{
	return load(m, NULL);
}

API CUresult cuModuleLoadData(CUmodule *m, const void *image)
{
	return load(m, image);
}

API CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, CUjit_option *options,
				void **values)
{
	return load(m, image);
}

API CUresult cuModuleLoadFatBinary(CUmodule *m, const void *image)
{
	return load(m, image);
}

API CUresult cuModuleUnload(CUmodule m)
{
	return CUDA_SUCCESS; /* kept: launches refer to its functions */
}

API CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
	*f = (CUfunction)function_of((struct module *)m, name);
	trace("cuModuleGetFunction(%s) -> %p", name, (void *)*f);
	return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *p, size_t *bytes, CUmodule m, const char *name)
{
	return variable_of((struct module *)m, name, p, bytes);
}

API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	*mode = CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunctionCount(unsigned *n, CUmodule m)
{
	*n = 0;
	return CUDA_SUCCESS;
}

API CUresult cuLibraryLoadData(CUlibrary *l, const void *code, CUjit_option *jit, void **jit_values,
			       unsigned n_jit, CUlibraryOption *options, void **values, unsigned n)
{
	*l = (CUlibrary)new_module();
	trace("cuLibraryLoadData(%p) -> %p", code, (void *)*l);
	return CUDA_SUCCESS;
}

API CUresult cuLibraryLoadFromFile(CUlibrary *l, const char *file, CUjit_option *jit, void **jit_values,
				   unsigned n_jit, CUlibraryOption *options, void **values, unsigned n)
{
	*l = (CUlibrary)new_module();
	return CUDA_SUCCESS;
}

API CUresult cuLibraryUnload(CUlibrary l)
{
	return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUkernel *k, CUlibrary l, const char *name)
{
	*k = (CUkernel)function_of((struct module *)l, name);
	trace("cuLibraryGetKernel(%s) -> %p", name, (void *)*k);
	return CUDA_SUCCESS;
}

API CUresult cuLibraryGetModule(CUmodule *m, CUlibrary l)
{
	*m = (CUmodule)l;
	return CUDA_SUCCESS;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *p, size_t *bytes, CUlibrary l, const char *name)
{
	return variable_of((struct module *)l, name, p, bytes);
}

API CUresult cuLibraryGetKernelCount(unsigned *n, CUlibrary l)
{
	*n = 0;
	return CUDA_SUCCESS;
}

API CUresult cuKernelGetFunction(CUfunction *f, CUkernel k)
{
	*f = (CUfunction)k;
	return CUDA_SUCCESS;
}

API CUresult cuKernelGetLibrary(CUlibrary *l, CUkernel k)
{
	*l = (CUlibrary)((struct function *)k)->module;
	return CUDA_SUCCESS;
}

API CUresult cuKernelGetName(const char **name, CUkernel k)
{
	*name = ((struct function *)k)->name;
	return CUDA_SUCCESS;
}

API CUresult cuFuncGetName(const char **name, CUfunction f)
{
	*name = ((struct function *)f)->name;
	return CUDA_SUCCESS;
}

API CUresult cuFuncGetModule(CUmodule *m, CUfunction f)
{
	*m = (CUmodule)((struct function *)f)->module;
	return CUDA_SUCCESS;
}

API CUresult cuFuncLoad(CUfunction f)
{
	return CUDA_SUCCESS;
}

API CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction f)
{
	*state = CU_FUNCTION_LOADING_STATE_LOADED;
	return CUDA_SUCCESS;
}

/* The same of every function, within what the device has. */
static CUresult function_attribute(int *value, CUfunction_attribute attribute)
{
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = 1024;
		break;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*value = 32;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*value = config()->capability;
		break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*value = 49152;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
	return function_attribute(value, attribute);
}

API CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value)
{
	return CUDA_SUCCESS;
}

API CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config)
{
	return CUDA_SUCCESS;
}

API CUresult cuFuncGetParamInfo(CUfunction f, size_t i, size_t *offset, size_t *size)
{
	return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel k, CUdevice device)
{
	return function_attribute(value, attribute);
}

API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel k, CUdevice device)
{
	return CUDA_SUCCESS;
}

API CUresult cuKernelSetCacheConfig(CUkernel k, CUfunc_cache config, CUdevice device)
{
	return CUDA_SUCCESS;
}

API CUresult cuKernelGetParamInfo(CUkernel k, size_t i, size_t *offset, size_t *size)
{
	return CUDA_ERROR_INVALID_VALUE;
}

/* Occupancy: some numbers that callers take; 264 is two blocks on each of 132 processors. */
static CUresult blocks_per_processor(int *n)
{
	*n = 2;
	return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int block, size_t shared)
{
	return blocks_per_processor(n);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, CUfunction f, int block,
								  size_t shared, unsigned flags)
{
	return blocks_per_processor(n);
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, CUoccupancyB2DSize shared_of,
					      size_t shared, int limit)
{
	*grid = 264;
	*block = 256;
	return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c)
{
	*n = 16;
	return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *n, CUfunction f, const CUlaunchConfig *c)
{
	*n = 8;
	return CUDA_SUCCESS;
}

/* Descriptors of the tensor memory accelerator: 128 bytes that only kernels read. */
API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
				    const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
				    const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
				    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
				    CUtensorMapFloatOOBfill fill)
{
	memset(map, 0, sizeof *map);
	return CUDA_SUCCESS;
}

API CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
				     const cuuint64_t *dims, const cuuint64_t *strides, const int *lower,
				     const int *upper, cuuint32_t channels, cuuint32_t pixels,
				     const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
				     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
				     CUtensorMapFloatOOBfill fill)
{
	memset(map, 0, sizeof *map);
	return CUDA_SUCCESS;
}

API CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
	return CUDA_SUCCESS;
}
