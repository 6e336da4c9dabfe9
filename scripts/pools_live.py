"""Whether pools overflow in a burst and return after it, and what that is worth to first tokens: Splitwise's pools on four real peers.

    python3 scripts/pools_live.py [--tsnode target/debug/tsnode] [--rounds 3] [--burst 60] [--json]
    python3 scripts/pools_live.py --tsnode target/release/tsnode --burst 120 --input-len 400

Two peers for prompts, two for answers and a gateway (--layout prefill=1,prefill=1,decode=1,decode=1). Each peer has one thread and --part
of a processor's time, so that four of them are four devices on a machine of two processors as well (scripts/live_swarm.py says how).

Load is one trace for all: requests now and then, in the middle of them a burst in which many come within a second. It is answered --rounds
times by each of three ways, asked by tsnode bench serve, with other prompts each time:

    plan                the plan's ways, and no overflow: prompts are always computed by groups for prompts (--split always, live)
    gate                the plan's ways, where the cost gate may have a prompt computed where it is answered (--split auto, live)
    pools               the shortest queues of both pools, which lend each other groups (--split auto, tsnode route set pools)

What is shown: of the traces of pooled requests, those that overflowed, when and to whom; that calm requests after the burst do not, and
are computed and answered by the groups that are there for it; that a second burst overflows again. Ends with 1 unless that is so, no
request failed, and the median of pools' P99 of first tokens is below that of the plan's. About 40 seconds for each round of each way on
two processors. Linux only; everything it starts ends with it.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from live_swarm import Host, Swarm, ends_tidily, figures, gateway, lends, table, trace

LAYOUT = "prefill=1,prefill=1,decode=1,decode=1"
PHASES = {"peer0": "prefill", "peer1": "prefill", "peer2": "decode", "peer3": "decode"}
# Of a round: before the burst, the burst itself, and after it (seconds), and calm requests a second.
BEFORE, WITHIN, AFTER, CALM = 5.0, 1.0, 12.0, 0.5
# Requests one after another by which it is seen that everything has returned.
PROBES = 12
# How long queues may take to be known to be empty (seconds).
EMPTY = 60
OVERFLOWS = "tsnode_pool_overflows_total"


@dataclass
class Way:
    name: str
    split: str
    route: str | None = None


WAYS = [Way("plan", "always"), Way("gate", "auto"), Way("pools", "auto", "pools")]


def requests(options: argparse.Namespace, rng: random.Random) -> list[tuple[float, int, int]]:
    """When they come, and the tokens of their prompts and answers."""
    calm, at = [], rng.expovariate(CALM)
    while at < BEFORE + WITHIN + AFTER:
        calm.append(at)
        at += rng.expovariate(CALM)
    burst = [BEFORE + rng.uniform(0, WITHIN) for _ in range(options.burst)]

    def near(length: int) -> int:
        return max(1, rng.randint(length // 2, length * 3 // 2))

    return [(at, near(options.input_len), near(options.output_len)) for at in sorted([0.0, *calm, *burst])]


class Rounds:
    """Rounds of a swarm by one way."""

    def __init__(self, options: argparse.Namespace, folder: Path, way: Way):
        self.options, self.folder, self.way = options, folder, way
        hosts = [Host(name, lends(1, options.model), part=part(options)) for name in PHASES]
        flags = ["--layout", LAYOUT, "--split", way.split]
        self.swarm = Swarm(options.tsnode, folder / way.name, [*hosts, gateway()], flags)

    def all(self) -> dict:
        with self.swarm as swarm:
            if self.way.route:
                swarm.route(self.way.route)
                swarm.await_that(self.lacks_ways, EMPTY)
            seen = [self.one(number) for number in range(self.options.rounds)]
            probes = self.probes() if self.way.route else []
            again = self.one(self.options.rounds, "again") if self.way.route else None
            return {"way": self.way.name, "rounds": seen, "probes": probes, "again": again, "said": self.said()}

    def lacks_ways(self) -> str:
        """Where requests are pooled there is a way from each group for prompts to each for answers."""
        views = self.swarm.views()
        ways = [len(view["plan"]["routes"]) if view and view["plan"] else 0 for view in views]
        return "" if min(ways) >= 4 else f"plans have {ways} ways, and not from each group for prompts to each for answers"

    def one(self, number: int, what: str = "round") -> dict:
        self.drained()
        swarm = self.swarm
        planned = requests(self.options, random.Random(f"{self.options.seed} {number}"))
        path = trace(self.folder / f"{self.way.name}.csv", planned)
        seed = self.options.seed * 1000 + number * 10 + [way.name for way in WAYS].index(self.way.name)
        before = swarm.asked.metrics()[OVERFLOWS]
        words = ["--trace", str(path), "--seed", str(seed), "--ignore-eos", "--temperature", "0", "--max-concurrency", str(len(planned))]
        seen = figures(swarm.bench([*words, "--max-seconds", str(self.options.seconds)]))
        overflows = swarm.asked.metrics()[OVERFLOWS] - before
        kept = {name: seen[name] for name in ("completed", "failed", "cut_short", "not_sent", "p50_ttft_ms", "p99_ttft_ms", "p99_e2el_ms", "errors")}
        line = f"{self.way.name}, {what} {number + 1}: {len(planned)} requests, TTFT P99 {seen['p99_ttft_ms']:.0f} ms, {overflows:.0f} overflowed"
        print(line, file=sys.stderr)
        return {**kept, "requests": len(planned), "overflows": int(overflows), "traces": self.traces(len(planned)) if self.way.route else []}

    def traces(self, count: int) -> list[dict]:
        """What became of the last requests, in the order in which they ended."""
        swarm = self.swarm
        listed = swarm.asked.get("/api/requests")["requests"][:count]
        return [self.told(swarm.asked.get(f"/api/requests/{request['request']}")) for request in reversed(listed)]

    def told(self, seen: dict) -> dict:
        places = {name: self.swarm.name(seen[name]) for name in ("prefill", "decode")}
        return {"request": seen["request"], **places, "overflow": seen["overflow"], "ttft": seen["ttft"], "why": seen["reason"]}

    def probes(self) -> list[dict]:
        """Requests after the burst, one after another."""
        self.drained()
        rng = random.Random(f"{self.options.seed} probes")
        for _ in range(PROBES):
            prompt = [rng.randrange(300, 3300) for _ in range(self.options.input_len)]
            body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            self.swarm.asked.post("/v1/completions", body, timeout=60)
        return self.traces(PROBES)

    def drained(self) -> None:
        """Nobody has anything to do, as the gateway sees it."""

        def busy() -> str:
            loads = [peer["load"] for peer in self.swarm.asked.get("/api/swarm")["peers"]]
            left = sum(load["running"] + load["waiting"] + load["pending_tokens"] for load in loads)
            return f"groups still have {left} to do" if left else ""

        self.swarm.await_that(busy, EMPTY)
        # Loads are said once a second.
        time.sleep(2)

    def said(self) -> str:
        """As people are told of it."""
        return self.swarm.says("route") + self.swarm.says("plan", "--why") if self.way.route else ""


def part(options: argparse.Namespace) -> float:
    """A little is left for the gateway and who asks."""
    processors = len(os.sched_getaffinity(0))
    return options.part or min(1.0, (processors - 0.6) / len(PHASES))


def measured(options: argparse.Namespace) -> dict:
    ways = []
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            ways.append(Rounds(options, Path(folder), way).all())
    return {"part": part(options), "ways": ways}


def p99(way: dict) -> float:
    return statistics.median(seen["p99_ttft_ms"] for seen in way["rounds"])


def wrong(seen: dict) -> list[str]:
    """What does not hold."""
    plan, _, pools = seen["ways"]
    every = [each for way in seen["ways"] for each in [*way["rounds"], way["again"]] if each]
    lost = sum(each["failed"] + each["cut_short"] + each["not_sent"] for each in every)
    overflown = [probe for probe in pools["probes"] if probe["overflow"]]
    elsewhere = [probe for probe in pools["probes"] if PHASES.get(probe["decode"]) != "decode"]
    cases = [
        (lost, f"{lost} requests were not answered"),
        (not all(each["overflows"] for each in pools["rounds"]), "a burst did not overflow: a larger --burst, or a smaller --part"),
        (overflown, f"{len(overflown)} of {len(pools['probes'])} calm requests after a burst overflowed"),
        (elsewhere, f"{len(elsewhere)} of {len(pools['probes'])} calm requests were answered by groups for prompts"),
        (not pools["again"]["overflows"], "the burst after that did not overflow"),
        (p99(pools) >= p99(plan), f"P99 of first tokens is {p99(pools):.0f} ms by pools and {p99(plan):.0f} ms by the plan"),
    ]
    return [what for is_so, what in cases if is_so]


def shown(seen: dict) -> str:
    rows = [["WAY", "REQUESTS", "OVERFLOWED", "TTFT P50", "TTFT P99", "WHOLE P99"]]
    for way in seen["ways"]:
        for each in way["rounds"]:
            times = [f"{each[name]:.0f} ms" for name in ("p50_ttft_ms", "p99_ttft_ms", "p99_e2el_ms")]
            rows.append([way["way"], str(each["requests"]), str(each["overflows"]), *times])
    pools = seen["ways"][-1]
    lines = [table(rows), "", "the last round of pools, as its requests ended, and calm ones after it:"]
    for each in [*pools["rounds"][-1]["traces"], *pools["probes"]]:
        lines.append(f"  {each['request']}  {each['prefill']} > {each['decode']}  {each['ttft'] * 1e3:7.0f} ms  {each['why']}")
    return "\n".join([*lines, "", pools["said"].rstrip()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tsnode", default=os.environ.get("TSNODE", "target/debug/tsnode"), help="the program")
    parser.add_argument("--model", type=Path, help="the peers' model [the one inside the program]")
    parser.add_argument("--rounds", type=int, default=3, help="how often for each way; medians count")
    parser.add_argument("--burst", type=int, default=60, help="requests of a burst")
    parser.add_argument("--input-len", type=int, default=300, help="tokens of a prompt, give or take half")
    parser.add_argument("--output-len", type=int, default=40, help="tokens of an answer, give or take half")
    parser.add_argument("--part", type=float, help="of a processor for each peer [what suffices for four, but for 0.6 of one]")
    parser.add_argument("--seconds", type=int, default=300, help="the longest that a round may take")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals, lengths and prompts")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if options.part is not None and not 0 < options.part <= 1:
        parser.error("--part is above 0 and at most 1")
    ends_tidily()
    seen = measured(options)
    seen["wrong"] = wrong(seen)
    plan, _, pools = seen["ways"]
    print(json.dumps(seen, indent=2) if options.json else shown(seen))
    said = f"P99 of first tokens {p99(pools):.0f} ms by pools, {p99(plan):.0f} ms by the plan; each peer has {seen['part']:.2f} of a processor"
    print(f"DOES NOT HOLD: {', '.join(seen['wrong'])}; {said}" if seen["wrong"] else f"HOLDS: {said}", file=sys.stderr if options.json else sys.stdout)
    sys.exit(1 if seen["wrong"] else 0)


if __name__ == "__main__":
    main()
