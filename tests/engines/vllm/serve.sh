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
. "$here/env.sh"

usage() {
	sed -n '4,5s/^# //p' "${BASH_SOURCE[0]}" >&2
	exit 2
}

healthy() {
	local line
	exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
	printf 'GET /health HTTP/1.0\r\n\r\n' >&3
	read -r -t 5 line <&3 || line=
	exec 3>&-
	[[ $line == *" 200 "* ]]
} 2>/dev/null

# descendants PID: the process and everything below it, parents first.
descendants() {
	local child
	echo "$1"
	for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
		descendants "$child"
	done
}

# starttime PID: tells a process from a later one with the same PID.
starttime() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# running PID: it exists and is more than a zombie that waits for its parent.
running() {
	local state
	state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -c1)
	[ -n "$state" ] && [ "$state" != Z ]
}

stop() {
	local pid=$1 p tree=() alive i
	running "$pid" || return 0
	# One that was killed has no command line while it goes.
	for ((i = 0; i < 150; i++)); do
		[ -z "$(tr -d '\0' <"/proc/$pid/cmdline" 2>/dev/null)" ] || break
		running "$pid" || return 0
		sleep 0.2
	done
	# The command line of the API server names the model; anything else is not ours to end.
	tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF "$MODEL" || die "process $pid is not the engine that this script starts"
	for p in $(descendants "$pid"); do tree+=("$p:$(starttime "$p")"); done
	kill "$pid" 2>/dev/null || true
	for ((i = 0; i < 150; i++)); do
		alive=
		for p in "${tree[@]}"; do
			[ "$(starttime "${p%%:*}")" = "${p#*:}" ] && running "${p%%:*}" || continue
			alive+=" ${p%%:*}"
		done
		[ -n "$alive" ] || return 0
		# Children that outlive a clean shutdown by 20 s are ended hard.
		if [ $i -eq 100 ]; then kill -KILL $alive 2>/dev/null || true; fi
		sleep 0.2
	done
	die "processes$alive did not end"
}

start() {
	local port=8000 log='' timeout=400
	while [ $# -gt 0 ]; do
		case $1 in
		--port) port=$2; shift 2 ;;
		--log) log=$2; shift 2 ;;
		--timeout) timeout=$2; shift 2 ;;
		--) shift; break ;;
		*) usage ;;
		esac
	done
	[ -x "$VENV/bin/vllm" ] && [ -f "$MODEL/config.json" ] || die "no engine in $CACHE: run install.sh first"
	[ -n "$log" ] || log=$(mktemp "${TMPDIR:-/tmp}/vllm-XXXXXX.log")
	if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then die "port $port is in use"; fi

	# One compute thread and no pinning: the tests share few cores with the engine.
	export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
	export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
	setsid "$VENV/bin/vllm" serve "$MODEL" --served-model-name tiny --load-format dummy --dtype bfloat16 \
		--max-model-len 1024 --host 127.0.0.1 --port "$port" --enforce-eager "$@" \
		</dev/null >"$log" 2>&1 9>&- &
	local pid=$! end=$((SECONDS + timeout))
	until healthy "$port"; do
		if ! kill -0 "$pid" 2>/dev/null; then
			tail -n 20 "$log" >&2
			die "vLLM ended while starting, see $log"
		fi
		if [ $SECONDS -ge $end ]; then
			stop "$pid"
			die "vLLM was not healthy after $timeout s, see $log"
		fi
		sleep 0.5
	done
	say "vLLM serves on 127.0.0.1:$port, log in $log"
	echo "$pid"
}

case ${1:-} in
start) shift; start "$@" ;;
stop) [ $# -eq 2 ] || usage; stop "$2" ;;
*) usage ;;
esac
