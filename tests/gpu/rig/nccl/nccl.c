/*
 * NCCL 2.29 in name: a collective is one kernel launched on the driver. No data moves
 * between ranks, and ranks do not wait for each other.
 */
#include "../driver_call.h"
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, INTERNAL_ERROR = 3, INVALID_USAGE = 5 }; /* ncclResult_t */

struct comm {
	int ranks, rank, device;
};

struct unique_id {
	char text[128];
};

static const char *const type_names[] = {"i8",  "u8",  "i32", "u32",  "i64",    "u64",
					 "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
static const char *const op_names[] = {"Sum", "Prod", "MinMax", "MinMax", "PreMulSum"};

static const char *pick(const char *const *names, size_t n, unsigned i)
{
	return names[i < n ? i : 0];
}

#define PICK(names, i) pick(names, sizeof names / sizeof *names, i)

static int launch(const char *kernel, CUstream s)
{
	/* A device function of C++ as NCCL has it: its argument is the type of that name. */
	char mangled[192];
	CUlaunchConfig c = {
		.gridDimX = 2,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 512,
		.blockDimY = 1,
		.blockDimZ = 1,
		.sharedMemBytes = 90000,
		.hStream = s,
	};

	snprintf(mangled, sizeof mangled, "_Z%zu%s24ncclDevKernelArgsStorageILm4096EE", strlen(kernel), kernel);
	return driver_run(mangled, c) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

static int reduce(const char *collective, int type, int op, CUstream s)
{
	char kernel[128];

	snprintf(kernel, sizeof kernel, "ncclDevKernel_%s_%s_%s_RING_LL", collective, PICK(op_names, op),
		 PICK(type_names, type));
	return launch(kernel, s);
}

static int new_comm(struct comm **c, int ranks, int rank)
{
	CUdevice device = 0;

	driver_init();
	driver_device(&device);
	*c = calloc(1, sizeof **c);
	**c = (struct comm){.ranks = ranks, .rank = rank, .device = device};
	return SUCCESS;
}

API int ncclGetVersion(int *version)
{
	*version = 22907;
	return SUCCESS;
}

API int ncclGetUniqueId(struct unique_id *id)
{
	memset(id, 0, sizeof *id);
	snprintf(id->text, sizeof id->text, "fake-%d", getpid());
	return SUCCESS;
}

API int ncclCommInitRank(struct comm **c, int ranks, struct unique_id id, int rank)
{
	return new_comm(c, ranks, rank);
}

API int ncclCommInitRankConfig(struct comm **c, int ranks, struct unique_id id, int rank, void *config)
{
	return new_comm(c, ranks, rank);
}

API int ncclCommInitRankScalable(struct comm **c, int ranks, int rank, int n_ids, struct unique_id *ids,
				 void *config)
{
	return new_comm(c, ranks, rank);
}

API int ncclCommInitAll(struct comm **c, int n, const int *devices)
{
	int i;

	for (i = 0; i < n; i++)
		new_comm(&c[i], n, i);
	return SUCCESS;
}

API int ncclCommSplit(struct comm *c, int color, int key, struct comm **out, void *config)
{
	return new_comm(out, c->ranks, c->rank);
}

API int ncclCommCount(struct comm *c, int *n)
{
	*n = c->ranks;
	return SUCCESS;
}

API int ncclCommUserRank(struct comm *c, int *rank)
{
	*rank = c->rank;
	return SUCCESS;
}

API int ncclCommCuDevice(struct comm *c, int *device)
{
	*device = c->device;
	return SUCCESS;
}

API int ncclCommGetAsyncError(struct comm *c, int *error)
{
	*error = SUCCESS;
	return SUCCESS;
}

API const char *ncclGetErrorString(int error)
{
	return error ? "fake NCCL error" : "no error";
}

API const char *ncclGetLastError(struct comm *c)
{
	return "";
}

API int ncclAllReduce(const void *src, void *dst, size_t n, int type, int op, struct comm *c, CUstream s)
{
	return reduce("AllReduce", type, op, s);
}

API int ncclReduce(const void *src, void *dst, size_t n, int type, int op, int root, struct comm *c, CUstream s)
{
	return reduce("Reduce", type, op, s);
}

API int ncclReduceScatter(const void *src, void *dst, size_t n, int type, int op, struct comm *c, CUstream s)
{
	return reduce("ReduceScatter", type, op, s);
}

API int ncclBroadcast(const void *src, void *dst, size_t n, int type, int root, struct comm *c, CUstream s)
{
	return launch("ncclDevKernel_Broadcast_RING_LL", s);
}

API int ncclBcast(void *p, size_t n, int type, int root, struct comm *c, CUstream s)
{
	return launch("ncclDevKernel_Broadcast_RING_LL", s);
}

API int ncclAllGather(const void *src, void *dst, size_t n, int type, struct comm *c, CUstream s)
{
	return launch("ncclDevKernel_AllGather_RING_LL", s);
}

API int ncclAlltoAll(const void *src, void *dst, size_t n, int type, struct comm *c, CUstream s)
{
	return launch("ncclDevKernel_SendRecv", s);
}

API int ncclSend(const void *src, size_t n, int type, int peer, struct comm *c, CUstream s)
{
	return launch("ncclDevKernel_SendRecv", s);
}

API int ncclRecv(void *dst, size_t n, int type, int peer, struct comm *c, CUstream s)
{
	return launch("ncclDevKernel_SendRecv", s);
}

API int ncclMemAlloc(void **p, size_t n)
{
	return INTERNAL_ERROR; /* torch then uses its own memory */
}

API int ncclCommWindowRegister(struct comm *c, void *p, size_t n, void **window, int flags)
{
	*window = NULL;
	return SUCCESS;
}

API int ncclCommRegister(struct comm *c, void *p, size_t n, void **handle)
{
	*handle = p;
	return SUCCESS;
}

#define ANSWER(name, status)   \
	API int name(void)     \
	{                      \
		return status; \
	}
#define DOES_NOTHING(name) ANSWER(name, SUCCESS)
#define REFUSES(name)      ANSWER(name, INVALID_USAGE)

DOES_NOTHING(ncclCommAbort)
DOES_NOTHING(ncclCommDeregister)
DOES_NOTHING(ncclCommDestroy)
DOES_NOTHING(ncclCommFinalize)
DOES_NOTHING(ncclCommResume)
DOES_NOTHING(ncclCommSuspend)
DOES_NOTHING(ncclCommWindowDeregister)
DOES_NOTHING(ncclGroupEnd)
DOES_NOTHING(ncclGroupSimulateEnd)
DOES_NOTHING(ncclGroupStart)
DOES_NOTHING(ncclMemFree)
DOES_NOTHING(ncclPutSignal)
DOES_NOTHING(ncclRedOpDestroy)
DOES_NOTHING(ncclSignal)
DOES_NOTHING(ncclWaitSignal)

REFUSES(ncclCommGetUniqueId)
REFUSES(ncclCommGrow)
REFUSES(ncclCommMemStats)
REFUSES(ncclCommQueryProperties)
REFUSES(ncclCommRevoke)
REFUSES(ncclCommShrink)
REFUSES(ncclDevCommCreate)
REFUSES(ncclDevCommDestroy)
REFUSES(ncclGather)
REFUSES(ncclGetLsaDevicePointer)
REFUSES(ncclGetLsaMultimemDevicePointer)
REFUSES(ncclGetMultimemDevicePointer)
REFUSES(ncclGetPeerDevicePointer)
REFUSES(ncclGinBarrierCreateRequirement)
REFUSES(ncclGinInboxA2ACreateRequirement)
REFUSES(ncclGinOutboxCreateRequirement)
REFUSES(ncclLLA2ACalcSlots)
REFUSES(ncclLLA2ACreateRequirement)
REFUSES(ncclLsaBarrierCreateRequirement)
REFUSES(ncclRedOpCreatePreMulSum)
REFUSES(ncclResetDebugInit)
REFUSES(ncclResetDebugInitInternal)
REFUSES(ncclScatter)
REFUSES(ncclTeamLsa)
REFUSES(ncclTeamRail)
REFUSES(ncclTeamRankToLsa)
REFUSES(ncclTeamRankToWorld)
REFUSES(ncclTeamWorld)
REFUSES(ncclWinGetUserPtr)
