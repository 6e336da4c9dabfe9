"""Whether prompts shared by a slow and a fast peer gain what they gain in the simulator (docs/research/cronus.md): Cronus on real peers.

    python3 scripts/cronus_live.py [--tsnode target/debug/tsnode] [--trace azure_llm_2023_conv.csv] [--requests 200] [--lengths 0.25] [--json]
    python3 scripts/cronus_live.py --tsnode target/release/tsnode --trace docs/examples/trace.csv --requests 90 --lengths 2

Two peers, of which one has a third of the other's speed, and a gateway that has no model. With five processors or more the fast peer has
three of them and as many threads, the slow one has one (join --cores, --threads), and the rest is for the gateway and for who asks. With
fewer each peer has one thread, the fast one on the first processor, the slow one on the next, where the script stops it for two thirds of
the time (scripts/live_swarm.py says how) and leaves these to the gateway and to who asks; --part has another part than a third. What was
done is said first, and what processor time each peer then used is in the table.

The trace's first conversations, all sent at once, with so much of each length and cut to the model's context, are answered by a swarm of
its own for each arrangement, asked by tsnode bench serve:

    fast alone          one group, on the fast peer
    data parallel       a group on each, requests by the plan's shares and by queues
    disaggregated H-L   prompts on the fast peer, answers on the slow one (--split always)
    disaggregated L-H   prompts on the slow peer, answers on the fast one (--split always)
    cronus              the first part of prompts on the slow peer, everything else on the fast one (tsnode route set cronus)

Perfect balance is r (1 + Ps / Pf), at most D: r what the fast peer alone does in a second, Ps and Pf the prompts that each peer computes
in a second alone (measured by answers of one token), D = 1 / (1 / r - 1 / Pf) answers. That is the bound of docs/research/cronus.md.

Ends with 1 where a request failed, where the order is not that of docs/research/cronus.md that all of its GPUs have (cronus above data
parallel, that above both disaggregations, and cronus above the fast peer alone), or where cronus is below --balance of perfect balance.
About a minute for each arrangement on two processors. Linux only; everything it starts ends with it.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from live_swarm import Host, Swarm, ends_tidily, figures, fitted, gateway, lends, lengths, processor_time, table, trace

ROOT = Path(__file__).resolve().parent.parent
FAST, SLOW = "fast", "slow"
# What is kept of a load's figures.
KEPT = (
    "request_throughput completed failed cut_short not_sent duration p50_ttft_ms p99_ttft_ms p50_tpot_ms p99_tpot_ms errors "
    "processors parted elsewhere answered_by looked_at"
)
# Processors from which on peers have different numbers of them.
MANY = 5


@dataclass
class Arrangement:
    name: str
    # Peers in the order in which the layout gives them groups.
    peers: list[str]
    layout: str
    split: str = "auto"
    route: str | None = None


ARRANGEMENTS = [
    Arrangement("fast alone", [FAST], "mixed=1"),
    Arrangement("data parallel", [FAST, SLOW], "mixed=1,mixed=1"),
    Arrangement("disaggregated H-L", [FAST, SLOW], "prefill=1,decode=1", "always"),
    Arrangement("disaggregated L-H", [SLOW, FAST], "prefill=1,decode=1", "always"),
    Arrangement("cronus", [SLOW, FAST], "prefill=1,decode=1", "auto", "cronus"),
]
# That the first is faster than the second, on all GPUs of docs/research/cronus.md.
ORDER = [
    ("cronus", "data parallel"),
    ("cronus", "fast alone"),
    ("data parallel", "disaggregated H-L"),
    ("data parallel", "disaggregated L-H"),
]


class Machine:
    """Who has which processors."""

    def __init__(self, part: float):
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) < 2:
            sys.exit("two processors are the least: one for the fast peer, one for the slow one")
        self.is_paced = len(processors) < MANY
        few, self.rest = processors[:2], set(processors[4:])
        if self.is_paced:
            self.cores = {FAST: [few[0]], SLOW: [few[1]]}
            self.rest = set(processors[2:]) or {few[1]}
        else:
            self.cores = {FAST: processors[:3], SLOW: [processors[3]]}
        self.part = part if self.is_paced else None

    def host(self, role: str, place: int, model: Path | None) -> Host:
        """Layouts give groups to peers in the order of their names."""
        cores = self.cores[role]
        part = self.part if role == SLOW else None
        return Host(f"{place}-{role}", lends(len(cores), model), ",".join(map(str, cores)), part)

    def gateway(self) -> Host:
        host = gateway()
        host.cores = ",".join(map(str, sorted(self.rest)))
        return host

    def said(self) -> str:
        fast, slow = (", ".join(map(str, self.cores[role])) for role in (FAST, SLOW))
        if not self.is_paced:
            return f"the fast peer has processors {fast}, with a thread on each, the slow one processor {slow}"
        how = f"the slow one, of one thread, processor {slow} for {self.part:.3f} of the time: it is stopped for the rest"
        return f"the fast peer has processor {fast}, with one thread; {how}"


class Bench:
    """The same conversations for whoever is asked."""

    def __init__(self, options: argparse.Namespace, machine: Machine, folder: Path):
        self.options, self.machine, self.folder = options, machine, folder
        answers = options.lengths if options.answers is None else options.answers
        scaled = lengths(options.trace, options.requests)
        self.scaled = [(prompt * options.lengths, answer * answers) for prompt, answer in scaled]
        self.swarms, self.seed = 0, options.seed

    def swarm(self, arrangement: Arrangement) -> Swarm:
        self.swarms += 1
        hosts = [self.machine.host(role, place, self.options.model) for place, role in enumerate(arrangement.peers)]
        flags = ["--layout", arrangement.layout, "--split", arrangement.split]
        swarm = Swarm(self.options.tsnode, self.folder / str(self.swarms), [*hosts, self.machine.gateway()], flags)
        swarm.pacer.cores = self.machine.rest
        return swarm

    def load(self, swarm: Swarm, answers: bool) -> dict:
        """All at once; without answers each has one token. No two loads have a prompt in common."""
        context = swarm.context()
        fit = [fitted(prompt, answer if answers else 1, context) for prompt, answer in self.scaled]
        self.seed += 1
        words = ["--trace", str(trace(self.folder / "trace.csv", [(0.0, *both) for both in fit])), "--seed", str(self.seed)]
        words += ["--ignore-eos", "--temperature", "0", "--max-concurrency", str(len(fit)), "--max-seconds", str(self.options.seconds)]
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.machine.rest)
        try:
            asking = swarm.bench(words)
        finally:
            os.sched_setaffinity(0, everywhere)
        before = {peer.host.name: processor_time(peer.pid) for peer in swarm.peers}
        seen = figures(asking)
        seen["processors"] = {
            peer.host.name.split("-")[-1]: (processor_time(peer.pid) - before[peer.host.name]) / seen["duration"] for peer in swarm.peers
        }
        return seen

    def prompts(self, role: str) -> float:
        """Prompts a second of a peer alone."""
        with self.swarm(Arrangement(f"prompts of the {role} peer", [role], "mixed=1")) as swarm:
            return self.load(swarm, answers=False)["request_throughput"]

    def of(self, arrangement: Arrangement) -> dict:
        with self.swarm(arrangement) as swarm:
            if arrangement.route:
                swarm.route(arrangement.route)
            seen = self.load(swarm, answers=True)
            listed = swarm.asked.get("/api/requests")["requests"][: self.options.requests]
            traces = [swarm.asked.get(f"/api/requests/{request['request']}") for request in listed]
            seen["parted"] = sum(t["first_part"] is not None for t in traces)
            seen["elsewhere"] = sum(t["prefill"] != t["decode"] for t in traces)
            seen["answered_by"] = Counter(swarm.name(t["decode"]).split("-")[-1] for t in traces)
            seen["looked_at"] = len(traces)
        return {"arrangement": arrangement.name, **{name: seen.get(name) for name in KEPT.split()}}


def measured(options: argparse.Namespace) -> dict:
    machine = Machine(options.part)
    print(machine.said(), file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, machine, Path(folder))
        prompts = {role: bench.prompts(role) for role in (FAST, SLOW)}
        print(f"prompts a second alone: {prompts[FAST]:.2f} fast, {prompts[SLOW]:.2f} slow", file=sys.stderr)
        rounds = []
        for number in range(options.rounds):
            for arrangement in ARRANGEMENTS:
                rounds.append(bench.of(arrangement))
                print(f"round {number + 1}: {arrangement.name} {rounds[-1]['request_throughput']:.2f} requests/s", file=sys.stderr)
    return summed(machine, prompts, rounds)


def summed(machine: Machine, prompts: dict, rounds: list[dict]) -> dict:
    def rate(name: str) -> float:
        return statistics.median(seen["request_throughput"] for seen in rounds if seen["arrangement"] == name)

    rates = {arrangement.name: rate(arrangement.name) for arrangement in ARRANGEMENTS}
    alone, ratio = rates["fast alone"], prompts[SLOW] / prompts[FAST]
    answers = 1 / alone - 1 / prompts[FAST]
    perfect = alone * (1 + ratio)
    perfect = min(perfect, 1 / answers) if answers > 0 else perfect
    return {
        "machine": machine.said(),
        "prompts_per_second": prompts,
        "slow_over_fast": ratio,
        "requests_per_second": rates,
        "perfect_balance": perfect,
        "balance": rates["cronus"] / perfect,
        "rounds": rounds,
    }


def wrong(options: argparse.Namespace, seen: dict) -> list[str]:
    """What does not hold."""
    rates = seen["requests_per_second"]
    lost = sum(each["failed"] + each["cut_short"] + each["not_sent"] for each in seen["rounds"])
    wrongs = [f"{lost} requests were not answered"] if lost else []
    wrongs += [f"{above} is not above {below}" for above, below in ORDER if rates[above] <= rates[below]]
    if not any(each["parted"] for each in seen["rounds"] if each["arrangement"] == "cronus"):
        wrongs.append("cronus parted no prompt")
    if seen["balance"] < options.balance:
        wrongs.append(f"cronus is at {seen['balance'] * 100:.1f} % of perfect balance, below {options.balance * 100:.0f} %")
    return wrongs


def rows(seen: dict) -> list[list[str]]:
    head = ["ARRANGEMENT", "REQUESTS/S", "OF FAST ALONE", "TTFT P50", "TTFT P99", "TPOT P50", "PARTED", "ELSEWHERE", "ANSWERED BY", "PROCESSORS USED"]
    alone, all_rows = seen["requests_per_second"]["fast alone"], [head]
    for name, rate in seen["requests_per_second"].items():
        last = next(each for each in reversed(seen["rounds"]) if each["arrangement"] == name)
        used = ", ".join(f"{who} {part:.2f}" for who, part in last["processors"].items())
        times = [f"{last[metric] or 0:.0f} ms" for metric in ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms")]
        counts = [f"{last[count]}/{last['looked_at']}" for count in ("parted", "elsewhere")]
        by = ", ".join(f"{who} {count}" for who, count in sorted(last["answered_by"].items()))
        all_rows.append([name, f"{rate:.3f}", f"{rate / alone:.3f}", *times, *counts, by, used])
    all_rows.append(["perfect balance", f"{seen['perfect_balance']:.3f}", f"{seen['perfect_balance'] / alone:.3f}", *[""] * 7])
    return all_rows


def main() -> None:
    beside = ROOT.parent / "shared/data/azure_llm_2023_conv.csv"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tsnode", default=os.environ.get("TSNODE", "target/debug/tsnode"), help="the program")
    parser.add_argument("--model", type=Path, help="the peers' model [the one inside the program]")
    parser.add_argument("--trace", type=Path, default=beside, help="conversations [Azure's, beside the project]")
    parser.add_argument("--requests", type=int, default=200, help="so many of them")
    parser.add_argument("--lengths", type=float, default=0.25, help="of each length so much")
    parser.add_argument("--answers", type=float, help="of answers' lengths so much [as --lengths]")
    parser.add_argument("--part", type=float, default=1 / 3, help="of the fast peer's speed the slow one has, where there are few processors")
    parser.add_argument("--balance", type=float, default=0.85, help="the least share of perfect balance")
    parser.add_argument("--rounds", type=int, default=1, help="how often; the median counts")
    parser.add_argument("--seconds", type=int, default=600, help="the longest that an arrangement may take")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts' tokens")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if not 0 < options.part <= 1:
        parser.error("--part is above 0 and at most 1")
    ends_tidily()
    seen = measured(options)
    seen["wrong"] = wrong(options, seen)
    if options.json:
        print(json.dumps(seen, indent=2))
    else:
        print(seen["machine"])
        print(table(rows(seen)))
    said = f"cronus has {seen['balance'] * 100:.1f} % of perfect balance; the slow peer computes {seen['slow_over_fast']:.3f} of the fast one's prompts"
    print(f"DOES NOT HOLD: {', '.join(seen['wrong'])}; {said}" if seen["wrong"] else f"HOLDS: {said}", file=sys.stderr if options.json else sys.stdout)
    sys.exit(1 if seen["wrong"] else 0)


if __name__ == "__main__":
    main()
