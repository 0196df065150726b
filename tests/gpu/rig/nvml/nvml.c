/*
 * libnvidia-ml with up to two GPUs. Values follow the clock, so that a reader can tell
 * what it should see at a time (README.md has the pattern), or a script.
 */
#define _GNU_SOURCE
#include <nvml.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { MAX_GPUS = 2, MAX_PROCESSES = 64 };
/* What NVML says where there is no value. */
static const unsigned no_instance = 0xFFFFFFFF;

struct gpu {
	int index;
};

static struct gpu gpus[MAX_GPUS] = {{0}, {1}};
static unsigned n_gpus = 1;
static int capability = 90;
static unsigned long long memory = 80ull << 30;
static double epoch;

static double wall(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static long number(const char *name, long otherwise)
{
	const char *v = getenv(name);

	return v ? atol(v) : otherwise;
}

__attribute__((constructor)) static void start(void)
{
	const char *v = getenv("FAKE_NVML_EPOCH");

	epoch = v ? atof(v) : wall();
	n_gpus = number("FAKE_CUDA_DEVICES", n_gpus);
	if (n_gpus > MAX_GPUS)
		n_gpus = MAX_GPUS;
	capability = number("FAKE_CUDA_CC", capability);
	memory = (unsigned long long)number("FAKE_CUDA_MEM_MIB", memory >> 20) << 20;
}

/* Whole seconds since the pattern began. */
static long seconds(void)
{
	return wall() - epoch;
}

static int index_of(nvmlDevice_t d)
{
	return ((struct gpu *)d)->index;
}

/* The value of the last line of the script that names it. The file is read at each call. */
static long scripted(int gpu, const char *key, long otherwise)
{
	const char *path = getenv("FAKE_NVML_SCRIPT");
	FILE *f = path ? fopen(path, "r") : NULL;
	char k[64];
	long value;
	int g;

	if (!f)
		return otherwise;
	while (fscanf(f, "%d %63s %ld", &g, k, &value) == 3)
		if (g == gpu && !strcmp(k, key))
			otherwise = value;
	fclose(f);
	return otherwise;
}

static long utilization(nvmlDevice_t d)
{
	int gpu = index_of(d);
	long percent = 10 * (seconds() % 10);

	return scripted(gpu, "util", gpu ? 100 - percent : percent);
}

static unsigned milliwatts(nvmlDevice_t d)
{
	return 100000 + 1000 * utilization(d);
}

static unsigned long long used_memory(nvmlDevice_t d)
{
	long gib = scripted(index_of(d), "mem_gib", -1);

	return gib >= 0 ? (unsigned long long)gib << 30
			: memory / 16 + ((unsigned long long)(seconds() % 8) << 20);
}

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
	uuid_of(index_of(d), uuid, size);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned size)
{
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
	u->gpu = utilization(d);
	u->memory = u->gpu / 2;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
	m->total = memory;
	m->used = used_memory(d);
	m->free = m->total - m->used;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m)
{
	m->total = memory;
	m->reserved = 256 << 20;
	m->used = used_memory(d);
	m->free = m->total - m->used - m->reserved;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *mw)
{
	*mw = milliwatts(d);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *mj)
{
	*mj = seconds() * 150000ull;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *mw)
{
	*mw = 700000;
	return NVML_SUCCESS;
}

enum { MEMORY_MHZ = 2619, SM_MHZ = 1980 };

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, nvmlClockType_t type, unsigned *mhz)
{
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
	return clock_reasons(d, reasons);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *reasons)
{
	return clock_reasons(d, reasons);
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t d, nvmlPcieUtilCounter_t counter, unsigned *kib)
{
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
	*current = *pending = scripted(index_of(d), "mig", NVML_DEVICE_MIG_DISABLE);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *n)
{
	*n = 0;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *mig)
{
	return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned *is)
{
	*is = 0;
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

/* Processes: those of FAKE_NVML_PIDS on the first GPU, by default the caller with 1 GiB. */
struct process {
	unsigned pid;
	unsigned long long bytes;
};

static unsigned processes_of(nvmlDevice_t d, struct process *p)
{
	const char *list = getenv("FAKE_NVML_PIDS");
	unsigned n = 0;
	char *copy, *rest = NULL, *item;

	if (index_of(d) != 0)
		return 0;
	if (!list) {
		p[0] = (struct process){.pid = getpid(), .bytes = 1ull << 30};
		return 1;
	}
	copy = strdup(list);
	for (item = strtok_r(copy, ",", &rest); item && n < MAX_PROCESSES; item = strtok_r(NULL, ",", &rest)) {
		unsigned pid, mib = 0;

		if (sscanf(item, "%u:%u", &pid, &mib) >= 1)
			p[n++] = (struct process){.pid = pid, .bytes = (unsigned long long)mib << 20};
	}
	free(copy);
	return n;
}

static nvmlReturn_t running(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *info)
{
	struct process p[MAX_PROCESSES];
	unsigned have = processes_of(d, p), room = *n, i;

	*n = have;
	if (room < have || !info)
		return have ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	for (i = 0; i < have; i++)
		info[i] = (nvmlProcessInfo_t){
			.pid = p[i].pid,
			.usedGpuMemory = p[i].bytes,
			.gpuInstanceId = no_instance,
			.computeInstanceId = no_instance,
		};
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *n,
							 nvmlProcessInfo_v2_t *info)
{
	return running(d, n, (nvmlProcessInfo_t *)info);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *info)
{
	return running(d, n, info);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *info)
{
	*n = 0;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n,
							    nvmlProcessInfo_t *info)
{
	*n = 0;
	return NVML_SUCCESS;
}

/* A sample per process and second. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *samples,
						 unsigned *n, unsigned long long last_seen)
{
	struct process p[MAX_PROCESSES];
	unsigned have = processes_of(d, p), room = *n, i;
	unsigned long long now = (unsigned long long)wall() * 1000000;

	*n = have;
	if (!samples)
		return have ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	if (!have || now <= last_seen) {
		*n = 0;
		return NVML_ERROR_NOT_FOUND;
	}
	if (room < have)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (i = 0; i < have; i++)
		samples[i] = (nvmlProcessUtilizationSample_t){
			.pid = p[i].pid,
			.timeStamp = now,
			.smUtil = utilization(d) / have,
			.memUtil = utilization(d) / 2 / have,
		};
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t d, nvmlEnableState_t *mode)
{
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t d, unsigned pid, nvmlAccountingStats_t *s)
{
	memset(s, 0, sizeof *s);
	s->gpuUtilization = utilization(d);
	s->maxMemoryUsage = 1ull << 30;
	s->isRunning = 1;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t d, unsigned *n, unsigned *pids)
{
	struct process p[MAX_PROCESSES];
	unsigned have = processes_of(d, p), room = *n, i;

	*n = have;
	if (room < have)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (i = 0; i < have; i++)
		pids[i] = p[i].pid;
	return NVML_SUCCESS;
}

/* Events: one, a GPU that falls off the bus. */
static bool xid_told;

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	xid_told = false;
	*set = (nvmlEventSet_t)&xid_told;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types)
{
	*types =
		nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set)
{
	return NVML_SUCCESS;
}

static nvmlReturn_t wait_event(nvmlEventData_t *event, unsigned ms)
{
	const char *after = getenv("FAKE_NVML_XID_AFTER");
	double end = wall() + ms / 1e3;

	for (;;) {
		if (after && !xid_told && wall() - epoch >= atof(after)) {
			xid_told = true;
			memset(event, 0, sizeof *event);
			event->device = (nvmlDevice_t)&gpus[0];
			event->eventType = nvmlEventTypeXidCriticalError;
			event->eventData = 79; /* "GPU has fallen off the bus" */
			event->gpuInstanceId = event->computeInstanceId = no_instance;
			return NVML_SUCCESS;
		}
		if (wall() >= end)
			return NVML_ERROR_TIMEOUT;
		usleep(5000);
	}
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *event, unsigned ms)
{
	return wait_event(event, ms);
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *event, unsigned ms)
{
	return wait_event(event, ms);
}
