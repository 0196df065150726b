/* Streams, events and graphs: all the driver's. */
#include "runtime.h"

API cudaError_t cudaStreamCreate(cudaStream_t *s)
{
	FORWARD(cuStreamCreate, 2000, s, 0);
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
	FORWARD(cuStreamCreate, 2000, s, flags);
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)
{
	FORWARD(cuStreamCreateWithPriority, 5050, s, flags, priority);
}

API cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	FORWARD(cuStreamDestroy, 4000, s);
}

API cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority)
{
	FORWARD(cuStreamGetPriority, 5050, s, priority);
}

API cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned *flags)
{
	FORWARD(cuStreamGetFlags, 5050, s, flags);
}

API cudaError_t cudaStreamGetId(cudaStream_t s, unsigned long long *id)
{
	FORWARD(cuStreamGetId, 12000, s, id);
}

API cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	FORWARD(cuStreamSynchronize, 2000, s);
}

API cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t s)
{
	FORWARD_PER_THREAD(cuStreamSynchronize, 7000, s);
}

API cudaError_t cudaStreamQuery(cudaStream_t s)
{
	FORWARD(cuStreamQuery, 2000, s);
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
	FORWARD(cuStreamWaitEvent, 3020, s, e, flags);
}

API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t callback, void *arg, unsigned flags)
{
	FORWARD(cuStreamAddCallback, 5000, s, (CUstreamCallback)callback, arg, flags);
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
	FORWARD(cuStreamBeginCapture, 10010, s, (CUstreamCaptureMode)mode);
}

API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
	FORWARD(cuStreamEndCapture, 10000, s, g);
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
	FORWARD(cuStreamIsCapturing, 10000, s, (CUstreamCaptureStatus *)status);
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
					 unsigned long long *id, cudaGraph_t *g, const cudaGraphNode_t **last,
					 const cudaGraphEdgeData **edges, size_t *n)
{
	FORWARD(cuStreamGetCaptureInfo, 12030, s, (CUstreamCaptureStatus *)status, (cuuint64_t *)id, g, last,
		(const CUgraphEdgeData **)edges, n);
}

API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s, cudaGraphNode_t *on,
						    const cudaGraphEdgeData *edges, size_t n, unsigned flags)
{
	return cudaSuccess;
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
	FORWARD(cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *)mode);
}

API cudaError_t cudaEventCreate(cudaEvent_t *e)
{
	FORWARD(cuEventCreate, 2000, e, 0);
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
	FORWARD(cuEventCreate, 2000, e, flags);
}

API cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	FORWARD(cuEventDestroy, 4000, e);
}

API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	FORWARD(cuEventRecord, 2000, e, s);
}

API cudaError_t cudaEventRecord_ptsz(cudaEvent_t e, cudaStream_t s)
{
	FORWARD_PER_THREAD(cuEventRecord, 7000, e, s);
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags)
{
	FORWARD(cuEventRecordWithFlags, 11010, e, s, flags);
}

API cudaError_t cudaEventQuery(cudaEvent_t e)
{
	FORWARD(cuEventQuery, 2000, e);
}

API cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	FORWARD(cuEventSynchronize, 2000, e);
}

API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	FORWARD(cuEventElapsedTime, 12080, ms, from, to);
}

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags)
{
	FORWARD(cuGraphInstantiateWithFlags, 11040, exec, g, flags);
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags)
{
	FORWARD(cuGraphInstantiateWithFlags, 11040, exec, g, flags);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
	FORWARD(cuGraphLaunch, 10000, exec, s);
}

API cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t s)
{
	FORWARD_PER_THREAD(cuGraphLaunch, 10000, exec, s);
}

API cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s)
{
	return cudaSuccess;
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	return cudaSuccess;
}

API cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	return cudaSuccess;
}

API cudaError_t cudaGraphCreate(cudaGraph_t *g, unsigned flags)
{
	FORWARD(cuGraphCreate, 10000, g, flags);
}

API cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
	FORWARD(cuGraphGetNodes, 10000, g, nodes, n);
}

API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t g, const char *path, unsigned flags)
{
	return cudaSuccess;
}
