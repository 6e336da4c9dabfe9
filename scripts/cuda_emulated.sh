#!/usr/bin/env bash
# Runs a command with the emulator in place of NVIDIA's driver (kernels/src/cuda/emulator/driver.cpp): the host's side makes all
# its calls, where there is no card. For instance
#   TSNODE_TEST_CARD=0 scripts/cuda_emulated.sh cargo test -p tsnode-kernels --lib cuda:: -- --test-threads 1
#   TSNODE_EMULATED_CARDS=3 ...   # the same with three cards in place of one
#   TSNODE_EMULATED_NCCL=used ...  # and with NCCL (emulator/nccl.cpp says what else it can be like)
#   scripts/cuda_emulated.sh target/debug/tsnode bench engine --device cuda:0
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
here=$top/target/cuda-emulated
from=("$top/kernels/src/cuda/device" "$top/kernels/src/cuda/emulator" "$top/scripts/cuda_emulated.sh")
mkdir -p "$here"
# Compiled once for all who come at the same time or later, until something that it is made of is another.
exec 9> "$here/lock"
if command -v flock > /dev/null; then
    flock 9
fi
if ! [ -e "$here/compiled" ] || ! [ -e "$here/libcuda.so.1" ] || [ -n "$(find "${from[@]}" -newer "$here/compiled" -print -quit)" ]; then
    touch "$here/compiled.$$"
    g++ -std=c++17 -O2 -mf16c -mfma -ffp-contract=off -fno-strict-aliasing -shared -fPIC -Wl,-soname,libcuda.so.1 \
        -I "$top/kernels/src/cuda/device" -I "$top/kernels/src/cuda/emulator" "$top/kernels/src/cuda/emulator/driver.cpp" -o "$here/libcuda.so.1.$$"
    # At once, since programs may still run with the one before.
    mv "$here/libcuda.so.1.$$" "$here/libcuda.so.1"
    ln -sf libcuda.so.1 "$here/libcuda.so"
    ln -sf libcuda.so.1 "$here/libnccl.so.2"
    # Last: who is killed before this leaves nothing that counts.
    mv "$here/compiled.$$" "$here/compiled"
fi
# Whoever runs what follows has no part in it.
exec 9>&-
LD_LIBRARY_PATH=$here${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$@"
