#!/bin/bash
# Generates everything again and fails if a committed file differs.
#
# usage: check-generate.sh
#
# It works on a copy of the tracked files, so that the tree stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
	[ ! -e "$f" ] || printf '%s\0' "$f"
done | tar --null -T - -cf - | tar -xf - -C "$copy"
make -s -C "$copy" generate
differs=$(git ls-files | while read -r f; do [ ! -e "$f" ] || cmp -s "$f" "$copy/$f" || echo "$f"; done)
if [ -n "$differs" ]; then
	printf 'check-generate: these differ from what "make generate" makes:\n%s\n' "$differs" >&2
	exit 1
fi
echo "check-generate: all generated files are up to date"
