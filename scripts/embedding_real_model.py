#!/usr/bin/env python3
"""Asks a gateway for the vectors of texts, and compares them with others: `embedding_real_model.py FIGURES URL`."""

import base64
import json
import struct
import sys
import time
import urllib.error
import urllib.request


def floats(text):
    raw = base64.b64decode(text)
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def asked(url, body, patience=60):
    """The answer, once a lender is known there."""
    request = urllib.request.Request(
        url + "/v1/embeddings", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    until = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(request, timeout=patience) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError) as error:
            busy = not isinstance(error, urllib.error.HTTPError) or error.code in (404, 503)
            if not busy or time.monotonic() > until:
                raise
            time.sleep(0.5)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def main(figures, url):
    figures = json.load(open(figures))
    body = {"model": "all-MiniLM-L6-v2", "input": figures["texts"], "encoding_format": "base64"}
    begun = time.monotonic()
    answer = asked(url, body)
    print(f"{len(figures['texts'])} texts, {answer['usage']['prompt_tokens']} tokens, {time.monotonic() - begun:.2f} s with the wait for a lender")
    begun = time.monotonic()
    answer = asked(url, body)
    print(f"again: {time.monotonic() - begun:.2f} s")
    worst = 1.0
    for text, theirs, ours in zip(figures["texts"], figures["vectors"], answer["data"]):
        worst = min(worst, cosine(floats(theirs), floats(ours["embedding"])))
    print(f"the lowest cosine with sentence-transformers' vectors is 1 - {1 - worst:.1e}")
    return 0 if worst >= 0.9999 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
