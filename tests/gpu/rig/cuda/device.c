/* The driver itself and its devices, which answer as an H100 does. */
#include "driver.h"

API CUresult cuInit(unsigned flags)
{
	trace("cuInit(%u)", flags);
	return CUDA_SUCCESS;
}

API CUresult cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *n)
{
	*n = config()->devices;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	if (ordinal < 0 || ordinal >= config()->devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	snprintf(name, size, "NVIDIA H100 80GB HBM3 (fake)");
	return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	*bytes = config()->memory;
	return CUDA_SUCCESS;
}

/* The fake NVML gives the same. */
static CUresult uuid_of(CUuuid *uuid, CUdevice device)
{
	memset(uuid, 0, sizeof *uuid);
	memcpy(uuid->bytes, "FAKEGPU-", 8);
	uuid->bytes[15] = device + 1;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	return uuid_of(uuid, device);
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	return uuid_of(uuid, device);
}

API CUresult cuDeviceGetLuid(char *luid, unsigned *mask, CUdevice device)
{
	return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

API CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
	snprintf(id, size, "00000000:%02X:00.0", device + 1);
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	unsigned domain, bus;

	if (sscanf(id, "%x:%x:", &domain, &bus) != 2 || bus < 1 || (int)bus > config()->devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = bus - 1;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	*major = config()->capability / 10;
	*minor = config()->capability % 10;
	return CUDA_SUCCESS;
}

/* Attributes that do not depend on the settings; the others are 0. */
static const struct {
	CUdevice_attribute attribute;
	int value;
} attributes[] = {
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
	{CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
	{CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
	{CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
	{CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
	{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
	{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
	{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
	{CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
	{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
	{CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
	{CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
	{CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
	{CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
	{CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
	{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
	{CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
	{CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
	{CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
};

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	size_t i;

	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = config()->capability / 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = config()->capability % 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = device + 1;
		return CUDA_SUCCESS;
	default:
		break;
	}
	*value = 0;
	for (i = 0; i < sizeof attributes / sizeof *attributes; i++)
		if (attributes[i].attribute == attribute)
			*value = attributes[i].value;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice device)
{
	*supported = 0;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	*can = device != peer;
	return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult error, const char **name)
{
	switch (error) {
	case CUDA_SUCCESS:
		*name = "CUDA_SUCCESS";
		break;
	case CUDA_ERROR_NOT_READY:
		*name = "CUDA_ERROR_NOT_READY";
		break;
	default:
		*name = "CUDA_ERROR_FAKE";
	}
	return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult error, const char **text)
{
	switch (error) {
	case CUDA_SUCCESS:
		*text = "no error";
		break;
	case CUDA_ERROR_NOT_READY:
		*text = "device not ready";
		break;
	default:
		*text = "fake driver error";
	}
	return CUDA_SUCCESS;
}

API CUresult cuProfilerStart(void)
{
	return CUDA_SUCCESS;
}

API CUresult cuProfilerStop(void)
{
	return CUDA_SUCCESS;
}
