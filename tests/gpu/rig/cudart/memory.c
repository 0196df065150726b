/* Memory and copies. */
#include "runtime.h"

API cudaError_t cudaMalloc(void **p, size_t bytes)
{
	FORWARD(cuMemAlloc, 3020, (CUdeviceptr *)p, bytes);
}

API cudaError_t cudaFree(void *p)
{
	FORWARD(cuMemFree, 3020, (CUdeviceptr)p);
}

API cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t s)
{
	FORWARD(cuMemAllocAsync, 11020, (CUdeviceptr *)p, bytes, s);
}

API cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
	FORWARD(cuMemFreeAsync, 11020, (CUdeviceptr)p, s);
}

API cudaError_t cudaMallocHost(void **p, size_t bytes)
{
	FORWARD(cuMemHostAlloc, 2020, p, bytes, 0);
}

API cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
	FORWARD(cuMemHostAlloc, 2020, p, bytes, flags);
}

API cudaError_t cudaFreeHost(void *p)
{
	FORWARD(cuMemFreeHost, 2000, p);
}

API cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
	FORWARD(cuMemHostRegister, 6050, p, bytes, flags);
}

API cudaError_t cudaHostUnregister(void *p)
{
	FORWARD(cuMemHostUnregister, 4000, p);
}

API cudaError_t cudaHostGetDevicePointer(void **device, void *p, unsigned flags)
{
	*device = p; /* device memory is host memory */
	return cudaSuccess;
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
	FORWARD(cuMemGetInfo, 3020, free_bytes, total);
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
	unsigned type = 0;
	int device = 0;

	READY;
	memset(a, 0, sizeof *a);
	if (DRIVER(cuPointerGetAttribute, 4000)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)p)) {
		a->type = cudaMemoryTypeUnregistered;
		a->device = cudaInvalidDeviceId;
		a->hostPointer = (void *)p;
		return cudaSuccess;
	}
	DRIVER(cuPointerGetAttribute, 4000)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)p);
	a->type = type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
	a->device = device;
	a->devicePointer = (void *)p;
	a->hostPointer = type == CU_MEMORYTYPE_HOST ? (void *)p : NULL;
	return cudaSuccess;
}

#define COPY(DRIVER_OF)                                                                                      \
	do {                                                                                                 \
		switch (kind) {                                                                              \
		case cudaMemcpyHostToDevice:                                                                 \
			return DRIVER_OF(cuMemcpyHtoDAsync, 7000)((CUdeviceptr)dst, src, n, s);              \
		case cudaMemcpyDeviceToHost:                                                                 \
			return DRIVER_OF(cuMemcpyDtoHAsync, 7000)(dst, (CUdeviceptr)src, n, s);              \
		case cudaMemcpyDeviceToDevice:                                                               \
			return DRIVER_OF(cuMemcpyDtoDAsync, 7000)((CUdeviceptr)dst, (CUdeviceptr)src, n, s); \
		default:                                                                                     \
			return DRIVER_OF(cuMemcpyAsync, 7000)((CUdeviceptr)dst, (CUdeviceptr)src, n, s);     \
		}                                                                                            \
	} while (0)

static int copy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
	COPY(DRIVER);
}

static int copy_per_thread(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
	COPY(DRIVER_PER_THREAD);
}

static cudaError_t copy_now(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
	READY;
	return result(copy(dst, src, n, kind, NULL) ?: (int)DRIVER(cuStreamSynchronize, 2000)(NULL));
}

API cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
	READY;
	return result(copy(dst, src, n, kind, s));
}

API cudaError_t cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
				     cudaStream_t s)
{
	READY;
	return result(copy_per_thread(dst, src, n, kind, s));
}

API cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
	return copy_now(dst, src, n, kind);
}

API cudaError_t cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t n, cudaStream_t s)
{
	READY;
	return result(copy(dst, src, n, cudaMemcpyDeviceToDevice, s));
}

/* Row by row: more operations than the real one makes. */
API cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
				  size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
	size_t i;
	int e = 0;

	READY;
	for (i = 0; i < height && !e; i++)
		e = copy((char *)dst + i * dst_pitch, (const char *)src + i * src_pitch, width, kind, s);
	return result(e);
}

API cudaError_t cudaMemset(void *p, int value, size_t n)
{
	READY;
	return result((int)DRIVER(cuMemsetD8Async, 3020)((CUdeviceptr)p, value, n, NULL)
			      ?: (int)DRIVER(cuStreamSynchronize, 2000)(NULL));
}

API cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s)
{
	FORWARD(cuMemsetD8Async, 3020, (CUdeviceptr)p, value, n, s);
}

API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *src, size_t n, size_t offset,
				   enum cudaMemcpyKind kind)
{
	void *p;
	cudaError_t e = cudaGetSymbolAddress(&p, symbol);

	return e ?: copy_now((char *)p + offset, src, n, kind);
}

API cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *src, size_t n, size_t offset,
					enum cudaMemcpyKind kind, cudaStream_t s)
{
	void *p;
	cudaError_t e = cudaGetSymbolAddress(&p, symbol);

	return e ?: result(copy((char *)p + offset, src, n, kind, s));
}

API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
	return cudaSuccess;
}

API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
	*(uint64_t *)value = 0;
	return cudaSuccess;
}

API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t n)
{
	return cudaSuccess;
}

API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes)
{
	return cudaSuccess;
}
