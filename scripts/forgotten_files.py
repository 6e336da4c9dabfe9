#!/usr/bin/env python3
"""Rust files that no program has: `scripts/forgotten_files.py` prints each, and fails if there is one.

The compiler reads what a `mod` names and is silent about the rest, so a file of tests without its line in `tests/main.rs` would be
tests that nobody runs. Looked at are `src`, `tests` and `benches` of each crate.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = ["protocol", "coordinator", "coordinator/simulator", "kernels", "node", "testnet"]
MOD = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", re.M)
PATH = re.compile(r'^\s*#\[path = "([^"]+)"\]', re.M)


def named(file):
    """Files that a file's `mod`s and paths name."""
    text = file.read_text()
    # What is in `a.rs` lies in `a/`, but for the first file of a program or a folder. That is known of the latter by name, of
    # programs under `tests` and `benches` not, so both places are.
    folders = {file.parent, file.parent / file.stem}
    if file.name in ("mod.rs", "lib.rs", "main.rs"):
        folders = {file.parent}
    for name in MOD.findall(text):
        for folder in folders:
            yield folder / f"{name}.rs"
            yield folder / name / "mod.rs"
    for path in PATH.findall(text):
        for folder in folders:
            yield (folder / path).resolve()


def programs(crate):
    """Files that cargo begins with."""
    manifest = (crate / "Cargo.toml").read_text()
    for path in re.findall(r'^path = "([^"]+)"', manifest, re.M):
        yield crate / path
    yield from (crate / "src/lib.rs", crate / "src/main.rs")
    for kind in ("tests", "benches"):
        if f"auto{kind} = false" not in manifest:
            yield from (crate / kind).glob("*.rs")
            yield from (crate / kind).glob("*/main.rs")


def main():
    crates = [ROOT / crate for crate in CRATES]
    everything = {
        file for crate in crates for part in ("src", "tests", "benches") for file in (crate / part).rglob("*.rs")
    }
    reached = {file for crate in crates for file in programs(crate)} & everything
    waiting = list(reached)
    while waiting:
        new = {file.resolve() for file in named(waiting.pop())} & everything - reached
        reached |= new
        waiting += new
    forgotten = sorted(file.relative_to(ROOT).as_posix() for file in everything - reached)
    for file in forgotten:
        print(f"{file}: no `mod` names it, so nobody compiles or runs it")
    if not forgotten:
        print(f"all {len(everything)} files are in some program")
    return 1 if forgotten else 0


if __name__ == "__main__":
    sys.exit(main())
