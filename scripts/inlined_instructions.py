#!/usr/bin/env python3
"""Whether the processor's instructions are part of the kernels that use them, and no functions that these call.

    scripts/inlined_instructions.py [RLIB]     of the kernels as `cargo test` has built them; RLIB is another build of them

A loop that is written once for all instruction sets has its instructions from whoever calls it, and only where all of it is inlined
there. What a library's function calls (`std::array::from_fn`, `map`) may not be, and then each instruction in it is a call: the numbers
are the same, and a product takes ten times as long. So this reads the compiled crate, and names every function outside of
`core::arch` that calls one of its instructions. It ends with 1 where there is one, and says so where there is nothing to read or no
objdump (binutils). Of x86 alone: elsewhere every function has the instructions that kernels use.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
# A relocation of a call, or of the address of a function.
CALL = re.compile(r"R_X86_64_(?:PLT32|PC32|GOTPCREL\w*)\s+(core::core_arch::\S.*?)(?:-0x[0-9a-f]+)?$")


def newest():
    folder = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "debug/deps"
    built = sorted(folder.glob("libtsnode_kernels-*.rlib"), key=lambda path: path.stat().st_mtime)
    return built[-1] if built else None


def called(rlib):
    """How often each function outside of `core::arch` calls each of its instructions."""
    command = ["objdump", "--disassemble", "--reloc", "--demangle", "--no-show-raw-insn", str(rlib)]
    calls, function = Counter(), ""
    # What else is in the archive is no object, of which objdump complains.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace") as said:
        functions = 0
        for line in said.stdout:
            if line[0] != " " and (named := FUNCTION.match(line.rstrip())):
                function = named[1]
                functions += "tsnode_kernels" in function
            elif "core_arch" in line and "R_X86_64" in line and "core_arch" not in function:
                if call := CALL.search(line.strip()):
                    calls[function, call[1]] += 1
    return calls, functions


def main():
    rlib = Path(sys.argv[1]) if len(sys.argv) > 1 else newest()
    if platform.machine() not in ("x86_64", "AMD64"):
        print("this is no x86 processor: every function has the instructions that kernels use")
    elif rlib is None or shutil.which("objdump") is None:
        print("nothing to read (cargo test --no-run), or no objdump (binutils): whether instructions are inlined was not checked")
    else:
        calls, functions = called(rlib)
        if not functions:
            print(f"{rlib}: objdump finds no function of the kernels in it")
            return 1
        for (function, instruction), count in calls.most_common():
            print(f"{function} calls {instruction} {count} times: a loop (`array_of!`) in place of a closure is inlined")
        if calls:
            return 1
        print(f"none of {functions} functions calls an instruction")
    return 0


if __name__ == "__main__":
    sys.exit(main())
