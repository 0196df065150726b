# Where the CUDA build of the engine lives. Sourced by install.sh and serve.sh, after common.sh.

VLLM_VERSION=0.32.0

ENGINE="vLLM $VLLM_VERSION for CUDA"
VENV=$CACHE/vllm-cuda-$VLLM_VERSION
REQUIREMENTS=$ENGINES/vllm-cuda/requirements.lock
NEED_MB=7500
RIG=$CACHE/cuda-rig # made by tests/gpu/rig/build.sh
