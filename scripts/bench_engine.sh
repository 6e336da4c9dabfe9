#!/usr/bin/env bash
# tsnode's engine beside llama.cpp on the same files; see bench_engine.py. Builds llama.cpp from PyPI the first time, and a release of
# tsnode, or TSNODE names one that has been built already.
set -euo pipefail
cd "$(dirname "$0")/.."
here=target/bench-engine
mkdir -p "$here"
if [ ! -x "$here/venv/bin/python" ]; then
    python3 -m venv "$here/venv"
    # GCC 12 drops the stores that fill the tiles' configuration, and llama.cpp with AMX then dies at its first prompt. Where there
    # are no tiles it is built as it comes.
    flags=""
    if grep -q amx_tile /proc/cpuinfo; then flags="-DCMAKE_CXX_FLAGS='-fno-tree-dse -fno-dse'"; fi
    CMAKE_ARGS="$flags" "$here/venv/bin/pip" install --quiet --disable-pip-version-check -r scripts/bench_engine.txt
fi
[ -n "${TSNODE:-}" ] || cargo build --release --quiet --workspace --bin tsnode
exec "$here/venv/bin/python" scripts/bench_engine.py "$@"
