#!/bin/bash
# Installs the CUDA build of vLLM, the fake GPU that it runs on and the tiny model
# into a cache folder.
#
# usage: install.sh
#
# The folder is ${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}; it needs 7 GB. The fake
# GPU is compiled with gcc; no GPU, driver or CUDA toolkit is needed.
# Every package is pinned by hash in requirements.lock: those that vLLM asks for, less the
# libraries of GPU kernels that this setup does not use (flashinfer, CUTLASS DSL, tilelang and so on).
# Running it again does nothing when the folder is complete, finishes it when it is not,
# and waits when another run is at work. INFERSPAN_PYTHON names the Python 3.12 to use.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"

# The stamp changes with what the result depends on: raise the number when the steps
# below change it.
stamp=$(stamp_of 1 "$REQUIREMENTS")

complete() { stamped "$VENV" "$stamp" && stamped "$CACHE/tiny" "$(model_stamp)"; }

install_missing() {
	if ! stamped "$VENV" "$stamp"; then
		install_packages --no-cache-dir
		echo "$stamp" >"$VENV/.complete"
	fi
	stamped "$CACHE/tiny" "$(model_stamp)" || install_model
}

[ $# -eq 0 ] || die "no arguments expected"
"$here/../../gpu/rig/build.sh"
installing "$ENGINE"
