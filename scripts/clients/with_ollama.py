"""Ollama's client for Python: chats, prompts, models, errors."""

import json
import sys

import ollama

client = ollama.Client(host=sys.argv[1], timeout=60)
model = client.list().models[0].model
assert client.show(model).modelinfo["transformer.context_length"] > 0

options = {"num_predict": 12, "temperature": 0, "seed": 7}
hello = [{"role": "user", "content": "Who lived in the old house?"}]
whole = client.chat(model=model, messages=hello, options=options)
assert whole.message.content and whole.done_reason == "length" and whole.eval_count == 12, whole
parts = list(client.chat(model=model + ":latest", messages=hello, options=options, stream=True))
assert "".join(part.message.content for part in parts) == whole.message.content, (parts, whole)
assert parts[-1].done and parts[-1].prompt_eval_count == whole.prompt_eval_count and parts[-1].total_duration > 0
for raw in [False, True]:
    asked = dict(model=model, prompt="It was a dark night", options=options, raw=raw)
    response = client.generate(**asked).response
    assert response and "".join(part.response for part in client.generate(**asked, stream=True)) == response
assert client.generate(model=model).done_reason == "load"
for ask, status in [
    (lambda: client.chat(model="none", messages=hello), 404),
    (lambda: client.generate(model=model, prompt="x", images=[b"png"]), 400),
    (lambda: client.pull(model), 404),
]:
    try:
        ask()
    except ollama.ResponseError as error:
        assert error.status_code == status and error.error, error
    else:
        raise AssertionError("it was not refused")

# Tools: nothing says that one has to be called, so a model that knows none may not; their results are read all the same.
assert "tools" in client.show(model).capabilities


def rooms(count: int) -> str:
    """Counts the rooms of the house.

    Args:
        count: How many
    """
    return f"{count} rooms"


question = {"role": "user", "content": "How many rooms?"}
bare = client.chat(model=model, messages=[question], options=options)
with_tools = client.chat(model=model, messages=[question], tools=[rooms], options=options)
assert with_tools.prompt_eval_count > bare.prompt_eval_count, "the model is told of them"
call = {"function": {"name": "rooms", "arguments": {"count": 7}}}
called = [question, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_name": "rooms", "content": "7"}]
result = client.chat(model=model, messages=called, tools=[rooms], options=options)
assert result.prompt_eval_count > with_tools.prompt_eval_count and result.message.content, result
# An object of a schema.
schema = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 40}}, "required": ["count"], "additionalProperties": False}
formed = client.chat(model=model, messages=[question], format=schema, options={**options, "num_predict": 64})
assert isinstance(json.loads(formed.message.content)["count"], int), formed
