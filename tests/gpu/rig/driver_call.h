/*
 * How libraries with a static runtime (cuBLAS, NCCL) reach the driver: by dlopen and
 * cuGetProcAddress, so that probes on a dynamic runtime do not see their launches.
 */
#ifndef RIG_DRIVER_CALL_H
#define RIG_DRIVER_CALL_H

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

static CUresult (*driver_launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static CUresult (*driver_function)(CUfunction *, CUmodule, const char *);
static CUresult (*driver_device)(CUdevice *);
static CUmodule driver_module;

static void driver_load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	CUresult (*get)(const char *, void **, int, cuuint64_t, void *) = NULL;
	CUresult (*load)(CUmodule *, const void *);

	if (library)
		get = dlsym(library, "cuGetProcAddress_v2");
	if (!get) {
		fprintf(stderr, "fake CUDA library: %s\n", dlerror());
		abort();
	}
	get("cuModuleLoadData", (void **)&load, 2000, 0, NULL);
	get("cuModuleGetFunction", (void **)&driver_function, 2000, 0, NULL);
	get("cuCtxGetDevice", (void **)&driver_device, 2000, 0, NULL);
	get("cuLaunchKernelEx", (void **)&driver_launch, 11060, 0, NULL);
	load(&driver_module, "kernels of a fake library");
}

static void driver_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, driver_load);
}

/* Launches a kernel that does nothing, under that name. */
static CUresult driver_run(const char *name, CUlaunchConfig c)
{
	CUfunction f;
	CUresult e;

	driver_init();
	e = driver_function(&f, driver_module, name);
	return e ? e : driver_launch(&c, f, NULL, NULL);
}

#endif
