# Where the engine lives. Sourced by install.sh and serve.sh.

VLLM_VERSION=0.32.0

CACHE=${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}
VENV=$CACHE/vllm-$VLLM_VERSION
# INFERSPAN_MODEL is another path of the same model, for recordings that name no folder of this machine.
MODEL=${INFERSPAN_MODEL:-$CACHE/tiny}

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }
