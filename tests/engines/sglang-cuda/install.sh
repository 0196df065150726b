#!/bin/bash
# Installs the CUDA kernels of SGLang beside the SGLang that ../sglang/install.sh
# installs, and the fake GPU that they run on, into a cache folder.
#
# usage: install.sh
#
# The folder is ${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}; it needs 2.5 GB more than
# SGLang. Every package is pinned by hash in requirements.lock: the kernels, and nvcc with
# its headers, with which SGLang compiles some of its own when it starts.
# Running it again does nothing when the folder is complete, finishes it when it is not,
# and waits when another run is at work. INFERSPAN_PYTHON names the Python 3.12 to use.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"

# The stamp changes with what the result depends on: raise the number when the steps
# below change it.
stamp=$(stamp_of 1 "$REQUIREMENTS" "$here/inferspan_no_cutedsl.py")

complete() { stamped "$VENV" "$stamp"; }

install_missing() {
	local site cuda
	install_packages --no-cache-dir
	site=$(site_packages)
	# The packages of SGLang come after ours on the path, so that the kernels here win.
	find "$BASE/lib" -maxdepth 2 -name site-packages >"$site/zz_base.pth"
	cp "$here/inferspan_no_cutedsl.py" "$site/"
	echo 'import inferspan_no_cutedsl' >"$site/inferspan_no_cutedsl.pth"
	cuda=$site/nvidia/cu13
	chmod +x "$cuda"/bin/* "$cuda"/nvvm/bin/*
	ln -sfn lib "$cuda/lib64"
	ln -sf "$RIG/lib/libcudart.so.13" "$cuda/lib/libcudart.so"
	echo "$stamp" >"$VENV/.complete"
}

[ $# -eq 0 ] || die "no arguments expected"
VERSION=$SGLANG_VERSION "$here/../sglang/install.sh"
"$here/../../gpu/rig/build.sh"
installing "$ENGINE"
