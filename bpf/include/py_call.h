/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * How long a probed function runs: py_entry notes when it was entered, py_hit at its
 * returns looks that up. What a measurement takes itself is the way from py_entry back
 * to the function and from its return to py_hit; the loader measures that.
 */
#pragma once

struct py_call_key {
	__u64 thread; /* global tgid and tid */
	__u32 probe;
	__u32 pad;
};

/* Value: when the function was entered. LRU: a call that an exception of C++ or a
 * panic of Rust leaves has no return; it is forgotten. A call within a call of the
 * same function, on the same thread, takes the place of the outer one, which then has
 * no duration. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct py_call_key);
	__type(value, __u64);
} py_calls SEC(".maps");

/* Begins a call. The last thing that the program does. */
static __always_inline void py_call(__u32 probe)
{
	struct py_call_key key = {.thread = bpf_get_current_pid_tgid(), .probe = probe};
	__u64 zero = 0, *at;

	bpf_map_update_elem(&py_calls, &key, &zero, BPF_ANY);
	at = bpf_map_lookup_elem(&py_calls, &key);
	if (at)
		*at = bpf_ktime_get_ns();
}

/* Ends a call that returns at now, and returns how long it took in ns; 0 if its
 * beginning was not seen. */
static __always_inline __u64 py_took(__u32 probe, __u64 now)
{
	struct py_call_key key = {.thread = bpf_get_current_pid_tgid(), .probe = probe};
	__u64 *at = bpf_map_lookup_elem(&py_calls, &key), from;

	if (!at)
		return 0;
	from = *at;
	bpf_map_delete_elem(&py_calls, &key);
	return from && now > from ? now - from : 0;
}
