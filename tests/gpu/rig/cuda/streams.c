/* Streams: a queue and a thread each, started when the first operation comes. */
#include "driver.h"
#include <sys/prctl.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static CUstream all_streams;
static __thread CUstream thread_stream;

CUstream new_stream(CUcontext c, unsigned flags, int priority)
{
	static uint64_t last_id;
	CUstream s = calloc(1, sizeof *s);

	s->magic = STREAM_MAGIC;
	s->context = c;
	s->flags = flags;
	s->priority = priority;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->work, NULL);
	pthread_cond_init(&s->finished, NULL);
	pthread_mutex_lock(&list_lock);
	s->id = ++last_id;
	s->next = all_streams;
	all_streams = s;
	pthread_mutex_unlock(&list_lock);
	return s;
}

/* The structure stays: operations of other streams may still wait for this one. */
static void unlink_stream(CUstream s)
{
	CUstream *p;

	pthread_mutex_lock(&list_lock);
	for (p = &all_streams; *p; p = &(*p)->next) {
		if (*p == s) {
			*p = s->next;
			break;
		}
	}
	pthread_mutex_unlock(&list_lock);
}

CUstream legacy_of(CUcontext c)
{
	CUstream s;

	pthread_mutex_lock(&list_lock);
	s = c->legacy;
	pthread_mutex_unlock(&list_lock);
	return s;
}

CUstream resolve_stream(CUstream s)
{
	CUcontext c;

	if (s == CU_STREAM_PER_THREAD) {
		if (!thread_stream)
			thread_stream = new_stream(current_or_primary(), 0, 0);
		return thread_stream;
	}
	if (s && s != CU_STREAM_LEGACY)
		return s;
	c = current_or_primary();
	s = legacy_of(c);
	if (!s) {
		CUstream made = new_stream(c, 0, 0);

		pthread_mutex_lock(&list_lock);
		if (!c->legacy)
			c->legacy = made;
		s = c->legacy;
		pthread_mutex_unlock(&list_lock);
		if (s != made)
			unlink_stream(made); /* another thread was first */
	}
	return s;
}

void list_streams(CUcontext c, enum which_streams which, struct stream_list *out)
{
	CUstream s;

	out->n = 0;
	pthread_mutex_lock(&list_lock);
	for (s = all_streams; s && out->n < 512; s = s->next) {
		if (s->context != c || s->capture || s->leaving)
			continue;
		if (which == BLOCKING_STREAMS && s->flags & CU_STREAM_NON_BLOCKING)
			continue;
		out->stream[out->n++] = s;
	}
	pthread_mutex_unlock(&list_lock);
}

void end_captures(CUgraph g)
{
	CUstream s;

	pthread_mutex_lock(&list_lock);
	for (s = all_streams; s; s = s->next)
		if (s->capture == g)
			s->capture = NULL;
	pthread_mutex_unlock(&list_lock);
}

static void *work(void *arg)
{
	CUstream s = arg;
	char name[16];

	snprintf(name, sizeof name, "fakegpu-s%lu", (unsigned long)s->id);
	prctl(PR_SET_NAME, name);
	prctl(PR_SET_TIMERSLACK, 1000);
	for (;;) {
		struct op *o;

		pthread_mutex_lock(&s->lock);
		while (!s->head)
			pthread_cond_wait(&s->work, &s->lock);
		o = s->head;
		s->head = o->next;
		if (!s->head)
			s->tail = NULL;
		pthread_mutex_unlock(&s->lock);
		if (o->kind == OP_EXIT) {
			free(o);
			unlink_stream(s);
			return NULL;
		}
		run_op(s, o);
		pthread_mutex_lock(&s->lock);
		s->done = o->seq;
		pthread_cond_broadcast(&s->finished);
		pthread_mutex_unlock(&s->lock);
		free(o);
	}
}

static void start_worker(CUstream s)
{
	pthread_t thread;
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 256 << 10);
	if (pthread_create(&thread, &attr, work, s)) {
		fprintf(stderr, "fake CUDA driver: no thread for a stream\n");
		abort();
	}
	pthread_attr_destroy(&attr);
}

uint64_t push(CUstream s, struct op *o)
{
	uint64_t seq;

	pthread_mutex_lock(&s->lock);
	seq = o->seq = ++s->enqueued;
	o->next = NULL;
	if (s->tail)
		s->tail->next = o;
	else
		s->head = o;
	s->tail = o;
	if (!s->started) {
		s->started = true;
		start_worker(s);
	}
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	return seq;
}

uint64_t enqueued_in(CUstream s)
{
	uint64_t seq;

	pthread_mutex_lock(&s->lock);
	seq = s->enqueued;
	pthread_mutex_unlock(&s->lock);
	return seq;
}

bool is_idle(CUstream s)
{
	bool idle;

	pthread_mutex_lock(&s->lock);
	idle = s->done >= s->enqueued;
	pthread_mutex_unlock(&s->lock);
	return idle;
}

void wait_for(CUstream s, uint64_t seq)
{
	pthread_mutex_lock(&s->lock);
	while (s->done < seq)
		pthread_cond_wait(&s->finished, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

void drain(CUstream s)
{
	wait_for(s, enqueued_in(s));
}

API CUresult cuStreamCreate(CUstream *s, unsigned flags)
{
	*s = new_stream(current_context(), flags, 0);
	trace("cuStreamCreate -> %p", (void *)*s);
	return CUDA_SUCCESS;
}

API CUresult cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority)
{
	*s = new_stream(current_context(), flags, priority);
	return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy_v2(CUstream s)
{
	struct op *o;

	s->leaving = true;
	if (!s->started) {
		unlink_stream(s);
		return CUDA_SUCCESS;
	}
	o = calloc(1, sizeof *o);
	o->kind = OP_EXIT;
	push(s, o);
	return CUDA_SUCCESS;
}

/* To wait for the default stream is to wait for all that synchronise with it. */
static CUresult synchronize(CUstream s)
{
	struct stream_list list;
	int i;

	s = resolve_stream(s);
	if (s->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (s->context && s == legacy_of(s->context)) {
		list_streams(s->context, BLOCKING_STREAMS, &list);
		for (i = 0; i < list.n; i++)
			drain(list.stream[i]);
	}
	drain(s);
	return CUDA_SUCCESS;
}

static CUresult query(CUstream s)
{
	s = resolve_stream(s);
	if (s->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return is_idle(s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuStreamSynchronize(CUstream s)
{
	return synchronize(s);
}

CUresult unexported_stream_synchronize(CUstream s)
{
	return synchronize(s);
}

API CUresult cuStreamSynchronize_ptsz(CUstream s)
{
	return synchronize(PER_THREAD(s));
}

API CUresult cuStreamQuery(CUstream s)
{
	return query(s);
}

API CUresult cuStreamQuery_ptsz(CUstream s)
{
	return query(PER_THREAD(s));
}

API CUresult cuStreamGetPriority(CUstream s, int *priority)
{
	*priority = resolve_stream(s)->priority;
	return CUDA_SUCCESS;
}

API CUresult cuStreamGetFlags(CUstream s, unsigned *flags)
{
	*flags = resolve_stream(s)->flags;
	return CUDA_SUCCESS;
}

API CUresult cuStreamGetId(CUstream s, unsigned long long *id)
{
	*id = resolve_stream(s)->id;
	return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx(CUstream s, CUcontext *c)
{
	*c = resolve_stream(s)->context;
	return CUDA_SUCCESS;
}

API CUresult cuStreamGetDevice(CUstream s, CUdevice *device)
{
	CUcontext c = resolve_stream(s)->context;

	*device = c ? c->device : 0;
	return CUDA_SUCCESS;
}

API CUresult cuStreamAddCallback(CUstream s, CUstreamCallback callback, void *arg, unsigned flags)
{
	struct op o = {.kind = OP_HOST, .callback = callback, .arg = arg, .stream = s};

	return enqueue(s, o, CU_GRAPH_NODE_TYPE_HOST);
}
