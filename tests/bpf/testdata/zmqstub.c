/*
 * A stand-in for libzmq: its zmq_msg_t and the two functions that are tapped, with
 * the same signatures. Frames "received" are those the driver queues.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zmqstub.h"

enum { TYPE_VSM = 101, TYPE_LMSG = 102, TYPE_CMSG = 104, TYPE_ZCLMSG = 105 };

struct content {
	void *data;
	size_t size;
	void *ffn, *hint;
	int refs;
};

struct msg {
	void *metadata;
	unsigned char body[33];
	unsigned char size;
	unsigned char type;
	unsigned char flags;
	unsigned char rest[20];
};

_Static_assert(sizeof(struct msg) == sizeof(zmq_msg_t), "64 bytes");

static zmq_msg_t queued;
static int queued_size = -1;
unsigned stub_delay;

void stub_fill(zmq_msg_t *out, int type, const void *data, size_t size, int more)
{
	struct msg *m = (struct msg *)out;
	struct content *c;

	memset(m, 0xee, sizeof(*m));
	m->type = type;
	m->flags = more;
	switch (type) {
	case TYPE_VSM:
		memcpy(m->body, data, size);
		m->size = size;
		break;
	case TYPE_LMSG:
	case TYPE_ZCLMSG:
		c = malloc(sizeof(*c));
		c->data = malloc(size);
		memcpy(c->data, data, size);
		c->size = size;
		memcpy(m->body, &c, sizeof(c));
		break;
	case TYPE_CMSG:
		memcpy(m->body, &data, sizeof(data));
		memcpy(m->body + 8, &size, sizeof(size));
		break;
	}
}

void stub_queue(const zmq_msg_t *msg, int size)
{
	queued = *msg;
	queued_size = size;
}

__attribute__((noinline)) int stub_receive(zmq_msg_t *msg)
{
	int size = queued_size;

	queued_size = -1;
	if (stub_delay)
		usleep(stub_delay);
	if (size < 0)
		return -1;
	*msg = queued;
	return size;
}

/* Called by both, so that they begin with a push, as libzmq's do: the kernel
 * emulates that instruction and has to single-step most others. */
__attribute__((noinline)) int stub_is_socket(void *socket)
{
	asm volatile("" : "+r"(socket));
	return socket != 0;
}

int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags)
{
	if (!stub_is_socket(socket))
		return -1;
	/* The message belongs to the library from here on. */
	memset(msg, 0, sizeof(*msg));
	return flags;
}

#ifdef TAIL_CALL
/* Compiled to a jump: the function has no return instruction of its own. */
int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags)
{
	(void)socket;
	(void)flags;
	return stub_receive(msg);
}
#else
int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags)
{
	int size;

	if (!stub_is_socket(socket))
		return -1;
	size = stub_receive(msg);
	return size < 0 ? -1 : size + (flags & 0);
}
#endif
