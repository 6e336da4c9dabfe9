"""Whether each family's answers stay the same when peers of every role are killed: one run of chaos for each reference model.

    python3 scripts/chaos_families.py [--tsnode target/debug/tsnode] [--faults 10] [--seed 1] [--json]
    python3 scripts/chaos_families.py kernels/models/reference/gptoss-sinks kernels/models/coded/llama-awq

For every FOLDER (without any, all of kernels/models/reference and of ../shared/models/reference; one that is called like another is
taken once), and for each GGUF file that lies in one, a swarm is killed at under load (`tsnode testnet chaos --only kill`), and every
answer is held against that of a peer which is alone. A model that can be cut runs as --layout says. One that a stage has to hold whole
runs in groups of one stage, and one whose layers keep a state, which is sent nowhere, in mixed groups of one: how a model is held the
program itself says, which is asked first.

Chaos asks with prompts of up to 554 bytes for 160 tokens. A model whose context is shorter than that is served from a copy with a
longer one: its config.json (or what a GGUF file says) is changed, and where positions are learned, rows of their table are repeated.
Beyond its own context that is another model than the reference's, the same for both sides of the comparison; it is said of each.

A row is written as soon as it is known, the verdict last. It ends with 1 where an answer was lost, repeated or changed, somebody was cut
off, something else of chaos did not hold, or a role was not hit by --more further runs of other seeds. The coordinator is killed when it
is its turn and counted, not waited for: the plan is its own, no token is. Logs of what did not hold stay, and it is said where. Linux
only; everything it starts ends with it. TSNODE names the program where --tsnode does not.
"""

import argparse
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = [ROOT / "kernels/models/reference", ROOT.parent / "shared/models/reference"]
# Tokens that a request of chaos may have: a prompt's bytes at most, one before them, and the answer.
NEEDED = 554 + 1 + 160
# What contexts become that are shorter.
LONGER = 2048
# The table of learned positions, and its first rows, which stand for padding.
POSITIONS, PADDING = "model.decoder.embed_positions.weight", 2
WHOLE_LAYOUT = "prefill=1,decode=1,decode=1"
STATE_LAYOUT = "mixed=1,mixed=1,mixed=1"
# A run of chaos is over by then (seconds): a start, a fault and its end each have a minute and a half at most.
PATIENCE = 150
COLUMNS = ["family", "model", "layout", "faults by role", "streams", "hit", "lost", "repeated", "changed", "verdict"]


@dataclass
class Model:
    family: str
    name: str
    path: Path
    # What was changed for it to be asked.
    altered: list = field(default_factory=list)


@dataclass
class Row:
    model: Model
    layout: str = ""
    seeds: list = field(default_factory=list)
    faults: int = 0
    roles: Counter = field(default_factory=Counter)
    counts: Counter = field(default_factory=Counter)
    not_hit: list = field(default_factory=list)
    wrong: str = ""
    seconds: float = 0.0

    def verdict(self) -> str:
        if self.wrong:
            return f"DOES NOT HOLD: {self.wrong}"
        return f"{' and '.join(self.not_hit)} not hit" if self.not_hit else "holds"

    def cells(self) -> list[str]:
        roles = ", ".join(f"{role} {count}" for role, count in sorted(self.roles.items()))
        counted = [str(self.counts[name]) for name in ("streams", "hit", "lost", "repeated", "changed")]
        return [self.model.family, self.model.name, self.layout, f"{self.faults}: {roles}", *counted, self.verdict()]

    def document(self) -> dict:
        names = ("streams", "tokens", "hit", "lost", "repeated", "changed", "cut_off", "others")
        return {
            "family": self.model.family,
            "model": self.model.name,
            "altered": self.model.altered,
            "layout": self.layout,
            "seeds": self.seeds,
            "faults": self.faults,
            "roles": dict(self.roles),
            "not_hit": self.not_hit,
            **{name: self.counts[name] for name in names},
            "seconds": round(self.seconds, 1),
            "holds": not self.wrong and not self.not_hit,
            "verdict": self.verdict(),
        }


class Broken(Exception):
    """What keeps a model from being asked, in words."""


def models(folders: list[Path], work: Path) -> list[Model]:
    """Each folder's safetensors, and each of its GGUF files."""
    found = []
    for folder in folders:
        config = json.loads((folder / "config.json").read_text())
        family = config.get("model_type", "?")
        if any(folder.glob("*.safetensors")):
            found.append(lengthened(Model(family, folder.name, folder), config, work))
        for file in sorted(folder.glob("*.gguf")):
            found.append(lengthened_gguf(Model(family, file.name, file), work))
    return found


def context(config: dict) -> int:
    """Tokens that the program gives a model: LongRoPE's end where its short factors do."""
    said = [config["max_position_embeddings"]]
    if is_longrope(config):
        said += [rope["original_max_position_embeddings"] for rope in ropes(config) if "original_max_position_embeddings" in rope]
    return min(said)


def ropes(config: dict) -> list[dict]:
    return [config, *(config[key] for key in ("rope_scaling", "rope_parameters") if isinstance(config.get(key), dict))]


def is_longrope(config: dict) -> bool:
    return any(rope.get("rope_type", rope.get("type")) in ("longrope", "su") for rope in ropes(config)[1:])


def lengthened(model: Model, config: dict, work: Path) -> Model:
    if context(config) >= NEEDED:
        return model
    copy = work / model.name
    copy.mkdir()
    for file in model.path.iterdir():
        if file.is_file() and file.suffix != ".gguf" and file.name not in ("cases.json", "config.json"):
            shutil.copy(file, copy / file.name)
    model.altered.append(f"context {context(config)} to {LONGER}")
    config["max_position_embeddings"] = max(LONGER, config["max_position_embeddings"])
    if is_longrope(config):
        for rope in ropes(config):
            if "original_max_position_embeddings" in rope:
                rope["original_max_position_embeddings"] = LONGER
        model.altered.append("LongRoPE's short factors for all of it")
    (copy / "config.json").write_text(json.dumps(config))
    if repeat_positions(copy / "model.safetensors", config["max_position_embeddings"] + PADDING):
        model.altered.append("rows of learned positions repeated")
    model.path = copy
    return model


def repeat_positions(file: Path, rows: int) -> bool:
    """Gives a table of learned positions so many rows; whether there is one."""
    if not file.exists():
        return False
    content = file.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    if POSITIONS not in header:
        return False
    data, out, end = content[8 + size :], [], 0
    for name in sorted((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"]):
        entry = header[name]
        part = data[slice(*entry["data_offsets"])]
        if name == POSITIONS:
            row = len(part) // entry["shape"][0]
            rest = part[PADDING * row :]
            wanted = (rows - PADDING) * row
            part = part[: PADDING * row] + (rest * -(-wanted // len(rest)))[:wanted]
            entry["shape"][0] = rows
        entry["data_offsets"] = [end, end + len(part)]
        end += len(part)
        out.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(out))
    return True


def lengthened_gguf(model: Model, work: Path) -> Model:
    content = bytearray(model.path.read_bytes())
    keys = [b".context_length"] + [b".original_context_length"] * (b"rope_factors_short" in content)
    for key in keys:
        # A key, the number of its value's kind (4: 32 bits), the value.
        at = content.find(key + struct.pack("<I", 4))
        if at < 0:
            continue
        (said,) = struct.unpack_from("<I", content, at + len(key) + 4)
        if said < NEEDED:
            struct.pack_into("<I", content, at + len(key) + 4, LONGER)
            model.altered.append(f"{key.decode()[1:]} {said} to {LONGER}")
    if model.altered:
        (work / "gguf").mkdir(exist_ok=True)
        model.path = work / "gguf" / model.name
        model.path.write_bytes(content)
    return model


class Program:
    """Runs tsnode, with all that it starts in a session of its own, so that all of that can be ended."""

    def __init__(self, tsnode: str):
        self.tsnode = tsnode
        self.running = None

    def run(self, words: list, seconds: float) -> tuple[int, str, str]:
        try:
            self.running = subprocess.Popen(
                [self.tsnode, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
        except OSError as missing:
            sys.exit(f"{self.tsnode}: {missing.strerror}; build it (cargo build), or name it with --tsnode")
        try:
            out, err = self.running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            raise Broken(f"it was not over after {seconds:.0f} s") from late
        finally:
            self.end()
        return self.running.returncode, out, err

    def end(self) -> None:
        if self.running is not None and self.running.poll() is None:
            os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()

    def shape(self, model: Model, folder: Path) -> dict:
        """What the program says of a model that it serves."""
        up = ["testnet", "up", "--devices", "cpu:1:64MiB", "--model", model.path, "--dir", folder]
        code, out, err = self.run([*up, "--detach", "--json"], PATIENCE)
        try:
            if code != 0:
                raise Broken(last(err))
            with urllib.request.urlopen(json.loads(out)["peers"][0]["http"] + "/api/swarm", timeout=30) as answer:
                return json.load(answer)["models"][0]["shape"]
        except (OSError, ValueError, LookupError) as broken:
            raise Broken(f"its shape cannot be asked for: {broken}") from broken
        finally:
            self.run(["testnet", "down", "--dir", folder], PATIENCE)


def last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def held(shape: dict, wanted: str) -> tuple[str, str]:
    """How a model is laid out, and what its KV is sent as."""
    if shape.get("state_bytes", 0) > 0:
        return STATE_LAYOUT, "raw"
    return (WHOLE_LAYOUT if shape.get("whole", False) or shape["layers"] < 2 else wanted), ""


def needed_roles(layout: str) -> list[str]:
    roles = {"gateway"}
    for group in layout.split(","):
        phase, stages = group.strip().split("=")
        roles |= {f"{phase} leader"} | ({f"{phase} member"} if int(stages) > 1 else set())
    return sorted(roles)


def chaos(options: argparse.Namespace, program: Program, row: Row, shape: dict, folder: Path) -> None:
    """Kills, and kills again by other seeds while a role was not hit."""
    row.layout, codec = held(shape, options.layout)
    codec = codec or options.kv_codec
    stages = sum(int(group.split("=")[1]) for group in row.layout.split(","))
    for time_ in range(1 + options.more):
        seed = options.seed + time_
        # One host more than the groups need, and a gateway that is killed beside the one that is looked through.
        words = ["testnet", "chaos", "--model", row.model.path, "--only", "kill", "--faults", options.faults]
        words += ["--peers", stages + 1, "--gateways", 2, "--layout", row.layout, "--kv-codec", codec]
        words += ["--seed", seed, "--streams", options.streams, "--dir", folder, "--json"]
        code, out, err = program.run(words, PATIENCE * (2 + options.faults))
        row.seeds.append(seed)
        try:
            document = json.loads(out)
        except ValueError:
            row.wrong = f"chaos did not run ({code}): {last(err)}"
            return
        take(row, document)
        row.not_hit = [role for role in needed_roles(row.layout) if row.roles[role] == 0]
        if row.wrong or not row.not_hit:
            return


def take(row: Row, document: dict) -> None:
    verdict, summary = document["verdict"], document["summary"]
    row.faults += verdict["faults"]
    row.roles.update(summary["hits"])
    row.counts["streams"] += verdict["answers"]
    row.counts["hit"] += (summary.get("pauses") or {}).get("of", 0)
    row.counts.update({name: verdict[name] for name in ("tokens", "lost", "repeated", "changed", "cut_off", "others")})
    if not verdict["holds"]:
        row.wrong = verdict.get("first") or "it is not said what"


def tried(options: argparse.Namespace, program: Program, model: Model, work: Path) -> Row:
    row, began, folder = Row(model), time.monotonic(), work / f"net-{model.name}"
    try:
        shape = program.shape(model, folder)
        if shape["context"] < NEEDED:
            raise Broken(f"its context is {shape['context']} tokens, and {NEEDED} are needed")
        chaos(options, program, row, shape, folder)
    except Broken as broken:
        row.wrong = str(broken)
    row.seconds = time.monotonic() - began
    if row.wrong:
        print(f"{model.name}: {row.wrong}; logs are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def folders_of(places: list[Path]) -> list[Path]:
    found = {}
    for place in places:
        for config in sorted(place.glob("*/config.json")) if place.is_dir() else []:
            found.setdefault(config.parent.name, config.parent)
    return [found[name] for name in sorted(found)]


def run(options: argparse.Namespace, work: Path, program: Program) -> tuple[list[Row], int]:
    folders = [folder.resolve() for folder in options.folders] or folders_of(PLACES)
    for folder in folders:
        if not (folder / "config.json").exists():
            sys.exit(f"{folder}: there is no config.json; name folders of models")
    rows, all_ = [], models(folders, work)
    if not options.json:
        print("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS), flush=True)
    for model in all_:
        told = f" ({', '.join(model.altered)})" if model.altered else ""
        print(f"{len(rows) + 1} of {len(all_)}: {model.name}, {model.family}{told}", file=sys.stderr)
        rows.append(tried(options, program, model, work))
        if not options.json:
            print("| " + " | ".join(cell.replace("|", "/") for cell in rows[-1].cells()) + " |", flush=True)
    bad = [row for row in rows if row.wrong or row.not_hit]
    return rows, len(bad)


def verdict(rows: list[Row], bad: int, seconds: float) -> str:
    total = Counter()
    for row in rows:
        total.update(row.counts)
    families = len({row.model.family for row in rows})
    faults, altered = sum(row.faults for row in rows), sum(bool(row.model.altered) for row in rows)
    return (
        f"{f'{bad} DO NOT HOLD' if bad else 'HOLDS'}: {len(rows)} models of {families} families, {faults} kills, {total['streams']} answers of "
        f"{total['tokens']} tokens, {total['hit']} hit, {total['lost']} lost, {total['repeated']} repeated, {total['changed']} changed; "
        f"{altered} with a longer context than their own; {seconds:.0f} s"
    )


def above_0(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="models to try instead of all")
    parser.add_argument("--tsnode", default=os.environ.get("TSNODE", "target/debug/tsnode"), help="the program")
    parser.add_argument("--faults", type=above_0, default=10, help="kills of each run")
    parser.add_argument("--more", type=int, default=3, help="further runs of a model while a role was not hit")
    parser.add_argument("--seed", type=int, default=1, help="of each model's first run")
    parser.add_argument("--streams", type=above_0, default=8, help="at once")
    parser.add_argument("--layout", default="prefill=1,decode=2,decode=1", help="of models that can be cut")
    parser.add_argument("--kv-codec", default="int4", help="what KV is sent as")
    parser.add_argument("--json", action="store_true", help="print a document instead of the table")
    options = parser.parse_args()
    # As if it had been interrupted: what it has started ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    program, began = Program(options.tsnode), time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="chaos-families-"))
    bad = 0
    try:
        rows, bad = run(options, work, program)
    finally:
        program.end()
        if bad == 0:
            shutil.rmtree(work, ignore_errors=True)
    line = verdict(rows, bad, time.monotonic() - began)
    print(json.dumps({"models": [row.document() for row in rows], "verdict": line}, indent=2) if options.json else line, flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
