/* Events: one, a GPU that falls off the bus. */
#include "gpu.h"

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
	GPU_CALL(d, "events");
	return NVML_SUCCESS;
}

static nvmlReturn_t wait_event(nvmlEventData_t *event, unsigned ms)
{
	const char *after = getenv("FAKE_NVML_XID_AFTER");
	double end = wall() + ms / 1e3;

	for (;;) {
		if (after && !xid_told && elapsed() >= atof(after)) {
			xid_told = true;
			memset(event, 0, sizeof *event);
			event->device = (nvmlDevice_t)&gpus[0];
			event->eventType = nvmlEventTypeXidCriticalError;
			event->eventData = 79; /* "GPU has fallen off the bus" */
			event->gpuInstanceId = event->computeInstanceId = NO_INSTANCE;
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
