/* Graphs: captured from streams; their nodes run in the order in which they came. */
#include "driver.h"

/* Of a graph that was destroyed: handles are used again, as those of the driver are. */
static CUgraph spare;

CUgraph new_graph(void)
{
	CUgraph g = __sync_lock_test_and_set(&spare, NULL);

	return g ? g : calloc(1, sizeof(struct CUgraph_st));
}

CUgraphNode add_node(CUgraph g, const struct op *o, CUgraphNodeType type)
{
	CUgraphNode node = calloc(1, sizeof *node);

	if (o)
		node->op = *o;
	node->type = type;
	if (g->n == g->room) {
		g->room = g->room ? 2 * g->room : 16;
		g->nodes = realloc(g->nodes, g->room * sizeof *g->nodes);
	}
	g->nodes[g->n++] = node;
	return node;
}

static CUresult begin_capture(CUstream s)
{
	static uint64_t captures;

	if (!s || s == CU_STREAM_LEGACY)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	s = resolve_stream(s);
	s->capture_id = __sync_add_and_fetch(&captures, 1);
	s->capture = new_graph();
	return CUDA_SUCCESS;
}

static CUresult end_capture(CUstream s, CUgraph *g)
{
	s = resolve_stream(s);
	if (!s->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	*g = s->capture;
	end_captures(*g); /* of the streams that joined, too */
	return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream s, CUstreamCaptureStatus *status)
{
	bool capturing = s && resolve_stream(s)->capture;

	*status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

static CUresult capture_info(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *g,
			     const CUgraphNode **last, size_t *n)
{
	s = resolve_stream(s);
	if (status)
		*status = s->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	if (!s->capture)
		return CUDA_SUCCESS;
	if (id)
		*id = s->capture_id;
	if (g)
		*g = s->capture;
	if (last)
		*last = s->capture->n ? &s->capture->nodes[s->capture->n - 1] : NULL;
	if (n)
		*n = s->capture->n ? 1 : 0;
	return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture(CUstream s)
{
	return begin_capture(s);
}

API CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode)
{
	return begin_capture(s);
}

API CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode mode)
{
	return begin_capture(PER_THREAD(s));
}

API CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph g, const CUgraphNode *on,
					 const CUgraphEdgeData *edges, size_t n, CUstreamCaptureMode mode)
{
	CUresult e = begin_capture(s);

	if (!e)
		resolve_stream(s)->capture = g;
	return e;
}

API CUresult cuStreamEndCapture(CUstream s, CUgraph *g)
{
	return end_capture(s, g);
}

API CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *g)
{
	return end_capture(PER_THREAD(s), g);
}

API CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status)
{
	return is_capturing(s, status);
}

API CUresult cuStreamIsCapturing_ptsz(CUstream s, CUstreamCaptureStatus *status)
{
	return is_capturing(PER_THREAD(s), status);
}

API CUresult cuStreamGetCaptureInfo(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return capture_info(s, status, id, NULL, NULL, NULL);
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *g,
				       const CUgraphNode **last, size_t *n)
{
	return capture_info(s, status, id, g, last, n);
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *g,
				       const CUgraphNode **last, const CUgraphEdgeData **edges, size_t *n)
{
	if (edges)
		*edges = NULL;
	return capture_info(s, status, id, g, last, n);
}

API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id,
					    CUgraph *g, const CUgraphNode **last, const CUgraphEdgeData **edges,
					    size_t *n)
{
	if (edges)
		*edges = NULL;
	return capture_info(PER_THREAD(s), status, id, g, last, n);
}

/* Dependencies change nothing: see the top. */
API CUresult cuStreamUpdateCaptureDependencies(CUstream s, CUgraphNode *on, size_t n, unsigned flags)
{
	return CUDA_SUCCESS;
}

API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream s, CUgraphNode *on, const CUgraphEdgeData *edges,
						  size_t n, unsigned flags)
{
	return CUDA_SUCCESS;
}

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	static __thread CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
	CUstreamCaptureMode before = current;

	current = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

API CUresult cuGraphCreate(CUgraph *g, unsigned flags)
{
	*g = new_graph();
	return CUDA_SUCCESS;
}

/* Nodes are kept: what was instantiated refers to them. */
API CUresult cuGraphDestroy(CUgraph g)
{
	*g = (struct CUgraph_st){.n = 0};
	spare = g;
	return CUDA_SUCCESS;
}

CUresult instantiate(CUgraphExec *exec, CUgraph g)
{
	CUgraphExec made = calloc(1, sizeof *made);
	size_t i;

	made->ops = calloc(g->n + 1, sizeof *made->ops);
	made->nodes = calloc(g->n + 1, sizeof *made->nodes);
	for (i = 0; i < g->n; i++) {
		if (!g->nodes[i]->op.kind)
			continue; /* empty nodes have none */
		made->nodes[made->n] = g->nodes[i];
		made->ops[made->n++] = g->nodes[i]->op;
	}
	*exec = made;
	trace("cuGraphInstantiate nodes=%zu -> %p", g->n, (void *)made);
	return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph g, unsigned long long flags)
{
	return instantiate(exec, g);
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph g, CUgraphNode *error, char *log, size_t size)
{
	return instantiate(exec, g);
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph g, unsigned long long flags)
{
	return instantiate(exec, g);
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	p->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
	return instantiate(exec, g);
}

API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	p->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
	return instantiate(exec, g);
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream s)
{
	return CUDA_SUCCESS;
}

API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream s)
{
	return CUDA_SUCCESS;
}

static CUresult launch_graph(CUgraphExec exec, CUstream s)
{
	struct op o = {.kind = OP_GRAPH, .exec = exec, .untils = calloc(exec->n + 1, sizeof *o.untils)};
	size_t i;

	/* Which record of an event its nodes make, and which ones they wait for. */
	for (i = 0; i < exec->n; i++) {
		struct op *node = &exec->ops[i];

		if (node->kind != OP_RECORD && node->kind != OP_WAIT)
			continue;
		pthread_mutex_lock(&node->event->lock);
		if (node->kind == OP_RECORD)
			node->event->recorded++;
		o.untils[i] = node->event->recorded;
		pthread_mutex_unlock(&node->event->lock);
	}
	return enqueue(s, o, CU_GRAPH_NODE_TYPE_GRAPH);
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream s)
{
	return launch_graph(exec, s);
}

CUresult unexported_graph_launch(CUgraphExec exec, CUstream s)
{
	return launch_graph(exec, s);
}

API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream s)
{
	return launch_graph(exec, PER_THREAD(s));
}

API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	return CUDA_SUCCESS; /* kept: a launch may be in a queue */
}

static int user_object;

API CUresult cuUserObjectCreate(CUuserObject *o, void *p, CUhostFn destroy, unsigned references, unsigned flags)
{
	*o = (CUuserObject)&user_object;
	return CUDA_SUCCESS;
}

API CUresult cuUserObjectRelease(CUuserObject o, unsigned n)
{
	return CUDA_SUCCESS;
}

API CUresult cuGraphRetainUserObject(CUgraph g, CUuserObject o, unsigned n, unsigned flags)
{
	return CUDA_SUCCESS;
}
