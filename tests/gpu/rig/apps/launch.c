/*
 * Launches kernels at a line of input, and says what a launch cost.
 *
 * usage: launch N
 *
 * It says "ready", then for each line of input launches N kernels on a stream, in the
 * best of several rounds of that many, and prints the mean time of a launch in ns. The
 * last round that is not timed has N launches too: in all N * (ROUNDS + 1) for a line.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 5

extern void **__cudaRegisterFatBinary(void *);
extern void __cudaRegisterFatBinaryEnd(void **);
extern void __cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *, uint3 *, dim3 *,
				   dim3 *, int *);

static struct {
	int magic, version;
	const void *data;
	void *unused;
} wrapper = {0x466243b1, 1, NULL, NULL};

static void kernel(void)
{
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static double launch(int n, cudaStream_t s)
{
	void *args[] = {NULL};
	double start = now(), took;

	for (int i = 0; i < n; i++) {
		if (cudaLaunchKernel((void *)kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1}, args, 0, s))
			exit(1);
	}
	took = (now() - start) / n;
	if (cudaStreamSynchronize(s))
		exit(1);
	return took;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1000, c;
	void **handle = __cudaRegisterFatBinary(&wrapper);
	cudaStream_t s;

	__cudaRegisterFunction(handle, (char *)kernel, (char *)"kernel", "kernel", -1, 0, 0, 0, 0, 0);
	__cudaRegisterFatBinaryEnd(handle);
	if (cudaStreamCreate(&s))
		return 1;
	puts("ready");
	fflush(stdout);
	while ((c = getchar()) != EOF) {
		double best = 0;

		if (c != '\n')
			continue;
		launch(n, s); /* warm */
		for (int i = 0; i < ROUNDS; i++) {
			double took = launch(n, s);

			if (!i || took < best)
				best = took;
		}
		printf("%.0f\n", best);
		fflush(stdout);
	}
	return 0;
}
