#!/usr/bin/env python3
"""Which files may know what operating system they are on: `scripts/platform_borders.py` prints each line elsewhere that asks for it, and
fails if there is one.

Everything a system has beyond the standard library is in one room of each crate, which has a half for Unix and one for the rest;
tests of processes (`tests/`), benches and examples are for Unix alone.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What says that a file knows its system.
KNOWS = re.compile(
    r"cfg!?\((?:[^\"\n]*\b)?(?:unix|windows|target_os|target_family)\b|\bos::(?:unix|windows|linux|macos|fd)\b|\b(?:rustix|nix|libc|winapi|windows_sys)::"
    r"|\bsignal::(?:unix|windows)\b|\"/(?:proc|sys)/|\bvar(?:_os)?\(\"(?:HOME|USERPROFILE)\"\)|\bset_reuse_address\b"
)

# The rooms, and in kernels, which is the home of `unsafe`, the files that map memory, load libraries and ask for tiles: each has both
# halves in itself.
ROOMS = [
    "node/src/platform",
    "testnet/src/platform",
    "kernels/src/cpu/avx512/amx",
    "kernels/src/cuda/emulator",
    "kernels/src/cuda/libraries",
    "kernels/src/environment",
    "kernels/src/memory",
    "kernels/src/weights/storage",
]
# A path that is nowhere, for a test.
HARMLESS = "/proc/self/nowhere"


def main():
    outside = []
    for file in sorted(ROOT.glob("*/src/**/*.rs")) + sorted(ROOT.glob("*/*/src/**/*.rs")):
        name = file.relative_to(ROOT).as_posix()
        if name.startswith("target/") or any(name == f"{room}.rs" or name.startswith(f"{room}/") for room in ROOMS):
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            code = line.split("//")[0] if not line.lstrip().startswith("//") else ""
            if KNOWS.search(code) and HARMLESS not in code:
                outside.append(f"{name}:{number}: {line.strip()}")
    if outside:
        outside.append(f"what depends on the operating system is for {', '.join(ROOMS[:2])}")
    print("\n".join(outside) or "operating systems are known where they may be")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
