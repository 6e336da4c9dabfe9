"""Whether a peer whose two models share one pool of KV pages serves a long mixed load: nothing lost, nobody starved, all pages given back.

    python3 scripts/one_pool_load.py [--tsnode target/debug/tsnode] [--requests 10000] [--seed 1] [--json]

Starts a swarm of one peer with two tiny models of different shapes and few pages. Requests come in blocks in which one model is
busy (clients without pause) and the other is asked now and then by one client; in the next block it is the other way round. A seed
fixes lengths, prompts and order. Short, chatty and long ones are mixed, all of them sampled. Each block says on stderr what it saw.
The last line of stdout is the verdict (with --json it is in the document). It ends with 1 unless

- every request is answered once, with as many tokens as it asked for, and one in twenty, that was asked alone before, with the tokens
  that it had then; and the peer has counted as many;
- no request is refused (one that has no pages after 30 s would be), and one that finds no other of its own model under way waits for
  its prompt's first step no longer than those of the other last that were under way when it came, and --slack;
- each model when busy had more pages than its quota while the other was idle, and at the end of every block all pages are free;
- the peer's memory is at most --growth larger in the second half of the load than in the first.

Linux only; everything it starts ends with it. TSNODE names the program where --tsnode does not.
"""

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / "kernels/models"
BLOCK = 500
# Of a block, requests for the model that is not busy, and the pauses of who asks them (seconds).
IDLE = 12
PAUSE = (0.1, 1.0)
# How many of ten are so, tokens of a prompt, and tokens of an answer, least and most.
KINDS = {
    "short": (5, (4, 40), (4, 24)),
    "chatty": (3, (20, 80), (30, 80)),
    "long answer": (1, (10, 40), (150, 300)),
    "long prompt": (1, (200, 350), (4, 40)),
}
LONGEST = max(prompt[1] + answer[1] for _, prompt, answer in KINDS.values())
# Questions of each model that are asked alone first, and one in so many requests is one of these.
KNOWN = 8
ONE_IN = 20
LOOK = 0.25
# What a peer shows of its pages may be so old (seconds).
STALE = 0.75
PATIENCE = 120
# A request that takes longer is lost, and how far a block is is said so often (seconds).
LOST = 180
FAR = 10


@dataclass
class Model:
    name: str
    vocabulary: int
    # Pages that it is sure to get.
    quota: int = 0
    known: list = field(default_factory=list)


@dataclass
class Asked:
    """A request and what came of it. Times are of this process's clock."""

    model: int
    body: dict
    expected: list | None
    start: float = 0.0
    end: float = 0.0
    # Until its prompt's first step, as the peer says.
    waited: float = 0.0
    tokens: list | None = None
    error: str | None = None


class Client:
    """Asks one after another over one connection."""

    def __init__(self, url: str):
        self.at = urllib.parse.urlsplit(url)
        self.connection = None

    def ask(self, asked: Asked) -> None:
        asked.start = time.monotonic()
        try:
            self.send(asked)
        except (OSError, http.client.HTTPException, ValueError, LookupError) as broken:
            self.connection = None
            asked.error = f"{type(broken).__name__}: {broken}"
        asked.end = time.monotonic()

    def send(self, asked: Asked) -> None:
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.at.hostname, self.at.port, timeout=LOST)
        headers = {"Content-Type": "application/json", "x-tsnode-trace": "1"}
        self.connection.request("POST", "/v1/completions", json.dumps(asked.body), headers)
        response = self.connection.getresponse()
        text = response.read()
        if response.status != 200:
            asked.error = f"{response.status} {text[:200].decode(errors='replace')}"
            return
        answer = json.loads(text)
        asked.tokens = answer["choices"][0]["token_ids"]
        asked.waited = answer["tsnode"]["parts"]["queue"]
        if len(asked.tokens) != asked.body["max_tokens"]:
            asked.error = f"{len(asked.tokens)} tokens instead of {asked.body['max_tokens']}"
        elif asked.expected is not None and asked.tokens != asked.expected:
            asked.error = "other tokens than alone"


def drawn(rng: random.Random, model: Model) -> dict:
    """A request's body, of any kind."""
    kinds = [kind for kind, (weight, _, _) in KINDS.items() for _ in range(weight)]
    _, prompt, answer = KINDS[rng.choice(kinds)]
    # What is special in vocabularies is at one of their ends.
    tokens = [rng.randrange(10, min(model.vocabulary, 250)) for _ in range(rng.randint(*prompt))]
    wanted = {"max_tokens": rng.randint(*answer), "temperature": 0.9, "seed": rng.randrange(1 << 31)}
    return {"model": model.name, "prompt": tokens, "ignore_eos": True, "return_token_ids": True, **wanted}


def request(rng: random.Random, models: list[Model], number: int) -> Asked:
    model = models[number]
    if rng.randrange(ONE_IN) == 0:
        return Asked(number, *rng.choice(model.known))
    return Asked(number, drawn(rng, model), None)


class Peer:
    """What is seen of it from outside, again and again while it works."""

    def __init__(self, info: dict):
        self.url, self.pid, self.log = info["http"], info["pid"], Path(info["log"])
        # (time, pages in use, resident bytes)
        self.seen: list[tuple[float, int, int]] = []
        self.ended = threading.Event()
        self.total = 0

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read()

    def metrics(self) -> Counter:
        """Each metric's values, of all its labels together."""
        sums = Counter()
        for line in self.get("/metrics").decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.partition(" ") if "{" not in line else (line.split("{")[0], "", line.rsplit(" ", 1)[1])
                sums[name] += float(value.split()[0])
        return sums

    def look(self) -> tuple[int, int]:
        metrics = self.metrics()
        self.total = int(metrics["tsnode_kv_pages"])
        return self.total - int(metrics["tsnode_kv_pages_free"]), self.resident()

    def resident(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        return 0

    def watch(self) -> None:
        while not self.ended.wait(LOOK):
            try:
                used, resident = self.look()
            except (OSError, ValueError, IndexError):
                continue  # A peer that is gone is noticed by those who ask it.
            self.seen.append((time.monotonic(), used, resident))

    def is_there(self) -> None:
        if not Path(f"/proc/{self.pid}").exists():
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            sys.exit(f"the peer has ended; the last that it wrote:\n{last}")

    def all_free(self) -> bool:
        until = time.monotonic() + 10
        time.sleep(STALE)
        while (used := self.look()[0]) > 0:
            if time.monotonic() > until:
                print(f"  {used} of {self.total} pages are in use though nothing is asked", file=sys.stderr)
                return False
            time.sleep(LOOK)
        return True

    def warnings(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if " WARN " in line or " ERROR " in line]


def quotas(peer: Peer, models: list[Model]) -> None:
    """Which pages are whose, by the peer's own advert."""
    swarm = json.loads(peer.get("/api/swarm"))
    advert = swarm["peers"][0]["advert"]
    device = advert["devices"][0]
    ids = {card["name"]: card["id"] for card in swarm["models"]}
    peer.look()
    for model in models:
        own = next(served for served in device["serves"] if served["model"] == ids[model.name])
        model.quota = own["kv_bytes"] * peer.total // device["kv_bytes"]


def ready(peer: Peer, models: list[Model]) -> None:
    until, client = time.monotonic() + PATIENCE, Client(peer.url)
    for number, model in enumerate(models):
        while True:
            asked = Asked(number, {**drawn(random.Random(0), model), "max_tokens": 2}, None)
            client.ask(asked)
            if asked.error is None:
                break
            if time.monotonic() > until:
                sys.exit(f"{model.name} is not served after {PATIENCE} s: {asked.error}")
            time.sleep(LOOK)


@dataclass
class Block:
    busy: int
    requests: list[Asked]
    all_free: bool
    # Of the busy model, the most pages that were in use while the other had none.
    most: int
    # Of requests that found no other of their model: how long each waited, and how long it might.
    firsts: list[tuple[float, float]]


def play(peer: Peer, models: list[Model], rng: random.Random, count: int, busy: int, clients: int, slack: float) -> Block:
    few = min(IDLE, count // 2)
    lists = [[], []]
    for n in range(count):
        number = 1 - busy if n < few else busy
        lists[number].append(request(rng, models, number))
    pauses = [rng.uniform(*PAUSE) for _ in lists[1 - busy]]
    begun = time.monotonic()
    todo, lock = list(reversed(lists[busy])), threading.Lock()

    def without_pause() -> None:
        client = Client(peer.url)
        while True:
            with lock:
                if not todo:
                    return
                asked = todo.pop()
            client.ask(asked)

    def now_and_then() -> None:
        client = Client(peer.url)
        for asked, pause in zip(lists[1 - busy], pauses):
            if todo:
                time.sleep(pause)
            client.ask(asked)

    threads = [threading.Thread(target=without_pause) for _ in range(clients)] + [threading.Thread(target=now_and_then)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(FAR)
            if thread.is_alive():
                peer.is_there()
                far(peer, lists)
    # One that ended refuses all that is left at once.
    peer.is_there()
    free = peer.all_free()
    return Block(busy, lists[0] + lists[1], free, most(peer, lists[1 - busy], begun), firsts(lists, slack))


def far(peer: Peer, lists: list[list[Asked]]) -> None:
    asked = [each for own in lists for each in own]
    ended = sum(each.end > 0 for each in asked)
    under_way = sum(each.start > 0 and each.end == 0 for each in asked)
    used = peer.seen[-1][1] if peer.seen else 0
    print(f"  {ended} of {len(asked)} have ended, {under_way} are under way; {used} of {peer.total} pages in use", file=sys.stderr)


def most(peer: Peer, others: list[Asked], begun: float) -> int:
    def alone(at: float) -> bool:
        return not any(asked.start < at and at < asked.end + STALE for asked in others)

    return max((used for at, used, _ in peer.seen if at > begun and alone(at)), default=0)


def firsts(lists: list[list[Asked]], slack: float) -> list[tuple[float, float]]:
    found = []
    for own, others in (lists, lists[::-1]):
        for asked in own:
            if asked.error is None and not any(o.start <= asked.start < o.end for o in own if o is not asked):
                ends = [o.end - asked.start for o in others if o.start <= asked.start < o.end]
                found.append((asked.waited, max(ends, default=0.0) + slack))
    return found


def served(options: argparse.Namespace, peer: Peer, models: list[Model]) -> dict:
    started = time.monotonic()
    ready(peer, models)
    quotas(peer, models)
    print(f"both models are served after {time.monotonic() - started:.1f} s", file=sys.stderr)
    rng = random.Random(options.seed)
    alone = Client(peer.url)
    for number, model in enumerate(models):
        for _ in range(KNOWN):
            asked = Asked(number, drawn(rng, model), None)
            alone.ask(asked)
            if asked.error:
                sys.exit(f"{model.name} alone: {asked.error}")
            model.known.append((asked.body, asked.tokens))
    print(f"{2 * KNOWN} questions are answered alone after {time.monotonic() - started:.1f} s", file=sys.stderr)
    before, began, blocks = peer.metrics(), time.monotonic(), []
    # However few they are, each model is busy once.
    block = min(BLOCK, -(-options.requests // 2))
    watcher = threading.Thread(target=peer.watch)
    watcher.start()
    try:
        while (left := options.requests - sum(len(block.requests) for block in blocks)) > 0:
            this = play(peer, models, rng, min(block, left), len(blocks) % 2, options.clients, options.slack)
            blocks.append(this)
            say(models, this, time.monotonic() - began)
    finally:
        peer.ended.set()
        watcher.join()
    return summed(options, peer, models, blocks, before, time.monotonic() - began)


def say(models: list[Model], this: Block, since: float) -> None:
    wait = max((asked.waited for asked in this.requests), default=0.0)
    failed = sum(asked.error is not None for asked in this.requests)
    print(
        f"{since:.0f} s: {models[this.busy].name} busy, {len(this.requests)} requests, {failed} failed, longest wait {wait:.2f} s, "
        f"{this.most} pages of {models[this.busy].quota}, {'all' if this.all_free else 'NOT ALL'} free at the end",
        file=sys.stderr,
    )


def summed(options: argparse.Namespace, peer: Peer, models: list[Model], blocks: list[Block], before: Counter, took: float) -> dict:
    requests = [asked for block in blocks for asked in block.requests]
    errors = Counter(asked.error for asked in requests if asked.error)
    middle = peer.seen[len(peer.seen) // 2][0] if peer.seen else 0.0
    halves = [[resident for at, _, resident in peer.seen if (at < middle) == early] for early in (True, False)]
    peaks = [max(half, default=0) for half in halves]
    counted = peer.metrics() - before
    waits = [pair for block in blocks for pair in block.firsts]
    own = []
    for number, model in enumerate(models):
        asked = [a for a in requests if a.model == number]
        longest = max((a.waited for a in asked), default=0.0)
        beyond = max((block.most for block in blocks if block.busy == number), default=0)
        own.append({"model": model.name, "requests": len(asked), "quota_pages": model.quota, "most_pages": beyond, "longest_wait_s": longest})
    return {
        "seed": options.seed,
        "requests": len(requests),
        "seconds": round(took, 1),
        "tokens": sum(len(asked.tokens or []) for asked in requests),
        "failed": sum(errors.values()),
        "errors": dict(errors.most_common(10)),
        "compared": sum(asked.expected is not None for asked in requests),
        "counted_by_peer": int(counted["tsnode_requests_finished_total"]),
        "models": own,
        "pages": peer.total,
        "firsts": len(waits),
        "longest_first_s": max((waited for waited, _ in waits), default=0.0),
        "beyond_bound": sum(waited > bound for waited, bound in waits),
        "blocks": len(blocks),
        "all_free": sum(block.all_free for block in blocks),
        "resident_mib": [round(peak / (1 << 20), 1) for peak in peaks],
        "warnings": len(peer.warnings()),
    }


def wrong(options: argparse.Namespace, seen: dict) -> list[str]:
    """What does not hold."""
    first, second = seen["resident_mib"]
    not_beyond = [own["model"] for own in seen["models"] if own["most_pages"] <= own["quota_pages"]]
    cases = [
        (seen["failed"], f"{seen['failed']} failed"),
        (seen["counted_by_peer"] != seen["requests"], f"the peer counted {seen['counted_by_peer']}"),
        (seen["beyond_bound"], f"{seen['beyond_bound']} waited beyond their bound"),
        (not_beyond, f"{' and '.join(not_beyond)} never had more than its quota: more --clients, or less --kv-memory"),
        (seen["all_free"] < seen["blocks"], f"pages were not all free after {seen['blocks'] - seen['all_free']} blocks"),
        (second > first + options.growth, f"memory grew from {first} to {second} MiB"),
    ]
    return [what for is_so, what in cases if is_so]


def verdict(seen: dict, wrongs: list[str]) -> str:
    models = " and ".join(f"{own['model']} (up to {own['most_pages']} pages, quota {own['quota_pages']})" for own in seen["models"])
    said = [
        f"{'DOES NOT HOLD: ' + ', '.join(wrongs) if wrongs else 'HOLDS'}: seed {seen['seed']}, {seen['requests']} requests in {seen['seconds']} s",
        f"{seen['failed']} failed, {seen['compared']} compared",
        f"{models} of {seen['pages']}",
        f"longest wait of {seen['firsts']} that found their model idle {seen['longest_first_s']:.2f} s, {seen['beyond_bound']} beyond the bound",
        f"all pages free after {seen['all_free']} of {seen['blocks']} blocks",
        f"at most {seen['resident_mib'][0]} MiB in the first half, {seen['resident_mib'][1]} MiB in the second",
        f"{seen['warnings']} warnings",
    ]
    return "; ".join(said)


def run(options: argparse.Namespace) -> int:
    models = []
    for folder in options.models:
        config = json.loads((folder / "config.json").read_text())
        if config["max_position_embeddings"] < LONGEST:
            sys.exit(f"{folder}: its context of {config['max_position_embeddings']} tokens is shorter than the {LONGEST} of the longest request")
        models.append(Model(folder.resolve().name, config["vocab_size"]))
    if models[0].name == models[1].name:
        sys.exit("name two models that are called differently")
    flags = [flag for folder in options.models for flag in ("--model", str(folder))]
    with tempfile.TemporaryDirectory() as folder:
        up = [options.tsnode, "testnet", "up", "--devices", f"cpu:{options.threads}:{options.kv_memory}", *flags, "--dir", folder]
        began = time.monotonic()
        try:
            document = subprocess.run([*up, "--detach", "--json"], check=True, capture_output=True, text=True).stdout
        except OSError as missing:
            sys.exit(f"{options.tsnode}: {missing.strerror}; build it (cargo build), or name it with --tsnode")
        except subprocess.CalledProcessError as failed:
            sys.exit(f"the peer did not come up:\n{failed.stderr.strip()}")
        print(f"the peer is up after {time.monotonic() - began:.1f} s", file=sys.stderr)
        try:
            seen = served(options, Peer(json.loads(document)["peers"][0]), models)
        finally:
            down = subprocess.run([options.tsnode, "testnet", "down", "--dir", folder], capture_output=True, text=True)
            if down.returncode != 0:
                print(f"the peer may be up still: {down.stderr.strip()}", file=sys.stderr)
    wrongs = wrong(options, seen)
    line = verdict(seen, wrongs)
    print(json.dumps({**seen, "wrong": wrongs, "verdict": line}, indent=2) if options.json else line, flush=True)
    return 1 if wrongs else 0


def above_0(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tsnode", default=os.environ.get("TSNODE", "target/debug/tsnode"), help="the program")
    parser.add_argument("--requests", type=above_0, default=10_000, help="for both models together")
    parser.add_argument("--seed", type=int, default=1, help="fixes what is asked")
    parser.add_argument("--clients", type=above_0, default=16, help="of the busy model")
    parser.add_argument("--threads", type=int, default=1, help="of the peer")
    parser.add_argument("--kv-memory", default="4MiB", help="of the peer")
    parser.add_argument("--slack", type=float, default=1.0, help="beyond the other model's requests (seconds): half of one for a turn, steps, and asking again")
    parser.add_argument("--growth", type=float, default=32, help="of the peer's memory in the second half (MiB)")
    parser.add_argument("--models", type=Path, nargs=2, default=[MODELS / "gutenberg-tiny", MODELS / "reference/qwen3-norms"], metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="print a document instead of the line")
    options = parser.parse_args()
    # As if it had been interrupted: what it has started ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    sys.exit(run(options))


if __name__ == "__main__":
    main()
