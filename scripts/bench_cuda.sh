#!/usr/bin/env bash
# Checks and times the CUDA kernels on a machine with a card, in one call of under ten minutes, and prints one table; see
# bench_cuda.py. Wants the two programs that `scripts/bench_cuda.sh --build` makes on any machine of the same processor kind.
set -euo pipefail
cd "$(dirname "$0")/.."
here=target/bench-cuda
if [ "${1:-}" = --build ]; then
    mkdir -p "$here"
    cargo build --release -p tsnode
    cp target/release/tsnode "$here/tsnode"
    tests=$(cargo test --release -p tsnode-kernels --lib --no-run --message-format=json |
        python3 -c 'import json, sys; print(next(m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")))')
    cp "$tests" "$here/kernel-tests"
    strip "$here/tsnode" "$here/kernel-tests"
    ls -l "$here"
    exit
fi
exec python3 scripts/bench_cuda.py --folder "$here" "$@"
