#!/usr/bin/env bash
# Compiles the CUDA kernels to PTX, or checks those in the tree (--check), and assembles them; see cuda_kernels.py. Fetches NVRTC
# and ptxas from PyPI the first time, and ends with 3 where it cannot.
set -euo pipefail
cd "$(dirname "$0")/.."
here=target/cuda-kernels
library=$here/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
assembler=$here/nvidia/cuda_nvcc/bin/ptxas
if [ ! -e "$library" ] || [ ! -e "$assembler" ]; then
    mkdir -p "$here"
    # Without --upgrade what shares a folder with something that is there already is left out.
    if ! python3 -m pip install --quiet --upgrade --disable-pip-version-check --no-deps --only-binary=:all: --target "$here" -r scripts/cuda_kernels.txt; then
        echo "NVRTC and ptxas could not be installed from PyPI (scripts/cuda_kernels.txt): the CUDA kernels were not compiled" >&2
        exit 3
    fi
fi
# Addresses that are the same each time have NVRTC order instructions the same way, where the system lets them be.
fixed=()
if setarch -R true 2> /dev/null; then
    fixed=(setarch -R)
fi
exec "${fixed[@]}" python3 scripts/cuda_kernels.py --nvrtc "$library" --ptxas "$assembler" "$@"
