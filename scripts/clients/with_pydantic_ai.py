"""pydantic-ai: agents over OpenAI's two APIs."""

import sys

import httpx
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
