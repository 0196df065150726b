#!/bin/bash
# Starts and stops the CUDA build of vLLM on the fake GPU of tests/gpu/rig.
#
# usage: serve.sh start [--port N] [--log FILE] [--timeout SECONDS] [-- VLLM FLAGS]
#        serve.sh stop PID
#
# start waits until the server is healthy and prints the PID of its API server on
# stdout, nothing else. It listens on 127.0.0.1 only. stop ends that process and
# its children, found by parentage, and returns when they are gone.
#
# CUDA_MODE in the environment is one of
#   eager    (unless set) every kernel is launched by itself
#   graph    decode steps replay a CUDA graph; nothing is compiled
#   default  vLLM's own: torch.compile, full and piecewise graphs, FlashAttention 3; its
#            first start compiles for half a minute
# CUDA_DEVICES=N uses as many devices by tensor parallelism. FAKE_CUDA_LOG=FILE gets a JSON line
# for each operation of the GPU; other FAKE_CUDA_* are passed on too (tests/gpu/rig/README.md).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"

launch() {
	local port=$1 devices=${CUDA_DEVICES:-1} capability=80 flags=(--attention-backend TRITON_ATTN)
	shift
	case ${CUDA_MODE:-eager} in
	eager) flags+=(--enforce-eager) ;;
	graph) flags+=(--compilation-config '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,2,4,8,16,32,64,128]}') ;;
	default) capability=90 flags=(--attention-backend FLASH_ATTN) ;;
	*) die "CUDA_MODE is eager, graph or default" ;;
	esac
	# The fast paths between GPUs map each other's memory, which the fake driver cannot.
	if [ "$devices" -gt 1 ]; then
		flags+=(--tensor-parallel-size "$devices" --disable-custom-all-reduce)
		export VLLM_ALLREDUCE_USE_SYMM_MEM=0
	fi
	export VLLM_NO_USAGE_STATS=1
	export VLLM_USE_FLASHINFER_SAMPLER=0 # flashinfer is not installed
	unset PYTHONDONTWRITEBYTECODE        # the first start compiles, later ones take half the time
	export TRITON_CACHE_DIR=$CACHE/vllm-cuda-kernels/triton TORCHINDUCTOR_CACHE_DIR=$CACHE/vllm-cuda-kernels/inductor
	export VLLM_CACHE_ROOT=$CACHE/vllm-cuda-kernels/vllm
	export FAKE_CUDA_DEVICES=$devices FAKE_CUDA_CC=${FAKE_CUDA_CC:-$capability}
	export FAKE_CUDA_MEM_MIB=${FAKE_CUDA_MEM_MIB:-4096} FAKE_CUDA_KERNEL_NS=${FAKE_CUDA_KERNEL_NS:-5000}
	export TRITON_LIBCUDA_PATH=$RIG/lib LD_LIBRARY_PATH=$RIG/lib
	export LD_PRELOAD=$RIG/lib/libcudart.so.13:$RIG/lib/libfakecublas.so:$RIG/lib/libnccl.so.2
	# A fixed size of the KV cache skips a run that measures the GPU's memory.
	exec setsid "$VENV/bin/vllm" serve "$MODEL" --served-model-name tiny --load-format dummy --dtype bfloat16 \
		--max-model-len 1024 --host 127.0.0.1 --port "$port" --kv-cache-memory-bytes 320M "${flags[@]}" "$@"
}

[ -f "$RIG/.complete" ] || die "no fake GPU in $RIG: run install.sh first"
serve "$@"
