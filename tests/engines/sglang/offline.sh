#!/bin/bash
# Runs offline.py with the engine that install.sh put into the cache folder.
#
# usage: offline.sh [OPTIONS OF sglang.Engine, AS JSON]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../common.sh"
. "$here/env.sh"
[ -f "$VENV/.complete" ] && [ -f "$MODEL/config.json" ] || die "no engine in $CACHE: run install.sh first"

# As in serve.sh.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=1 SGLANG_USE_CPU_ENGINE=1
exec "$VENV/bin/python" "$here/offline.py" "$MODEL" "$@"
