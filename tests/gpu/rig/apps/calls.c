/*
 * A program that nvcc might have made: kernels registered at start, launches, events,
 * copies, a captured graph. What it does is the truth for tests of the rig and of probes.
 *
 * usage: calls LOOPS [wait]
 *
 * With wait it says "ready" when the driver is loaded and goes on at a line of input.
 *
 * Each loop: attention<<<(3,2,1), 128>>> and gemm on a stream, an event that a second
 * stream waits for before a memset, a wait for the event. Then LOOPS launches of a graph of
 * four gemm, two attention on the second stream, which joins the capture, a copy and an
 * event, for which the second stream waits. Then attention on the stream, gemm on the second
 * one and on the default stream.
 */
#include "app.h"
#include <stdint.h>
#include <string.h>

/* Their addresses stand for the kernels. */
static void attention(void)
{
}

static void gemm(void)
{
	static volatile int different; /* or the two are one function */

	different++;
}

static void register_kernels(void)
{
	void **handle = __cudaRegisterFatBinary(&wrapper);

	register_kernel(handle, attention, "attention");
	register_kernel(handle, gemm, "gemm");
	__cudaRegisterFatBinaryEnd(handle);
}

static void launch_gemm(cudaStream_t s, void **args)
{
	cudaLaunchConfig_t c = {.gridDim = {8, 1, 1}, .blockDim = {256, 1, 1}, .stream = s};

	CHECK(cudaLaunchKernelExC(&c, (void *)gemm, args));
}

static void launch_attention(cudaStream_t s, void **args)
{
	CHECK(cudaLaunchKernel((void *)attention, (dim3){3, 2, 1}, (dim3){128, 1, 1}, args, 0, s));
}

int main(int argc, char **argv)
{
	int loops = argc > 1 ? atoi(argv[1]) : 3, i;
	cudaStream_t s, other;
	cudaEvent_t event, inside, joined;
	enum cudaStreamCaptureStatus capturing;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	static unsigned char host[4096];
	void *device, *scratch, *args[] = {&device};

	register_kernels();
	CHECK(cudaSetDevice(0));
	CHECK(cudaFree(NULL));
	if (argc > 2) {
		puts("ready");
		fflush(stdout);
		getchar();
	}
	CHECK(cudaMalloc(&device, sizeof host));
	CHECK(cudaMalloc(&scratch, sizeof host));
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming));
	for (i = 0; i < loops; i++) {
		launch_attention(s, args);
		launch_gemm(s, args);
		CHECK(cudaEventRecord(event, s));
		if (cudaEventQuery(event) != cudaErrorNotReady) {
			fprintf(stderr, "an event was there before the kernels before it\n");
			return 1;
		}
		cudaGetLastError();
		CHECK(cudaStreamWaitEvent(other, event, 0));
		CHECK(cudaMemsetAsync(device, i + 1, sizeof host, other));
		CHECK(cudaEventSynchronize(event));
	}
	CHECK(cudaStreamSynchronize(other));
	CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
	if (host[0] != loops || host[sizeof host - 1] != loops) {
		fprintf(stderr, "the memory has %d, not %d\n", host[0], loops);
		return 1;
	}

	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	for (i = 0; i < 4; i++)
		launch_gemm(s, args);
	CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
	CHECK(cudaEventRecord(joined, s));
	CHECK(cudaStreamWaitEvent(other, joined, 0));
	for (i = 0; i < 2; i++)
		launch_attention(other, args);
	CHECK(cudaEventRecord(joined, other));
	CHECK(cudaStreamWaitEvent(s, joined, 0));
	CHECK(cudaMemcpyAsync(scratch, device, sizeof host, cudaMemcpyDeviceToDevice, s));
	CHECK(cudaEventCreateWithFlags(&inside, cudaEventDisableTiming));
	CHECK(cudaEventRecordWithFlags(inside, s, cudaEventRecordExternal));
	CHECK(cudaStreamEndCapture(s, &graph));
	CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
	for (i = 0; i < loops; i++) {
		CHECK(cudaGraphLaunch(exec, s));
		if (cudaEventQuery(inside) != cudaErrorNotReady) {
			fprintf(stderr, "the event in a graph was there before the kernels before it\n");
			return 1;
		}
		cudaGetLastError();
		CHECK(cudaStreamWaitEvent(other, inside, 0));
	}
	CHECK(cudaStreamIsCapturing(other, &capturing));
	if (capturing != cudaStreamCaptureStatusNone) {
		fprintf(stderr, "a stream that waits for an event in a graph is captured\n");
		return 1;
	}
	CHECK(cudaStreamSynchronize(s));

	launch_attention(s, args);
	launch_gemm(other, args);
	launch_gemm(0, args);
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaFree(device));
	return 0;
}
