/*
 * A CUDA 13 runtime on the driver API, without NVIDIA's code: its functions have the names
 * and signatures of cuda_runtime_api.h, and it reaches the driver as the real one does,
 * by dlopen and cuGetProcAddress.
 */
#ifndef FAKE_CUDART_RUNTIME_H
#define FAKE_CUDART_RUNTIME_H

#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
/* A probe must find the function called, never a copy of it in its caller. */
#define PROBED __attribute__((noinline))

/* driver.c */
int load_driver(void);
/* load_driver, and a current context for the thread. */
int ready(void);
void *driver_function(const char *name, int version, int per_thread);
/* Notes an error for cudaGetLastError. Codes of driver and runtime are the same numbers. */
cudaError_t result(int code);
void trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * The driver's function of that name as of that version of the interface, asked for once.
 * cuda.h defines many names as macros for their newest variants: the type is to be that
 * of the variant, but the driver is asked for the name as written, so that # must come
 * before the name is an argument of another macro.
 */
#define DRIVER_(function_type, text, version, per_thread)                      \
	({                                                                     \
		static __typeof__(&function_type) function;                    \
		if (!function)                                                 \
			function = driver_function(text, version, per_thread); \
		function;                                                      \
	})
#define DRIVER(name, version)            DRIVER_(name, #name, version, 0)
#define DRIVER_PER_THREAD(name, version) DRIVER_(name, #name, version, 1)

/* The body of a function that the driver has. */
#define READY                             \
	do {                              \
		int e = ready();          \
		if (e)                    \
			return result(e); \
	} while (0)
#define FORWARD(name, version, ...)                                           \
	do {                                                                  \
		READY;                                                        \
		return result(DRIVER_(name, #name, version, 0)(__VA_ARGS__)); \
	} while (0)
#define FORWARD_PER_THREAD(name, version, ...)                                \
	do {                                                                  \
		READY;                                                        \
		return result(DRIVER_(name, #name, version, 1)(__VA_ARGS__)); \
	} while (0)

/* register.c: the kernel behind a host function, or the argument if it is a kernel itself. */
CUkernel kernel_of(const void *function);

#endif
