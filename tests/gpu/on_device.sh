#!/bin/bash
# What only a machine with a GPU can tell: which functions of the real driver and runtime
# are reached, whether each launch of the runtime shows as one of the driver, what NVML says.
#
# usage: on_device.sh PYTHON
#
# PYTHON is one with a CUDA build of torch. Needs root (probes), Go and a C compiler (NVML).
# It changes nothing and ends what it starts. The output goes to stdout, for docs/gpu.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

[ $# -eq 1 ] || { sed -n 2,10p "$0" >&2; exit 2; }
python=$1
[ "$(id -u)" = 0 ] || { echo "on_device.sh: root is needed to attach probes" >&2; exit 1; }

section() { printf '\n== %s\n' "$*"; }

section machine
uname -srm
nvidia-smi --query-gpu=index,name,driver_version,mig.mode.current,memory.total --format=csv
"$python" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda, torch.cuda.get_device_name(0))'

section "check"
make -s build-nvml
bin/inferspan check || echo "check ends with $?"

failed=0

section "NVML (tests/gpu, TestDeviceNVML)"
CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" INFERSPAN_DEVICE_PYTHON=$python \
	go test -count=1 -v -run '^TestDeviceNVML$' ./tests/gpu || failed=1

section "probes on a real driver (tests/gpu, TestDevice)"
INFERSPAN_DEVICE_PYTHON=$python go test -count=1 -v -run '^TestDevice$' ./tests/gpu || failed=1

exit $failed
