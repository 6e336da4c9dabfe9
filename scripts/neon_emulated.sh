#!/usr/bin/env bash
# Runs the kernels' unit tests on aarch64 where the processor is another: compiled for it and run by qemu, with products of bytes
# (dotprod) and without. The tests compare bits with the definition, so this says that NEON's are right, not how fast they are.
#   scripts/neon_emulated.sh            arithmetic and what packs KV
#   scripts/neon_emulated.sh engine::   tests with another beginning of their name; '' is all
# Adds the compiler's target if it is missing, and nothing else. Without a linker for aarch64 and qemu it checks types only.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
all=(cpu:: wire:: quant::)
[ $# -gt 0 ] || set -- "${all[@]}"

case $(uname -m) in aarch64 | arm64)
  echo "this is an aarch64 processor: cargo test runs the NEON versions as it is"
  exit
esac
if ! rustup target add "$target" || ! cargo fetch --locked --target "$target"; then
  echo "what compiling for $target takes is not here and not to be had: the NEON versions were not even type-checked"
  exit
fi

for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
  if ! command -v "$tool" > /dev/null; then
    echo "no $tool (Debian: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user): the NEON versions are type-checked only"
    # Checking links nothing, so it does not matter that what dependencies have in C is not compiled.
    exec env CC_aarch64_unknown_linux_gnu=true AR_aarch64_unknown_linux_gnu=true \
      cargo check -p tsnode-kernels --lib --tests --locked --target "$target"
  fi
done

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# A folder of its own: where only types were checked before, what dependencies have in C counts as built and is not there.
export CARGO_TARGET_DIR=target/neon
emulated() {
  local processor=$1
  shift
  echo "-- as $processor"
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L ${QEMU_LD_PREFIX:-/usr/aarch64-linux-gnu} -cpu $processor" \
    cargo test -p tsnode-kernels --lib --locked --target "$target" -- "$@"
}
# With products of bytes every version runs, those without them too; a processor without them has to find that out, and to meet
# none where it computes.
emulated max "$@"
[ "$*" != "${all[*]}" ] || set -- cpu::
emulated cortex-a72 "$@"
