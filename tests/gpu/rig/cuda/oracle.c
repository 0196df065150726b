/* The log of what the device did, and a trace of calls for people. Each line is one write. */
#include "driver.h"
#include <stdarg.h>
#include <unistd.h>

static void put_line(int fd, const char *prefix, const char *format, va_list args)
{
	char line[4096];
	size_t n = snprintf(line, sizeof line, "%s", prefix);

	n += vsnprintf(line + n, sizeof line - n - 1, format, args);
	if (n > sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	/* Nobody to tell: the log is short of a line, which the reader sees. */
	if (write(fd, line, n) < 0)
		return;
}

void oracle(const char *format, ...)
{
	va_list args;

	if (config()->oracle < 0)
		return;
	va_start(args, format);
	put_line(config()->oracle, "", format, args);
	va_end(args);
}

void trace(const char *format, ...)
{
	va_list args;

	if (config()->debug <= 0)
		return;
	va_start(args, format);
	put_line(STDERR_FILENO, "[fakecuda] ", format, args);
	va_end(args);
}
