/* What the parts of the fake NVML share. */
#ifndef FAKE_NVML_GPU_H
#define FAKE_NVML_GPU_H

#define _GNU_SOURCE
#include <nvml.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
/* What NVML says of an instance of a GPU that is not split. */
#define NO_INSTANCE 0xFFFFFFFFu

enum { MAX_GPUS = 2, MAX_INSTANCES = 7 };

/* pattern.c: a handle points to one of these. */
struct gpu {
	int index;    /* of the GPU */
	int instance; /* 1 to MAX_INSTANCES, 0: the GPU itself */
};

extern struct gpu gpus[MAX_GPUS];
extern struct gpu instances[MAX_GPUS][MAX_INSTANCES];
extern unsigned n_gpus;
extern int capability; /* 80: 8.0 */
extern unsigned long long memory;

double wall(void);
/* Since the pattern began. */
double elapsed(void);
/* The same in whole seconds. */
long seconds(void);
int index_of(nvmlDevice_t d);
/* Of the GPU that has it. */
int instance_of(nvmlDevice_t d);
/* What a call is to answer: NVML_SUCCESS, what the script says for it, or that the GPU is lost. */
nvmlReturn_t failure(nvmlDevice_t d, const char *call);
bool off_the_bus(int gpu);
/* Begins a call of a device; that of what an instance does not have ends there for one. */
#define CALL(d, name)                               \
	do {                                        \
		nvmlReturn_t e_ = failure(d, name); \
		if (e_ != NVML_SUCCESS)             \
			return e_;                  \
	} while (0)
#define GPU_CALL(d, name)                                \
	do {                                             \
		CALL(d, name);                           \
		if (instance_of(d))                      \
			return NVML_ERROR_NOT_SUPPORTED; \
	} while (0)
/* Calls line for each line of the script with that GPU and key. */
unsigned scripted_all(int gpu, const char *key, long *values, unsigned room);
/* The value of the last line of the script that names it. The file is read at each call. */
long scripted(int gpu, const char *key, long otherwise);
long utilization(nvmlDevice_t d);
unsigned milliwatts(nvmlDevice_t d);
unsigned long long used_memory(nvmlDevice_t d);

#endif
