#!/usr/bin/env python3
"""Holds the tests' small hub, and tsnode's cache, against the real client: `scripts/hub_client.py TSNODE ENDPOINT`.

ENDPOINT is where the small hub serves (`HUB_DOUBLE_AT=127.0.0.1:PORT cargo test --workspace --test hub serve -- --ignored`). Needs
huggingface_hub (scripts/requirements.txt).
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

tsnode, endpoint = sys.argv[1:]
os.environ.update(HF_ENDPOINT=endpoint, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
    os.environ.pop(name, None)

import huggingface_hub as hub  # noqa: E402
from huggingface_hub import errors  # noqa: E402


def models(cache, *words, code=0, **variables):
    """What `tsnode models` says of a cache, as JSON."""
    environment = {**os.environ, "HF_HUB_CACHE": str(cache), **variables}
    done = subprocess.run([tsnode, "models", *words, "--json"], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def refused(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def they_download_and_we_read(cache):
    theirs = hub.snapshot_download("org/tiny", cache_dir=cache)
    (listed,) = models(cache, "list")
    assert (listed["model"], listed["missing"], listed["path"]) == ("org/tiny", None, theirs), listed
    assert models(cache, "verify")["damaged"] == []
    pulled = models(cache, "pull", "org/tiny")
    assert (pulled["fetched"], pulled["path"]) == (0, theirs), pulled
    assert models(cache, "pull", "org/tiny", HF_HUB_OFFLINE="1")["path"] == theirs
    return f"{len(content(theirs))} files of snapshot_download are listed, verified and not fetched again"


def we_download_and_they_read(cache):
    ours = models(cache, "pull", "org/tiny")["path"]
    assert hub.snapshot_download("org/tiny", cache_dir=cache, local_files_only=True) == ours
    before = {path: os.stat(path).st_mtime_ns for path in Path(cache).rglob("blobs/*")}
    assert hub.snapshot_download("org/tiny", cache_dir=cache) == ours
    assert before == {path: os.stat(path).st_mtime_ns for path in Path(cache).rglob("blobs/*")}, "it was fetched again"
    models(cache, "pull", "org/gguf:Q8_0")
    hub.hf_hub_download("org/gguf", "m-Q8_0.gguf", cache_dir=cache, local_files_only=True)
    report = hub.scan_cache_dir(cache)
    assert not report.warnings, report.warnings
    assert {repo.repo_id: repo.nb_files for repo in report.repos} == {"org/tiny": len(before), "org/gguf": 1}
    return f"{report.size_on_disk} bytes that tsnode fetched are read offline, and not fetched again"


def both_are_refused_alike(cache):
    refused(errors.GatedRepoError, lambda: hub.hf_hub_download("org/gated", "config.json", cache_dir=cache))
    refused(errors.RepositoryNotFoundError, lambda: hub.model_info("org/nothing"))
    refused(errors.RevisionNotFoundError, lambda: hub.model_info("org/tiny", revision="v9"))
    refused(errors.EntryNotFoundError, lambda: hub.hf_hub_download("org/tiny", "no.json", cache_dir=cache))
    assert "is gated" in models(cache, "pull", "org/gated", code=6)
    assert "knows no model" in models(cache, "pull", "org/nothing", code=6)
    assert "no such revision" in models(cache, "pull", "org/tiny@v9", code=6)
    hub.hf_hub_download("org/gated", "config.json", cache_dir=cache, token="hf_good")
    models(cache, "pull", "org/gated", HF_TOKEN="hf_good")
    return "gated and missing repositories, revisions and files are refused to both"


def one_model_by_both(cache):
    """What they removed or began, we end; what we removed, they fetch."""
    theirs = hub.hf_hub_download("org/gguf", "m-Q4_K_M.gguf", cache_dir=cache)
    assert models(cache, "pull", "org/gguf")["fetched"] == 0
    models(cache, "rm", "org/gguf:Q4_K_M")
    assert not os.path.exists(theirs)
    assert hub.hf_hub_download("org/gguf", "m-Q4_K_M.gguf", cache_dir=cache) == theirs
    hub.hf_hub_download("org/tiny", "config.json", cache_dir=cache)
    assert models(cache, "pull", "org/tiny")["fetched"] > 0
    return "a model may be fetched in parts by both"


for check in (they_download_and_we_read, we_download_and_they_read, both_are_refused_alike, one_model_by_both):
    with tempfile.TemporaryDirectory() as folder:
        print(f"ok  {check.__name__}: {check(folder)}")
