/*
 * What programs that nvcc compiled register as they start: binaries with kernels and
 * variables, each known by the address of something on the host.
 */
#include "runtime.h"

struct binary {
	const void *wrapper;
	CUlibrary library; /* loaded when it is first needed */
};

struct kernel {
	struct kernel *next;
	const void *host;
	struct binary *binary;
	const char *name;
	CUkernel handle;
};

struct variable {
	struct variable *next;
	const void *host;
	struct binary *binary;
	const char *name;
	size_t bytes;
	CUdeviceptr start;
};

/* torch registers some 22,000 kernels. */
static struct kernel *kernels[65536];
static struct variable *variables[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Fibonacci hashing: addresses differ in their middle bits. */
static unsigned hash(const void *p)
{
	return (uintptr_t)p * 0x9E3779B97F4A7C15ul >> 48;
}

#define KERNELS(host)   &kernels[hash(host)]
#define VARIABLES(host) &variables[hash(host) % 4096]

static CUlibrary library_of(struct binary *b)
{
	if (!b->library)
		DRIVER(cuLibraryLoadData, 12000)(&b->library, b->wrapper, NULL, NULL, 0, NULL, NULL, 0);
	return b->library;
}

CUkernel kernel_of(const void *function)
{
	CUkernel handle = (CUkernel)function;
	struct kernel *k;

	pthread_mutex_lock(&lock);
	for (k = *KERNELS(function); k; k = k->next)
		if (k->host == function)
			break;
	if (k) {
		if (!k->handle)
			DRIVER(cuLibraryGetKernel, 12000)(&k->handle, library_of(k->binary), k->name);
		handle = k->handle;
	}
	pthread_mutex_unlock(&lock);
	return handle;
}

API void **__cudaRegisterFatBinary(void *wrapper)
{
	struct binary *b = calloc(1, sizeof *b);

	b->wrapper = wrapper;
	return (void **)b;
}

API void __cudaRegisterFatBinaryEnd(void **handle)
{
}

API void __cudaUnregisterFatBinary(void **handle)
{
}

API char __cudaInitModule(void **handle)
{
	return 1;
}

API void __cudaRegisterFunction(void **handle, const char *host, char *device_function, const char *name,
				int thread_limit, void *tid, void *bid, void *block, void *grid, int *warp_size)
{
	struct kernel *k = calloc(1, sizeof *k), **list = KERNELS(host);

	k->host = host;
	k->binary = (struct binary *)handle;
	k->name = name;
	pthread_mutex_lock(&lock);
	k->next = *list;
	*list = k;
	pthread_mutex_unlock(&lock);
}

API void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external,
			   size_t bytes, int constant, int global)
{
	struct variable *v = calloc(1, sizeof *v), **list = VARIABLES(host);

	v->host = host;
	v->binary = (struct binary *)handle;
	v->name = name;
	v->bytes = bytes;
	pthread_mutex_lock(&lock);
	v->next = *list;
	*list = v;
	pthread_mutex_unlock(&lock);
}

API void __cudaRegisterManagedVar(void **handle, void **host, char *address, const char *name, int external,
				  size_t bytes, int constant, int global)
{
}

static struct variable *variable_of(const void *host)
{
	struct variable *v;

	pthread_mutex_lock(&lock);
	for (v = *VARIABLES(host); v; v = v->next)
		if (v->host == host)
			break;
	if (v && !v->start) {
		size_t bytes;

		DRIVER(cuLibraryGetGlobal, 12000)(&v->start, &bytes, library_of(v->binary), v->name);
	}
	pthread_mutex_unlock(&lock);
	return v;
}

API cudaError_t cudaGetSymbolAddress(void **p, const void *host)
{
	struct variable *v;

	READY;
	v = variable_of(host);
	if (!v)
		return result(cudaErrorInvalidSymbol);
	*p = (void *)v->start;
	return cudaSuccess;
}

API cudaError_t cudaGetSymbolSize(size_t *bytes, const void *host)
{
	struct variable *v;

	READY;
	v = variable_of(host);
	if (!v)
		return result(cudaErrorInvalidSymbol);
	*bytes = v->bytes;
	return cudaSuccess;
}

static cudaError_t get_kernel(void *kernel, const void *host)
{
	READY;
	*(CUkernel *)kernel = kernel_of(host);
	return cudaSuccess;
}

API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
	return get_kernel(kernel, host);
}

API cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
	return get_kernel(kernel, host);
}

API cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host)
{
	return get_kernel(function, host);
}

API cudaError_t cudaFuncGetName(const char **name, const void *host)
{
	FORWARD(cuFuncGetName, 12030, name, (CUfunction)kernel_of(host));
}

API cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jit,
				    void **jit_values, unsigned n_jit, enum cudaLibraryOption *options,
				    void **values, unsigned n)
{
	FORWARD(cuLibraryLoadData, 12000, (CUlibrary *)library, code, NULL, NULL, 0, NULL, NULL, 0);
}

API cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
	return cudaSuccess;
}

API cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
	FORWARD(cuLibraryGetKernel, 12000, (CUkernel *)kernel, (CUlibrary)library, name);
}
