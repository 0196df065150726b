/* How programs get at the driver's functions: by symbol, or with cuGetProcAddress by name and version. */
#include "driver.h"

/* Every exported name that the other files do not have. */
static CUresult not_there(const char *name)
{
	trace("STUB %s -> CUDA_ERROR_NOT_SUPPORTED", name);
	return CUDA_ERROR_NOT_SUPPORTED;
}

#define STUB(name)                                      \
	API CUresult name##__stub(void) __asm__(#name); \
	API CUresult name##__stub(void)                 \
	{                                               \
		return not_there(#name);                \
	}
#include "stubs.h"

/* Declared by their names alone: there are more than the headers have, of many types. */
#define NAME(name) extern char name##__symbol[] __asm__(#name);
#include "names.h"
#undef NAME

static const struct {
	const char *name;
	int since; /* version of the interface */
	void *function, *per_thread;
} versions[] = {
#define VERSION(name, since, function, per_thread) {#name, since, function##__symbol, per_thread##__symbol},
#include "versions.h"
};

static const struct {
	const char *name;
	void *function;
} symbols[] = {
#define NAME(name) {#name, name##__symbol},
#include "names.h"
};

/* What cuGetProcAddress gives with FAKE_CUDA_ALIAS: functions that are not exported. */
CUresult unexported_launch(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   CUstream, void **, void **);
CUresult unexported_graph_launch(CUgraphExec, CUstream);
CUresult unexported_event_record(CUevent, CUstream);
CUresult unexported_event_record_with_flags(CUevent, CUstream, unsigned);
CUresult unexported_event_synchronize(CUevent);
CUresult unexported_stream_synchronize(CUstream);
CUresult unexported_context_synchronize(void);

static const struct {
	const char *name;
	int from; /* FAKE_CUDA_ALIAS */
	void *function;
} aliases[] = {
	{"cuLaunchKernel", 1, unexported_launch},
	{"cuGraphLaunch", 2, unexported_graph_launch},
	{"cuEventRecord", 2, unexported_event_record},
	{"cuEventRecordWithFlags", 2, unexported_event_record_with_flags},
	{"cuEventSynchronize", 2, unexported_event_synchronize},
	{"cuStreamSynchronize", 2, unexported_stream_synchronize},
	{"cuCtxSynchronize", 2, unexported_context_synchronize},
};

static void *find(const char *name, int version, bool per_thread)
{
	void *found = NULL;
	int best = -1;
	size_t i;

	for (i = 0; i < sizeof versions / sizeof *versions; i++) {
		if (strcmp(versions[i].name, name) || versions[i].since > version || versions[i].since <= best)
			continue;
		best = versions[i].since;
		found = per_thread ? versions[i].per_thread : versions[i].function;
	}
	for (i = 0; !found && i < sizeof symbols / sizeof *symbols; i++)
		if (!strcmp(symbols[i].name, name))
			found = symbols[i].function;
	for (i = 0; !per_thread && i < sizeof aliases / sizeof *aliases; i++)
		if (config()->alias >= aliases[i].from && !strcmp(name, aliases[i].name))
			found = aliases[i].function;
	return found;
}

static CUresult get(const char *name, void **function, int version, cuuint64_t flags,
		    CUdriverProcAddressQueryResult *status)
{
	*function = find(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	if (status)
		*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (!*function || config()->debug > 1)
		trace("cuGetProcAddress(%s,%d,%llx) -> %p", name, version, (unsigned long long)flags,
		      *function);
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
	return get(name, function, version, flags, NULL);
}

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
				 CUdriverProcAddressQueryResult *status)
{
	return get(name, function, version, flags, status);
}

/*
 * Tables of private functions: none. NVIDIA's runtime authenticates the driver by them,
 * and its licence forbids to circumvent that; it gives up with error 500, and cudart/
 * takes its place.
 */
API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	trace("cuGetExportTable -> none");
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
