// Anthropic's client for Node: messages whole and streamed, counts, errors.

import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "-", maxRetries: 0, timeout: 60_000 });
const models = await (await fetch(process.argv[2] + "/v1/models")).json();
const model = models.data[0].id;

const messages = [{ role: "user", content: "Who lived in the old house?" }];
const asked = { model, messages, max_tokens: 12, temperature: 0 };
const whole = await client.messages.create(asked);
const final = await client.messages.stream(asked).finalMessage();
assert.ok(whole.content[0].text);
assert.equal(final.content[0].text, whole.content[0].text);
assert.equal(final.stop_reason, "max_tokens");
const counted = await client.messages.countTokens({ model, messages });
assert.equal(counted.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
await assert.rejects(client.messages.create({ ...asked, model: "none" }), Anthropic.NotFoundError);
