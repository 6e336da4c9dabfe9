"""Compiles kernels/src/cuda/device/*.cu to PTX with NVRTC, and that with ptxas for cards; needs no GPU.

    scripts/cuda_kernels.sh            # writes kernels/src/cuda/ptx
    scripts/cuda_kernels.sh --check    # compiles again, and fails where a kernel does not compile or the PTX in the tree is another

Either fails where a driver would refuse the PTX: ptxas is the compiler in the driver.

PTX is kept in the tree for hosts with nothing but a driver. A driver takes no PTX newer than itself: the compiler is
pinned to the release of the oldest driver that is supported (cuda_kernels.txt).
"""

import argparse
import collections
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent / "kernels/src/cuda"
ARCHITECTURES = ["80", "90"]
# Newer cards take the PTX of older ones, and nothing here is only for newer ones: the first is kept.
KEPT = ARCHITECTURES[0]
# Cards that the PTX is assembled for: all that its own architecture's is for, and what is only for newer ones there.
CARDS = {"80": ["80", "89", "90"], "90": ["90"]}
# Bytes of registers that a kernel may put aside in memory: ptxas keeps to a kernel's launch bounds by that. The widest heads'
# kernel puts 36 aside once, before its loop.
SPILLED = 64
OPTIONS = ["--std=c++17", "--fmad=false", "--device-as-default-execution-space"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--nvrtc", required=True, help="libnvrtc.so.12")
    parser.add_argument("--ptxas", required=True, help="the assembler")
    args = parser.parse_args()
    compiler = Nvrtc(args.nvrtc)
    wrong = 0
    # The assembler runs beside the compiler, which compiles one file after the other.
    with ThreadPoolExecutor(2) as assembler:
        asked = []
        for source in sorted((ROOT / "device").glob("*.cu")):
            for architecture in ARCHITECTURES:
                ptx, log = compiler.compile(source, f"compute_{architecture}")
                if log:
                    print(log, file=sys.stderr)
                if ptx is None:
                    wrong += 1
                    continue
                # PTX may call what nobody has, and a driver is the first to say so.
                for card in CARDS[architecture]:
                    asked.append((source.name, architecture, assembler.submit(assembled, args.ptxas, ptx, card)))
                for complaint in refused(ptx):
                    print(f"{source.name} for {architecture}: {complaint}", file=sys.stderr)
                    wrong += 1
                if architecture != KEPT:
                    continue
                kept = ROOT / "ptx" / f"{source.stem}.ptx"
                if not args.check:
                    kept.write_text(ptx)
                    print(f"{kept.relative_to(ROOT)}: {len(ptx)} bytes, {ptx.count('.entry')} kernels")
                elif not kept.exists() or not alike(kept.read_text(), ptx):
                    print(f"{kept.relative_to(ROOT)} is not what {source.name} compiles to: run scripts/cuda_kernels.sh", file=sys.stderr)
                    wrong += 1
        for name, architecture, complaints in asked:
            for complaint in complaints.result():
                print(f"{name} for {architecture}: {complaint}", file=sys.stderr)
                wrong += 1
    noted = ROOT / "ptx/sources.txt"
    if not args.check and not wrong:
        noted.write_text(sources())
    elif args.check and noted.read_text() != sources():
        print("ptx/sources.txt is of other sources: run scripts/cuda_kernels.sh", file=sys.stderr)
        wrong += 1
    if args.check and not wrong:
        print(f"all kernels compile, NVRTC {compiler.version()}, ptxas takes them, and the PTX in the tree is theirs")
    return 1 if wrong else 0


def refused(ptx):
    """Functions that are only named: a driver has none to put there, and refuses the module."""
    return re.findall(r"\.extern \.func.*", ptx)


def assembled(ptxas, ptx, card):
    """What the assembler says against PTX on such a card."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [ptxas, "-v", f"-arch=sm_{card}", file.name, "-o", "/dev/null"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        return [f"sm_{card}: {done.stdout.strip() or f'ptxas ends with {done.returncode}'}"]
    spills = re.findall(r"Function properties for (\S+)\s.*?(\d+) bytes spill stores", done.stdout)
    return [f"sm_{card}: {kernel} puts {size} bytes of registers aside" for kernel, size in spills if int(size) > SPILLED]


def alike(kept, ptx):
    """Whether both can be of one source. In what order NVRTC puts instructions, and how it numbers registers, follows from addresses
    in its memory where a kernel leaves it a choice; so what is kept is told by its hash (sources.txt), and here by its kernels,
    what they are handed, and how many instructions of each kind they have, give or take one in a hundred."""
    if kept == ptx:
        return True
    declared = re.compile(r"^\s*(?:\.visible )?\.entry.*|^\s*\.param .*|^\.maxntid.*|^\s*\.shared \.align.*", re.M)
    signature = declared.findall
    counts = [collections.Counter(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z0-9.]+)", text, re.M)) for text in (kept, ptx)]
    apart = sum(((counts[0] - counts[1]) + (counts[1] - counts[0])).values())
    return signature(kept) == signature(ptx) and 100 * apart <= sum(counts[0].values())


def sources():
    """A hash of every source, and of what was made of them: a test without NVRTC sees by it that PTX is out of date."""
    files = sorted((ROOT / "device").iterdir()) + sorted((ROOT / "ptx").glob("*.ptx"))
    return "".join(f"{file.name} {fnv(file.read_bytes()):016x}\n" for file in files)


def fnv(data):
    """FNV-1a of 64 bits."""
    hash_ = 0xCBF29CE484222325
    for byte in data:
        hash_ = (hash_ ^ byte) * 0x100000001B3 % (1 << 64)
    return hash_


class Nvrtc:
    def __init__(self, path):
        folder = pathlib.Path(path).parent
        for builtins in folder.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(path)

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(self, source, architecture):
        headers = sorted((ROOT / "device").glob("*.cuh"))
        texts = (ctypes.c_char_p * len(headers))(*[h.read_bytes() for h in headers])
        names = (ctypes.c_char_p * len(headers))(*[h.name.encode() for h in headers])
        program = ctypes.c_void_p()
        self.must(self.library.nvrtcCreateProgram(
            ctypes.byref(program), source.read_bytes(), source.name.encode(), len(headers), texts, names))
        options = [o.encode() for o in OPTIONS + [f"--gpu-architecture={architecture}"]]
        failed = self.library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = self.text(program, "ProgramLog").strip()
        ptx = None if failed else tidy(self.text(program, "PTX"))
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return ptx, log

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.must(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self.must(getattr(self.library, f"nvrtcGet{what}")(program, buffer))
        return buffer.value.decode()

    def must(self, result):
        if result != 0:
            raise SystemExit(f"NVRTC answers {result}")


def tidy(ptx):
    """Without comments and empty lines: they say nothing to a driver."""
    lines = (re.sub(r"\s*//.*", "", line).rstrip() for line in ptx.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


if __name__ == "__main__":
    sys.exit(main())
