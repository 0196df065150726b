#!/bin/bash
# Starts and stops the engine that install.sh put into the cache folder.
#
# usage: serve.sh start [--port N] [--log FILE] [--timeout SECONDS] [-- VLLM FLAGS]
#        serve.sh stop PID
#
# start waits until the server is healthy and prints the PID of its API server on
# stdout, nothing else. It listens on 127.0.0.1 only. stop ends that process and
# its children, found by parentage, and returns when they are gone.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"

launch() {
	local port=$1
	shift
	# No pinning: the tests share few cores with the engine.
	export VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} VLLM_CPU_OMP_THREADS_BIND=nobind
	exec setsid "$VENV/bin/vllm" serve "$MODEL" --served-model-name tiny --load-format dummy --dtype bfloat16 \
		--max-model-len 1024 --host 127.0.0.1 --port "$port" --enforce-eager "$@"
}

serve "$@"
