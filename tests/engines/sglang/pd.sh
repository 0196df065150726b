#!/bin/bash
# Starts and stops two engines that share the work: one does the prefill, the other the
# decode, with the KV cache handed over by mooncake over TCP. Needs install.sh with PD=1.
#
# usage: pd.sh start [--port N] [--bootstrap N] [--log-dir DIR] [-- SGLANG FLAGS]
#        pd.sh stop PREFILL_PID DECODE_PID
#
# start prints the two PIDs in this order. The prefill server listens on port N (8000 by
# default), the decode server on the next one; requests go to both, with bootstrap_host
# 127.0.0.1, bootstrap_port (28998 by default) and a bootstrap_room of their own.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"

start_pd() {
	local port=8000 bootstrap=28998 logs=${TMPDIR:-/tmp} prefill decode
	while [ $# -gt 0 ]; do
		case $1 in
		--port) port=$2; shift 2 ;;
		--bootstrap) bootstrap=$2; shift 2 ;;
		--log-dir) logs=$2; shift 2 ;;
		--) shift; break ;;
		*) usage ;;
		esac
	done
	[ -d "$VENV/pd" ] || die "no libraries for KV transfer: run PD=1 install.sh first"
	prefill=$("$here/serve.sh" start --port "$port" --log "$logs/prefill-$port.log" -- --disaggregation-mode prefill \
		--disaggregation-transfer-backend mooncake_tcp --disaggregation-bootstrap-port "$bootstrap" --disable-radix-cache "$@")
	decode=$("$here/serve.sh" start --port $((port + 1)) --log "$logs/decode-$port.log" -- --disaggregation-mode decode \
		--disaggregation-transfer-backend mooncake_tcp --disaggregation-decode-retraction-backup cpu_tensor "$@") ||
		{ "$here/serve.sh" stop "$prefill"; exit 1; }
	echo "$prefill $decode"
}

case ${1:-} in
start) shift; start_pd "$@" ;;
stop)
	[ $# -eq 3 ] || usage
	"$here/serve.sh" stop "$2"
	"$here/serve.sh" stop "$3"
	;;
*) usage ;;
esac
