#pragma once
#include <stddef.h>

typedef struct {
	unsigned char _[64];
} zmq_msg_t __attribute__((aligned(8)));

int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags);
int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags);

/* Makes *out a message of a libzmq type number. */
void stub_fill(zmq_msg_t *out, int type, const void *data, size_t size, int more);
/* Makes the next zmq_msg_recv return the message, or -1 if size is negative. */
void stub_queue(const zmq_msg_t *msg, int size);
/* Time that zmq_msg_recv takes, us. */
extern unsigned stub_delay;
