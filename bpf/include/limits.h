/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Every bound of the programs, in one place. */
#pragma once

/* Largest payload of one record; event.MaxData in Go. */
#define CHUNK_MAX 32768
/* A frame longer than FRAME_CHUNKS chunks keeps all but its middle: the first
 * FRAME_CHUNKS - 1 chunks and its last CHUNK_MAX bytes. */
#define FRAME_CHUNKS   8
#define FRAME_COPY_MAX (FRAME_CHUNKS * CHUNK_MAX)
/* Frames of a message from this one on are raw tensors, of which only the first
 * AUX_COPY_MAX bytes are copied. */
#define AUX_PART     2
#define AUX_COPY_MAX 64
/* Bytes of a receipt, taken from the frame's end. */
#define RECEIPT_MAX 128
/* A frame of at most this many bytes that is a message by itself is a wake-up
 * signal between an engine's processes. */
#define NOTIFY_MAX 1

/* iovec entries looked at in one call; servers use one to four. */
#define IOV_WALK 8
/* Bytes copied of one burst of reads (a request), and of one response when
 * whole responses are asked for. */
#define HTTP_COPY_MAX 262144
#define HTTP_CHUNKS   (HTTP_COPY_MAX / CHUNK_MAX)
/* A write is copied when it begins before this offset of its response. */
#define RESPONSE_HEAD 1024
/* Writes held back at the end of a response, and the bytes kept of each. A
 * power of two. */
#define TAIL_SLOTS 4
#define TAIL_BYTES 1024

/* Ports on which one API server may listen: one for HTTP, the others for ZeroMQ
 * over TCP and for what was loaded beside it. */
#define PORTS_MAX 32
/* Descriptors of which it is kept what they are, a power of two: an API server has one for
 * each client, and some twenty for other things, most of them signals between its threads. */
#define FD_NOTES 2048
/* Places from one process to the next, odd: by the golden ratio, so that those of processes
 * with numbers near each other lie far apart. */
#define FD_NOTES_STEP 1265
/* Places for calls under way, by thread; a power of two. Those of threads that share one go
 * to a hash. */
#define CALL_PLACES 1024
/* Bits that stand for API servers. */
#define SERVER_BITS 512
/* Depth of nested PID namespaces; the kernel allows 32, container stacks use 2-3. */
#define PIDNS_WALK 8
