"""Whether tighter and looser targets change a live swarm's plan as the simulator says, and whether a shift of them loses a request.

    python3 scripts/targets_live.py [--tsnode target/debug/tsnode] [--peers 4] [--rate 0.65] [--json]

Starts peers of one thread each and a gateway, lays out nothing, and sets targets one after another (tsnode targets set): a minute to the
first token, and for each token after it at first fifty times what a step of the fastest peer takes by its own profile, then ever less; then
what they were at first; and in the end three times what a prompt takes to the first token. All the while a load of requests comes, by
tsnode bench serve: fewer than a hundred, since until so many have come plans count with a rate that keeps the swarm busy, and where there
is little to do all plans are as good. After each shift it waits for the plan that follows, and asks tsnode plan --why for what the plan in
force and others are worth under these targets: the evaluation that peers and the simulator have in common.

Tighter targets for tokens want peers that only write answers, which no prompt holds up; tighter ones for first tokens want peers that
compute prompts, in groups of their own or several in one. So it ends with 1 unless

- as targets for tokens tighten, peers in groups that do both never become more, and are fewer at the tightest than at the loosest, as long
  as a tenth of the requests can be in time by any plan; and under looser targets again they are no fewer than at the tightest;
- where first tokens are urgent no fewer peers are in groups that compute prompts;
- under all targets no other plan that tsnode plan --why knows is worth more than that in force by more than --margin: a plan is changed for
  what is better by a tenth, and what peers see of links differs a little;
- every request is answered.

About a quarter of a minute for each of nine shifts. Linux only; everything it starts ends with it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from live_swarm import LOOK, Host, Swarm, ends_tidily, figures, gateway, lends, table

# For each token so many times what a step takes; and to the first token so many times what a prompt takes, or as long as may be.
LADDER = [50.0, 5.0, 2.0, 1.5, 1.25, 1.1, 1.03]
SHIFTS = [*((factor, None) for factor in LADDER), (50.0, None), (50.0, 3.0)]
LONGEST = 60.0
# Where fewer are in time by the best plan, all plans are as bad, and which it is says nothing.
HARDLY = 0.1
# Tokens of a prompt, and those that a sequence has behind it in a step.
TOKENS = 300
# How long a plan may take to follow a shift of targets, and how long none must have followed another (seconds).
FOLLOWS = 60
STANDS = 12
# Requests that are still under way at the end are waited for (seconds).
DRAIN = 120


def profiled(swarm: Swarm) -> tuple[float, float]:
    """A step of one sequence, and a prompt, alone on the fastest peer by the profiles and speeds in adverts (s): all layers, and the head."""
    view = swarm.asked.get("/api/swarm")
    shape = view["models"][0]["shape"]

    def both(device: dict, profile: dict) -> tuple[float, float]:
        (fixed, context, sequence), (whole, token, square) = profile["decode"], profile["prefill"]
        head = shape["head_bytes"] / device["bandwidth"] + 2.0 * shape["vocab"] * shape["hidden"] / device["flops"]
        step = shape["layers"] * (fixed + context * TOKENS + sequence) + head
        return step, shape["layers"] * (whole + token * TOKENS + square * TOKENS**2) + head

    devices = [device for peer in view["peers"] for device in peer["advert"]["devices"]]
    found = [both(device, served["profile"]) for device in devices for served in device["serves"] if served["profile"]]
    if not found:
        sys.exit("no peer has said what it measured of its layers")
    return min(found)


def phases(groups: list[dict]) -> Counter:
    return Counter(group["phase"] for group in groups)


def peers(groups: list[dict]) -> Counter:
    """By phase: a prompt that is passed through two peers is computed by both."""
    return Counter(group["phase"] for group in groups for _ in group["stages"])


def plan(swarm: Swarm) -> str | None:
    return swarm.asked.get("/api/swarm")["plan_id"]


def settled(swarm: Swarm) -> None:
    """Waits until no other plan has followed for a while, and its groups are up."""
    began = since = time.monotonic()
    seen = plan(swarm)
    while time.monotonic() - since < STANDS or swarm.missing():
        if time.monotonic() - began > FOLLOWS:
            sys.exit(f"plans still change, or groups are not up, {FOLLOWS} s after targets did: {swarm.missing() or 'plans change'}")
        time.sleep(LOOK)
        now = plan(swarm)
        if now != seen:
            seen, since = now, time.monotonic()


def shifted(swarm: Swarm, ttft: float, tpot: float) -> dict:
    """Sets them, and says what came of it."""
    swarm.says("targets", "set", "--ttft", f"{ttft * 1e3:.4f}ms", "--tpot", f"{tpot * 1e3:.4f}ms")
    settled(swarm)
    why = json.loads(swarm.says("plan", "--why", "--json"))
    own = why["why"][0]
    others = [{"groups": dict(phases(other["groups"])), "value": other["value"]} for other in own["runners_up"]]
    return {
        "ttft_ms": ttft * 1e3,
        "tpot_ms": tpot * 1e3,
        "groups": dict(phases(why["groups"])),
        "peers": dict(peers(why["groups"])),
        "worth": own["value"],
        "rate": own["rate"],
        "best_other": max((other["value"] for other in others), default=None),
        "others": others,
        "held_against": own["slo"],
    }


def load(swarm: Swarm, options: argparse.Namespace, seconds: float) -> subprocess.Popen:
    count = max(1, round(options.rate * seconds))
    words = ["--request-rate", str(options.rate), "--num-prompts", str(count), "--input-len", "300", "--output-len", "60"]
    words += ["--random-range-ratio", "0.5", "--ignore-eos", "--temperature", "0", "--seed", str(options.seed)]
    return swarm.bench([*words, "--max-seconds", str(round(seconds) + DRAIN)])


def measured(options: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        hosts = [Host(f"peer{n}", lends(1, options.model)) for n in range(options.peers)]
        with Swarm(options.tsnode, Path(folder), [*hosts, gateway()], ["--split", "auto"]) as swarm:
            step, prompt = profiled(swarm)
            print(f"by the fastest peer's profile a step takes {step * 1e3:.3f} ms, a prompt {prompt * 1e3:.1f} ms", file=sys.stderr)
            asking = load(swarm, options, len(SHIFTS) * (STANDS + 3.0))
            try:
                return shifts(swarm, step, prompt, asking)
            finally:
                if asking.poll() is None:
                    asking.terminate()
                    asking.wait()


def shifts(swarm: Swarm, step: float, prompt: float, asking: subprocess.Popen) -> dict:
    seen = []
    for factor, of_prompt in SHIFTS:
        # What is answered only after the load has ended shows nothing of requests that are lost.
        is_asked = asking.poll() is None
        ttft = LONGEST if of_prompt is None else prompt * of_prompt
        seen.append({**shifted(swarm, ttft, step * factor), "under_load": is_asked})
        groups = ", ".join(f"{count} {phase}" for phase, count in seen[-1]["groups"].items())
        said = f"first token in {ttft * 1e3:.0f} ms, others in {step * factor * 1e3:.3f} ms"
        print(f"{said}: {groups}, {seen[-1]['worth'] * 100:.1f} % in time", file=sys.stderr)
    answers = figures(asking)
    kept = "completed failed cut_short not_sent p50_tpot_ms p99_tpot_ms errors"
    return {"step_ms": step * 1e3, "prompt_ms": prompt * 1e3, "shifts": seen, "load": {name: answers.get(name) for name in kept.split()}}


def doing(shift: dict, *kinds: str) -> int:
    """Peers in groups of these phases."""
    return sum(shift["peers"].get(kind, 0) for kind in kinds)


def is_beaten(shift: dict, margin: float) -> bool:
    best = shift["best_other"]
    return best is not None and best > shift["worth"] * (1.0 + margin)


def wrong(options: argparse.Namespace, seen: dict) -> list[str]:
    """What does not hold."""
    all_shifts = seen["shifts"]
    looser, prompts = all_shifts[-2:]
    ladder = [shift for shift in all_shifts[: len(LADDER)] if shift["worth"] >= HARDLY]
    counts = [doing(shift, "mixed") for shift in ladder]
    lost = sum(seen["load"][name] for name in ("failed", "cut_short", "not_sent"))
    readers = [doing(shift, "mixed", "prefill") for shift in (looser, prompts)]
    cases = [
        (lost, f"{lost} requests were not answered"),
        (any(later > earlier for earlier, later in zip(counts, counts[1:])), f"peers that do both become more as targets tighten: {counts}"),
        (len(counts) < 2 or counts[-1] >= counts[0], f"no target changed the plan: {counts} peers do both"),
        (doing(looser, "mixed") < counts[-1], f"{doing(looser, 'mixed')} peers do both under looser targets, fewer than {counts[-1]}"),
        (readers[1] < readers[0], f"{readers[1]} peers compute prompts where first tokens are urgent, fewer than {readers[0]}"),
        (not any(shift["under_load"] for shift in all_shifts[1:]), "the load had ended before targets shifted"),
    ]
    beaten = [shift for shift in all_shifts if is_beaten(shift, options.margin)]
    said = [f"under {s['tpot_ms']:.3f} ms another plan is worth {s['best_other']:.3f}, that in force {s['worth']:.3f}" for s in beaten]
    return [what for is_so, what in cases if is_so] + said


def rows(seen: dict) -> list[list[str]]:
    def row(shift: dict) -> list[str]:
        groups = ", ".join(f"{count} {phase}" for phase, count in sorted(shift["groups"].items()))
        other = "-" if shift["best_other"] is None else f"{shift['best_other'] * 100:.1f} %"
        return [f"{shift['ttft_ms']:.0f} ms", f"{shift['tpot_ms']:.3f} ms", groups, f"{shift['worth'] * 100:.1f} %", other, "yes" if shift["under_load"] else "no"]

    return [["TTFT", "TPOT", "GROUPS", "IN TIME", "BEST OTHER PLAN", "UNDER LOAD"], *map(row, seen["shifts"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tsnode", default=os.environ.get("TSNODE", "target/debug/tsnode"), help="the program")
    parser.add_argument("--model", type=Path, help="the peers' model [the one inside the program]")
    parser.add_argument("--peers", type=int, default=4, help="peers with a model")
    parser.add_argument("--rate", type=float, default=0.65, help="requests a second meanwhile")
    parser.add_argument("--margin", type=float, default=0.12, help="the part by which another plan may be worth more")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals, lengths and prompts")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    ends_tidily()
    seen = measured(options)
    seen["wrong"] = wrong(options, seen)
    print(json.dumps(seen, indent=2) if options.json else table(rows(seen)))
    said = f"{seen['load']['completed']} requests answered while targets shifted {len(seen['shifts'])} times, {seen['load']['failed']} failed"
    print(f"DOES NOT HOLD: {', '.join(seen['wrong'])}; {said}" if seen["wrong"] else f"HOLDS: {said}", file=sys.stderr if options.json else sys.stdout)
    sys.exit(1 if seen["wrong"] else 0)


if __name__ == "__main__":
    main()
