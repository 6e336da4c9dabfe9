"""Whether any file makes a loader panic, hang, or take memory that the file does not pay for: each loader's fuzz test, for some minutes.

    python3 scripts/fuzz_loaders.py [--minutes 10] [--seed N] [--jobs 2] [--json]
    python3 scripts/fuzz_loaders.py --only experts pickles --minutes 1

Builds the tests (`cargo test --no-run`), and runs each loader's again and again, each time by the next seed, until its minutes are over. The
first seed is drawn and printed where none is given. A run that fails, is not over after --hang seconds, or wants more than --memory GiB is a
finding: its seed and the command that shows it again are printed, and what the test wrote last; its loader is not tried further. Inputs
are examples with changes (kernels/tests/fuzzed.rs, node/tests/fuzzed.rs), or files whose description is changed so that they stay
files (kernels/tests/loader_bounds.rs, kernels/tests/expert_bounds.rs), which proptest makes as small as it can when one fails.

The last line of stdout is the verdict (with --json it is in the document). It ends with 1 where something was found. No nightly compiler
is needed; docs/design/fuzzing.md says how the same targets run under libFuzzer. Linux only; everything it starts ends with it.
"""

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What a loader is called here: what it reads, the test program, the test, and inputs of one run as the test has it (of proptest's, cases).
LOADERS = {
    "safetensors": ("headers, of every kind of weights", "memory", "loader_bounds::changed_headers_are_refused_or_served", 1024),
    "config": ("config.json and indexes", "memory", "loader_bounds::changed_small_files_are_refused_or_served", 1024),
    "gguf": ("GGUF, what describes its tensors; MXFP4 and experts too", "memory", "loader_bounds::changed_gguf_files_are_refused_or_served", 1024),
    "quantised": ("numbers and scales in MXFP4, FP8, GPTQ, AWQ, packed int4", "memory", "loader_bounds::changed_numbers_are_refused_or_served", 192),
    "experts": ("experts' tensors and counts", "memory", "expert_bounds::changed_experts_are_refused_or_served", 256),
    "gguf-bytes": ("GGUF, any bytes of it; K-quants and IQ", "memory", "fuzzed::no_gguf_file_does_harm", 5000),
    "folder": ("config.json, index and safetensors, any bytes", "memory", "fuzzed::no_folder_does_harm", 5000),
    "tokenizers": ("tokenizers, chat templates, settings", "fuzzed", "no_file_of_a_model_does_harm", 3000),
    "pickles": ("PyTorch pickles to import", "fuzzed", "no_pickle_does_harm", 3000),
}
LAST_LINES = 25


@dataclass
class Loader:
    name: str
    reads: str
    program: str
    test: str
    inputs: int
    runs: int = 0
    seconds: float = 0.0
    found: dict | None = None
    # What the loader's run is, while it runs.
    process: subprocess.Popen | None = field(default=None, repr=False)

    def document(self) -> dict:
        return {
            "loader": self.name,
            "reads": self.reads,
            "test": self.test,
            "runs": self.runs,
            "inputs": self.runs * self.inputs,
            "seconds": round(self.seconds, 1),
            "found": self.found,
        }


def programs(names: set[str], built: bool) -> dict[str, str]:
    """Where cargo has put the test programs of these names."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = {}
    if built:
        for name in names:
            made = [file for file in (target / "debug/deps").glob(f"{name}-*") if not file.suffix and os.access(file, os.X_OK)]
            if made:
                found[name] = str(max(made, key=lambda file: file.stat().st_mtime))
    else:
        words = ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"]
        try:
            out = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        except (OSError, subprocess.CalledProcessError) as failed:
            sys.exit(f"the tests were not built: {failed}")
        for line in out.splitlines():
            artifact = json.loads(line)
            name = artifact.get("target", {}).get("name")
            if name in names and artifact.get("executable") and artifact["profile"]["test"] and "test" in artifact["target"]["kind"]:
                found[name] = artifact["executable"]
    for name in names - set(found):
        sys.exit(f"there is no test program {name}{f' in {target}/debug/deps; leave --built away' if built else ''}")
    return found


def told(program: str, loader: Loader, seed: int) -> tuple[list[str], dict]:
    """A run's command, and what it is told by the environment."""
    # One for what proptest makes, one for the tests' own changes.
    seeds = {"TSNODE_SEED": str(seed), "PROPTEST_RNG_SEED": str(seed)}
    if "_bounds::" in loader.test:
        seeds["PROPTEST_CASES"] = str(loader.inputs)
    return [program, "--exact", loader.test, "--test-threads", "1"], seeds


def once(options: argparse.Namespace, program: str, loader: Loader, seed: int) -> None:
    command, seeds = told(program, loader, seed)
    most = options.memory << 30
    try:
        loader.process = subprocess.Popen(
            command,
            env={**os.environ, **seeds},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
        )
        out, _ = loader.process.communicate(timeout=options.hang)
        code, why = loader.process.returncode, None
    except subprocess.TimeoutExpired:
        loader.process.kill()
        out, _ = loader.process.communicate()
        code, why = None, f"it was not over after {options.hang:.0f} s"
    loader.runs += 1
    if code == 0 and "test result: ok. 1 passed" in out:
        return
    if code == 0:
        why = f"there is no test {loader.test} in {program}"
    again = " ".join([*(f"{name}={value}" for name, value in seeds.items()), *command])
    loader.found = {"seed": seed, "why": why or f"it ended with {code}", "again": again, "said": out.splitlines()[-LAST_LINES:]}


class Work:
    """Loaders that wait for their turn."""

    def __init__(self, options: argparse.Namespace, loaders: list[Loader], found: dict[str, str]):
        self.options, self.waiting, self.programs = options, list(reversed(loaders)), found
        self.lock, self.ended = threading.Lock(), threading.Event()

    def go_on(self) -> None:
        while not self.ended.is_set():
            with self.lock:
                if not self.waiting:
                    return
                loader = self.waiting.pop()
            self.one(loader)

    def one(self, loader: Loader) -> None:
        began, seed = time.monotonic(), self.options.seed
        while loader.found is None and loader.seconds < self.options.minutes * 60 and not self.ended.is_set():
            once(self.options, self.programs[loader.program], loader, seed)
            seed, loader.seconds = seed + 1, time.monotonic() - began
        if not self.ended.is_set():
            say(loader)


def say(loader: Loader) -> None:
    what = f"{loader.runs} runs of {loader.inputs} inputs in {loader.seconds:.0f} s"
    if loader.found is None:
        print(f"{loader.name}: {what}, nothing found", file=sys.stderr)
        return
    lines = "\n".join(f"    {line}" for line in loader.found["said"])
    print(f"{loader.name}: {what}; FOUND by seed {loader.found['seed']}: {loader.found['why']}\n{lines}", file=sys.stderr)
    print(f"  again: {loader.found['again']}", file=sys.stderr)


def run(options: argparse.Namespace) -> int:
    loaders = [Loader(name, *LOADERS[name]) for name in LOADERS if name in options.only]
    work = Work(options, loaders, programs({loader.program for loader in loaders}, options.built))
    print(f"seed {options.seed}, {options.minutes} minutes for each of {len(loaders)} loaders, {options.jobs} at once", file=sys.stderr)
    threads = [threading.Thread(target=work.go_on) for _ in range(options.jobs)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        work.ended.set()
        for loader in loaders:
            if loader.process is not None and loader.process.poll() is None:
                loader.process.kill()
        for thread in threads:
            if thread.is_alive():
                thread.join()
    found = [loader for loader in loaders if loader.found]
    inputs = sum(loader.runs * loader.inputs for loader in loaders)
    line = (
        f"{f'FOUND in {len(found)}' if found else 'NOTHING FOUND'}: seed {options.seed}, {len(loaders)} loaders for {options.minutes:g} minutes each, "
        f"{inputs} inputs ({', '.join(f'{loader.name} {loader.runs * loader.inputs}' for loader in loaders)})"
    )
    print(json.dumps({"loaders": [loader.document() for loader in loaders], "verdict": line}, indent=2) if options.json else line, flush=True)
    return 1 if found else 0


def above_0(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main() -> None:
    listed = "\n".join(f"  {name:<12} {reads}" for name, (reads, *_) in LOADERS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nLoaders:\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, help="for each loader")
    parser.add_argument("--seed", type=int, default=None, help="of the first run; the next ones count on from it")
    parser.add_argument("--only", nargs="+", choices=list(LOADERS), default=list(LOADERS), metavar="LOADER")
    parser.add_argument("--jobs", type=above_0, default=os.cpu_count() or 1, help="loaders at once")
    parser.add_argument("--hang", type=float, default=600, help="seconds that one run may take")
    parser.add_argument("--memory", type=above_0, default=12, help="GiB of addresses that one run may take")
    parser.add_argument("--built", action="store_true", help="take the programs that are in the target folder, and build nothing")
    parser.add_argument("--json", action="store_true", help="print a document instead of the line")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.randrange(1 << 31)
    # As if it had been interrupted: what it has started ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    sys.exit(run(options))


if __name__ == "__main__":
    main()
