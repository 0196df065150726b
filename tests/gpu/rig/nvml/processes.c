/*
 * Processes: those of FAKE_NVML_PIDS on the first GPU, by default the caller with 1 GiB. The script may name others, for
 * each GPU, with 1 GiB each: "process" are in all lists, "listed" in that of processes only and "used" in that of
 * utilization only, as one that comes or ends between the two calls. Of a GPU that is split the first instance has them.
 */
#include "gpu.h"

enum { MAX_PROCESSES = 64 };

struct process {
	unsigned pid;
	unsigned long long bytes;
};

enum list { LISTED, USED };

static unsigned scripted_processes(nvmlDevice_t d, enum list which, struct process *p)
{
	long pids[MAX_PROCESSES];
	unsigned n = 0, have, i;

	have = scripted_all(index_of(d), "process", pids, MAX_PROCESSES);
	have += scripted_all(index_of(d), which == USED ? "used" : "listed", pids + have, MAX_PROCESSES - have);
	for (i = 0; i < have; i++)
		p[n++] = (struct process){.pid = pids[i], .bytes = 1ull << 30};
	return n;
}

static unsigned processes_of(nvmlDevice_t d, enum list which, struct process *p)
{
	const char *list = getenv("FAKE_NVML_PIDS");
	unsigned n = 0;
	char *copy, *rest = NULL, *item;

	if (instance_of(d) > 1)
		return 0;
	if ((n = scripted_processes(d, which, p)))
		return n;
	if (scripted(index_of(d), "no_process", index_of(d) != 0))
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
	unsigned have = processes_of(d, LISTED, p), room = *n, i;

	CALL(d, "processes");
	*n = have;
	if (room < have || !info)
		return have ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	for (i = 0; i < have; i++)
		info[i] = (nvmlProcessInfo_t){
			.pid = p[i].pid,
			.usedGpuMemory = p[i].bytes,
			.gpuInstanceId = NO_INSTANCE,
			.computeInstanceId = NO_INSTANCE,
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
	GPU_CALL(d, "graphics");
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
	unsigned have = processes_of(d, USED, p), room = *n, i;
	unsigned long long now = (unsigned long long)wall() * 1000000;

	GPU_CALL(d, "process_utilization");
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
	unsigned have = processes_of(d, LISTED, p), room = *n, i;

	*n = have;
	if (room < have)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (i = 0; i < have; i++)
		pids[i] = p[i].pid;
	return NVML_SUCCESS;
}
