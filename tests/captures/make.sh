#!/bin/bash
# Records the scenarios again, one file each, and the goldens of their replay.
#
# usage: make.sh [NAME...]
#
# Needs root, "make build" and the installed engines, for that on the fake GPU a C compiler.
# Without names it makes all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=tests/captures
seed=7

# name | server | scenarios | flags of the workload
captures='
chat|generate|chat|
stream|generate|stream|
burst|generate|burst|--count 32
long|generate|long|
prefix|generate|prefix|
preempt|generate|preempt|
leave|generate|leave-early,leave-mid|
invalid|generate|invalid,other|
n-logprobs|generate|n,logprobs|
stop|generate|stop|
completions|generate|completions|
responses-messages|generate|responses,messages|
connections|generate|keep-alive,pipeline,chunked,headers|
tools|generate|tools|
pooling|pooling|embeddings,score|
kv|kv|long|
sglang|sglang|stream,prefix,leave-mid|--count 2
sglang-usage|sglang_metrics|n,leave-mid,queue|--count 3
sglang-alone|sglang|chat,prefix,long|--count 2
sglang-0.5.5|sglang_0_5_5|chat,stream,leave-mid|--count 3
cuda|cuda|chat,stream|--count 2
tensor-parallel|cuda_2|chat|--count 3
'
flags_generate="--num-gpu-blocks-override 12 --max-num-batched-tokens 256 --enable-auto-tool-choice --tool-call-parser hermes"
flags_pooling="--runner pooling --convert embed"

work=$(mktemp -d)
# What is played is in the store, and is loaded.
flags_kv="--no-enable-prefix-caching --kv-transfer-config {\"kv_connector\":\"AsyncStore\",\"kv_connector_module_path\":\"asyncstore\",\"kv_role\":\"kv_consumer\",\"kv_connector_extra_config\":{\"shared_storage_path\":\"$work/store\",\"delay\":0.03}}"
# Nothing is to be seen of a scheduler that polls while it is idle.
flags_sglang="--sleep-on-idle --chunked-prefill-size 64"
# Requests wait, and are given up then; the engine counts what it has done for the others.
flags_sglang_metrics="--sleep-on-idle --chunked-prefill-size 64 --max-running-requests 1 --enable-metrics"
flags_sglang_0_5_5="--sleep-on-idle --chunked-prefill-size 64"
flags_cuda_2= # two workers
flags_cuda="--max-num-batched-tokens 256 --enable-auto-tool-choice --tool-call-parser hermes"
. tests/engines/common.sh
# A path that is the same on every machine: recordings hold it.
mkdir -p /tmp/models
ln -sfn "$CACHE/tiny" /tmp/models/tiny
export INFERSPAN_MODEL=/tmp/models/tiny
pid=
cleanup() {
	[ -z "$pid" ] || "$engine/serve.sh" stop "$pid"
	rm -rf "$work"
}
trap cleanup EXIT

wanted() {
	[ ${#names[@]} -gt 0 ] || return 0
	local n
	for n in "${names[@]}"; do [ "$n" != "$1" ] || return 0; done
	return 1
}

# resting URL: the engine runs nothing.
resting() {
	case $server in
	sglang*)
		{ curl -sf "$1/v1/loads" || curl -sf "$1/get_load"; } | tr ',' '\n' |
			awk -F: '/"num_(running_|waiting_)?reqs"/ { n += $2; some = 1 } END { exit !some || n != 0 }'
		;;
	*) curl -sf "$1/metrics" | awk '/^vllm:num_requests_(running|waiting)\{/ { n += $2 } END { exit n != 0 }' ;;
	esac
}

# idle URL: waits until the engine runs nothing.
idle() {
	local i
	for ((i = 0; i < 300; i++)); do
		resting "$1" && return
		sleep 0.1
	done
	echo "make.sh: the engine stays busy" >&2
	return 1
}

# counted URL: what the engine has counted, by name.
counted() { curl -sf "$1/metrics" | awk '/^sglang:(num_requests|prompt_tokens|generation_tokens)_total\{/ { sub(/\{.*\}/, ""); n[$1] += $2 } END { for (k in n) print k, n[k] }' | sort; }

names=("$@")
port=8700
for server in generate pooling kv sglang sglang_metrics sglang_0_5_5 cuda cuda_2; do
	engine=tests/engines/vllm
	unset VERSION
	recorder=(bin/inferspan)
	case $server in
	sglang*) engine=tests/engines/sglang ;;
	cuda | cuda_2) engine=tests/engines/vllm-cuda ;;
	esac
	case $server in
	sglang_0_5_5) export VERSION=0.5.5 ;;
	cuda) export CUDA_MODE=graph FAKE_CUDA_KERNEL_NS=20000 ;;
	cuda_2) export CUDA_MODE=graph FAKE_CUDA_KERNEL_NS=20000 CUDA_DEVICES=2 ;;
	esac
	list=$(grep -F "|$server|" <<<"$captures" | while IFS='|' read -r name rest; do if wanted "$name"; then echo "$name|$rest"; fi; done)
	[ -n "$list" ] || continue
	while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
	flags=flags_$server
	unset PYTHONPATH
	if [ $server = kv ]; then export PYTHONPATH=$PWD/$engine/asyncstore; fi
	# shellcheck disable=SC2086
	pid=$("$engine/serve.sh" start --port "$port" --log "$work/engine.log" -- ${!flags})
	url=http://127.0.0.1:$port
	# What compiles on first use is not part of a recording.
	case $server in
	pooling | kv) ;;
	cuda | cuda_2) bin/workload --url "$url" --scenarios chat,burst --seed 1 --log /dev/null ;; # logprobs are not to be had of the fake GPU
	*) bin/workload --url "$url" --scenarios chat,logprobs --seed 1 --log /dev/null 2>/dev/null ;;
	esac
	if [ $server = kv ]; then bin/workload --url "$url" --scenarios long --seed $seed --concurrency 1 --log /dev/null 2>/dev/null; fi
	idle "$url"
	if [ $server = cuda ]; then
		# What NVML says is the rig's: an engine on the first of its GPUs.
		CGO_ENABLED=1 CGO_CFLAGS="-O2 -Wno-deprecated-declarations" go build -trimpath -o "$work/inferspan" ./cmd/tracer
		core=$(pgrep -P "$pid" -f EngineCore)
		recorder=(env LD_LIBRARY_PATH="$CACHE/cuda-rig/lib" FAKE_NVML_PIDS="$core:1024" "$work/inferspan")
	fi
	while IFS='|' read -r name _ scenarios more; do
		: >"$work/record.log" # else the last recording's line is found
		# Whatever probes cost on this machine, the recording has what they see.
		"${recorder[@]}" record --pid "$pid" -o "$dir/$name.isr" --redact --cuda all --probe-work 0 --probe-wait 0 --note "$scenarios, seed $seed" 2>"$work/record.log" &
		recording=$!
		for ((i = 0; i < 600; i++)); do
			if grep -q attached "$work/record.log" || ! kill -0 $recording; then break; fi
			sleep 0.1
		done
		grep -q attached "$work/record.log" || { cat "$work/record.log" >&2; exit 1; }
		if [ $server = sglang_metrics ]; then counted "$url" >"$work/before"; fi
		sleep 3 # until the probes on the interpreters are in place
		# shellcheck disable=SC2086
		bin/workload --url "$url" --scenarios "$scenarios" --seed $seed $more --log /dev/null
		idle "$url"
		if [ $server = sglang_metrics ]; then
			counted "$url" | join "$work/before" - | awk '{ print $1, $3 - $2 }' >"$dir/$name.engine"
		fi
		sleep 1.5 # after a second workers wait, which ends their last pass
		kill -INT $recording
		wait $recording || { cat "$work/record.log" >&2; exit 1; }
		tail -n 1 "$work/record.log"
		size=$(stat -c %s "$dir/$name.isr")
		[ "$size" -le 204800 ] || { echo "make.sh: $name.isr has $size bytes, more than 200 KiB" >&2; exit 1; }
	done <<<"$list"
	"$engine/serve.sh" stop "$pid"
	pid=
done
go test ./tests/captures -count=1 -update
