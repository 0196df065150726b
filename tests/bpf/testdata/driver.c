/*
 * Sends and receives by command, one per line of standard input, each answered
 * with a line:
 *   send TYPE SIZE SEED FLAGS SOCKET
 *   recv TYPE SIZE SEED MORE SOCKET
 *   fail SOCKET               a receive that returns -1
 *   delay MICROSECONDS        how long receives take from now on
 *   wild SOCKET               a send of a message whose content is at address 64
 *   loop WHAT COUNT SIZE      that many sends (0) or receives (1); answers the ns of CPU time they took
 *   fork                      starts a child that maps the library and ends with its
 *                             parent; answers its pid
 *   exit CODE
 * Byte i of a frame is (i * 7 + i / 256 + SEED) & 255.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "zmqstub.h"

static unsigned char *pattern(size_t size, unsigned seed)
{
	unsigned char *b = malloc(size + 1);

	for (size_t i = 0; i < size; i++)
		b[i] = i * 7 + i / 256 + seed;
	return b;
}

int main(void)
{
	char line[256];

	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		unsigned type, seed, flags, code;
		unsigned long size, sock;
		zmq_msg_t msg;

		if (sscanf(line, "send %u %lu %u %u %lu", &type, &size, &seed, &flags, &sock) == 5) {
			unsigned char *b = pattern(size, seed);

			stub_fill(&msg, type, b, size, 0);
			zmq_msg_send(&msg, (void *)sock, flags);
		} else if (sscanf(line, "recv %u %lu %u %u %lu", &type, &size, &seed, &flags, &sock) == 5) {
			unsigned char *b = pattern(size, seed);

			stub_fill(&msg, type, b, size, flags);
			stub_queue(&msg, size);
			memset(&msg, 0, sizeof(msg));
			zmq_msg_recv(&msg, (void *)sock, 0);
		} else if (sscanf(line, "fail %lu", &sock) == 1) {
			stub_queue(&msg, -1);
			memset(&msg, 0, sizeof(msg));
			zmq_msg_recv(&msg, (void *)sock, 0);
		} else if (sscanf(line, "delay %u", &stub_delay) == 1) {
		} else if (sscanf(line, "wild %lu", &sock) == 1) {
			unsigned long nowhere = 64;

			stub_fill(&msg, 102, "", 0, 0);
			memcpy((char *)&msg + 8, &nowhere, sizeof(nowhere));
			zmq_msg_send(&msg, (void *)sock, 0);
		} else if (sscanf(line, "loop %u %u %lu", &flags, &code, &size) == 3) {
			unsigned char *b = pattern(size, 0);
			struct timespec t0, t1;
			zmq_msg_t each;

			stub_fill(&msg, 102, b, size, 0);
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
			while (code--) {
				each = msg;
				if (flags) {
					stub_queue(&msg, size);
					zmq_msg_recv(&each, (void *)16, 0);
				} else {
					zmq_msg_send(&each, (void *)16, 0);
				}
			}
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
			printf("%lld\n", (t1.tv_sec - t0.tv_sec) * 1000000000LL + t1.tv_nsec - t0.tv_nsec);
			fflush(stdout);
			continue;
		} else if (!strncmp(line, "fork", 4)) {
			pid_t pid = fork();

			if (!pid) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				pause();
				_exit(0);
			}
			printf("%d\n", pid);
			fflush(stdout);
			continue;
		} else if (sscanf(line, "exit %u", &code) == 1) {
			_exit(code);
		} else {
			printf("unknown: %s", line);
			fflush(stdout);
			continue;
		}
		printf("ok\n");
		fflush(stdout);
	}
	return 0;
}
