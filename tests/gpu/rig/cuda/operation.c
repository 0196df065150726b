/* Operations: how they get into a stream, and what the stream's thread does with them. */
#include "driver.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What every line of the oracle says of an operation: where it ran and who called, and its times. */
#define PLACE       "\"sid\":%lu,\"stream\":\"%p\",\"tid\":%d,\"corr\":%lu"
#define PLACE_OF(s) (s)->id, (void *)(s), o->tid, o->call
#define SPAN        "\"enq\":%lu,\"start\":%lu,\"end\":%lu}"

/*
 * An operation in the default stream comes after those that are in the others, and the
 * other way round, but for streams created as non-blocking.
 */
static void depend_on_others(CUstream s)
{
	CUstream legacy = s->context ? legacy_of(s->context) : NULL;
	struct stream_list list = {.n = 0};
	int i;

	if (!legacy)
		return;
	if (s == legacy)
		list_streams(s->context, BLOCKING_STREAMS, &list);
	else if (!(s->flags & CU_STREAM_NON_BLOCKING))
		list.stream[list.n++] = legacy;
	for (i = 0; i < list.n; i++) {
		struct op *o;

		if (list.stream[i] == s || is_idle(list.stream[i]))
			continue;
		o = calloc(1, sizeof *o);
		o->kind = OP_DEPEND;
		o->stream = list.stream[i];
		o->until = enqueued_in(list.stream[i]);
		push(s, o);
	}
}

CUresult enqueue(CUstream s, struct op o, CUgraphNodeType type)
{
	static uint64_t calls;
	struct op *queued;

	s = resolve_stream(s);
	if (s->magic != STREAM_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	o.call = __sync_add_and_fetch(&calls, 1);
	o.enqueued = now_ns();
	o.tid = syscall(SYS_gettid);
	if (o.kind == OP_KERNEL && config()->launch_ns)
		wait_until(o.enqueued + config()->launch_ns);
	if (s->capture) {
		add_node(s->capture, &o, type);
		return CUDA_SUCCESS;
	}
	depend_on_others(s);
	queued = malloc(sizeof *queued);
	*queued = o;
	push(s, queued);
	return CUDA_SUCCESS;
}

static void run_kernel(CUstream s, struct op *o, uint64_t start)
{
	if (o->emulation)
		emulate(o);
	wait_until(start + o->ns);
	oracle("{\"op\":\"kernel\",\"name\":\"%s\"," PLACE
	       ",\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"graph\":%lu," SPAN,
	       o->name, PLACE_OF(s), o->grid[0], o->grid[1], o->grid[2], o->block[0], o->block[1], o->block[2],
	       o->graph, o->enqueued, start, now_ns());
}

static void run_copy(CUstream s, struct op *o, uint64_t start)
{
	const long latency = 2000; /* ns, about that of a small copy over PCIe */

	memmove(o->dst, o->src, o->bytes);
	free(o->staged);
	o->staged = NULL;
	wait_until(start + latency + (uint64_t)(o->bytes / config()->bytes_per_ns));
	oracle("{\"op\":\"memcpy\",\"name\":\"%s\",\"bytes\":%zu," PLACE ",\"graph\":%lu," SPAN, o->name,
	       o->bytes, PLACE_OF(s), o->graph, o->enqueued, start, now_ns());
}

static void run_set(CUstream s, struct op *o, uint64_t start)
{
	size_t i, n = o->bytes / o->width;

	for (i = 0; i < n; i++)
		memcpy((char *)o->dst + i * o->width, &o->value, o->width);
	oracle("{\"op\":\"memset\",\"bytes\":%zu," PLACE ",\"graph\":%lu," SPAN, o->bytes, PLACE_OF(s),
	       o->graph, o->enqueued, start, now_ns());
}

static void run_record(CUstream s, struct op *o)
{
	CUevent e = o->event;
	uint64_t time;

	pthread_mutex_lock(&e->lock);
	e->time = time = now_ns();
	if (e->done < o->until)
		e->done = o->until;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
	oracle("{\"op\":\"event_record\",\"event\":\"%p\"," PLACE ",\"graph\":%lu,\"enq\":%lu,\"end\":%lu}",
	       (void *)e, PLACE_OF(s), o->graph, o->enqueued, time);
}

static void run_wait(struct op *o)
{
	CUevent e = o->event;

	pthread_mutex_lock(&e->lock);
	while (e->done < o->until)
		pthread_cond_wait(&e->changed, &e->lock);
	pthread_mutex_unlock(&e->lock);
}

static void run_graph(CUstream s, struct op *o, uint64_t start)
{
	size_t i;

	for (i = 0; i < o->exec->n; i++) {
		struct op node = o->exec->ops[i];

		if (node.off)
			continue;
		if (node.kind == OP_RECORD || node.kind == OP_WAIT)
			node.until = o->untils[i];
		node.call = node.graph = o->call;
		node.enqueued = o->enqueued;
		node.tid = o->tid;
		run_op(s, &node);
	}
	if (!o->graph) /* a graph in a graph has its launch again */
		free(o->untils);
	oracle("{\"op\":\"graph\",\"graph_exec\":\"%p\",\"nodes\":%zu," PLACE "," SPAN, (void *)o->exec,
	       o->exec->n, PLACE_OF(s), o->enqueued, start, now_ns());
}

void run_op(CUstream s, struct op *o)
{
	uint64_t start = now_ns();

	switch (o->kind) {
	case OP_KERNEL:
		run_kernel(s, o, start);
		break;
	case OP_COPY:
		run_copy(s, o, start);
		break;
	case OP_SET:
		run_set(s, o, start);
		break;
	case OP_HOST:
		if (o->callback)
			o->callback(o->stream, CUDA_SUCCESS, o->arg);
		else
			o->host(o->arg);
		break;
	case OP_RECORD:
		run_record(s, o);
		break;
	case OP_WAIT:
		run_wait(o);
		break;
	case OP_DEPEND:
		wait_for(o->stream, o->until);
		break;
	case OP_GRAPH:
		run_graph(s, o, start);
		break;
	case OP_FREE:
		munmap(o->dst, o->bytes);
		break;
	case OP_EXIT: /* the worker's own */
		break;
	}
}
