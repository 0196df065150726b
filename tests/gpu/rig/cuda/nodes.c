/* Nodes of graphs: added one by one, and changed. */
#include "driver.h"

static struct op kernel_op(const CUDA_KERNEL_NODE_PARAMS *p)
{
	const struct function *f = p->func ? (void *)p->func : (void *)p->kern;
	const char *name = f ? f->name : "?";

	return (struct op){
		.kind = OP_KERNEL,
		.name = name,
		.grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
		.block = {p->blockDimX, p->blockDimY, p->blockDimZ},
		.ns = kernel_ns(name),
	};
}

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph g, const CUgraphNode *on, size_t n,
				     const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct op o = kernel_op(p);

	*node = add_node(g, &o, CU_GRAPH_NODE_TYPE_KERNEL);
	return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
	node->op = kernel_op(p);
	return CUDA_SUCCESS;
}

API CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph g, const CUgraphNode *on, size_t n,
				      CUgraph child)
{
	CUgraphExec exec;
	CUresult e = instantiate(&exec, child);
	struct op o = {.kind = OP_GRAPH, .exec = exec, .untils = calloc(exec->n + 1, sizeof *o.untils)};

	*node = add_node(g, &o, CU_GRAPH_NODE_TYPE_GRAPH);
	return e;
}

API CUresult cuGraphClone(CUgraph *clone, CUgraph g)
{
	size_t i;

	*clone = new_graph();
	for (i = 0; i < g->n; i++)
		add_node(*clone, &g->nodes[i]->op, g->nodes[i]->type);
	return CUDA_SUCCESS;
}

static struct op *op_of(CUgraphExec exec, CUgraphNode node)
{
	size_t i;

	for (i = 0; i < exec->n; i++)
		if (exec->nodes[i] == node)
			return &exec->ops[i];
	return NULL;
}

API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
					       const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct op *o = op_of(exec, node);

	if (!o)
		return CUDA_ERROR_INVALID_VALUE;
	*o = kernel_op(p);
	return CUDA_SUCCESS;
}

API CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned on)
{
	struct op *o = op_of(exec, node);

	if (!o)
		return CUDA_ERROR_INVALID_VALUE;
	o->off = !on;
	return CUDA_SUCCESS;
}

API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph g, const CUgraphNode *on, size_t n)
{
	*node = add_node(g, NULL, CU_GRAPH_NODE_TYPE_EMPTY);
	return CUDA_SUCCESS;
}

API CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph g, const CUgraphNode *on, size_t n,
				const CUDA_HOST_NODE_PARAMS *p)
{
	struct op o = {.kind = OP_HOST, .host = p->fn, .arg = p->userData};

	*node = add_node(g, &o, CU_GRAPH_NODE_TYPE_HOST);
	return CUDA_SUCCESS;
}

static size_t at_least_1(size_t n)
{
	return n ? n : 1;
}

/* Pitches are not looked at: the copy is one piece. */
API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph g, const CUgraphNode *on, size_t n,
				  const CUDA_MEMCPY3D *p, CUcontext c)
{
	struct op o = {
		.kind = OP_COPY,
		.name = "graph_memcpy",
		.dst = p->dstMemoryType == CU_MEMORYTYPE_HOST ? p->dstHost : PTR(p->dstDevice),
		.src = p->srcMemoryType == CU_MEMORYTYPE_HOST ? p->srcHost : PTR(p->srcDevice),
		.bytes = p->WidthInBytes * at_least_1(p->Height) * at_least_1(p->Depth),
	};

	*node = add_node(g, &o, CU_GRAPH_NODE_TYPE_MEMCPY);
	return CUDA_SUCCESS;
}

API CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph g, const CUgraphNode *on, size_t n,
				  const CUDA_MEMSET_NODE_PARAMS *p, CUcontext c)
{
	struct op o = {
		.kind = OP_SET,
		.dst = PTR(p->dst),
		.value = p->value,
		.width = p->elementSize,
		.bytes = p->width * at_least_1(p->height) * p->elementSize,
	};

	*node = add_node(g, &o, CU_GRAPH_NODE_TYPE_MEMSET);
	return CUDA_SUCCESS;
}

API CUresult cuGraphAddDependencies(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
	return CUDA_SUCCESS;
}

API CUresult cuGraphAddDependencies_v2(CUgraph g, const CUgraphNode *from, const CUgraphNode *to,
				       const CUgraphEdgeData *edges, size_t n)
{
	return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *n)
{
	if (nodes)
		memcpy(nodes, g->nodes, sizeof *nodes * (*n < g->n ? *n : g->n));
	*n = g->n;
	return CUDA_SUCCESS;
}

API CUresult cuGraphGetRootNodes(CUgraph g, CUgraphNode *nodes, size_t *n)
{
	if (nodes && g->n)
		nodes[0] = g->nodes[0];
	*n = g->n ? 1 : 0;
	return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	*type = node->type;
	return CUDA_SUCCESS;
}
