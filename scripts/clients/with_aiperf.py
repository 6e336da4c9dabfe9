"""aiperf: its benchmark over chats and completions, streamed and whole, with prompts that it makes up."""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

url, folder = sys.argv[1], sys.argv[2]
model = json.load(urllib.request.urlopen(url + "/v1/models"))["data"][0]["id"]
program = pathlib.Path(sys.executable).with_name("aiperf")
REQUESTS = 12
for kind, more in [("chat", ["--streaming"]), ("completions", ["--streaming"]), ("chat", [])]:
    with tempfile.TemporaryDirectory() as place:
        options = {
            "model": model,
            "url": url,
            "endpoint-type": kind,
            "tokenizer": folder,
            "concurrency": 4,
            "request-count": REQUESTS,
            "isl": 32,
            "osl": 16,
            "random-seed": 1,
            "output-artifact-dir": place,
            "ui": "none",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        done = subprocess.run([program, "profile", *words, *more], capture_output=True, text=True)
        reports = list(pathlib.Path(place).rglob("profile_export_aiperf.json"))
        assert done.returncode == 0 and reports, (done.stdout + done.stderr)[-3000:]
        report = json.loads(reports[0].read_text())
        count = report["request_count"]["avg"]
        errors = report.get("error_summary")
        assert count == REQUESTS and not errors, (kind, more, count, errors)
        assert report["output_sequence_length"]["avg"] > 1, report["output_sequence_length"]
        if more:
            assert report["time_to_first_token"]["avg"] > 0 and report["inter_token_latency"]["avg"] > 0, report
