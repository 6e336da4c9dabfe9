"""Whether anybody honest is cut off, or warned of, while a swarm without any fault has all kinds of load.

    python3 scripts/fault_free_load.py [--tsnode target/debug/tsnode] [--minutes 60] [--seed 1] [--lenders 4] > one.log
    python3 scripts/fault_free_load.py --add one.log two.log

Starts a swarm of so many lenders of one thread each and a gateway, and goes through rounds of 90 s. A round has 1 to 64 clients
without pause, prompts and answers that are short, long or of both kinds, asked of the gateway or of all peers, none, one or two
neighbours that take a processor in bursts, and peers that have one processor each (where there are fewer, they share them) or may
use all. A seed fixes which; of eight rounds, which take twelve minutes or longer, each has another number of clients, and all else was there.
A round ends with one line of JSON: answers, what failed, who was cut off, and what the logs ask somebody to do. The last line is the
verdict of the whole run; with --add it is that of several, by what they printed, nothing being run. It ends with 1 where anybody was
cut off or a request failed. Linux only; everything it starts ends with it.
"""

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROUND = 90.0
# Of eight rounds each has one of each list, in an order of its own.
CLIENTS = [1, 2, 4, 6, 8, 16, 32, 64]
NEIGHBOURS = [0, 0, 0, 0, 1, 1, 2, 2]
PINNED = [True] * 4 + [False] * 4
EVERYWHERE = [True] * 2 + [False] * 6
# Words of a prompt and tokens of an answer, least and most.
LENGTHS = {
    "short": ((2, 12), (4, 24)),
    "chatty": ((15, 60), (30, 80)),
    "long answers": ((5, 20), (200, 400)),
    "long prompts": ((300, 700), (4, 40)),
}
KINDS = [*LENGTHS, "mixed"]
WORDS = "it was a dark night and all of the people in town had gone to old house on hill when wind blew over sea".split()
# A client that was told to come again does so after this long (seconds).
AGAIN = 1.0


@dataclass
class Round:
    """What one round asks for, and what it saw."""

    number: int
    clients: int
    kind: str
    everywhere: bool
    neighbours: int
    pinned: bool
    answers: int = 0
    busy: int = 0
    failed: Counter = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, seed: int, number: int) -> "Round":
        block, place = divmod(number, len(CLIENTS))
        rng = random.Random(f"{seed} {block}")
        lists = [rng.sample(each, len(each)) for each in (CLIENTS, NEIGHBOURS, PINNED, EVERYWHERE)]
        clients, neighbours, pinned, everywhere = (each[place] for each in lists)
        kinds = [kind for _ in range(2) for kind in rng.sample(KINDS, len(KINDS))]
        return cls(number, clients, kinds[place], everywhere, neighbours, pinned)

    def body(self, rng: random.Random) -> dict:
        words, tokens = LENGTHS[rng.choice(list(LENGTHS)) if self.kind == "mixed" else self.kind]
        prompt = " ".join(rng.choice(WORDS) for _ in range(rng.randint(*words)))
        return {"prompt": prompt, "max_tokens": rng.randint(*tokens), "ignore_eos": True, "stream": rng.random() < 0.5}


def client(this: Round, urls: list[str], number: int, until: float) -> None:
    rng = random.Random(f"{this.number} {number} {time.time_ns()}")
    while time.monotonic() < until:
        request = urllib.request.Request(
            f"{rng.choice(urls)}/v1/completions",
            json.dumps(this.body(rng)).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                text = answer.read()
            error = None if b'"error"' not in text else text[-200:].decode(errors="replace")
        except urllib.error.HTTPError as refused:
            if refused.code in (429, 503):
                with this.lock:
                    this.busy += 1
                time.sleep(AGAIN)
                continue
            error = f"{refused.code} {refused.read()[:200].decode(errors='replace')}"
        except OSError as broken:
            error = str(broken)
        with this.lock:
            this.answers += error is None
            if error:
                this.failed[error] += 1


def neighbour(seed: str) -> None:
    """Takes a whole processor now and then."""
    rng = random.Random(seed)
    while True:
        until = time.monotonic() + rng.expovariate(1 / 2.0)
        while time.monotonic() < until:
            pass
        time.sleep(rng.expovariate(1 / 3.0))


class Log:
    """What a peer's log has said since it was last looked at."""

    def __init__(self, path: str):
        self.path, self.read = Path(path), 0

    def urgent(self) -> list[str]:
        with self.path.open("rb") as file:
            file.seek(self.read)
            new = file.read()
        whole = new.rfind(b"\n") + 1
        self.read += whole
        lines = new[:whole].decode(errors="replace").splitlines()
        return [line for line in lines if " WARN " in line or " ERROR " in line]


def place(peers: list[dict], pinned: bool) -> None:
    """Gives each peer one processor, or all of them; threads that it starts later have what those have that start them."""
    every = sorted(os.sched_getaffinity(0))
    for number, peer in enumerate(peers):
        processors = {every[number % len(every)]} if pinned else set(every)
        for thread in os.listdir(f"/proc/{peer['pid']}/task"):
            try:
                os.sched_setaffinity(int(thread), processors)
            except ProcessLookupError:
                pass  # It has ended meanwhile.


def play(this: Round, peers: list[dict], logs: list[Log], seconds: float) -> dict:
    place(peers, this.pinned)
    started = time.monotonic()
    urls = [peer["http"] for peer in peers if this.everywhere or peer["gateway"]]
    busy = [multiprocessing.Process(target=neighbour, args=(f"{this.number} {n}",), daemon=True) for n in range(this.neighbours)]
    for process in busy:
        process.start()
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=client, args=(this, urls, n, until)) for n in range(this.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in busy:
        process.terminate()
        process.join()
    lines = [(Path(log.path).stem, line) for log in logs for line in log.urgent()]
    cut = [f"{name}: {line}" for name, line in lines if " cut off " in f"{line} "]
    others = [f"{name}: {line}" for name, line in lines if f"{name}: {line}" not in cut]
    return {
        "round": this.number,
        "clients": this.clients,
        "kind": this.kind,
        "everywhere": this.everywhere,
        "neighbours": this.neighbours,
        "pinned": this.pinned,
        "seconds": round(time.monotonic() - started, 1),
        "answers": this.answers,
        "told to come again": this.busy,
        "failed": dict(this.failed),
        "cut off": cut,
        "warnings": others[:5],
        "warned": len(others),
        "load": round(os.getloadavg()[0], 1),
    }


def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        up = [options.tsnode, "testnet", "up", "--peers", str(options.lenders), "--gateways", "1", "--dir", folder]
        peers = json.loads(subprocess.run([*up, "--detach", "--json"], check=True, capture_output=True, text=True).stdout)["peers"]
        try:
            return rounds(options, peers)
        finally:
            subprocess.run([options.tsnode, "testnet", "down", "--dir", folder], capture_output=True)


def rounds(options: argparse.Namespace, peers: list[dict]) -> int:
    logs = [Log(peer["log"]) for peer in peers]
    started, seen = time.monotonic(), []
    while (left := options.minutes * 60 - (time.monotonic() - started)) > 0:
        seen.append(play(Round.of(options.seed, len(seen)), peers, logs, min(ROUND, left)))
        print(json.dumps(seen[-1]), flush=True)
    return verdict(f"seed {options.seed}", seen)


def verdict(of: str, seen: list[dict]) -> int:
    """Says in one line what became of these rounds, and whether all kinds of load were among them."""
    sums = Counter()
    for each in seen:
        for name in ("answers", "told to come again", "warned", "seconds"):
            sums[name] += each[name]
        sums["failed"] += sum(each["failed"].values())
        sums["cut off"] += len(each["cut off"])
    wanted = {"clients": CLIENTS, "kind": KINDS, "neighbours": NEIGHBOURS, "pinned": PINNED, "everywhere": EVERYWHERE}
    lacks = [
        f"{name} {value}"
        for name, values in wanted.items()
        for value in dict.fromkeys(values)
        if value not in {each[name] for each in seen}
    ]
    fails = bool(sums["failed"] or sums["cut off"] or not sums["answers"])
    said = [
        f"{'DOES NOT HOLD' if fails else 'HOLDS'}: {of}, {sums['seconds'] / 60:.1f} min in {len(seen)} rounds",
        f"{sums['cut off']} cut off, {sums['failed']} failed, {sums['warned']} warnings",
        f"{sums['answers']} answers, {sums['told to come again']} told to come again",
        "no load of " + ", ".join(lacks) if lacks else "every kind of load",
    ]
    print("; ".join(said), flush=True)
    return 1 if fails else 0


def add(files: list[Path]) -> int:
    """The verdict of runs that have been, by the rounds that they printed."""
    lines = [line for file in files for line in file.read_text().splitlines() if line.startswith("{")]
    return verdict(f"{len(files)} runs", [each for each in map(json.loads, lines) if "pinned" in each])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tsnode", default="target/debug/tsnode", help="the program")
    parser.add_argument("--minutes", type=float, default=60, help="for how long")
    parser.add_argument("--seed", type=int, default=1, help="fixes what each round asks for")
    parser.add_argument("--lenders", type=int, default=4, help="peers with a model")
    parser.add_argument("--add", type=Path, nargs="+", metavar="LOG", help="what runs have printed: says the verdict of all of them")
    options = parser.parse_args()
    sys.exit(add(options.add) if options.add else run(options))


if __name__ == "__main__":
    main()
