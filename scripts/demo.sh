#!/bin/bash
# Traces a real engine under traffic and prints the summary.
#
# usage: demo.sh
#
# "make demo" builds the program and installs the engine first. DEMO_SECONDS
# (default 20) is how long it looks; files go to out/demo.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=tests/engines/vllm
seconds=${DEMO_SECONDS:-20}
out=out/demo
[ "$(id -u)" = 0 ] || { echo "demo: tracing needs root: run it with sudo" >&2; exit 1; }

port=8600
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
mkdir -p "$out"
rm -f "$out/profile.log"

echo "demo: starting a real vLLM without any tracing flag (about 40 s)"
pid=$("$engine/serve.sh" start --port "$port" --log "$out/vllm.log" -- \
	--num-gpu-blocks-override 12 --max-num-batched-tokens 256 --enable-auto-tool-choice --tool-call-parser hermes)
traffic=
profile=
cleanup() {
	[ -z "$traffic" ] || kill "$traffic" 2>/dev/null || true
	[ -z "$profile" ] || kill "$profile" 2>/dev/null || true
	echo "demo: stopping the engine, process $pid"
	"$engine/serve.sh" stop "$pid"
}
trap cleanup EXIT

# What the engine compiles on first use takes seconds and would be most of the picture.
bin/workload --url "http://127.0.0.1:$port" --scenarios chat,logprobs --log /dev/null 2>/dev/null

bin/inferspan ps
echo "demo: traffic for $seconds s, traced from outside"
bin/inferspan profile --pid "$pid" --duration "${seconds}s" --out "$out" 2> >(tee "$out/profile.log" >&2) &
profile=$!
# Requests that came before the probes would be in the summary as seen in part.
for ((i = 0; i < 600; i++)); do
	if grep -qs attached "$out/profile.log" || ! kill -0 "$profile" 2>/dev/null; then break; fi
	sleep 0.1
done
bin/workload --url "http://127.0.0.1:$port" --server generate,tools,small-kv --for "$((seconds > 8 ? seconds - 8 : 1))s" --log "$out/workload.jsonl" 2>"$out/workload.log" &
traffic=$!
wait "$profile"
profile=
if ! wait "$traffic"; then
	traffic=
	cat "$out/workload.log" >&2
	exit 1
fi
traffic=
echo "demo: $(wc -l <"$out/workload.jsonl") requests were sent; spans, metrics and the workload's own log are in $out"
