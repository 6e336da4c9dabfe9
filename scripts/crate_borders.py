#!/usr/bin/env python3
"""Who may use which crate: `scripts/crate_borders.py` prints each use that is outside its crate's border, and fails if there is one.

Cargo.toml says which crate may use which; where only a part of a crate may, it is said here.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What a crate is called in source, where it lies, and who may use it: what is simulated or compared never runs in a node, so
# among the node's modules only the verbs that ask for it know of it.
BORDERS = {
    "tsnode_simulator": (
        "coordinator/simulator/",
        [
            "node/src/cli/bench",
            "node/src/cli/links",
            "node/src/cli/plan",
            "node/src/cli/simulate",
            "node/src/cli/testnet/replay",
            "node/src/cli/testnet/sharing",
            "node/tests/fuzzing",
        ],
    ),
}


def main():
    outside = []
    for crate, (home, allowed) in BORDERS.items():
        for file in sorted(ROOT.rglob("*.rs")):
            name = file.relative_to(ROOT).as_posix()
            if name.startswith(("target/", home)) or "/target/" in name:
                continue
            if any(name == f"{part}.rs" or name.startswith(f"{part}/") for part in allowed):
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if re.search(rf"\b{crate}\b", line.split("//")[0]):
                    outside.append(f"{name}:{number}: {line.strip()}\n    only {', '.join(allowed)} may use {crate}")
    print("\n".join(outside) or "every crate is used where it may be")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
