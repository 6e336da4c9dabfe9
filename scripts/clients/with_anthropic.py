"""Anthropic's client for Python: messages whole and streamed, counts, errors."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="-", max_retries=0, timeout=60)
model = client.models.list().data[0].id

hello = [{"role": "user", "content": "Who lived in the old house?"}]
asked = dict(model=model, messages=hello, max_tokens=12, extra_body={"temperature": 0})
whole = client.messages.create(**asked)
text = whole.content[0].text
assert whole.type == "message" and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 12, whole
with client.messages.stream(**asked) as stream:
    assert "".join(stream.text_stream) == text
    final = stream.get_final_message()
assert final.content[0].text == text and final.stop_reason == "max_tokens", final
assert final.usage.output_tokens == 12 and final.id.startswith("msg_"), final
kinds = [event.type for event in client.messages.create(**asked, stream=True)]
assert (kinds[0], kinds[1], kinds[-1]) == ("message_start", "content_block_start", "message_stop"), kinds

counted = client.messages.count_tokens(model=model, messages=hello).input_tokens
assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, (counted, whole)
blocks = [{"type": "text", "text": "And "}, {"type": "text", "text": "then?", "cache_control": {"type": "ephemeral"}}]
longer = hello + [{"role": "assistant", "content": whole.content}, {"role": "user", "content": blocks}]
more = client.messages.create(model=model, messages=longer, system=[{"type": "text", "text": "Be brief."}], max_tokens=4)
assert more.usage.input_tokens + more.usage.cache_read_input_tokens > counted + 12, more


def refused(kind, word, **more):
    try:
        client.messages.create(**{**asked, **more})
    except kind as error:
        assert error.body["type"] == "error" and word in error.body["error"]["message"], error.body
        assert error.request_id is None or error.request_id.startswith("req"), error
    else:
        raise AssertionError(f"{more} was not refused")


image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
refused(anthropic.BadRequestError, "image", messages=[{"role": "user", "content": [image]}])
refused(anthropic.NotFoundError, "claude-9", model="claude-9")

# A tool that has to be called, and what is made of its result.
schema = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 40}}, "required": ["count"], "additionalProperties": False}
tools = [{"name": "rooms", "description": "Counts rooms", "input_schema": schema}]
hold = {"type": "any", "disable_parallel_tool_use": True}
question = {"role": "user", "content": "How many rooms?"}
held = dict(model=model, messages=[question], max_tokens=64, tools=tools, tool_choice=hold, extra_body={"temperature": 0})
made = client.messages.create(**held)
(use,) = [block for block in made.content if block.type == "tool_use"]
assert made.stop_reason == "tool_use" and use.name == "rooms" and isinstance(use.input["count"], int), made
with client.messages.stream(**held) as stream:
    final = stream.get_final_message()
assert final.content[-1].input == use.input and final.stop_reason == "tool_use", final
result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "7 rooms"}]}
more = client.messages.create(
    model=model, messages=[question, {"role": "assistant", "content": made.content}, result], max_tokens=4, tools=tools
)
assert more.content[0].type == "text" and more.usage.output_tokens == 4, more
one = client.messages.create(**{**held, "tool_choice": {"type": "tool", "name": "rooms"}})
assert one.content[-1].type == "tool_use", one
