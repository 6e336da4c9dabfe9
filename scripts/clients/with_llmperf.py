"""llmperf's way to read a stream, in lines of our own: it is on GitHub alone, and pinned here are names of PyPI.

Its client takes every line that is not empty for an event, cuts off as many letters as `data: ` has without looking at them,
and wants JSON with a choice and its delta behind them, or `[DONE]`. So an `id:` line, a comment, or an event without choices is
the end of a request there.
"""

import concurrent.futures
import json
import sys

import httpx

url = sys.argv[1]
model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
STEM = b"data: "


def asked(number):
    body = {"model": model, "messages": [{"role": "user", "content": f"It was night {number}"}], "stream": True, "max_tokens": 12}
    text, events = "", 0
    with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=60) as response:
        response.raise_for_status()
        for line in response.read().split(b"\n"):
            line = line.strip()
            if not line or line[len(STEM) :] == b"[DONE]":
                continue
            event = json.loads(line[len(STEM) :])
            assert "error" not in event, event
            text += event["choices"][0]["delta"].get("content") or ""
            events += 1
    return text, events


with concurrent.futures.ThreadPoolExecutor(8) as pool:
    for text, events in pool.map(asked, range(8)):
        assert text and events > 1, (text, events)
