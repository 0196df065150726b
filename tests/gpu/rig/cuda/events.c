/* Events. */
#include "driver.h"

API CUresult cuEventCreate(CUevent *e, unsigned flags)
{
	CUevent made = calloc(1, sizeof *made);

	pthread_mutex_init(&made->lock, NULL);
	pthread_cond_init(&made->changed, NULL);
	*e = made;
	return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent e)
{
	return CUDA_SUCCESS; /* kept: a stream may still have it in its queue */
}

static CUresult record(CUevent e, CUstream s, unsigned flags)
{
	struct op o = {.kind = OP_RECORD, .event = e};
	CUstream resolved = resolve_stream(s);

	/* An external one is recorded at each launch of the graph. */
	if (resolved->capture && flags & CU_EVENT_RECORD_EXTERNAL)
		return enqueue(s, o, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
	pthread_mutex_lock(&e->lock);
	e->capture = resolved->capture;
	e->capture_id = resolved->capture_id;
	if (!e->capture)
		o.until = ++e->recorded;
	pthread_mutex_unlock(&e->lock);
	/* In a captured stream it only says what comes before what. */
	return resolved->capture ? CUDA_SUCCESS : enqueue(s, o, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

API CUresult cuEventRecord(CUevent e, CUstream s)
{
	return record(e, s, 0);
}

API CUresult cuEventRecord_ptsz(CUevent e, CUstream s)
{
	return record(e, PER_THREAD(s), 0);
}

API CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags)
{
	return record(e, s, flags);
}

API CUresult cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned flags)
{
	return record(e, PER_THREAD(s), flags);
}

CUresult unexported_event_record(CUevent e, CUstream s)
{
	return record(e, s, 0);
}

CUresult unexported_event_record_with_flags(CUevent e, CUstream s, unsigned flags)
{
	return record(e, s, flags);
}

static CUresult wait_event(CUstream s, CUevent e, unsigned flags)
{
	struct op o = {.kind = OP_WAIT, .event = e};
	CUgraph capture;
	uint64_t capture_id;

	s = resolve_stream(s);
	if (s->capture && flags & CU_EVENT_WAIT_EXTERNAL)
		return enqueue(s, o, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
	pthread_mutex_lock(&e->lock);
	o.until = e->recorded;
	capture = e->capture;
	capture_id = e->capture_id;
	pthread_mutex_unlock(&e->lock);
	if (s->capture)
		return CUDA_SUCCESS;
	if (capture) { /* the stream joins the capture */
		s->capture = capture;
		s->capture_id = capture_id;
		return CUDA_SUCCESS;
	}
	return o.until ? enqueue(s, o, CU_GRAPH_NODE_TYPE_WAIT_EVENT) : CUDA_SUCCESS;
}

API CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
	return wait_event(s, e, flags);
}

API CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned flags)
{
	return wait_event(PER_THREAD(s), e, flags);
}

static CUresult query(CUevent e)
{
	bool done;

	pthread_mutex_lock(&e->lock);
	done = e->done >= e->recorded;
	pthread_mutex_unlock(&e->lock);
	return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuEventQuery(CUevent e)
{
	return query(e);
}

static CUresult synchronize(CUevent e)
{
	uint64_t until;

	pthread_mutex_lock(&e->lock);
	until = e->recorded;
	while (e->done < until)
		pthread_cond_wait(&e->changed, &e->lock);
	pthread_mutex_unlock(&e->lock);
	return CUDA_SUCCESS;
}

API CUresult cuEventSynchronize(CUevent e)
{
	return synchronize(e);
}

CUresult unexported_event_synchronize(CUevent e)
{
	return synchronize(e);
}

static CUresult elapsed(float *ms, CUevent from, CUevent to)
{
	if (!from->recorded || !to->recorded)
		return CUDA_ERROR_INVALID_HANDLE;
	if (query(from) || query(to))
		return CUDA_ERROR_NOT_READY;
	*ms = ((double)to->time - (double)from->time) / 1e6;
	return CUDA_SUCCESS;
}

API CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	return elapsed(ms, from, to);
}

API CUresult cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to)
{
	return elapsed(ms, from, to);
}
