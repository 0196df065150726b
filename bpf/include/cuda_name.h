/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Names of kernels, from the calls by which a library asks the driver for a handle.
 */
#pragma once

#include "cuda_state.h"

/* The longest name in libtorch_cuda has 2,300 bytes. */
#define CUDA_NAME 4096

struct cuda_name {
	__u64 kernel; /* whose name it has; 0: it is in text */
	__u32 calls;  /* that gave the handle */
	__u32 length; /* of text with its end; CUDA_NAME: it may be cut */
	char text[CUDA_NAME];
};

/* Names by handle, from when it was given until user space has taken the name, a second
 * later at most: kernels are looked up as they are first launched. 512 of them are 2 MB. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct cuda_key);
	__type(value, struct cuda_name);
} cuda_names SEC(".maps");

static const struct cuda_name cuda_no_name = {};

/* A note of a name for a handle, to be filled in; 0 if there is no room. */
static __always_inline struct cuda_name *cuda_name(const struct cuda_key *key)
{
	struct cuda_name *n = bpf_map_lookup_elem(&cuda_names, key);
	struct cuda_process *p;

	if (n)
		return n;
	bpf_map_update_elem(&cuda_names, key, &cuda_no_name, BPF_NOEXIST);
	n = bpf_map_lookup_elem(&cuda_names, key);
	if (!n) {
		p = bpf_map_lookup_elem(&cuda_processes, &key->tgid);
		if (p)
			__sync_fetch_and_add(&p->unnoted, 1);
	}
	return n;
}

/* cuModuleGetFunction(out, module, name), cuLibraryGetKernel(out, library, name) */
SEC("uprobe/cuModuleGetFunction")
int BPF_KPROBE(cuda_name_begin, __u64 out, __u64 module, __u64 name)
{
	return cuda_making(name, out);
}

SEC("uprobe/cuModuleGetFunction_return")
int BPF_KPROBE(cuda_name_end)
{
	__u64 ids = current_ids(), thread = bpf_get_current_pid_tgid();
	struct cuda_thread *t = bpf_map_lookup_elem(&cuda_threads, &thread);
	struct cuda_key key = {.tgid = ids >> 32};
	struct cuda_name *n;
	long length;

	if (!t || !t->call.out)
		return 0;
	key.handle = cuda_made(t, PT_REGS_RC(ctx));
	t->call.out = 0;
	if (!key.handle)
		return 0;
	n = cuda_name(&key);
	if (!n)
		return 0;
	n->calls++;
	n->kernel = 0;
	length = bpf_probe_read_user_str(n->text, sizeof(n->text), (void *)t->call.object);
	if (length < 0)
		lose(LOSS_FAULT, 1);
	n->length = length < 0 ? 0 : length;
	return 0;
}

/* cuKernelGetFunction(out, kernel) */
SEC("uprobe/cuKernelGetFunction")
int BPF_KPROBE(cuda_alias_begin, __u64 out, __u64 kernel)
{
	return cuda_making(kernel, out);
}

SEC("uprobe/cuKernelGetFunction_return")
int BPF_KPROBE(cuda_alias_end)
{
	__u64 ids = current_ids(), thread = bpf_get_current_pid_tgid();
	struct cuda_thread *t = bpf_map_lookup_elem(&cuda_threads, &thread);
	struct cuda_key key = {.tgid = ids >> 32};
	struct cuda_name *n;

	if (!t || !t->call.out)
		return 0;
	key.handle = cuda_made(t, PT_REGS_RC(ctx));
	t->call.out = 0;
	/* The kernel itself has its name from elsewhere. */
	if (!key.handle || key.handle == t->call.object)
		return 0;
	n = cuda_name(&key);
	if (!n)
		return 0;
	n->calls++;
	n->kernel = t->call.object;
	n->length = 0;
	return 0;
}
