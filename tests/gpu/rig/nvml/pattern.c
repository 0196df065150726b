/*
 * Values that follow the clock, so that a reader can tell what it should see at a time
 * (README.md has the pattern), or a script.
 */
#include "gpu.h"

struct gpu gpus[MAX_GPUS];
struct gpu instances[MAX_GPUS][MAX_INSTANCES];
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
	int g, i;

	for (g = 0; g < MAX_GPUS; g++) {
		gpus[g].index = g;
		for (i = 0; i < MAX_INSTANCES; i++)
			instances[g][i] = (struct gpu){.index = g, .instance = i + 1};
	}
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

int instance_of(nvmlDevice_t d)
{
	return ((struct gpu *)d)->instance;
}

bool off_the_bus(int gpu)
{
	const char *after = getenv("FAKE_NVML_XID_AFTER");

	return scripted(gpu, "lost", 0) || (gpu == 0 && after && elapsed() >= atof(after));
}

nvmlReturn_t failure(nvmlDevice_t d, const char *call)
{
	char key[64];

	if (off_the_bus(index_of(d)))
		return NVML_ERROR_GPU_IS_LOST;
	snprintf(key, sizeof key, "fail_%s", call);
	return scripted(index_of(d), key, NVML_SUCCESS);
}

unsigned scripted_all(int gpu, const char *key, long *values, unsigned room)
{
	const char *path = getenv("FAKE_NVML_SCRIPT");
	FILE *f = path ? fopen(path, "r") : NULL;
	unsigned n = 0;
	char k[64];
	long value;
	int g;

	if (!f)
		return 0;
	while (fscanf(f, "%d %63s %ld", &g, k, &value) == 3)
		if (g == gpu && !strcmp(k, key) && n < room)
			values[n++] = value;
	fclose(f);
	return n;
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
	return scripted(index_of(d), "mw", 100000 + 1000 * utilization(d));
}

unsigned long long used_memory(nvmlDevice_t d)
{
	long gib = scripted(index_of(d), "mem_gib", -1);

	return gib >= 0 ? (unsigned long long)gib << 30
			: memory / 16 + ((unsigned long long)(seconds() % 8) << 20);
}
