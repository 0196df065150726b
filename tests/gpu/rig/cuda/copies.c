/* Copies and sets of memory. They are real: the bytes arrive. */
#include "driver.h"

static CUresult copy(const char *name, void *dst, const void *src, size_t bytes, CUstream s)
{
	struct op o = {.kind = OP_COPY, .name = name, .dst = dst, .src = src, .bytes = bytes};
	CUstream resolved = resolve_stream(s);
	CUresult result;

	if (resolved->capture || !bytes)
		return enqueue(s, o, CU_GRAPH_NODE_TYPE_MEMCPY);
	/* As the real one: from pageable memory it copies before it returns, */
	if (!is_known(src, NULL)) {
		o.staged = malloc(bytes);
		memcpy(o.staged, src, bytes);
		o.src = o.staged;
		o.name = "HtoD_pageable";
	}
	result = enqueue(s, o, CU_GRAPH_NODE_TYPE_MEMCPY);
	/* and to pageable memory it returns when the bytes are there. */
	if (!is_known(dst, NULL))
		drain(resolved);
	return result;
}

static CUresult copy_now(const char *name, void *dst, const void *src, size_t bytes, CUstream s)
{
	CUresult result = copy(name, dst, src, bytes, s);

	drain(resolve_stream(s));
	return result;
}

static CUresult set(void *dst, unsigned value, unsigned width, size_t n, CUstream s)
{
	struct op o = {.kind = OP_SET, .dst = dst, .value = value, .width = width, .bytes = n * width};

	return enqueue(s, o, CU_GRAPH_NODE_TYPE_MEMSET);
}

API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	return copy_now("cuMemcpy", PTR(dst), PTR(src), bytes, NULL);
}

API CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	return copy_now("cuMemcpy", PTR(dst), PTR(src), bytes, CU_STREAM_PER_THREAD);
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
	return copy_now("HtoD", PTR(dst), src, bytes, NULL);
}

API CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dst, const void *src, size_t bytes)
{
	return copy_now("HtoD", PTR(dst), src, bytes, CU_STREAM_PER_THREAD);
}

API CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
	return copy_now("DtoH", dst, PTR(src), bytes, NULL);
}

API CUresult cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src, size_t bytes)
{
	return copy_now("DtoH", dst, PTR(src), bytes, CU_STREAM_PER_THREAD);
}

API CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	return copy_now("DtoD", PTR(dst), PTR(src), bytes, NULL);
}

API CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	return copy_now("DtoD", PTR(dst), PTR(src), bytes, CU_STREAM_PER_THREAD);
}

API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	return copy("cuMemcpyAsync", PTR(dst), PTR(src), bytes, s);
}

API CUresult cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	return copy("cuMemcpyAsync", PTR(dst), PTR(src), bytes, PER_THREAD(s));
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream s)
{
	return copy("HtoD", PTR(dst), src, bytes, s);
}

API CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dst, const void *src, size_t bytes, CUstream s)
{
	return copy("HtoD", PTR(dst), src, bytes, PER_THREAD(s));
}

API CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	return copy("DtoH", dst, PTR(src), bytes, s);
}

API CUresult cuMemcpyDtoHAsync_v2_ptsz(void *dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	return copy("DtoH", dst, PTR(src), bytes, PER_THREAD(s));
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	return copy("DtoD", PTR(dst), PTR(src), bytes, s);
}

API CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{
	return copy("DtoD", PTR(dst), PTR(src), bytes, PER_THREAD(s));
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes,
			       CUstream s)
{
	return copy("Peer", PTR(dst), PTR(src), bytes, s);
}

API CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t n)
{
	return set(PTR(dst), value, 1, n, NULL);
}

API CUresult cuMemsetD8_v2_ptds(CUdeviceptr dst, unsigned char value, size_t n)
{
	return set(PTR(dst), value, 1, n, CU_STREAM_PER_THREAD);
}

API CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short value, size_t n)
{
	return set(PTR(dst), value, 2, n, NULL);
}

API CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned value, size_t n)
{
	return set(PTR(dst), value, 4, n, NULL);
}

API CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream s)
{
	return set(PTR(dst), value, 1, n, s);
}

API CUresult cuMemsetD8Async_ptsz(CUdeviceptr dst, unsigned char value, size_t n, CUstream s)
{
	return set(PTR(dst), value, 1, n, PER_THREAD(s));
}

API CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t n, CUstream s)
{
	return set(PTR(dst), value, 2, n, s);
}

API CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t n, CUstream s)
{
	return set(PTR(dst), value, 4, n, s);
}

API CUresult cuMemsetD32Async_ptsz(CUdeviceptr dst, unsigned value, size_t n, CUstream s)
{
	return set(PTR(dst), value, 4, n, PER_THREAD(s));
}
