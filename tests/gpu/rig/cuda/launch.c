/* Launches of kernels and host functions. */
#include "driver.h"

#define LAUNCH_PARAMS                                                                               \
	CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
		unsigned shared, CUstream s, void **params

static CUresult launch(LAUNCH_PARAMS)
{
	const struct function *k = (void *)f;
	struct op o = {.kind = OP_KERNEL, .grid = {gx, gy, gz}, .block = {bx, by, bz}};

	if (!k || k->magic != FUNCTION_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!gx || !gy || !gz || !bx || !by || !bz)
		return CUDA_ERROR_INVALID_VALUE;
	o.name = k->name;
	o.ns = kernel_ns(k->name);
	if (k->emulation && params)
		take_args(k, &o, params);
	return enqueue(s, o, CU_GRAPH_NODE_TYPE_KERNEL);
}

static CUresult launch_config(const CUlaunchConfig *c, CUfunction f, CUstream s, void **params)
{
	return launch(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
		      c->sharedMemBytes, s, params);
}

API CUresult cuLaunchKernel(LAUNCH_PARAMS, void **extra)
{
	return launch(f, gx, gy, gz, bx, by, bz, shared, s, params);
}

API CUresult cuLaunchKernel_ptsz(LAUNCH_PARAMS, void **extra)
{
	return launch(f, gx, gy, gz, bx, by, bz, shared, PER_THREAD(s), params);
}

CUresult unexported_launch(LAUNCH_PARAMS, void **extra)
{
	return launch(f, gx, gy, gz, bx, by, bz, shared, s, params);
}

API CUresult cuLaunchCooperativeKernel(LAUNCH_PARAMS)
{
	return launch(f, gx, gy, gz, bx, by, bz, shared, s, params);
}

API CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH_PARAMS)
{
	return launch(f, gx, gy, gz, bx, by, bz, shared, PER_THREAD(s), params);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	return launch_config(c, f, c->hStream, params);
}

API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	return launch_config(c, f, PER_THREAD(c->hStream), params);
}

static CUresult launch_host(CUstream s, CUhostFn host, void *arg)
{
	struct op o = {.kind = OP_HOST, .host = host, .arg = arg};

	return enqueue(s, o, CU_GRAPH_NODE_TYPE_HOST);
}

API CUresult cuLaunchHostFunc(CUstream s, CUhostFn host, void *arg)
{
	return launch_host(s, host, arg);
}

API CUresult cuLaunchHostFunc_ptsz(CUstream s, CUhostFn host, void *arg)
{
	return launch_host(PER_THREAD(s), host, arg);
}
