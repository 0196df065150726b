# Where the engine lives. Sourced by install.sh and serve.sh, after common.sh.

VLLM_VERSION=0.32.0

ENGINE="vLLM $VLLM_VERSION"
VENV=$CACHE/vllm-$VLLM_VERSION
REQUIREMENTS=$ENGINES/vllm/requirements.lock
NEED_MB=7500
