"""LlamaIndex: chats, whole and streamed, prompts, and a tool that has to be called."""

import sys
from typing import Annotated

import httpx
import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

url = sys.argv[1] + "/v1"
name = httpx.get(url + "/models").json()["data"][0]["id"]
asked = dict(model=name, api_base=url, api_key="-", max_tokens=12, temperature=0, max_retries=0, timeout=60, context_window=1024)
chat = OpenAILike(**asked, is_chat_model=True, is_function_calling_model=True)
hello = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Who lived in the old house?")]
whole = chat.chat(hello).message.content
assert whole and "".join(part.delta or "" for part in chat.stream_chat(hello)) == whole
plain = OpenAILike(**asked, is_chat_model=False)
text = plain.complete("It was a dark night").text
assert text and "".join(part.delta or "" for part in plain.stream_complete("It was a dark night")) == text


def rooms(count: Annotated[int, pydantic.Field(ge=1, le=40)]) -> str:
    """Counts the rooms of the house."""
    return f"{count} rooms"


tool = FunctionTool.from_defaults(rooms)
caller = OpenAILike(**(asked | {"max_tokens": 64}), is_chat_model=True, is_function_calling_model=True)
answer = caller.chat_with_tools([tool], user_msg="How many rooms?", tool_required=True, allow_parallel_tool_calls=False)
(call,) = caller.get_tool_calls_from_response(answer)
assert call.tool_name == "rooms" and isinstance(call.tool_kwargs["count"], int), call
