#!/bin/bash
# Starts and stops the engine that install.sh put into the cache folder.
#
# usage: serve.sh start [--port N] [--log FILE] [--timeout SECONDS] [-- SGLANG FLAGS]
#        serve.sh stop PID
#
# VERSION names the version, 0.5.23 by default; with ENTRY=serve it is started as
# "sglang serve" (0.5.23) instead of "python -m sglang.launch_server". start waits until the
# server is healthy and prints the PID of its main process on stdout, nothing else. It
# listens on 127.0.0.1 only. stop ends that process and its children, found by parentage,
# and returns when they are gone.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"

launch() {
	local port=$1 entry=(-m sglang.launch_server) graphs
	shift
	case $SGLANG_VERSION in
	0.5.5) graphs=--disable-cuda-graph ;;
	*) graphs="--cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled" ;;
	esac
	if [ "${ENTRY:-}" = serve ]; then entry=("$VENV/bin/sglang" serve); fi
	# Where several ranks run, each is bound to a core and to gloo.
	export SGLANG_USE_CPU_ENGINE=1
	if [ -d "$VENV/pd" ]; then
		export LD_LIBRARY_PATH=$VENV/pd/usr/lib/x86_64-linux-gnu:$VENV/pd/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	fi
	exec setsid "$VENV/bin/python" "${entry[@]}" --model-path "$MODEL" --served-model-name tiny --load-format dummy \
		--device cpu --attention-backend torch_native --sampling-backend pytorch --host 127.0.0.1 --port "$port" \
		--max-total-tokens 65536 --max-running-requests 64 $graphs "$@"
}

serve "$@"
