#!/bin/bash
# Starts and stops SGLang for CUDA on the fake GPU of tests/gpu/rig.
#
# usage: serve.sh start [--port N] [--log FILE] [--timeout SECONDS] [-- SGLANG FLAGS]
#        serve.sh stop PID
#
# start waits until the server is healthy and prints the PID of its main process on
# stdout, nothing else. It listens on 127.0.0.1 only. stop ends that process and its
# children, found by parentage, and returns when they are gone.
#
# CUDA_MODE in the environment is eager (unless set) or graph, where decode steps replay
# a CUDA graph. FAKE_CUDA_LOG=FILE gets a JSON line for each operation of the GPU; other
# FAKE_CUDA_* are passed on too (tests/gpu/rig/README.md).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"

launch() {
	local port=$1 flags=()
	shift
	case ${CUDA_MODE:-eager} in
	eager) flags+=(--cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled) ;;
	graph) flags+=(--cuda-graph-backend-prefill=disabled --cuda-graph-max-bs-decode 8) ;;
	*) die "CUDA_MODE is eager or graph" ;;
	esac
	unset PYTHONDONTWRITEBYTECODE # the first start compiles, later ones take half the time
	export CUDA_HOME=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/nvidia/cu13
	export PATH=$CUDA_HOME/bin:$PATH
	export TRITON_CACHE_DIR=$CACHE/sglang-cuda-kernels/triton TVM_FFI_CACHE_DIR=$CACHE/sglang-cuda-kernels/tvm
	export SGLANG_CACHE_DIR=$CACHE/sglang-cuda-kernels/sglang SGLANG_JIT_CACHE_DIR=$CACHE/sglang-cuda-kernels/jit
	export FAKE_CUDA_CC=${FAKE_CUDA_CC:-80} FAKE_CUDA_MEM_MIB=${FAKE_CUDA_MEM_MIB:-8192}
	export FAKE_CUDA_KERNEL_NS=${FAKE_CUDA_KERNEL_NS:-5000}
	export TRITON_LIBCUDA_PATH=$RIG/lib LD_LIBRARY_PATH=$RIG/lib
	export LD_PRELOAD=$RIG/lib/libcudart.so.13:$RIG/lib/libfakecublas.so:$RIG/lib/libnccl.so.2
	exec setsid "$VENV/bin/python" -m sglang.launch_server --model-path "$MODEL" --served-model-name tiny \
		--load-format dummy --device cuda --attention-backend triton --sampling-backend pytorch --host 127.0.0.1 \
		--port "$port" --max-total-tokens 65536 --max-running-requests 64 "${flags[@]}" "$@"
}

[ -f "$RIG/.complete" ] || die "no fake GPU in $RIG: run install.sh first"
serve "$@"
