/* Contexts: one primary context per device, and a stack of current ones per thread. */
#include "driver.h"

enum { MAX_DEVICES = 16, DEPTH = 32 };

static struct {
	struct CUctx_st context;
	int references;
} primary[MAX_DEVICES];

static __thread CUcontext stack[DEPTH];
static __thread int depth;

CUcontext current_context(void)
{
	return depth ? stack[depth - 1] : NULL;
}

CUcontext primary_context(int device)
{
	primary[device].context.device = device;
	return &primary[device].context;
}

CUcontext current_or_primary(void)
{
	CUcontext c = current_context();

	return c ? c : primary_context(0);
}

static bool exists(CUdevice device)
{
	return device >= 0 && device < config()->devices && device < MAX_DEVICES;
}

static CUresult synchronize(CUcontext c)
{
	struct stream_list list;
	int i;

	list_streams(c, EVERY_STREAM, &list);
	for (i = 0; i < list.n; i++)
		drain(list.stream[i]);
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice device)
{
	if (!exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	__sync_fetch_and_add(&primary[device].references, 1);
	*c = primary_context(device);
	trace("cuDevicePrimaryCtxRetain -> %p", (void *)*c);
	return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
	if (!exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	__sync_fetch_and_sub(&primary[device].references, 1);
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return release(device);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return release(device);
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	if (!exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	primary[device].context.flags = flags;
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	if (!exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (flags)
		*flags = primary[device].context.flags;
	if (active)
		*active = primary[device].references > 0;
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return exists(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult push_context(CUcontext c)
{
	if (depth == DEPTH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stack[depth++] = c;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *c, unsigned flags, CUdevice device)
{
	if (!exists(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*c = calloc(1, sizeof **c);
	(*c)->device = device;
	(*c)->flags = flags;
	return push_context(*c);
}

API CUresult cuCtxCreate_v2(CUcontext *c, unsigned flags, CUdevice device)
{
	return create(c, flags, device);
}

API CUresult cuCtxCreate_v4(CUcontext *c, CUctxCreateParams *params, unsigned flags, CUdevice device)
{
	return create(c, flags, device);
}

API CUresult cuCtxDestroy_v2(CUcontext c)
{
	if (depth && stack[depth - 1] == c)
		depth--;
	return CUDA_SUCCESS; /* kept: streams refer to it */
}

API CUresult cuCtxPushCurrent_v2(CUcontext c)
{
	return push_context(c);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *c)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (c)
		*c = stack[depth];
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext c)
{
	if (depth)
		depth--;
	return c ? push_context(c) : CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *c)
{
	*c = current_context();
	return CUDA_SUCCESS;
}

static CUresult device_of(CUcontext c, CUdevice *device)
{
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = c->device;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
	return device_of(current_context(), device);
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext c)
{
	return device_of(c ? c : current_context(), device);
}

API CUresult cuCtxGetFlags(unsigned *flags)
{
	CUcontext c = current_context();

	*flags = c ? c->flags : 0;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext c, unsigned long long *id)
{
	*id = (uintptr_t)(c ? c : current_context());
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext c, unsigned *version)
{
	*version = 3020; /* what all drivers since CUDA 4 answer */
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	switch (limit) { /* the defaults of an H100 */
	case CU_LIMIT_STACK_SIZE:
		*value = 1024;
		break;
	case CU_LIMIT_PRINTF_FIFO_SIZE:
		*value = 7340032;
		break;
	case CU_LIMIT_MALLOC_HEAP_SIZE:
		*value = 8388608;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	*config = 0;
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void)
{
	return synchronize(current_context());
}

CUresult unexported_context_synchronize(void)
{
	return synchronize(current_context());
}

API CUresult cuCtxSynchronize_v2(CUcontext c)
{
	return synchronize(c ? c : current_context());
}

API CUresult cuCtxEnablePeerAccess(CUcontext c, unsigned flags)
{
	return CUDA_SUCCESS;
}

API CUresult cuCtxDisablePeerAccess(CUcontext c)
{
	return CUDA_SUCCESS;
}

API CUresult cuCtxResetPersistingL2Cache(void)
{
	return CUDA_SUCCESS;
}
