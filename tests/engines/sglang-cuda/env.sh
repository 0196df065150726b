# Where the CUDA build of SGLang lives. Sourced by install.sh and serve.sh, after common.sh.

SGLANG_VERSION=0.5.23

ENGINE="SGLang $SGLANG_VERSION for CUDA"
VENV=$CACHE/sglang-cuda-$SGLANG_VERSION
REQUIREMENTS=$ENGINES/sglang-cuda/requirements.lock
NEED_MB=2500
BASE=$CACHE/sglang-$SGLANG_VERSION # made by ../sglang/install.sh: SGLang itself, and torch with CUDA
RIG=$CACHE/cuda-rig                # made by tests/gpu/rig/build.sh
