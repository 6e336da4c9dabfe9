"""What 100 bodies of 8 MiB, 20 at a time, do to a peer and to the streams it serves beside them.

    python3 scripts/bench_bodies.py [tsnode] [kind] [flags of `tsnode join`]

Starts a peer of a new private swarm, has it answer eight streams, and sends it bodies of one kind after the other: `text`,
`chat`, `said` (a conversation of what the model said), `tokens`, `values` (JSON of which a plain reader makes seventy times its
length), and `odd` (no JSON at its end); or only those of the kind that is named. Ends with 1 where the peer and its processes
take more than 300 MB above rest, or five seconds after 30 MB more than streams alone leave, where a stream's gap is above half
a second, or a body gets another answer than 400 or, where it came too late for its turn, 503 with a time to come back.
"""

import collections
import http.client
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BYTES = 8 << 20
BODIES = 100
AT_ONCE = 20
STREAMS = 8
PATIENCE = 300.0
# Seconds that streams run before bodies come, and after which memory is looked at again.
BEFORE = 5.0
AFTERWARDS = 5.0
# The goals: bytes above rest while bodies come, and five seconds after above what streams alone leave; and seconds between
# tokens of a stream.
ABOVE = 300e6
AFTER = 30e6
GAP = 0.5


def filled(begin: str, unit: str, end: str) -> bytes:
    """A body of so many bytes."""
    return (begin + unit * ((BYTES - len(begin) - len(end)) // len(unit)) + end).encode()


KINDS = {
    "text": ("/v1/completions", lambda: filled('{"prompt":"', "a ", '"}')),
    "chat": ("/v1/chat/completions", lambda: filled('{"messages":[{"role":"user","content":"', "a ", '"}]}')),
    "said": ("/v1/chat/completions", lambda: filled('{"messages":[{"role":"assistant","content":"', "a ", '"}]}')),
    "tokens": ("/v1/completions", lambda: filled('{"prompt":[', "7,", "7]}")),
    "odd": ("/v1/completions", lambda: filled('{"prompt":"', "\\u0061", '"')),
    "values": ("/v1/completions", lambda: filled('{"stop":[', '{"":0},', '0],"prompt":"a"}')),
}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def post(port: int, path: str, body: bytes) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", path, body, {"content-type": "application/json"})
    return connection.getresponse()


def tree(pid: int) -> list[int]:
    """A process and those it started."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(child for file in children for child in map(int, file.read_text().split()))]


def resident(pid: int) -> int:
    total = 0
    try:
        for process in tree(pid):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
    except (OSError, IndexError):
        pass  # One of them has just ended.
    return total


def stream(port: int, number: int, stop, gaps) -> None:
    """Asks for one stream after the other, and notes the longest gap between two of its tokens."""
    worst = 0.0
    body = {"prompt": f"It was a dark night {number}", "max_tokens": 600, "ignore_eos": True, "stream": True}
    while not stop.is_set():
        answer, last = post(port, "/v1/completions", json.dumps(body).encode()), None
        while line := answer.readline():
            if line.startswith(b"data: {"):
                now = time.monotonic()
                worst = max(worst, now - (last or now))
                last = now
            if stop.is_set():
                break
    gaps.put(worst)


class Watch:
    """Looks at a process's memory."""

    def __init__(self, pid: int):
        self.pid, self.most, self.ended = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self) -> None:
        while not self.ended.wait(0.02):
            self.most = max(self.most, resident(self.pid))

    def end(self) -> int:
        self.ended.set()
        self.thread.join()
        return self.most


def send(port: int, path: str, body: bytes, answers: list) -> None:
    """One of those who send bodies until all are sent."""
    while True:
        started = time.monotonic()
        try:
            answer = post(port, path, body)
            refusal = json.loads(answer.read())["error"]["message"]
            told = answer.status if answer.status != 503 or answer.headers["retry-after"] else "503 without a time"
        except (OSError, http.client.HTTPException) as error:
            told, refusal = type(error).__name__, str(error)
        answers.append((told, time.monotonic() - started, refusal))
        if len(answers) > BODIES - AT_ONCE:
            return


class Streams:
    """Eight clients that have streams answered, each in a process of its own: what they see is not this one's slowness."""

    def __init__(self, port: int):
        self.stop, self.gaps = multiprocessing.Event(), multiprocessing.Queue()
        arguments = [(port, number, self.stop, self.gaps) for number in range(STREAMS)]
        self.clients = [multiprocessing.Process(target=stream, args=these) for these in arguments]
        for client in self.clients:
            client.start()
        time.sleep(BEFORE)

    def end(self) -> float:
        self.stop.set()
        worst = max(self.gaps.get(timeout=PATIENCE) for _ in self.clients)
        for client in self.clients:
            client.join()
        return worst


def alone(port: int, pid: int) -> int:
    """What is left of streams beside which nothing comes: pages of KV, and what their answers were."""
    rest, streams = resident(pid), Streams(port)
    time.sleep(BEFORE)
    worst = streams.end()
    time.sleep(AFTERWARDS)
    left = resident(pid) - rest
    print(f"streams alone: {left / 1e6:.0f} MB after; longest gap {worst:.2f} s")
    return left


def measure(port: int, pid: int, kind: str, left: int) -> bool:
    path, make = KINDS[kind]
    body, rest, streams = make(), resident(pid), Streams(port)
    watch, answers, started = Watch(pid), [], time.monotonic()
    senders = [threading.Thread(target=send, args=(port, path, body, answers)) for _ in range(AT_ONCE)]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join()
    took = time.monotonic() - started
    above, worst = watch.end() - rest, streams.end()
    time.sleep(AFTERWARDS)
    after = resident(pid) - rest
    statuses = collections.Counter(status for status, _, _ in answers)
    slowest = max(seconds for _, seconds, _ in answers)
    print(f"{kind}: {len(answers)} bodies in {took:.1f} s, answers {dict(statuses)}, the slowest after {slowest:.1f} s")
    print(f"  {above / 1e6:.0f} MB above rest ({rest / 1e6:.0f} MB), {after / 1e6:.0f} MB after; longest gap {worst:.2f} s")
    print(f"  {answers[0][2]}")
    is_refused = set(statuses) <= {400, 503} and statuses[400] > 0
    return above <= ABOVE and after <= max(left, 0) + AFTER and worst <= GAP and is_refused


def main(executable: str, kinds: list[str], flags: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [executable, "join", "--private", "--data-dir", folder]
        command += ["--http", f"127.0.0.1:{port}", "--listen", "127.0.0.1:0", *flags]
        peer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            started, warm = time.monotonic(), b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":8}'
            while True:
                try:
                    if post(port, "/v1/chat/completions", warm).status == 200:
                        break
                except OSError:
                    pass
                if peer.poll() is not None or time.monotonic() - started > PATIENCE:
                    sys.exit("the peer gave no token")
                time.sleep(0.1)
            time.sleep(2)
            left = alone(port, peer.pid)
            return all([measure(port, peer.pid, kind, left) for kind in kinds])
        finally:
            peer.terminate()
            peer.wait()


if __name__ == "__main__":
    executable, *more = sys.argv[1:] or ["target/release/tsnode"]
    kinds = [more.pop(0)] if more and more[0] in KINDS else list(KINDS)
    sys.exit(0 if main(executable, kinds, more) else 1)
