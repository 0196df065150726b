/*
 * Makes steps as an engine with CUDA graphs does.
 *
 * usage: steps N
 *
 * It says "ready", then for each line of input makes N steps, each of a launch of a graph
 * of three kernels, a record of an event and a wait for it, and says "done". After each
 * tenth step it waits for the stream and for all.
 */
#include "app.h"

static void kernel(void)
{
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 20, c;
	void **handle = __cudaRegisterFatBinary(&wrapper), *args[] = {NULL};
	cudaGraphExec_t exec;
	cudaGraph_t graph;
	cudaEvent_t event;
	cudaStream_t s;

	register_kernel(handle, kernel, "kernel");
	__cudaRegisterFatBinaryEnd(handle);
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming));
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	for (int i = 0; i < 3; i++)
		CHECK(cudaLaunchKernel((void *)kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1}, args, 0, s));
	CHECK(cudaStreamEndCapture(s, &graph));
	CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
	puts("ready");
	fflush(stdout);
	while ((c = getchar()) != EOF) {
		if (c != '\n')
			continue;
		for (int i = 0; i < n; i++) {
			CHECK(cudaGraphLaunch(exec, s));
			CHECK(cudaEventRecord(event, s));
			CHECK(cudaEventSynchronize(event));
			if (i % 10)
				continue;
			CHECK(cudaStreamSynchronize(s));
			CHECK(cudaDeviceSynchronize());
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
