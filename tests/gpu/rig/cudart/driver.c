/* The way to the driver, devices and errors. */
#include "runtime.h"
#include <dlfcn.h>
#include <stdarg.h>

static CUresult (*get_address)(const char *, void **, int, cuuint64_t, void *);
static int load_error;
static __thread cudaError_t last_error;
static __thread int device; /* current */

void trace(const char *format, ...)
{
	static int debug = -1;
	va_list args;

	if (debug < 0) {
		const char *v = getenv("FAKE_CUDART_DEBUG");

		debug = v ? atoi(v) : 0;
	}
	if (!debug)
		return;
	va_start(args, format);
	fputs("[fakecudart] ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
}

static void load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CUresult (*init)(unsigned);

	if (library)
		get_address = dlsym(library, "cuGetProcAddress_v2");
	if (!get_address) {
		trace("loading libcuda.so.1: %s", dlerror());
		load_error = cudaErrorInsufficientDriver;
		return;
	}
	get_address("cuInit", (void **)&init, 2000, 0, NULL);
	if (init(0))
		load_error = cudaErrorInitializationError;
}

int load_driver(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	return load_error;
}

void *driver_function(const char *name, int version, int per_thread)
{
	const cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
	void *function = NULL;

	load_driver();
	if (!get_address || get_address(name, &function, version, flags, NULL)) {
		fprintf(stderr, "fake CUDA runtime: the driver has no %s\n", name);
		abort();
	}
	return function;
}

cudaError_t result(int code)
{
	if (code)
		last_error = code;
	return code;
}

static int use(int d)
{
	CUcontext c;
	int e = DRIVER(cuDevicePrimaryCtxRetain, 7000)(&c, d);

	return e ? e : (int)DRIVER(cuCtxSetCurrent, 4000)(c);
}

int ready(void)
{
	CUcontext c = NULL;

	if (load_driver())
		return load_error;
	DRIVER(cuCtxGetCurrent, 4000)(&c);
	return c ? 0 : use(device);
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int *version)
{
	*version = 0; /* what CUDA says of a missing driver */
	return load_driver() ? cudaSuccess : result(DRIVER(cuDriverGetVersion, 2020)(version));
}

API cudaError_t cudaGetDeviceCount(int *n)
{
	*n = 0;
	return result(load_driver() ?: (int)DRIVER(cuDeviceGetCount, 2000)(n));
}

API cudaError_t cudaGetDevice(int *d)
{
	*d = device;
	return cudaSuccess;
}

static cudaError_t set_device(int d)
{
	int e = load_driver() ?: use(d);

	if (!e)
		device = d;
	return result(e);
}

API cudaError_t cudaSetDevice(int d)
{
	return set_device(d);
}

API cudaError_t cudaInitDevice(int d, unsigned device_flags, unsigned flags)
{
	return set_device(d);
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int d)
{
	return result(
		load_driver()
			?: (int)DRIVER(cuDeviceGetAttribute, 2000)(value, (CUdevice_attribute)attribute, d));
}

API cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int d)
{
	FORWARD(cuDeviceGetPCIBusId, 4010, id, size, d);
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int d, int peer)
{
	FORWARD(cuDeviceCanAccessPeer, 4000, can, d, peer);
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
	return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	FORWARD(cuCtxGetStreamPriorityRange, 5050, least, greatest);
}

API cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit)
{
	FORWARD(cuCtxGetLimit, 3010, value, (CUlimit)limit);
}

API cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
	return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize(void)
{
	FORWARD(cuCtxSynchronize, 2000);
}

API cudaError_t cudaDeviceReset(void)
{
	return cudaSuccess;
}

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int d)
{
	FORWARD(cuDeviceGetDefaultMemPool, 11020, pool, d);
}

API cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int d)
{
	FORWARD(cuDeviceGetMemPool, 11020, pool, d);
}

static int attribute(CUdevice_attribute a, int d)
{
	int v = 0;

	DRIVER(cuDeviceGetAttribute, 2000)(&v, a, d);
	return v;
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d)
{
	READY;
	memset(p, 0, sizeof *p);
	DRIVER(cuDeviceGetName, 2000)(p->name, sizeof p->name, d);
	DRIVER(cuDeviceGetUuid, 9020)((CUuuid *)&p->uuid, d);
	DRIVER(cuDeviceTotalMem, 3020)(&p->totalGlobalMem, d);
#define SET(field, name) p->field = attribute(CU_DEVICE_ATTRIBUTE_##name, d)
	SET(major, COMPUTE_CAPABILITY_MAJOR);
	SET(minor, COMPUTE_CAPABILITY_MINOR);
	SET(multiProcessorCount, MULTIPROCESSOR_COUNT);
	SET(warpSize, WARP_SIZE);
	SET(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
	SET(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR);
	SET(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK);
	SET(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
	SET(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
	SET(regsPerBlock, MAX_REGISTERS_PER_BLOCK);
	SET(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR);
	SET(l2CacheSize, L2_CACHE_SIZE);
	SET(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH);
	SET(pciBusID, PCI_BUS_ID);
	SET(maxThreadsDim[0], MAX_BLOCK_DIM_X);
	SET(maxThreadsDim[1], MAX_BLOCK_DIM_Y);
	SET(maxThreadsDim[2], MAX_BLOCK_DIM_Z);
	SET(maxGridSize[0], MAX_GRID_DIM_X);
	SET(maxGridSize[1], MAX_GRID_DIM_Y);
	SET(maxGridSize[2], MAX_GRID_DIM_Z);
	SET(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR);
	SET(totalConstMem, TOTAL_CONSTANT_MEMORY);
	SET(asyncEngineCount, ASYNC_ENGINE_COUNT);
	SET(textureAlignment, TEXTURE_ALIGNMENT);
	SET(memPitch, MAX_PITCH);
	SET(unifiedAddressing, UNIFIED_ADDRESSING);
	SET(concurrentKernels, CONCURRENT_KERNELS);
	SET(canMapHostMemory, CAN_MAP_HOST_MEMORY);
	SET(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED);
	SET(cooperativeLaunch, COOPERATIVE_LAUNCH);
	SET(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED);
#undef SET
	return cudaSuccess;
}

API cudaError_t cudaGetLastError(void)
{
	cudaError_t e = last_error;

	last_error = cudaSuccess;
	return e;
}

API cudaError_t cudaPeekAtLastError(void)
{
	return last_error;
}

API const char *cudaGetErrorName(cudaError_t e)
{
	switch (e) {
	case cudaSuccess:
		return "cudaSuccess";
	case cudaErrorNotReady:
		return "cudaErrorNotReady";
	case cudaErrorNotSupported:
		return "cudaErrorNotSupported";
	default:
		return "cudaErrorFake";
	}
}

API const char *cudaGetErrorString(cudaError_t e)
{
	switch (e) {
	case cudaSuccess:
		return "no error";
	case cudaErrorNotReady:
		return "device not ready";
	case cudaErrorNotSupported:
		return "operation not supported (fake runtime)";
	case cudaErrorInsufficientDriver:
		return "CUDA driver version is insufficient for CUDA runtime version";
	default:
		return "fake runtime error";
	}
}

API cudaError_t cudaProfilerStart(void)
{
	return cudaSuccess;
}

API cudaError_t cudaProfilerStop(void)
{
	return cudaSuccess;
}

static cudaError_t entry_point(const char *name, void **function, unsigned version, unsigned long long flags,
			       enum cudaDriverEntryPointQueryResult *status)
{
	int e;

	READY;
	e = get_address(name, function, version, flags, NULL);
	if (status)
		*status = e ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
	return result(e);
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
						 unsigned long long flags,
						 enum cudaDriverEntryPointQueryResult *status)
{
	return entry_point(name, function, version, flags, status);
}

API cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
					enum cudaDriverEntryPointQueryResult *status)
{
	return entry_point(name, function, CUDART_VERSION, flags, status);
}

/* Every exported name that no file here has. */
static cudaError_t not_there(const char *name)
{
	trace("STUB %s -> cudaErrorNotSupported", name);
	return result(cudaErrorNotSupported);
}

#define STUB(name)                                         \
	API cudaError_t name##__stub(void) __asm__(#name); \
	API cudaError_t name##__stub(void)                 \
	{                                                  \
		return not_there(#name);                   \
	}
#include "runtime_stubs.h"
