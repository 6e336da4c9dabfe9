"""Whether a peer with few files serves its clients, keeps its members and lets newcomers in beside a crowd of idle connections.

    python3 scripts/idle_sockets.py [--tsnode target/debug/tsnode] [--files 1024] [--sockets 5000] [--seconds 20]

Starts a private swarm of two hosts and a gateway on loopback, the first host with so many files, and opens so many connections to
each of its three ports (HTTP, peers, lifelines): first from one address, then from fifty, each of 127.0.0.0/8. They say nothing,
and come again a second after they are hung up on. Meanwhile clients ask all three peers, and newcomers with the first host's invite
join. Ends with 1 where a client is not served, a member is lost, a newcomer takes more than ten seconds, or files run out.
Linux only; everything it starts ends with it.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PATIENCE = 60.0
# A newcomer is in, and a client's answer is there, within these (seconds).
NEWCOMER = 10.0
ANSWER = 10.0
NEWCOMERS = 3


class Peer:
    """One peer, its process and its files."""

    def __init__(self, tsnode: str, folder: Path, name: str, flags: list[str], files: int | None = None):
        self.name, self.data = name, folder / name
        self.log = open(folder / f"{name}.log", "w")
        few = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None
        fixed = ["join", "--name", name, "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--mdns=false"]
        command = [tsnode, *fixed, "--threads", "1", "--data-dir", str(self.data), *flags]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, preexec_fn=few
        )

    def file(self, name: str) -> str | None:
        path = self.data / name
        return (path.read_text().strip() or None) if path.exists() else None

    def http(self) -> str | None:
        return self.file("http.addr")

    def swarm(self) -> dict | None:
        """What it sees; nothing once it has ended."""
        try:
            return json.load(urllib.request.urlopen(f"http://{self.http()}/api/swarm", timeout=5))
        except (OSError, ValueError):
            return None

    def sees(self) -> int:
        return len((self.swarm() or {"peers": []})["peers"])

    def complete(self) -> float:
        """Seconds to a whole answer; without end where there is none."""
        body = {"prompt": "It was a dark and windy night", "max_tokens": 32, "ignore_eos": True}
        started = time.monotonic()
        request = urllib.request.Request(
            f"http://{self.http()}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            urllib.request.urlopen(request, timeout=2 * ANSWER).read()
        except OSError as error:
            print(f"  {self.name} does not answer: {error}")
            return float("inf")
        return time.monotonic() - started

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def until(what: str, so, patience: float = PATIENCE) -> None:
    if waited(so, patience) == float("inf"):
        raise SystemExit(f"not in {patience:.0f} s: {what}")


def waited(so, patience: float) -> float:
    """Seconds until something is so; without end where it is not."""
    started = time.monotonic()
    while not so():
        if time.monotonic() - started > patience:
            return float("inf")
        time.sleep(0.05)
    return time.monotonic() - started


def ports(peer: Peer) -> dict[str, tuple[str, int]]:
    seen = peer.swarm()
    own = next(p for p in seen["peers"] if p["id"] == seen["me"])["advert"]
    control = next(a for a in own["addresses"] if a.startswith("/ip4/127.0.0.1/tcp/")).split("/")[4]
    data = own["data_addresses"][0].rsplit(":", 1)[1]
    http = peer.http().rsplit(":", 1)[1]
    return {name: ("127.0.0.1", int(port)) for name, port in
            [("HTTP", http), ("peers", control), ("lifelines", int(data) + 1)]}


class Crowd(asyncio.Protocol):
    """Connections that say nothing, in a process of their own."""

    def __init__(self, to: tuple[str, int], source: str):
        self.to, self.source, self.again = to, source, True

    def connection_made(self, transport):
        Crowd.there += 1
        Crowd.came += 1

    def connection_lost(self, error):
        Crowd.there -= 1
        asyncio.get_running_loop().call_later(1.0, self.come)

    def come(self):
        asyncio.ensure_future(self.connect())

    async def connect(self):
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, *self.to, local_addr=(self.source, 0))
        except OSError:
            loop.call_later(1.0, self.come)

    there = came = 0

    @staticmethod
    async def stand(targets: list[tuple[str, int]], sockets: int, addresses: int) -> None:
        for n in range(sockets):
            for to in targets:
                Crowd(to, f"127.0.2.{1 + n % addresses}").come()
            if n % 50 == 0:
                await asyncio.sleep(0)
        while os.getppid() != 1:
            await asyncio.sleep(0.5)
            print(Crowd.there, Crowd.came, flush=True)


def story(hosts: list[Peer], few: Peer, start, sockets: int, addresses: int, files: int, seconds: float) -> bool:
    """One crowd, and what becomes of the others meanwhile."""
    before = few.sees()
    crowd = subprocess.Popen(
        [sys.executable, __file__, "--stand", json.dumps([list(ports(few).values()), sockets, addresses])],
        stdout=subprocess.PIPE, text=True,
    )
    answers, newcomers, most, lost = [], [], 0, 0
    try:
        crowd.stdout.readline()
        until_end = time.monotonic() + seconds
        while time.monotonic() < until_end or len(newcomers) < NEWCOMERS:
            for peer in hosts:
                answers.append(peer.complete())
                most = max(most, few.open_files())
            lost = max(lost, before - few.sees())
            if len(newcomers) < NEWCOMERS:
                newcomer = start(f"newcomer-{addresses}-{len(newcomers)}", few.file("invite"))
                newcomers.append(waited(lambda: newcomer.sees() > before, 3 * NEWCOMER))
                newcomer.end()
                waited(lambda: few.sees() <= before, NEWCOMER)
        there = crowd.stdout.readline().split()
    finally:
        crowd.kill()
        crowd.wait()
    print(f"{3 * sockets} sockets from {addresses} address{'es' * (addresses > 1)} ({there[0]} at once, {there[1]} came):")
    print(f"  {len(answers)} answers, the slowest after {max(answers):.2f} s")
    print(f"  newcomers in after {', '.join(f'{seconds:.2f}' for seconds in newcomers)} s")
    print(f"  {most} of {files} files open at most; {lost} members lost")
    return max(answers) <= ANSWER and max(newcomers) <= NEWCOMER and lost <= 0 and most < files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tsnode", default="target/debug/tsnode")
    parser.add_argument("--files", type=int, default=1024)
    parser.add_argument("--sockets", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--stand", help=argparse.SUPPRESS)
    wish = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if wish.stand:
        targets, sockets, addresses = json.loads(wish.stand)
        asyncio.run(Crowd.stand([tuple(to) for to in targets], sockets, addresses))
        return 0
    if hard < 3 * wish.sockets + 100:
        print(f"{3 * wish.sockets} sockets need as many files here, and {hard} are allowed", file=sys.stderr)
        return 2
    peers = []
    with tempfile.TemporaryDirectory() as folder:
        def start(name: str, invite: str, *flags: str, files: int | None = None) -> Peer:
            into = ["--invite", invite] if invite else ["--private"]
            peers.append(Peer(wish.tsnode, Path(folder), name, [*into, *flags], files))
            return peers[-1]

        def newcomer(name: str, invite: str) -> Peer:
            return start(name, invite, "--no-model")

        try:
            few = start("few", "", files=wish.files)
            until("the first is up", lambda: few.file("invite") and few.http())
            hosts = [few, start("host", few.file("invite")), newcomer("gateway", few.file("invite"))]
            until("all see each other", lambda: all(peer.http() and peer.sees() == 3 for peer in hosts))
            until("they answer", lambda: all(group for group in [few.swarm()["ready_groups"]]))
            good = [story(hosts, few, newcomer, wish.sockets, addresses, wish.files, wish.seconds) for addresses in (1, 50)]
        finally:
            for peer in peers:
                peer.end()
    print("good" if all(good) else "not good")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
