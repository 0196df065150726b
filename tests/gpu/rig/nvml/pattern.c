/*
 * Values that follow the clock, so that a reader can tell what it should see at a time
 * (README.md has the pattern), or a script.
 */
#include "gpu.h"

struct gpu gpus[MAX_GPUS] = {{0}, {1}};
unsigned n_gpus = 1;
int capability = 90;
unsigned long long memory = 80ull << 30;
static double epoch;

double wall(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static long number(const char *name, long otherwise)
{
	const char *v = getenv(name);

	return v ? atol(v) : otherwise;
}

__attribute__((constructor)) static void start(void)
{
	const char *v = getenv("FAKE_NVML_EPOCH");

	epoch = v ? atof(v) : wall();
	n_gpus = number("FAKE_CUDA_DEVICES", n_gpus);
	if (n_gpus > MAX_GPUS)
		n_gpus = MAX_GPUS;
	capability = number("FAKE_CUDA_CC", capability);
	memory = (unsigned long long)number("FAKE_CUDA_MEM_MIB", memory >> 20) << 20;
}

double elapsed(void)
{
	return wall() - epoch;
}

long seconds(void)
{
	return elapsed();
}

int index_of(nvmlDevice_t d)
{
	return ((struct gpu *)d)->index;
}

long scripted(int gpu, const char *key, long otherwise)
{
	const char *path = getenv("FAKE_NVML_SCRIPT");
	FILE *f = path ? fopen(path, "r") : NULL;
	char k[64];
	long value;
	int g;

	if (!f)
		return otherwise;
	while (fscanf(f, "%d %63s %ld", &g, k, &value) == 3)
		if (g == gpu && !strcmp(k, key))
			otherwise = value;
	fclose(f);
	return otherwise;
}

long utilization(nvmlDevice_t d)
{
	int gpu = index_of(d);
	long percent = 10 * (seconds() % 10);

	return scripted(gpu, "util", gpu ? 100 - percent : percent);
}

unsigned milliwatts(nvmlDevice_t d)
{
	return 100000 + 1000 * utilization(d);
}

unsigned long long used_memory(nvmlDevice_t d)
{
	long gib = scripted(index_of(d), "mem_gib", -1);

	return gib >= 0 ? (unsigned long long)gib << 30
			: memory / 16 + ((unsigned long long)(seconds() % 8) << 20);
}
