#!/bin/bash
# Installs SGLang for the CPU and the tiny model into a cache folder.
#
# usage: install.sh
#
# The folder is ${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}; it needs 9 GB
# for each version, of which VERSION names one (0.5.23, the default, or 0.5.5). Every package
# is pinned by hash in requirements-VERSION.lock. Running it again does nothing when the
# folder is complete, finishes it when it is not, and waits when another run is at work.
# INFERSPAN_PYTHON names the Python 3.12 to use.
#
# With PD=1 it also fetches what the transfer of KV caches over TCP needs (0.5.23 only): the
# libraries of the system that its package links, by apt-get download, unpacked beside it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"

# The stamp changes with what the result depends on: raise the number when the steps
# below change it.
stamp=$(stamp_of 1 "$REQUIREMENTS" "$here"/cpu/*.p* "$here"/cpu/sgl_kernel/*.py)
qwen3_stamp() { stamp_of "$(model_stamp)" "$here/qwen3/config.json"; }

complete() {
	stamped "$VENV" "$stamp" && stamped "$CACHE/tiny" "$(model_stamp)" && stamped "$QWEN3" "$(qwen3_stamp)" &&
		{ [ "${PD:-0}" != 1 ] || [ -d "$VENV/pd" ]; }
}

install_missing() {
	stamped "$VENV" "$stamp" || install_engine
	stamped "$CACHE/tiny" "$(model_stamp)" || install_model
	stamped "$QWEN3" "$(qwen3_stamp)" || install_qwen3
	if [ "${PD:-0}" = 1 ] && ! [ -d "$VENV/pd" ]; then install_pd; fi
}

install_engine() {
	install_packages
	# What SGLang calls on a GPU is not there: see cpu/README.md.
	local site
	site=$(site_packages)
	cp -r "$here/cpu/sgl_kernel" "$site/"
	if [ "$SGLANG_VERSION" != 0.5.5 ]; then cp "$here"/cpu/inferspan_cpu.* "$site/"; fi
	SGLANG_USE_CPU_ENGINE=1 "$VENV/bin/python" -W ignore -c 'import sglang, torch; print(sglang.__version__, torch.__version__)' >"$CACHE/install-$(basename "$VENV").check" 2>&1 ||
		die "SGLang cannot be imported, see $CACHE/install-$(basename "$VENV").check"
	echo "$stamp" >"$VENV/.complete"
}

install_qwen3() {
	say "tiny Qwen3 into $QWEN3"
	rm -rf "$QWEN3"
	cp -r "$CACHE/tiny" "$QWEN3"
	cp "$here/qwen3/config.json" "$QWEN3/"
	qwen3_stamp >"$QWEN3/.complete"
}

install_pd() {
	[ "$SGLANG_VERSION" = 0.5.23 ] || die "KV transfer is for 0.5.23"
	local tmp=$VENV/pd.part
	say "libraries for KV transfer into $VENV/pd"
	rm -rf "$tmp"
	mkdir -p "$tmp/debs"
	(cd "$tmp/debs" && apt-get download libibverbs1 libnl-3-200 libnl-route-3-200 librdmacm1 libnuma1 liburing2 >/dev/null) ||
		die "fetching the libraries failed: apt-get download must work (apt-get update)"
	local deb
	for deb in "$tmp"/debs/*.deb; do dpkg -x "$deb" "$tmp"; done
	rm -rf "$tmp/debs"
	mv "$tmp" "$VENV/pd"
}

[ $# -eq 0 ] || die "no arguments expected"
installing "$ENGINE"
