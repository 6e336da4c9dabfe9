#!/usr/bin/env python3
"""Rust files that no program has: `scripts/forgotten_files.py` prints each, and fails if there is one.

The compiler reads what a `mod` names and is silent about the rest, so a file of tests without its line in `tests/main.rs` would be
tests that nobody runs. Looked at are `src`, `tests` and `benches` of each crate.

Fuzz targets are of no workspace, and nothing here compiles them. So of these it is the other way round: what a target names (a file by
`mod`, a module of the crate that it is for by `use`, what files that it takes from tests have of `crate`) must be there.
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


INLINE = re.compile(r"^(\s*)(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*([;{])")


def taken(file):
    """What a fuzz target's `mod`s name: for each the places where its file may be."""
    inside, path = [(-1, file.parent)], None
    for line in file.read_text().splitlines():
        if found := PATH.match(line):
            path = found[1]
        elif found := INLINE.match(line):
            indent, name = len(found[1]), found[2]
            while inside[-1][0] >= indent:
                inside.pop()
            folder = inside[-1][1]
            if found[3] == "{":
                inside.append((indent, folder / (path or name)))
            else:
                yield name, [folder / path] if path else [folder / f"{name}.rs", folder / name / "mod.rs"]
            path = None
        elif line.strip() and not line.lstrip().startswith(("#", "//")):
            path = None


def paths(tree, before=()):
    """Paths of a `use`: `a::{b, c::D}` is `a::b` and `a::c::D`."""
    depth, part, parts = 0, "", []
    for letter in tree + ",":
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
            continue
        depth += {"{": 1, "}": -1}.get(letter, 0)
        part += letter
    for part in filter(None, parts):
        head, brace, rest = part.partition("{")
        names = tuple(name.strip() for name in head.split("::") if name.strip())
        if brace:
            yield from paths(rest.rsplit("}", 1)[0], before + names)
        else:
            yield before + names


def is_there(crate, names):
    """Whether a crate has what `use` names: modules are files, and what the last name is stands in its module's file."""
    folder, file = crate / "src", crate / "src/lib.rs"
    for at, name in enumerate(names):
        inner = next((f for f in (folder / f"{name}.rs", folder / name / "mod.rs") if f.is_file()), None)
        if inner is None:
            return at + 1 == len(names) and (name == "self" or re.search(rf"\b{name}\b", file.read_text()) is not None)
        folder, file = folder / name, inner
    return True


USE = re.compile(r"^\s*(?:pub\s+)?use\s+([^;]+);", re.M)


def broken(crate):
    """What a crate's fuzz targets name that is not there, as sentences."""
    manifest = crate / "fuzz/Cargo.toml"
    if not manifest.is_file():
        return
    package = re.search(r'^name = "([^"]+)"', (crate / "Cargo.toml").read_text(), re.M)[1].replace("-", "_")
    for name in re.findall(r'^path = "([^"]+)"', manifest.read_text(), re.M):
        target = crate / "fuzz" / name
        where = target.relative_to(ROOT).as_posix()
        if not target.is_file():
            yield f"{where}: {manifest.relative_to(ROOT)} names it, and it is not there"
            continue
        has, files = set(), [target]
        for module, places in taken(target):
            has.add(module)
            found = [place for place in places if place.is_file()]
            files += found
            if not found:
                yield f"{where}: its `mod {module}` is not there"
        used = [names for use in USE.findall(target.read_text()) for names in paths(use)]
        has |= {names[-1] for names in used}
        for names in used:
            if names[0] == package and not is_there(crate, names[1:]):
                yield f"{where}: `{'::'.join(names)}` is not there"
        for file in files[1:]:
            needs = {names[1] for use in USE.findall(file.read_text()) for names in paths(use) if names[0] == "crate"}
            for missing in sorted(needs - has):
                yield f"{where}: {file.resolve().relative_to(ROOT)} has `crate::{missing}`, and the target has none"


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
    lacking = [sentence for crate in crates for sentence in broken(crate)]
    for sentence in lacking:
        print(sentence)
    if not forgotten and not lacking:
        print(f"all {len(everything)} files are in some program, and fuzz targets have what they name")
    return 1 if forgotten or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
