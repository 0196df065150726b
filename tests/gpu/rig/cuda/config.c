/* Settings, and time. */
#include "driver.h"
#include <errno.h>
#include <fcntl.h>
#include <time.h>

static struct config settings = {
	.oracle = -1,
	.devices = 1,
	.capability = 90,
	.memory = 80ul << 30,
	.kernel_ns = 100000,
	.bytes_per_ns = 20,
	.emulate = true,
	.first_token = 100,
	.tokens = 800,
	.gather_word = 79,
	.argmax_word = 126,
};

/* FAKE_CUDA_KERNEL_MAP: the first part of a name that fits decides. */
static struct {
	char part[96];
	long ns;
} durations[64];
static int n_durations;

static long number(const char *name, long otherwise)
{
	const char *v = getenv(name);

	return v ? atol(v) : otherwise;
}

static void read_durations(const char *list)
{
	char *copy = strdup(list), *rest = NULL, *p;

	for (p = strtok_r(copy, ",", &rest); p && n_durations < 64; p = strtok_r(NULL, ",", &rest)) {
		char *ns = strrchr(p, '=');

		if (!ns)
			continue;
		*ns++ = 0;
		snprintf(durations[n_durations].part, sizeof durations[0].part, "%s", p);
		durations[n_durations++].ns = atol(ns);
	}
	free(copy);
}

static void read_settings(void)
{
	struct config *c = &settings;
	const char *v;

	c->debug = number("FAKE_CUDA_DEBUG", c->debug);
	c->devices = number("FAKE_CUDA_DEVICES", c->devices);
	c->capability = number("FAKE_CUDA_CC", c->capability);
	c->memory = (size_t)number("FAKE_CUDA_MEM_MIB", c->memory >> 20) << 20;
	c->kernel_ns = number("FAKE_CUDA_KERNEL_NS", c->kernel_ns);
	c->launch_ns = number("FAKE_CUDA_LAUNCH_NS", c->launch_ns);
	c->alias = number("FAKE_CUDA_ALIAS", c->alias);
	c->emulate = number("FAKE_CUDA_COMPUTE", c->emulate);
	c->trace_emulated = number("FAKE_CUDA_EMUL_LOG", c->trace_emulated);
	c->first_token = number("FAKE_CUDA_TOKEN_LO", c->first_token);
	c->tokens = number("FAKE_CUDA_TOKEN_N", c->tokens);
	c->gather_word = number("FAKE_CUDA_GATHER_WORD", c->gather_word);
	c->argmax_word = number("FAKE_CUDA_ARGMAX_WORD", c->argmax_word);
	if ((v = getenv("FAKE_CUDA_COPY_GBPS")))
		c->bytes_per_ns = atof(v);
	if ((v = getenv("FAKE_CUDA_KERNEL_MAP")))
		read_durations(v);
	/* Several processes may append: each line is one write. */
	if ((v = getenv("FAKE_CUDA_LOG")))
		c->oracle = open(v, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
}

const struct config *config(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_settings);
	return &settings;
}

long kernel_ns(const char *name)
{
	long ns = config()->kernel_ns;
	int i;

	for (i = 0; i < n_durations; i++)
		if (strstr(name, durations[i].part))
			return durations[i].ns;
	return ns;
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ul + t.tv_nsec;
}

void wait_until(uint64_t ns)
{
	/* A sleep ends late by some ten microseconds: the last part is spent spinning. */
	const uint64_t spin = 30000;

	if (ns > now_ns() + 2 * spin) {
		uint64_t wake = ns - spin;
		struct timespec t = {wake / 1000000000ul, wake % 1000000000ul};

		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
			;
	}
	while (now_ns() < ns)
		__builtin_ia32_pause();
}
