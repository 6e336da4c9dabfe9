#!/usr/bin/env python3
"""JSON schemas that others wrote, against a gateway: each is compiled or refused in words, and what is answered is valid.

Takes schemas from the test suite of the `jsonschema` sdist (JSON-Schema-Test-Suite) and from schemastore-like folders given
with --folder. Every one is sent with max_tokens 1, which shows whether it compiles; then --answers of those that do are
answered with up to --tokens tokens, and each answer that was ended by the model is checked by `jsonschema`.

    pip download --no-deps --no-binary :all: jsonschema==4.26.0 && tar xf jsonschema-4.26.0.tar.gz
    scripts/json_schemas.py http://127.0.0.1:7448 --folder jsonschema-4.26.0
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import sys
import time
import urllib.error
import urllib.request

import jsonschema


def suites(folder):
    """Schemas of a folder: of test suites each group's, and files that are schemas themselves."""
    for path in sorted(pathlib.Path(folder).rglob("*.json")):
        # What these differ in is what Python's own regular expressions do otherwise.
        if path.name == "ecmascript-regex.json":
            continue
        try:
            content = json.loads(path.read_text())
        except (ValueError, UnicodeDecodeError):
            continue
        if isinstance(content, list):
            groups = [group for group in content if isinstance(group, dict) and "schema" in group]
            yield from ((f"{path.name}: {group.get('description')}", group["schema"]) for group in groups)
        elif isinstance(content, dict) and any(key in content for key in ("$schema", "properties", "$defs")):
            yield path.name, content


def drawn(folders, most):
    """As many different ones, evenly from all."""
    seen, found = set(), []
    for folder in folders:
        for name, schema in suites(folder):
            text = json.dumps(schema, sort_keys=True)
            if text not in seen:
                seen.add(text)
                found.append((name, schema))
    step = max(1.0, len(found) / most)
    return [found[int(n * step)] for n in range(min(most, len(found)))]


def ask(url, body):
    """A completion's status, body and time in seconds."""
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    started = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response), time.monotonic() - started
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), time.monotonic() - started


def compiles(url, schema):
    status, answer, took = ask(url, {"prompt": "It was", "max_tokens": 1, "temperature": 0, "guided_json": schema})
    return status, answer.get("error", {}).get("message", ""), took


def answered(url, schema, seed, tokens):
    body = {"prompt": "It was", "max_tokens": tokens, "temperature": 1, "seed": seed, "guided_json": schema}
    status, answer, _ = ask(url, body)
    if status != 200:
        return status, None, answer["error"]["message"]
    choice = answer["choices"][0]
    return status, choice["finish_reason"], choice["text"]


def valid(schema, text):
    """Raises where an answer does not fit; 0 where `jsonschema` cannot say: it takes schemas of another draft for none, and
    Python's regular expressions are not ECMA's."""
    content = json.loads(text)
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        validator.check_schema(schema)
        validator(schema).validate(content)
    except (jsonschema.SchemaError, re.error):
        return 0
    return 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--folder", action="append", required=True)
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=4)
    args = parser.parse_args()

    schemas = drawn(args.folder, args.schemas)
    good, refused, wrong, times = [], collections.Counter(), [], []
    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        results = pool.map(lambda one: compiles(args.url, one[1]), schemas)
        for (name, schema), (status, why, took) in zip(schemas, results):
            times.append(took)
            if status == 200:
                good.append((name, schema))
            elif status == 400 and why:
                refused[why.split(": ")[-1][:60] if "Unimplemented" not in why else "Unimplemented keys"] += 1
            else:
                wrong.append(f"{name}: {status} {why}")
        times.sort()
        print(f"{len(schemas)} schemas: {len(good)} compiled, {sum(refused.values())} refused, {len(wrong)} neither")
        print(f"seconds of a request of one token: median {times[len(times) // 2]:.3f}, longest {times[-1]:.3f}")
        for why, count in refused.most_common(12):
            print(f"  refused {count:4}: {why}")

        step = max(1.0, len(good) / args.answers)
        asked = [good[int(n * step) % len(good)] for n in range(args.answers)]
        results = pool.map(lambda one: answered(args.url, one[1][1], one[0], args.tokens), enumerate(asked))
        ends, checked = collections.Counter(), 0
        for (name, schema), (status, end, text) in zip(asked, results):
            ends[end or status] += 1
            if end is None:
                wrong.append(f"{name}: {status} {text}")
            if end != "stop":
                continue
            try:
                checked += valid(schema, text)
            except (ValueError, jsonschema.ValidationError) as error:
                wrong.append(f"{name}: {json.dumps(schema)[:200]} has {text[:200]!r}: {str(error)[:200]}")
        print(f"{len(asked)} answers: {dict(ends)}; {checked} of those that stopped were checked, {len(wrong)} wrong")
    for line in wrong:
        print("wrong:", line)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
