"""A scripted conversation of the official OpenAI client with a swarm's gateway.

Takes the document `tsnode testnet up --detach --json` printed, and talks to its peer without a model.
Ends with 0 only if every answer was as it should be.
"""

import json
import sys

import openai

MODEL = "gutenberg-tiny"
START = "It was a dark and windy night, and the old house"


def gateway(path):
    with open(path) as file:
        peers = json.load(file)["peers"]
    return next(peer["http"] for peer in peers if peer["gateway"])


def models(client):
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def whole_and_streamed_agree(client):
    asked = dict(model=MODEL, prompt=START, max_tokens=32, temperature=0.8, seed=11)
    whole = client.completions.create(**asked)
    parts = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(p.choices[0].text for p in parts if p.choices)
    assert text == whole.choices[0].text and text, (text, whole)
    assert parts[-1].usage == whole.usage and whole.usage.completion_tokens == 32, (parts[-1], whole)
    assert whole.choices[0].finish_reason == "length"
    again = client.completions.create(**asked)
    other = client.completions.create(**{**asked, "seed": 12})
    assert again.choices[0].text == text and other.choices[0].text != text


def a_conversation(client):
    history = [{"role": "system", "content": "You tell stories."}]
    for question in ["Who lived in the old house?", "And then?"]:
        history.append({"role": "user", "content": question})
        asked = dict(model=MODEL, messages=history, max_completion_tokens=24, seed=3, temperature=0.7)
        whole = client.chat.completions.create(**asked)
        streamed = ""
        with client.chat.completions.create(**asked, stream=True) as stream:
            for part in stream:
                streamed += part.choices[0].delta.content or ""
        message = whole.choices[0].message
        assert message.role == "assistant" and message.content == streamed, (message, streamed)
        history.append({"role": "assistant", "content": streamed})
    shorter = client.chat.completions.create(model=MODEL, messages=history[:2], max_tokens=1)
    longer = client.chat.completions.create(model=MODEL, messages=history, max_tokens=1)
    assert longer.usage.prompt_tokens > shorter.usage.prompt_tokens + 24, "the history reaches the model"


def stop(client):
    asked = dict(model=MODEL, prompt=START, max_tokens=48, temperature=0)
    text = client.completions.create(**asked).choices[0].text
    word = text.split()[3]
    stopped = client.completions.create(**asked, stop=[word, "never said"]).choices[0]
    assert stopped.finish_reason == "stop" and stopped.text == text[: text.index(word)], (stopped, text)


def token_counts(client):
    for n in [1, 2, 17]:
        ids = dict(extra_body={"ignore_eos": True, "return_token_ids": True})
        answer = client.completions.create(model=MODEL, prompt=[0, 300, 301], max_tokens=n, **ids)
        assert answer.usage.completion_tokens == n == len(answer.choices[0].token_ids), answer
        assert answer.usage.prompt_tokens == 3 and answer.choices[0].prompt_token_ids == [0, 300, 301]
    several = client.completions.create(model=MODEL, prompt=START, n=3, max_tokens=24, seed=1, temperature=1)
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert len({c.text for c in several.choices}) == 3, several
    drawn = client.completions.create(model=MODEL, prompt=[START] * 4, max_tokens=24, temperature=1)
    assert len({c.text for c in drawn.choices}) == 4, drawn


def logprobs(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=4, logprobs=True, top_logprobs=2,
        temperature=0,
    )
    for token in answer.choices[0].logprobs.content:
        assert token.top_logprobs[0].logprob == token.logprob <= 0, token
        assert token.top_logprobs[1].logprob <= token.logprob
    for alternatives in (0, 2):
        older = dict(max_tokens=8, temperature=1, seed=2, logprobs=alternatives)
        said = client.completions.create(model=MODEL, prompt=START, **older).choices[0].logprobs
        for token, logprob, top in zip(said.tokens, said.token_logprobs, said.top_logprobs, strict=True):
            assert top[token] == logprob and len(top) >= max(alternatives, 1), said


def refused(kind, code, param, ask):
    try:
        ask()
    except kind as error:
        assert (error.code, error.param) == (code, param), error
    else:
        raise AssertionError(f"{param} was not refused")


def errors(client):
    complete, chat = client.completions.create, client.chat.completions.create
    hello = [{"role": "user", "content": "Hello"}]
    bad = openai.BadRequestError
    refused(openai.NotFoundError, "model_not_found", "model", lambda: complete(model="gpt-9", prompt="x"))
    refused(bad, "context_length_exceeded", "prompt", lambda: complete(model=MODEL, prompt="word " * 3000))
    refused(bad, None, "temperature", lambda: complete(model=MODEL, prompt="x", temperature=9))
    refused(bad, None, "prompt", lambda: complete(model=MODEL, prompt=""))
    refused(bad, None, "max_completion_tokens", lambda: chat(model=MODEL, messages=hello, max_completion_tokens=0))
    refused(bad, None, "tools", lambda: chat(model=MODEL, messages=hello, tools=[{"type": "function"}]))
    refused(bad, None, "messages", lambda: chat(model=MODEL, messages=[]))


def peers_are_named(client):
    raw = client.completions.with_raw_response.create(model=MODEL, prompt=START, max_tokens=2)
    prefill, decode = raw.headers["x-tsnode-prefill"], raw.headers["x-tsnode-decode"]
    assert raw.headers["x-request-id"] and prefill and decode and prefill != decode, raw.headers


def hanging_up(client):
    long = dict(model=MODEL, prompt=START, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
    with client.completions.create(**long) as stream:
        next(iter(stream))
    assert client.completions.create(model=MODEL, prompt=START, max_tokens=2).usage.completion_tokens == 2


def main():
    client = openai.OpenAI(base_url=gateway(sys.argv[1]) + "/v1", api_key="-", max_retries=0, timeout=60)
    steps = [
        models, whole_and_streamed_agree, a_conversation, stop, token_counts, logprobs, errors, peers_are_named,
        hanging_up,
    ]
    for step in steps:
        step(client)
        print(f"{step.__name__}: as it should be")
    print(f"openai {openai.__version__}: {len(steps)} of {len(steps)} as they should be")


if __name__ == "__main__":
    main()
