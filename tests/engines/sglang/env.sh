# Where the engine lives. Sourced by install.sh, serve.sh and pd.sh, after common.sh.
# VERSION picks one of the versions that have a list of packages here.

SGLANG_VERSION=${VERSION:-0.5.23}

ENGINE="SGLang $SGLANG_VERSION"
VENV=$CACHE/sglang-$SGLANG_VERSION
REQUIREMENTS=$ENGINES/sglang/requirements-$SGLANG_VERSION.lock
NEED_MB=9500
# The tiny model as a Qwen3, which DP attention needs (INFERSPAN_MODEL=$CACHE/tiny-qwen3).
QWEN3=$CACHE/tiny-qwen3

[ -f "$REQUIREMENTS" ] || die "no list of packages for SGLang $SGLANG_VERSION: VERSION is one of$(cd "$ENGINES/sglang" && printf ' %s' requirements-*.lock | sed 's/requirements-//g; s/\.lock//g')"
