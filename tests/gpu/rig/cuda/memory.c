/* Memory. All of it is host memory that reads as zeros; pages come when they are touched. */
#include "driver.h"
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static size_t device_bytes; /* under lock */

static void add(void *start, size_t bytes, enum memory_kind kind)
{
	struct allocation *a = malloc(sizeof *a);

	*a = (struct allocation){
		.start = start, .bytes = bytes, .kind = kind, .device = current_or_primary()->device};
	pthread_mutex_lock(&lock);
	a->next = allocations;
	allocations = a;
	if (kind == DEVICE_MEMORY)
		device_bytes += bytes;
	pthread_mutex_unlock(&lock);
}

void *allocate(size_t bytes, enum memory_kind kind)
{
	void *p;

	bytes = bytes ? (bytes + 4095) & ~4095ul : 4096;
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	add(p, bytes, kind);
	return p;
}

bool is_known(const void *p, struct allocation *out)
{
	struct allocation *a;

	pthread_mutex_lock(&lock);
	for (a = allocations; a; a = a->next)
		if ((const char *)p >= a->start && (const char *)p < a->start + a->bytes)
			break;
	if (a && out)
		*out = *a;
	pthread_mutex_unlock(&lock);
	return a != NULL;
}

/* Returns the bytes of the allocation that begins there and forgets it; 0: there is none. */
static size_t forget(const void *start)
{
	struct allocation **p, *a;
	size_t bytes = 0;

	pthread_mutex_lock(&lock);
	for (p = &allocations; (a = *p); p = &a->next) {
		if (a->start != start)
			continue;
		*p = a->next;
		bytes = a->bytes;
		if (a->kind == DEVICE_MEMORY)
			device_bytes -= bytes;
		free(a);
		break;
	}
	pthread_mutex_unlock(&lock);
	return bytes;
}

static CUresult allocate_device(CUdeviceptr *p, size_t bytes)
{
	void *start = allocate(bytes, DEVICE_MEMORY);

	trace("cuMemAlloc(%zu) -> %p", bytes, start);
	if (!start)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*p = (CUdeviceptr)start;
	return CUDA_SUCCESS;
}

static CUresult allocate_host(void **p, size_t bytes)
{
	*p = allocate(bytes, HOST_MEMORY);
	return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes)
{
	return allocate_device(p, bytes);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned element)
{
	*pitch = (width + 511) & ~511ul;
	return allocate_device(p, *pitch * height);
}

API CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned flags)
{
	return allocate_device(p, bytes);
}

API CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream s)
{
	return allocate_device(p, bytes);
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *p, size_t bytes, CUstream s)
{
	return allocate_device(p, bytes);
}

API CUresult cuMemFree_v2(CUdeviceptr p)
{
	struct stream_list list;
	size_t bytes;
	int i;

	if (!p)
		return CUDA_SUCCESS;
	/* As the real one, it waits for what may still use the memory. */
	list_streams(current_context(), EVERY_STREAM, &list);
	for (i = 0; i < list.n; i++)
		drain(list.stream[i]);
	bytes = forget(PTR(p));
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	munmap(PTR(p), bytes);
	return CUDA_SUCCESS;
}

static CUresult free_async(CUdeviceptr p, CUstream s)
{
	struct op o = {.kind = OP_FREE, .dst = PTR(p), .bytes = forget(PTR(p))};

	return o.bytes ? enqueue(s, o, CU_GRAPH_NODE_TYPE_MEM_FREE) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s)
{
	return free_async(p, s);
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream s)
{
	return free_async(p, PER_THREAD(s));
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	const size_t context = 256ul << 20; /* a context takes about that much */
	size_t used;

	pthread_mutex_lock(&lock);
	used = device_bytes + context;
	pthread_mutex_unlock(&lock);
	*total = config()->memory;
	*free_bytes = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

API CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
	return allocate_host(p, bytes);
}

API CUresult cuMemAllocHost_v2(void **p, size_t bytes)
{
	return allocate_host(p, bytes);
}

API CUresult cuMemFreeHost(void *p)
{
	size_t bytes = forget(p);

	if (bytes)
		munmap(p, bytes);
	return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
	add(p, bytes, REGISTERED_MEMORY);
	return CUDA_SUCCESS;
}

API CUresult cuMemHostUnregister(void *p)
{
	forget(p);
	return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *p, unsigned flags)
{
	*device = (CUdeviceptr)p;
	return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *p)
{
	*flags = 0;
	return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p)
{
	struct allocation a;

	if (!is_known(PTR(p), &a))
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = (CUdeviceptr)a.start;
	if (bytes)
		*bytes = a.bytes;
	return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr p)
{
	struct allocation a = {.device = -2}; /* what CUDA says of memory that it does not know */
	bool known = is_known(PTR(p), &a);

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)value = known ? primary_context(a.device) : NULL;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)value = !known                    ? 0
				     : a.kind == DEVICE_MEMORY ? CU_MEMORYTYPE_DEVICE
							       : CU_MEMORYTYPE_HOST;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)value = known ? p : 0;
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		*(void **)value = known && a.kind != DEVICE_MEMORY ? PTR(p) : NULL;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)value = a.device;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(void **)value = a.start;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)value = a.bytes;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)value = (uintptr_t)a.start;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned char *)value = known;
		break;
	default:
		*(unsigned *)value = 0;
	}
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr p)
{
	return pointer_attribute(value, attribute, p);
}

API CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *attributes, void **values, CUdeviceptr p)
{
	unsigned i;

	for (i = 0; i < n; i++)
		pointer_attribute(values[i], attributes[i], p);
	return CUDA_SUCCESS;
}

API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr p)
{
	return CUDA_SUCCESS;
}

/* One pool, which does nothing. */
static int pool;

static CUresult the_pool(CUmemoryPool *p)
{
	*p = (CUmemoryPool)&pool;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *p, CUdevice device)
{
	return the_pool(p);
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *p, CUdevice device)
{
	return the_pool(p);
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool p)
{
	return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool p, CUmemPool_attribute attribute, void *value)
{
	return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool p, CUmemPool_attribute attribute, void *value)
{
	*(cuuint64_t *)value = 0;
	return CUDA_SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t bytes)
{
	return CUDA_SUCCESS;
}
