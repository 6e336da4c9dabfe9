"""The functions by which vLLM's `bench serve` asks: completions, chats and responses, streamed, eight at once.

They are taken from vLLM's source package when this runs: installed as a whole it would bring a GPU's libraries.
"""

import asyncio
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

import aiohttp
import httpx

VERSION = "0.33.0"
NAME = "endpoint_request_func.py"


def fetched():
    """The file with the functions. Pip cannot build the package, and is not to: it leaves what it has unpacked."""
    kept = pathlib.Path(sys.prefix) / f"vllm-{VERSION}-{NAME}"
    if kept.exists():
        return kept
    words = ["download", "--quiet", "--no-clean", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    with tempfile.TemporaryDirectory(dir=sys.prefix) as place:
        command = [sys.executable, "-m", "pip", *words, "--dest", place, f"vllm=={VERSION}"]
        said = subprocess.run(command, env={"TMPDIR": place, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
        found = list(pathlib.Path(place).rglob(f"vllm/benchmarks/lib/{NAME}"))
        assert found, said.stderr[-2000:]
        kept.write_bytes(found[0].read_bytes())
    return kept


spec = importlib.util.spec_from_file_location("vllm_requests", fetched())
vllm = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = vllm
spec.loader.exec_module(vllm)

url = sys.argv[1]
model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
PATHS = {"vllm": "/v1/completions", "openai-chat": "/v1/chat/completions", "openai-responses": "/v1/responses"}


async def main():
    async with aiohttp.ClientSession() as session:
        for backend, path in PATHS.items():
            ask = vllm.ASYNC_REQUEST_FUNCS[backend]
            asked = dict(prompt="It was a dark night", api_url=url + path, prompt_len=6, output_len=12, model=model)
            # Responses know no field for it.
            asked["ignore_eos"] = backend != "openai-responses"
            outputs = await asyncio.gather(*(ask(vllm.RequestFuncInput(**asked), session) for _ in range(8)))
            for output in outputs:
                assert output.success and output.generated_text, (backend, output.error)
                assert 0 < output.output_tokens <= 12 and output.ttft > 0 and output.latency > output.ttft, (backend, output)


asyncio.run(main())
