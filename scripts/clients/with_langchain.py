"""LangChain's classes for OpenAI's two APIs, Anthropic's and Ollama's: texts, objects, tools."""

import sys

import httpx
import pydantic
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


class House(pydantic.BaseModel):
    """The house that is described."""

    model_config = {"extra": "forbid"}
    rooms: int = pydantic.Field(ge=1, le=40)
    old: bool


# Objects: by a schema, and by a tool that has to be called.
question = "Describe the old house."
for chat, ways in [(chats[0], ["json_schema", "function_calling"]), (chats[2], ["function_calling"]), (chats[3], ["json_schema"])]:
    for way in ways:
        limit = {"num_predict": 96} if isinstance(chat, ChatOllama) else {"max_tokens": 96}
        house = chat.model_copy(update=limit).with_structured_output(House, method=way).invoke(question)
        assert isinstance(house, House), (chat, way, house)


count = {"type": "integer", "minimum": 1, "maximum": 40}
rooms = {"type": "object", "properties": {"count": count}, "required": ["count"], "additionalProperties": False}
tool = {"type": "function", "function": {"name": "rooms", "description": "Counts rooms", "parameters": rooms}}
for chat, choice in [(chats[0], "required"), (chats[1], "required"), (chats[2], "any")]:
    called = chat.model_copy(update={"max_tokens": 64}).bind_tools([tool], tool_choice=choice).invoke("How many rooms?")
    assert called.tool_calls[0]["name"] == "rooms", called
