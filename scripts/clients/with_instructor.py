"""instructor: objects, by a schema and by a tool that has to be called."""

import sys

import httpx
import instructor
import openai
import pydantic


class House(pydantic.BaseModel, extra="forbid"):
    rooms: int = pydantic.Field(ge=1, le=40)
    old: bool


url = sys.argv[1] + "/v1"
model = httpx.get(url + "/models").json()["data"][0]["id"]
raw = openai.OpenAI(base_url=url, api_key="-", max_retries=0, timeout=60)
client = instructor.from_openai(raw, mode=instructor.Mode.JSON_SCHEMA)
hello = [{"role": "user", "content": "Describe the old house."}]
house = client.chat.completions.create(model=model, messages=hello, response_model=House, max_tokens=256, max_retries=0)
assert isinstance(house.rooms, int) and isinstance(house.old, bool), house
client = instructor.from_openai(raw, mode=instructor.Mode.TOOLS)
house = client.chat.completions.create(model=model, messages=hello, response_model=House, max_tokens=96, max_retries=0)
assert isinstance(house.rooms, int) and isinstance(house.old, bool), house
