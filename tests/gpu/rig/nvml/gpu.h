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

enum { MAX_GPUS = 2 };

/* pattern.c: a handle points to one of these. */
struct gpu {
	int index;
};

extern struct gpu gpus[MAX_GPUS];
extern unsigned n_gpus;
extern int capability; /* 80: 8.0 */
extern unsigned long long memory;

double wall(void);
/* Since the pattern began. */
double elapsed(void);
/* The same in whole seconds. */
long seconds(void);
int index_of(nvmlDevice_t d);
/* The value of the last line of the script that names it. The file is read at each call. */
long scripted(int gpu, const char *key, long otherwise);
long utilization(nvmlDevice_t d);
unsigned milliwatts(nvmlDevice_t d);
unsigned long long used_memory(nvmlDevice_t d);

#endif
