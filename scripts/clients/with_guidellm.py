"""guidellm: its benchmark over completions and chats, with prompts that it makes up."""

import json
import pathlib
import subprocess
import sys
import tempfile

import httpx

url, folder = sys.argv[1], sys.argv[2]
model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
program = pathlib.Path(sys.executable).with_name("guidellm")
for path in ["/v1/completions", "/v1/chat/completions"]:
    with tempfile.TemporaryDirectory() as place:
        report = pathlib.Path(place) / "report.json"
        options = {
            "backend": f"kind=openai_http,target={url},model={model},request_format={path}",
            "profile": "kind=concurrent,streams=4",
            "constraint": "kind=max_requests,count=12",
            "tokenizer": f"kind=hf_auto,model={folder}",
            "data": "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
            "output": f"kind=json,path={report}",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        done = subprocess.run([program, "run", *words, "--disable-console"], capture_output=True, text=True)
        assert done.returncode == 0 and report.exists(), (done.stdout + done.stderr)[-3000:]
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        total = benchmark["metrics"]["request_totals"]
        assert total["successful"] == 12 and total["errored"] == 0, total
