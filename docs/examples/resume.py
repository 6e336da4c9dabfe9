#!/usr/bin/env python3
"""Reads a streamed answer to its end whatever dies: python3 resume.py PROMPT URL [URL ...]

Needs nothing but Python. Any peer can go on with the answer of another: asked with the same body and the id of the last
event that came (Last-Event-ID), or, before the first event, with the same Idempotency-Key. Events have ids for who asks
for them (x-tsnode-event-ids).
"""

import itertools
import json
import sys
import time
import urllib.error
import urllib.request
import uuid


def tokens(prompt, peers, tries=60):
    body = json.dumps({"prompt": prompt, "max_tokens": 200, "stream": True}).encode()
    key, last = str(uuid.uuid4()), None
    for peer in itertools.islice(itertools.cycle(peers), tries):
        headers = {"Content-Type": "application/json", "x-tsnode-event-ids": "1"}
        headers |= {"Last-Event-ID": last} if last else {"Idempotency-Key": key}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{peer}/v1/completions", body, headers), timeout=90) as events:
                for line in events:
                    name, _, value = line.decode().strip().partition(": ")
                    if name == "id":
                        last = value
                    elif name == "data" and value == "[DONE]":
                        return
                    elif name == "data":
                        event = json.loads(value)
                        if "error" in event:
                            raise OSError(event["error"]["message"])
                        yield "".join(choice["text"] for choice in event["choices"])
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise SystemExit(json.load(error)["error"]["message"]) from error
            time.sleep(int(error.headers.get("Retry-After", 1)))
        except OSError:
            time.sleep(0.5)
    raise SystemExit("no peer could go on with it")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    for text in tokens(sys.argv[1], sys.argv[2:]):
        print(text, end="", flush=True)
    print()
