/*
 * Makes graphs in all ways, and launches them.
 *
 * usage: graphs N
 *
 * It says "ready" when one graph is there, "old". At a line of input it makes the others,
 * says which handle each has ("ready a=0x... b=0x..."), and for each line of input from
 * then on it launches each N times, waits for them and says "done". What they launch:
 *
 *   old      3 gemm
 *   plain    4 gemm, 2 attention on a stream that joins
 *   again    the same, instantiated twice
 *   clone    the same, instantiated of a copy
 *   nested   3 rotary, and again twice, by its launch in the capture
 *   deep     nested, and 1 softmax
 *   empty    a copy of memory alone
 *   built    2 rotary, node by node
 *   added    2 softmax, and 1 gemm that is added before it is instantiated
 *   inside   2 softmax, and 1 gemm that is added while it is captured
 *   into     1 rotary, captured into a graph that has 1 gemm
 *   template 1 gemm, which was attention before it was instantiated
 *   updated  2 attention, of which one was gemm when it was instantiated
 *   disabled 2 attention, and 1 gemm that is switched off
 *   holds    1 softmax, and built, by its launch in the capture
 *   child    1 gemm, and plain as a child, node by node
 *   reused   5 rotary, captured; its graph has the handle of one that was edited and destroyed
 *   bare     nothing; its graph has the handle of one that was captured and destroyed
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                            \
	do {                                                   \
		int e = (call);                                \
		if (e) {                                       \
			fprintf(stderr, "%s: %d\n", #call, e); \
			exit(1);                               \
		}                                              \
	} while (0)

static void *driver(const char *name)
{
	void *f = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);

	if (!f) {
		fprintf(stderr, "no %s\n", name);
		exit(2);
	}
	return f;
}

/* Each call looks its function up: cuda.h has renamed those of several versions. */
#define TEXT(x) #x
#define NAME(x) TEXT(x)
#define CU(f)   ((__typeof__(&f))driver(NAME(f)))

static CUstream s, other;
static CUfunction gemm, attention, rotary, softmax;

static void launch(CUfunction f, CUstream on, int n)
{
	CUlaunchConfig c = {.gridDimX = 1,
			    .gridDimY = 1,
			    .gridDimZ = 1,
			    .blockDimX = 1,
			    .blockDimY = 1,
			    .blockDimZ = 1,
			    .hStream = on};

	while (n-- > 0) {
		if (f == rotary)
			CHECK(CU(cuLaunchKernelEx)(&c, f, NULL, NULL));
		else
			CHECK(CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, on, NULL, NULL));
	}
}

static void begin(void)
{
	CHECK(CU(cuStreamBeginCapture)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static CUgraph end(void)
{
	CUgraph g;

	CHECK(CU(cuStreamEndCapture)(s, &g));
	return g;
}

static CUgraph captured(CUfunction f, int n)
{
	begin();
	launch(f, s, n);
	return end();
}

static CUgraphExec made_of(CUgraph g)
{
	CUgraphExec exec;

	CHECK(CU(cuGraphInstantiateWithFlags)(&exec, g, 0));
	return exec;
}

static CUgraphNode first(CUgraph g)
{
	CUgraphNode node;
	size_t n = 1;

	CHECK(CU(cuGraphGetNodes)(g, &node, &n));
	return node;
}

static CUDA_KERNEL_NODE_PARAMS of(CUfunction f)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = f,
					 .gridDimX = 1,
					 .gridDimY = 1,
					 .gridDimZ = 1,
					 .blockDimX = 1,
					 .blockDimY = 1,
					 .blockDimZ = 1};
}

static CUgraphNode add(CUgraph g, CUfunction f)
{
	CUDA_KERNEL_NODE_PARAMS p = of(f);
	CUgraphNode node;

	CHECK(CU(cuGraphAddKernelNode)(&node, g, NULL, 0, &p));
	return node;
}

static struct {
	const char *name;
	CUgraphExec exec;
} made[32];
static int n_made;

static CUgraphExec keep(const char *name, CUgraphExec exec)
{
	made[n_made].name = name;
	made[n_made++].exec = exec;
	return exec;
}

static void make(void)
{
	CUDA_KERNEL_NODE_PARAMS p;
	CUgraph plain, clone, g, handle;
	CUgraphExec built, again, nested, exec;
	CUgraphNode node;
	CUevent event;
	CUdeviceptr a, b;

	CHECK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(CU(cuMemAlloc)(&a, 64));
	CHECK(CU(cuMemAlloc)(&b, 64));

	begin();
	launch(gemm, s, 4);
	CHECK(CU(cuEventRecord)(event, s));
	CHECK(CU(cuStreamWaitEvent)(other, event, 0));
	launch(attention, other, 2);
	CHECK(CU(cuEventRecord)(event, other));
	CHECK(CU(cuStreamWaitEvent)(s, event, 0));
	plain = end();
	keep("plain", made_of(plain));
	again = keep("again", made_of(plain));
	CHECK(CU(cuGraphClone)(&clone, plain));
	keep("clone", made_of(clone));

	begin();
	launch(rotary, s, 3);
	CHECK(CU(cuGraphLaunch)(again, s));
	CHECK(CU(cuGraphLaunch)(again, s));
	nested = keep("nested", made_of(end()));
	begin();
	CHECK(CU(cuGraphLaunch)(nested, s));
	launch(softmax, s, 1);
	keep("deep", made_of(end()));
	begin();
	CHECK(CU(cuMemcpyDtoDAsync)(a, b, 64, s));
	keep("empty", made_of(end()));

	CHECK(CU(cuGraphCreate)(&g, 0));
	add(g, rotary);
	add(g, rotary);
	built = keep("built", made_of(g));
	g = captured(softmax, 2);
	add(g, gemm);
	keep("added", made_of(g));
	begin();
	launch(softmax, s, 2);
	CHECK(CU(cuStreamGetCaptureInfo)(s, &(CUstreamCaptureStatus){0}, NULL, &g, NULL, NULL, NULL));
	add(g, gemm);
	keep("inside", made_of(end()));
	CHECK(CU(cuGraphCreate)(&g, 0));
	add(g, gemm);
	CHECK(CU(cuStreamBeginCaptureToGraph)(s, g, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
	launch(rotary, s, 1);
	keep("into", made_of(end()));
	g = captured(attention, 1);
	p = of(gemm);
	CHECK(CU(cuGraphKernelNodeSetParams)(first(g), &p));
	keep("template", made_of(g));
	begin();
	launch(gemm, s, 1);
	launch(attention, s, 1);
	g = end();
	exec = keep("updated", made_of(g));
	p = of(attention);
	CHECK(CU(cuGraphExecKernelNodeSetParams)(exec, first(g), &p));
	begin();
	launch(gemm, s, 1);
	launch(attention, s, 2);
	g = end();
	exec = keep("disabled", made_of(g));
	CHECK(CU(cuGraphNodeSetEnabled)(exec, first(g), 0));
	begin();
	launch(softmax, s, 1);
	CHECK(CU(cuGraphLaunch)(built, s));
	keep("holds", made_of(end()));
	CHECK(CU(cuGraphCreate)(&g, 0));
	add(g, gemm);
	CHECK(CU(cuGraphAddChildGraphNode)(&node, g, NULL, 0, plain));
	keep("child", made_of(g));

	handle = captured(softmax, 2);
	add(handle, softmax);
	CHECK(CU(cuGraphDestroy)(handle));
	g = captured(rotary, 5);
	if (g != handle) {
		fprintf(stderr, "the handle of a graph was not used again\n");
		exit(1);
	}
	keep("reused", made_of(g));
	CHECK(CU(cuGraphDestroy)(g));
	CHECK(CU(cuGraphCreate)(&g, 0));
	if (g != handle) {
		fprintf(stderr, "the handle of a graph was not used again\n");
		exit(1);
	}
	CHECK(CU(cuGraphAddEmptyNode)(&node, g, NULL, 0));
	keep("bare", made_of(g));
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1, i, j, c;
	CUcontext context;
	CUmodule m;

	CHECK(CU(cuInit)(0));
	CHECK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
	CHECK(CU(cuCtxSetCurrent)(context));
	CHECK(CU(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING));
	CHECK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
	CHECK(CU(cuModuleLoadData)(&m, NULL));
	CHECK(CU(cuModuleGetFunction)(&gemm, m, "gemm"));
	keep("old", made_of(captured(gemm, 3)));
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 0;
	CHECK(CU(cuModuleGetFunction)(&gemm, m, "gemm"));
	CHECK(CU(cuModuleGetFunction)(&attention, m, "attention"));
	CHECK(CU(cuModuleGetFunction)(&rotary, m, "rotary"));
	CHECK(CU(cuModuleGetFunction)(&softmax, m, "softmax"));
	make();
	printf("ready");
	for (i = 0; i < n_made; i++)
		printf(" %s=%p", made[i].name, (void *)made[i].exec);
	puts("");
	fflush(stdout);
	while ((c = getchar()) != EOF) {
		if (c != '\n')
			continue;
		for (j = 0; j < n; j++)
			for (i = 0; i < n_made; i++)
				CHECK(CU(cuGraphLaunch)(made[i].exec, s));
		CHECK(CU(cuStreamSynchronize)(s));
		puts("done");
		fflush(stdout);
	}
	return 0;
}
