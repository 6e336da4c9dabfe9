"""litellm: chat completions by way of its providers for OpenAI, Anthropic and Ollama."""

import sys

import httpx
import litellm

litellm.telemetry = False
url = sys.argv[1]
model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
hello = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who lived in the old house?"}]
texts = set()
for provider, base in [("openai", url + "/v1"), ("anthropic", url), ("ollama_chat", url)]:
    asked = dict(model=f"{provider}/{model}", messages=hello, max_tokens=12, temperature=0, api_base=base, api_key="-")
    whole = litellm.completion(**asked, timeout=60)
    text = whole.choices[0].message.content
    assert text and whole.choices[0].finish_reason == "length", whole
    parts = litellm.completion(**asked, timeout=60, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text, provider
    texts.add(text)
assert len(texts) == 1, texts
