"""How long a peer takes from its start to its first token, and what memory it has in use, idle and after some requests.

    python3 scripts/bench_start.py [tsnode] [flags of `tsnode join`]

Starts a peer of a new private swarm three times: the first measures the machine, the others remember. A peer that is alone
waits for company before it plans, until a client asks.
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
PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def complete(port: int, prompt: str, tokens: int) -> None:
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}).encode()
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=PATIENCE).read()


def resident(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    resident, own = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))
    return f"{resident:.0f} MiB resident, {own:.0f} MiB of them its own"


def measure(executable: str, flags: list[str], folder: str) -> None:
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
        print(f"first token after {time.monotonic() - started:.2f} s; {resident(peer.pid)}")
        prompt = "It was a dark and stormy night. " * 20
        many = [threading.Thread(target=complete, args=(port, prompt, 200)) for _ in range(REQUESTS)]
        for thread in many:
            thread.start()
        for thread in many:
            thread.join()
        print(f"after {REQUESTS} requests at once: {resident(peer.pid)}")
    finally:
        peer.terminate()
        peer.wait()


if __name__ == "__main__":
    executable, *flags = sys.argv[1:] or ["target/release/tsnode"]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            measure(executable, flags, folder)
