#!/usr/bin/env bash
# Checks and times the CUDA kernels on a machine with a card, in one call of under ten minutes, and prints one table; see
# bench_cuda.py. Wants the programs that `scripts/bench_cuda.sh --build` packs into one file on any machine of the same kind
# of processor: `--build dev` builds faster, with the kernels' host side optimised all the same.
set -euo pipefail
cd "$(dirname "$0")/.."
here=target/bench-cuda
packed=$here/programs.tar.xz
if [ "${1:-}" = --build ]; then
    profile=${2:-release}
    tests=$(cargo test --profile "${profile/dev/test}" --workspace --lib --no-run --message-format=json |
        python3 -c 'import json, sys; print(next(m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable") and m["target"]["name"] == "tsnode_kernels"))')
    # All packages, as above: with other features dependencies would be built anew.
    cargo build --profile "$profile" --workspace
    mkdir -p "$here"
    strip -o "$here/tsnode" "target/${profile/dev/debug}/tsnode"
    strip -o "$here/kernel-tests" "$tests"
    tar -C "$here" -cJf "$packed" tsnode kernel-tests
    rm "$here/tsnode" "$here/kernel-tests"
    ls -l "$packed"
    exit
fi
if [ ! -x "$here/tsnode" ]; then
    tar -C "$here" -xJf "$packed"
fi
exec python3 scripts/bench_cuda.py --folder "$here" "$@"
