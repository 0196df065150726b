#!/bin/bash
# Unpacks the CPython builds in pythons.lock for tests, each into a folder of its own in
# ${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}/pythons (600 MB).
#
# usage: install.sh
#
# They come as a Go module, by the go command: pinned by hash, no dependency of this
# module. Running it again does nothing when all are there, and waits when another run
# is at work.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}/pythons
module=github.com/kluctl/go-embed-python

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }

case $(uname -m) in
x86_64) arch=linux-amd64 ;;
aarch64) arch=linux-arm64 ;;
*) die "no builds for $(uname -m)" ;;
esac

[ $# -eq 0 ] || die "no arguments expected"
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
while read -r version sum; do
	case $version in '' | '#'*) continue ;; esac
	dir=$cache/${version%%-*}
	[ "$(cat "$dir/.complete" 2>/dev/null)" = "$sum" ] && continue
	say "CPython ${version%%-*} into $dir"
	# In an empty folder, so that no go.mod is looked at or changed.
	empty=$(mktemp -d)
	info=$(cd "$empty" && GOFLAGS=-mod=mod GOWORK=off go mod download -json "$module@v0.0.0-$version")
	rmdir "$empty"
	field() { printf '%s' "$info" | sed -n "s/.*\"$1\": \"\\(.*\\)\".*/\\1/p"; }
	[ "$(field Sum)" = "$sum" ] || die "the module $module@v0.0.0-$version has the hash $(field Sum), pythons.lock has $sum"
	from="$(field Dir)/python/internal/data/$arch"
	[ -d "$from" ] || die "no $arch in $module@v0.0.0-$version"
	rm -rf "$dir"
	cp -r --no-preserve=mode "$from" "$dir"
	find "$dir" -name '*.gz' -exec gunzip -f {} +
	chmod +x "$dir"/bin/*
	"$dir/bin/python${version%.*}" -c 'import sys' || die "$dir does not run"
	printf '%s\n' "$sum" >"$dir/.complete"
done <"$here/pythons.lock"
