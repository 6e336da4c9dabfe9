"""A swarm of real peers on this machine, for scripts that measure one: every peer a process with flags, processors and a speed of its own.

A module of cronus_live.py, pools_live.py and targets_live.py; run by itself it starts nothing.

How a peer is slower than its machine (Host.part): the script reads the processor time that its process has used every two milliseconds,
stops it (SIGSTOP) once it has used more than its part of the time, and lets it go on (SIGCONT) when its part has caught up. Time that it
did not use is not saved up beyond four milliseconds. So a peer of one thread with a part of 1/3 computes three times as long as its
machine would, evenly, whatever else runs; as cgroups' cpu.max, without root and without groups. What such a peer measured of itself it
measured before, at full speed; its advert is told to say that it is as slow as it is (POST /api/faults, boast), so that plans, gates and
balancers count with that. Linux only.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# Looks at who is paced (seconds), and what of a processor's time one that was idle may use at once (seconds).
TICK = 0.002
SAVED = 0.004
# A swarm is up after so long at most, and so much longer for each peer; and between looks (seconds).
UP = 60
UP_EACH = 10
LOOK = 0.2
# How long peers may take to leave before they are killed, and to hear a wish (seconds).
DOWN = 20
PATIENCE = 20
# Work that no simulator counts: draft tokens, and answers computed again.
PLAIN = ["--speculative-decoding", "never", "--spot-check", "never"]
# Proxies of the environment are not asked for peers of this machine.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Host:
    """A peer that is to be started; the last of a swarm's is the one that is asked."""

    name: str
    flags: list[str] = field(default_factory=list)
    # Processors that it stays on, as 0 or 0-2; any, where nothing is said.
    cores: str = ""
    # The part of a processor's time that it has; all that it can get, where it is None.
    part: float | None = None


def lends(threads: int, model: Path | None) -> list[str]:
    """Flags of a peer that computes a model; that inside the program, where none is named."""
    return ["--threads", str(threads), *(["--model", str(model)] if model else [])]


def gateway() -> Host:
    return Host("gateway", ["--no-model"])


@dataclass
class Paced:
    part: float
    used: float
    at: float
    credit: float = 0.0
    is_stopped: bool = False


def processor_time(pid: int) -> float:
    """Of all threads of a process (seconds): its processor clock, as clock_getcpuclockid(3) numbers it."""
    return time.clock_gettime((~pid << 3) | 2)


class Pacer(threading.Thread):
    """Gives processes a part of a processor's time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.paced: dict[int, Paced] = {}
        self.lock, self.over = threading.Lock(), threading.Event()
        # Processors that it stays on; any, where there are none.
        self.cores: set[int] = set()

    def add(self, pid: int, part: float) -> None:
        with self.lock:
            self.paced[pid] = Paced(part, processor_time(pid), time.monotonic())

    def run(self) -> None:
        try:
            if self.cores:
                os.sched_setaffinity(0, self.cores)
            # It has little to do and must not be late.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
        except OSError:
            pass
        while not self.over.wait(TICK):
            with self.lock:
                for pid in list(self.paced):
                    self.turn(pid, self.paced[pid])

    def turn(self, pid: int, paced: Paced) -> None:
        try:
            used, now = processor_time(pid), time.monotonic()
            paced.credit = min(SAVED, paced.credit + paced.part * (now - paced.at)) - (used - paced.used)
            paced.used, paced.at = used, now
            stops = paced.credit < 0
            if stops != paced.is_stopped:
                os.kill(pid, signal.SIGSTOP if stops else signal.SIGCONT)
                paced.is_stopped = stops
        except OSError:
            del self.paced[pid]  # It has ended.

    def end(self) -> None:
        """Everybody goes on."""
        self.over.set()
        if self.is_alive():
            self.join()
        for pid in self.paced:
            try:
                os.kill(pid, signal.SIGCONT)
            except OSError:
                pass  # It has ended.


class Peer:
    """One peer's process and its files."""

    def __init__(self, tsnode: str, folder: Path, host: Host, flags: list[str], invite: str | None):
        self.host, self.data, self.log = host, folder / host.name, folder / f"{host.name}.log"
        fixed = ["join", "--name", host.name, "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--mdns=false", "--faults"]
        own = host.flags if "--no-model" in host.flags else ["--device", "cpu", *host.flags]
        cores = ["--cores", host.cores] if host.cores else []
        into = [] if invite else ["--private"]
        command = [tsnode, *fixed, "--data-dir", str(self.data), *PLAIN, *flags, *own, *cores, *into]
        # Not as a flag: those are in the list of processes.
        environment = {name: value for name, value in os.environ.items() if name != "TSNODE_INVITE"}
        environment |= {"TSNODE_INVITE": invite} if invite else {}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self.pid, self.url, self.id = self.process.pid, "", ""

    def check(self) -> None:
        if self.process.poll() is not None:
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise SystemExit(f"{self.host.name} has ended ({self.process.returncode}); the last that it wrote:\n{last}")

    def file(self, name: str) -> str:
        """What it writes when it is reachable."""
        path, until = self.data / name, time.monotonic() + UP
        while True:
            text = path.read_text().strip() if path.exists() else ""
            if text:
                return text
            self.check()
            if time.monotonic() > until:
                raise SystemExit(f"{self.host.name} has not written {name} after {UP} s; its log is {self.log}")
            time.sleep(LOOK / 4)

    def get(self, path: str):
        with OPENER.open(self.url + path, timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: dict, headers: dict | None = None, timeout: float = PATIENCE):
        headers = {"Content-Type": "application/json", **(headers or {})}
        with OPENER.open(urllib.request.Request(self.url + path, json.dumps(body).encode(), headers), timeout=timeout) as answer:
            return json.loads(answer.read())

    def metrics(self) -> Counter:
        """Each metric's values, of all its labels together."""
        with OPENER.open(self.url + "/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        sums = Counter()
        for line in lines:
            if line and not line.startswith("#"):
                sums[line.split("{")[0].split(" ")[0]] += float(line.rsplit("}", 1)[-1].split()[-1])
        return sums


class Swarm:
    """Peers that are of one mind when it is entered, and gone with all their files when it is left."""

    def __init__(self, tsnode: str, folder: Path, hosts: list[Host], flags: list[str]):
        self.tsnode, self.folder, self.hosts, self.flags = tsnode, folder, hosts, flags
        self.peers: list[Peer] = []
        self.pacer = Pacer()

    def __enter__(self) -> "Swarm":
        try:
            self.start()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.down()

    @property
    def asked(self) -> Peer:
        return self.peers[-1]

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        invite = None
        for host in self.hosts:
            self.hand_on(host)
            peer = Peer(self.tsnode, self.folder, host, self.flags, invite)
            self.peers.append(peer)
            peer.url = f"http://{peer.file('http.addr')}"
            if host.part is not None:
                self.slower(peer, host.part)
            invite = invite or peer.file("invite")
        self.await_that(self.missing, UP + UP_EACH * len(self.hosts))
        for peer in self.peers:
            peer.id = peer.get("/api/swarm")["me"]
        # What they measured they measured at full speed: from now on they are as slow as they say.
        self.pacer.start()
        for peer in self.peers:
            if peer.host.part is not None:
                self.pacer.add(peer.pid, peer.host.part)

    def hand_on(self, host: Host) -> None:
        """What the first has measured of this machine one that computes with as much need not measure beside it."""
        measured = self.folder / self.hosts[0].name / "measured.json"
        if self.peers and host.flags == self.hosts[0].flags and measured.exists():
            (self.folder / host.name).mkdir(mode=0o700, exist_ok=True)
            shutil.copy(measured, self.folder / host.name)

    def slower(self, peer: Peer, part: float) -> None:
        """Its advert says so before anybody has heard of it: HTTP is open first."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                peer.post("/api/faults", {"boast": part})
                return
            except OSError as error:
                peer.check()
                if time.monotonic() > until:
                    raise SystemExit(f"{peer.host.name} does not say that it is slow: {error}") from error
                time.sleep(LOOK / 4)

    def views(self) -> list[dict | None]:
        def view(peer: Peer) -> dict | None:
            try:
                return peer.get("/api/swarm")
            except (OSError, ValueError):
                return None

        return [view(peer) for peer in self.peers]

    def missing(self) -> str:
        """What lacks until all follow one plan that has a part for everybody who lends, its groups up; nothing, if nothing does."""
        views = self.views()
        if not all(views):
            return "a peer does not answer"
        if any(len(view["peers"]) != len(self.peers) for view in views):
            return f"not everybody sees all {len(self.peers)} peers"
        plans = {view["plan_id"] for view in views}
        if len(plans) != 1 or None in plans:
            return "they follow different plans"
        named = {stage["peer"] for group in views[0]["plan"]["groups"] for stage in group["stages"]}
        lend = {peer["id"] for peer in views[0]["peers"] if peer["advert"]["devices"]}
        if lend - named:
            return "the plan leaves out somebody who lends"
        up = all(group["id"] in view["ready_groups"] for view in views for group in view["plan"]["groups"])
        return "" if up else "not all groups are up"

    def await_that(self, missing: Callable[[], str], seconds: float) -> None:
        until = time.monotonic() + seconds
        while lacks := missing():
            for peer in self.peers:
                peer.check()
            if time.monotonic() > until:
                raise SystemExit(f"after {seconds:.0f} s: {lacks}; logs are in {self.folder}")
            time.sleep(LOOK)

    def name(self, peer_id: str) -> str:
        return next((peer.host.name for peer in self.peers if peer.id == peer_id), peer_id)

    def says(self, *words: str) -> str:
        """What a verb of the program prints, of the peer that is asked."""
        done = subprocess.run([self.tsnode, *words, "--api", self.asked.url], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"tsnode {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def route(self, policy: str) -> None:
        """Sets how requests are routed, and waits until everybody knows, and follows a plan with the ways for it."""
        self.says("route", "set", policy)

        def unknown() -> str:
            for view in self.views():
                if view is None or policy not in json.dumps(view["settings"]):
                    return f"not everybody knows that requests are routed by {policy}"
            return self.missing()

        self.await_that(unknown, PATIENCE)

    def bench(self, words: list[str]) -> subprocess.Popen:
        """`tsnode bench serve` on the peer that is asked; figures() says what it found."""
        command = [self.tsnode, "bench", "serve", "--base-url", self.asked.url, "--json", "--disable-tqdm", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def context(self) -> int:
        """The most tokens of prompt and answer together."""
        return self.asked.get("/api/swarm")["models"][0]["shape"]["context"]

    def down(self) -> None:
        self.pacer.end()
        for peer in self.peers:
            if peer.process.poll() is None:
                peer.process.terminate()
        until = time.monotonic() + DOWN
        for peer in self.peers:
            try:
                peer.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                peer.process.kill()
                peer.process.wait()


def ends_tidily() -> None:
    """Whoever ends this process by SIGTERM, as timeout(1) does, ends what it started as well."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def figures(bench: subprocess.Popen) -> dict:
    """What a load saw, once it has ended."""
    out, error = bench.communicate()
    if bench.returncode != 0:
        raise SystemExit(f"tsnode bench serve ended with {bench.returncode}: {error.strip()}")
    return json.loads(out)


def trace(path: Path, requests: list[tuple[float, int, int]]) -> Path:
    """Writes when requests come (s), and the tokens of their prompts and answers, as bench serve --trace reads them."""
    lines = ["arrival_s,prompt_tokens,output_tokens", *(f"{at:.6f},{prompt},{answer}" for at, prompt, answer in requests)]
    path.write_text("\n".join(lines) + "\n")
    return path


def lengths(path: Path, count: int) -> list[tuple[int, int]]:
    """Tokens of the prompts and answers of a trace's first requests, in Azure's columns or with plain seconds."""
    if not path.exists():
        raise SystemExit(f"{path} is not there; name a trace with --trace (docs/examples/trace.csv is one)")
    rows = [line.split(",") for line in path.read_text().splitlines() if line.strip()]
    names = [name.strip() for name in rows[0]]
    for prompt, answer in (("ContextTokens", "GeneratedTokens"), ("prompt_tokens", "output_tokens")):
        if prompt in names and answer in names:
            at = names.index(prompt), names.index(answer)
            found = [(int(row[at[0]]), int(row[at[1]])) for row in rows[1 : count + 1]]
            if len(found) < count:
                raise SystemExit(f"{path} has {len(found)} requests, fewer than {count}")
            return found
    raise SystemExit(f"{path}: the first line must name ContextTokens and GeneratedTokens, or prompt_tokens and output_tokens")


def fitted(prompt: float, answer: float, context: int) -> tuple[int, int]:
    """Lengths that have room in a model's context: an answer at most half of it."""
    tokens = min(max(1, round(answer)), context // 2)
    return min(max(1, round(prompt)), context - tokens), tokens


def table(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


if __name__ == "__main__":
    sys.exit("this is a module: run scripts/cronus_live.py, scripts/pools_live.py or scripts/targets_live.py")
