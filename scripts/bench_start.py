"""How long a peer takes from its start to its first token, and what memory it has in use, idle and after some requests.

    python3 scripts/bench_start.py [tsnode] [flags of `tsnode join`]

Starts a peer of a new private swarm three times: the first measures the machine, the others remember. A peer that is alone
waits for company before it plans, until a client asks. Ends with 1 where more is resident than weights, KV pages and
150 MB, or where the embedded model's first token takes more than half a second.
"""

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

REQUESTS = 16
PATIENCE = 300.0
# The goals: bytes beside weights and KV pages, and seconds to the first token.
BESIDE = 150e6
FIRST_TOKEN = 0.5


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def complete(port: int, prompt: str, tokens: int) -> None:
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}).encode()
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=PATIENCE).read()


def gauges(port: int) -> dict[str, float]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).read().decode()
    lines = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {fields[0]: float(fields[1]) for fields in lines if len(fields) == 2}


def resident(pid: int, port: int) -> bool:
    """Says what memory is in use; whether that is within the goal."""
    # Gauges are of the last heartbeat.
    time.sleep(1.5)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    resident, own = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
    weights, kv = (gauges(port)[f"tsnode_{name}"] for name in ("weight_bytes", "kv_bytes"))
    beside = resident - weights - kv
    parts = [f"{name} {size / 1e6:.0f}" for name, size in (("weights", weights), ("KV pages", kv), ("beside", beside))]
    print(f"  {resident / 1e6:.0f} MB resident ({own / 1e6:.0f} its own): {', '.join(parts)}")
    return beside <= BESIDE


def measure(executable: str, flags: list[str], folder: str, is_first: bool) -> bool:
    port = free_port()
    started = time.monotonic()
    command = [executable, "join", "--private", "--data-dir", folder]
    command += ["--http", f"127.0.0.1:{port}", "--listen", "127.0.0.1:0", *flags]
    peer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                complete(port, "It was a dark", 1)
                break
            except (urllib.error.URLError, ConnectionError):
                if peer.poll() is not None or time.monotonic() - started > PATIENCE:
                    sys.exit("the peer gave no token")
                time.sleep(0.005)
        took = time.monotonic() - started
        print(f"first token after {took:.2f} s{', the machine measured' if is_first else ''}")
        quick = bool(flags) or took <= FIRST_TOKEN
        idle = resident(peer.pid, port)
        prompt = "It was a dark and stormy night. " * 20
        many = [threading.Thread(target=complete, args=(port, prompt, 200)) for _ in range(REQUESTS)]
        for thread in many:
            thread.start()
        for thread in many:
            thread.join()
        print(f"after {REQUESTS} requests at once")
        return resident(peer.pid, port) and idle and quick
    finally:
        peer.terminate()
        peer.wait()


if __name__ == "__main__":
    executable, *flags = sys.argv[1:] or ["target/release/tsnode"]
    with tempfile.TemporaryDirectory() as folder:
        good = [measure(executable, flags, folder, n == 0) for n in range(3)]
    sys.exit(0 if all(good) else 1)
