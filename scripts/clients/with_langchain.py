"""LangChain's classes for OpenAI's two APIs, Anthropic's and Ollama's."""

import sys

import httpx
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

url = sys.argv[1]
model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
openai = dict(model=model, base_url=url + "/v1", api_key="-", max_tokens=12, temperature=0, max_retries=0)
chats = [
    ChatOpenAI(**openai),
    ChatOpenAI(**openai, use_responses_api=True),
    ChatAnthropic(model=model, base_url=url, api_key="-", max_tokens=12, temperature=0, max_retries=0),
    ChatOllama(model=model, base_url=url, num_predict=12, temperature=0),
]
hello = [("system", "Be brief."), ("user", "Who lived in the old house?")]
texts = set()
for chat in chats:
    whole = chat.invoke(hello)
    assert whole.text and whole.usage_metadata["output_tokens"] == 12, whole
    assert "".join(part.text for part in chat.stream(hello)) == whole.text, chat
    texts.add(whole.text)
assert len(texts) == 1, texts
