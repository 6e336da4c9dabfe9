#!/usr/bin/env bash
# Compiles the CUDA kernels to PTX, or checks those in the tree (--check); see cuda_kernels.py. Fetches NVRTC from PyPI the
# first time, and ends with 3 where it cannot.
set -euo pipefail
cd "$(dirname "$0")/.."
here=target/cuda-kernels
library=$here/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
if [ ! -e "$library" ]; then
    mkdir -p "$here"
    if ! python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --target "$here" -r scripts/cuda_kernels.txt; then
        echo "NVRTC could not be installed from PyPI (scripts/cuda_kernels.txt): the CUDA kernels were not compiled" >&2
        exit 3
    fi
fi
exec python3 scripts/cuda_kernels.py --nvrtc "$library" "$@"
