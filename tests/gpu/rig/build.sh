#!/bin/bash
# Builds the fake GPU: libraries with the names of NVIDIA's, in lib/ of the output folder.
#
# usage: build.sh
#
# The folder is cuda-rig in ${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}.
# Needs gcc, Python 3.12 with venv, and PyPI for NVIDIA's headers (4 MB, headers.lock).
# Running it again does nothing when nothing has changed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../engines/common.sh"

out=$CACHE/cuda-rig

stamp=$(find "$here" -name '*.[ch]' -o -name '*.py' -o -name '*.lock' -o -name build.sh | LC_ALL=C sort | xargs cat | sha256sum | cut -d' ' -f1)

# fetch_headers: NVIDIA's files, unpacked beside the libraries.
fetch_headers() {
	local want python wheel
	want=$(stamp_of 1 "$here/headers.lock")
	! stamped "$out/headers" "$want" || return 0
	python=$(find_python) || die "no Python 3.12 with venv found: name one in INFERSPAN_PYTHON"
	say "NVIDIA's headers into $out/headers"
	rm -rf "$out/headers" "$work/venv"
	"$python" -m venv "$work/venv"
	"$work/venv/bin/python" -m pip download -q --no-deps --require-hashes --only-binary=:all: --no-cache-dir \
		--disable-pip-version-check --platform manylinux2014_x86_64 -d "$work/wheels" -r "$here/headers.lock"
	for wheel in "$work"/wheels/*.whl; do
		"$python" -m zipfile -e "$wheel" "$out/headers"
	done
	echo "$want" >"$out/headers/.complete"
}

# exported FILE: names of the symbols that a library defines.
exported() { nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' | LC_ALL=C sort -u; }

# library NAME SOURCES FLAGS...
library() {
	local name=$1 folder=$2
	shift 2
	gcc -O2 -g -fPIC -shared -fvisibility=hidden -Wall -Wextra -Werror -Wno-unused-parameter \
		-I"$work" -I"$include" -o "$work/$name" "$here/$folder"/*.c -Wl,-soname,"$name" -Wl,--no-undefined "$@" \
		-ldl -lpthread
}

build_runtime() {
	local real=$include/../lib/libcudart.so.13
	echo 'libcudart.so.13 { global: cuda*; __cuda*; local: *; };' >"$work/runtime.map"
	local flags=(-Wl,-Bsymbolic -Wl,--version-script="$work/runtime.map")
	# Every name that the real runtime exports and that is not written here becomes a stub.
	: >"$work/runtime_stubs.h"
	library libcudart.so.13 cudart "${flags[@]}" -Wno-unused-function
	LC_ALL=C comm -23 <(exported "$real") <(exported "$work/libcudart.so.13") | sed 's/.*/STUB(&)/' >"$work/stubs"
	mv "$work/stubs" "$work/runtime_stubs.h"
	library libcudart.so.13 cudart "${flags[@]}"
}

main() {
	[ $# -eq 0 ] || die "no arguments expected"
	command -v gcc nm >/dev/null || die "gcc and nm are needed (Debian packages gcc, binutils)"
	mkdir -p "$out/lib"
	if stamped "$out" "$stamp"; then
		say "the fake GPU is in $out"
		return
	fi
	rm -f "$out/.complete"
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	fetch_headers
	include=$out/headers/nvidia/cu13/include
	python3 "$here/cuda/names.py" "$include" "$include/../lib/libcudart.so.13" "$work" >&2
	library libcuda.so.1 cuda
	build_runtime
	library libfakecublas.so cublas
	library libnccl.so.2 nccl
	library libnvidia-ml.so.1 nvml -DNVML_NO_UNVERSIONED_FUNC_DEFS
	# A rename: a process that runs keeps the file that it has.
	mv "$work"/lib*.so* "$out/lib/"
	echo "$stamp" >"$out/.complete"
	say "the fake GPU is in $out"
}

main "$@"
