/* The library and its devices. */
#include "gpu.h"

API nvmlReturn_t nvmlInit(void)
{
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInit_v2(void)
{
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlShutdown(void)
{
	return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t e)
{
	switch (e) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_TIMEOUT:
		return "Timeout";
	default:
		return "Fake error";
	}
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size)
{
	snprintf(version, size, "580.95.05-fake");
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
	snprintf(version, size, "13.580.95.05");
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	*version = 13000;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	*version = 13000;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *n)
{
	*n = n_gpus;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n)
{
	*n = n_gpus;
	return NVML_SUCCESS;
}

static nvmlReturn_t handle_of(unsigned index, nvmlDevice_t *d)
{
	if (index >= n_gpus)
		return NVML_ERROR_INVALID_ARGUMENT;
	*d = (nvmlDevice_t)&gpus[index];
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *d)
{
	return handle_of(index, d);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *d)
{
	return handle_of(index, d);
}

/* The fake driver gives the same. */
static void uuid_of(int index, char *uuid, unsigned size)
{
	snprintf(uuid, size, "GPU-46414b45-4750-552d-0000-00000000000%d", index + 1);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d)
{
	char have[64];
	unsigned i;

	for (i = 0; i < n_gpus; i++) {
		uuid_of(i, have, sizeof have);
		if (!strcmp(uuid, have))
			return handle_of(i, d);
	}
	return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *index)
{
	CALL(d, "index");
	*index = index_of(d);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor)
{
	*minor = index_of(d);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned size)
{
	CALL(d, "uuid");
	if (instance_of(d))
		snprintf(uuid, size, "MIG-46414b45-4750-552d-%04d-00000000000%d", index_of(d) + 1,
			 instance_of(d));
	else
		uuid_of(index_of(d), uuid, size);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned size)
{
	CALL(d, "name");
	snprintf(name, size, "NVIDIA H100 80GB HBM3 (fake)");
	return NVML_SUCCESS;
}

static nvmlReturn_t pci_info(nvmlDevice_t d, nvmlPciInfo_t *p)
{
	memset(p, 0, sizeof *p);
	p->bus = index_of(d) + 1;
	snprintf(p->busId, sizeof p->busId, "00000000:%02X:00.0", p->bus);
	snprintf(p->busIdLegacy, sizeof p->busIdLegacy, "0000:%02X:00.0", p->bus);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t d, nvmlPciInfo_t *p)
{
	return pci_info(d, p);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *p)
{
	CALL(d, "bus_id");
	return pci_info(d, p);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
	*major = capability / 10;
	*minor = capability % 10;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u)
{
	GPU_CALL(d, "utilization");
	u->gpu = utilization(d);
	u->memory = u->gpu / 2;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
	CALL(d, "memory");
	m->total = instance_of(d) ? memory / 8 : memory;
	m->used = used_memory(d);
	m->free = m->total - m->used;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m)
{
	CALL(d, "memory_v2");
	m->total = instance_of(d) ? memory / 8 : memory;
	m->reserved = 256 << 20;
	m->used = used_memory(d);
	m->free = m->total - m->used - m->reserved;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *mw)
{
	GPU_CALL(d, "power");
	*mw = milliwatts(d);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *mj)
{
	GPU_CALL(d, "energy");
	*mj = scripted(index_of(d), "mj", seconds() * 150000l);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *mw)
{
	GPU_CALL(d, "power_limit");
	*mw = 700000;
	return NVML_SUCCESS;
}

enum { MEMORY_MHZ = 2619, SM_MHZ = 1980 };

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, nvmlClockType_t type, unsigned *mhz)
{
	GPU_CALL(d, "clock");
	*mhz = type == NVML_CLOCK_MEM ? MEMORY_MHZ : SM_MHZ - seconds() % 10 * 15;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, nvmlClockType_t type, unsigned *mhz)
{
	*mhz = type == NVML_CLOCK_MEM ? MEMORY_MHZ : SM_MHZ;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t sensor, unsigned *celsius)
{
	GPU_CALL(d, "temperature");
	*celsius = 40 + utilization(d) / 4;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t d, nvmlTemperature_t *t)
{
	t->temperature = 40 + utilization(d) / 4;
	return NVML_SUCCESS;
}

static nvmlReturn_t clock_reasons(nvmlDevice_t d, unsigned long long *reasons)
{
	*reasons = utilization(d) > 80 ? nvmlClocksEventReasonSwPowerCap : 0;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *reasons)
{
	GPU_CALL(d, "throttle");
	return clock_reasons(d, reasons);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *reasons)
{
	GPU_CALL(d, "throttle");
	return clock_reasons(d, reasons);
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t d, nvmlPcieUtilCounter_t counter, unsigned *kib)
{
	GPU_CALL(d, "pcie");
	*kib = counter == NVML_PCIE_UTIL_TX_BYTES ? 1000000 : 2000000;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, nvmlEnableState_t *state)
{
	if (link >= NVML_NVLINK_MAX_LINKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	*state = link < 2 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, nvmlFieldValue_t *v)
{
	int i;

	GPU_CALL(d, "fields");
	for (i = 0; i < n; i++) {
		v[i].timestamp = wall() * 1e6;
		v[i].latencyUsec = 10;
		v[i].nvmlReturn = NVML_SUCCESS;
		switch (v[i].fieldId) {
		case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
		case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
			v[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
			v[i].value.ullVal = seconds() * 1000000ull; /* KiB */
			break;
		case NVML_FI_DEV_POWER_INSTANT:
			v[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
			v[i].value.uiVal = milliwatts(d);
			break;
		default:
			v[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		}
	}
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending)
{
	GPU_CALL(d, "mig");
	*current = *pending = scripted(index_of(d), "mig", NVML_DEVICE_MIG_DISABLE);
	return NVML_SUCCESS;
}

/* Places for instances; the first of them are taken, as many as the script says. */
API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *n)
{
	GPU_CALL(d, "instances");
	*n = MAX_INSTANCES;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *mig)
{
	GPU_CALL(d, "instances");
	if (index >= MAX_INSTANCES)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((long)index >= scripted(index_of(d), "instances", 0))
		return NVML_ERROR_NOT_FOUND;
	*mig = (nvmlDevice_t)&instances[index_of(d)][index];
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned *is)
{
	*is = instance_of(d) != 0;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *d)
{
	if (!instance_of(mig))
		return NVML_ERROR_INVALID_ARGUMENT;
	*d = (nvmlDevice_t)&gpus[index_of(mig)];
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *id)
{
	CALL(d, "instance");
	if (!instance_of(d))
		return NVML_ERROR_NOT_SUPPORTED;
	*id = instance_of(d);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned *id)
{
	if (!instance_of(d))
		return NVML_ERROR_NOT_SUPPORTED;
	*id = 0;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, nvmlMemoryErrorType_t type,
					     nvmlEccCounterType_t counter, unsigned long long *n)
{
	GPU_CALL(d, "ecc");
	*n = scripted(index_of(d),
		      type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? "ecc_corrected" : "ecc_uncorrected", 0);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, nvmlEnableState_t *mode)
{
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t index,
					nvmlGpuP2PStatus_t *status)
{
	*status = NVML_P2P_STATUS_OK;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t d, unsigned *node)
{
	return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t d, unsigned n, unsigned long *set)
{
	return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t d, unsigned n, unsigned long *set,
					     nvmlAffinityScope_t scope)
{
	return NVML_ERROR_NOT_SUPPORTED;
}
