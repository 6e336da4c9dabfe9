"""OpenAI's client for Python: responses, whole, streamed and gone on from. Completions are openai_client.py's."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="-", max_retries=0, timeout=60)
model = client.models.list().data[0].id

asked = dict(model=model, input="Who lived in the old house?", max_output_tokens=12, temperature=0)
whole = client.responses.create(**asked)
assert whole.output_text and whole.status == "incomplete", whole
assert whole.incomplete_details.reason == "max_output_tokens" and whole.usage.output_tokens == 12, whole
events = list(client.responses.create(**asked, stream=True))
assert (events[0].type, events[-1].type) == ("response.created", "response.incomplete"), events
text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
assert text == whole.output_text == events[-1].response.output_text, (text, whole.output_text)
with client.responses.stream(**asked) as stream:
    assert list(stream)[-1].response.output_text == text

items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "input_text", "text": "And?"}]}]
more = client.responses.create(model=model, input=items, previous_response_id=whole.id, max_output_tokens=4, store=False)
assert more.usage.input_tokens > whole.usage.input_tokens + 12, "what was said before reaches the model"
assert client.responses.retrieve(whole.id).output_text == text
client.responses.delete(whole.id)
for gone in [whole.id, more.id]:
    try:
        client.responses.retrieve(gone)
    except openai.NotFoundError:
        continue
    raise AssertionError(f"{gone} is there still")
try:
    image = [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
    client.responses.create(model=model, input=[{"role": "user", "content": image}])
except openai.BadRequestError as error:
    assert "input_image" in error.message and error.param == "input[0].content[0]", error
else:
    raise AssertionError("an image was not refused")

# A tool that has to be called, by chats and by responses, and what is made of its result.
rooms = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 40}}, "required": ["count"], "additionalProperties": False}
described = {"name": "rooms", "description": "Counts rooms", "parameters": rooms}
question = [{"role": "user", "content": "How many rooms?"}]
hold = dict(model=model, tool_choice="required", parallel_tool_calls=False, temperature=0)
tools = [{"type": "function", "function": described}]
chat = client.chat.completions.create(**hold, messages=question, tools=tools, max_tokens=64)
(call,) = chat.choices[0].message.tool_calls
assert call.function.name == "rooms" and chat.choices[0].finish_reason == "tool_calls", chat
with client.chat.completions.stream(**hold, messages=question, tools=tools, max_tokens=64) as stream:
    final = stream.get_final_completion().choices[0].message
assert final.tool_calls[0].function.arguments == call.function.arguments, final

flat = [{"type": "function", "strict": True, **described}]
made = client.responses.create(**hold, input=question, tools=flat, max_output_tokens=64)
(item,) = [item for item in made.output if item.type == "function_call"]
assert item.name == "rooms" and item.arguments == call.function.arguments, made
with client.responses.stream(**hold, input=question, tools=flat, max_output_tokens=64) as stream:
    kinds = [event.type for event in stream]
    assert "response.function_call_arguments.delta" in kinds and "response.function_call_arguments.done" in kinds, kinds
    assert stream.get_final_response().output[-1].arguments == item.arguments
result = {"type": "function_call_output", "call_id": item.call_id, "output": "7 rooms"}
more = client.responses.create(model=model, previous_response_id=made.id, input=[result], tools=flat, max_output_tokens=4)
assert more.usage.input_tokens > made.usage.input_tokens, more
