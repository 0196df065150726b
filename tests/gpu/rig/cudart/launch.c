/* Launches, and what is asked about functions before them. */
#include "runtime.h"

/* What <<<>>> leaves for the stub of a kernel. */
static __thread struct {
	dim3 grid, block;
	size_t shared;
	void *stream;
} configurations[16];
static __thread unsigned n_configurations;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
	if (n_configurations == sizeof configurations / sizeof *configurations)
		return 1;
	configurations[n_configurations].grid = grid;
	configurations[n_configurations].block = block;
	configurations[n_configurations].shared = shared;
	configurations[n_configurations++].stream = stream;
	return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
	if (!n_configurations)
		return result(cudaErrorUnknown);
	n_configurations--;
	*grid = configurations[n_configurations].grid;
	*block = configurations[n_configurations].block;
	*shared = configurations[n_configurations].shared;
	*(void **)stream = configurations[n_configurations].stream;
	return cudaSuccess;
}

API PROBED cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared,
					cudaStream_t s)
{
	FORWARD(cuLaunchKernel, 4000, (CUfunction)kernel_of(f), grid.x, grid.y, grid.z, block.x, block.y,
		block.z, shared, s, args, NULL);
}

API PROBED cudaError_t cudaLaunchKernel_ptsz(const void *f, dim3 grid, dim3 block, void **args, size_t shared,
					     cudaStream_t s)
{
	FORWARD_PER_THREAD(cuLaunchKernel, 7000, (CUfunction)kernel_of(f), grid.x, grid.y, grid.z, block.x,
			   block.y, block.z, shared, s, args, NULL);
}

/* The real one (13.0.96) is a jump to cudaLaunchKernel too: probes on both see the launch twice. */
API PROBED cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **args, size_t shared,
					  cudaStream_t s)
{
	return cudaLaunchKernel((const void *)k, grid, block, args, shared, s);
}

API PROBED cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t k, dim3 grid, dim3 block, void **args,
					       size_t shared, cudaStream_t s)
{
	return cudaLaunchKernel_ptsz((const void *)k, grid, block, args, shared, s);
}

static CUlaunchConfig driver_config(const cudaLaunchConfig_t *c)
{
	return (CUlaunchConfig){
		.gridDimX = c->gridDim.x,
		.gridDimY = c->gridDim.y,
		.gridDimZ = c->gridDim.z,
		.blockDimX = c->blockDim.x,
		.blockDimY = c->blockDim.y,
		.blockDimZ = c->blockDim.z,
		.sharedMemBytes = c->dynamicSmemBytes,
		.hStream = c->stream,
		.attrs = (void *)c->attrs,
		.numAttrs = c->numAttrs,
	};
}

API PROBED cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **args)
{
	CUlaunchConfig d = driver_config(c);

	FORWARD(cuLaunchKernelEx, 11060, &d, (CUfunction)kernel_of(f), args, NULL);
}

API PROBED cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *c, const void *f, void **args)
{
	CUlaunchConfig d = driver_config(c);

	FORWARD_PER_THREAD(cuLaunchKernelEx, 11060, &d, (CUfunction)kernel_of(f), args, NULL);
}

API cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared,
					    cudaStream_t s)
{
	FORWARD(cuLaunchCooperativeKernel, 9000, (CUfunction)kernel_of(f), grid.x, grid.y, grid.z, block.x,
		block.y, block.z, shared, s, args);
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t host, void *arg)
{
	FORWARD(cuLaunchHostFunc, 10000, s, host, arg);
}

/* The driver's answers for a function (cuda/modules.c), and versions to go with them. */
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f)
{
	READY;
	kernel_of(f);
	memset(a, 0, sizeof *a);
	a->maxThreadsPerBlock = 1024;
	a->numRegs = 32;
	a->ptxVersion = a->binaryVersion = 90;
	a->maxDynamicSharedSizeBytes = 49152;
	return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute attribute, int value)
{
	return cudaSuccess;
}

API cudaError_t cudaFuncSetCacheConfig(const void *f, enum cudaFuncCache config)
{
	return cudaSuccess;
}

API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t k, enum cudaFuncAttribute attribute, int value,
						int device)
{
	return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t shared)
{
	FORWARD(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, n, (CUfunction)kernel_of(f), block, shared);
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block,
								       size_t shared, unsigned flags)
{
	FORWARD(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, n, (CUfunction)kernel_of(f), block,
		shared, flags);
}

API cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *f, const cudaLaunchConfig_t *c)
{
	CUlaunchConfig d = driver_config(c);

	FORWARD(cuOccupancyMaxActiveClusters, 11070, n, (CUfunction)kernel_of(f), &d);
}
