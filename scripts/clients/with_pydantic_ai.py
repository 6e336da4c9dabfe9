"""pydantic-ai: agents over OpenAI's two APIs, with texts and with objects."""

import sys

import httpx
import pydantic
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

url = sys.argv[1]
model = httpx.get(url + "/v1/models").json()["data"][0]["id"]
openai = OpenAIProvider(base_url=url + "/v1", api_key="-")
models = [OpenAIChatModel(model, provider=openai), OpenAIResponsesModel(model, provider=openai)]
for one in models:
    agent = Agent(one, instructions="Be brief.", model_settings={"max_tokens": 24, "temperature": 0})
    result = agent.run_sync("Who lived in the old house?")
    assert result.output and result.usage.output_tokens > 0, result
    more = agent.run_sync("And then?", message_history=result.all_messages())
    assert more.usage.input_tokens > result.usage.input_tokens, more

# A tool, by way of an answer that has to be one: pydantic-ai asks for objects so.


class House(pydantic.BaseModel, extra="forbid"):
    rooms: int = pydantic.Field(ge=1, le=40)
    old: bool


for one in models:
    agent = Agent(one, output_type=House, model_settings={"max_tokens": 96, "temperature": 0}, retries=0)
    assert isinstance(agent.run_sync("Describe the old house.").output, House)
