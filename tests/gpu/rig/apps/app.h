/* What apps begin with: kernels registered at start, as nvcc has it done. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

extern void **__cudaRegisterFatBinary(void *);
extern void __cudaRegisterFatBinaryEnd(void **);
extern void __cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *, uint3 *, dim3 *,
				   dim3 *, int *);

#define CHECK(call)                                                                      \
	do {                                                                             \
		cudaError_t e = (call);                                                  \
		if (e) {                                                                 \
			fprintf(stderr, "%s: %d %s\n", #call, e, cudaGetErrorString(e)); \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

/* The wrapper of a binary, which the runtime hands to the driver unread. */
static struct {
	int magic, version;
	const void *data;
	void *unused;
} wrapper = {0x466243b1, 1, NULL, NULL};

/* The address of a function stands for a kernel. */
static void register_kernel(void **handle, void (*stub)(void), const char *name)
{
	__cudaRegisterFunction(handle, (const char *)stub, (char *)name, name, -1, 0, 0, 0, 0, 0);
}
