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

const schema = { type: "object", properties: { count: { type: "integer", minimum: 1, maximum: 40 } }, required: ["count"], additionalProperties: false };
const tools = [{ name: "rooms", description: "Counts rooms", input_schema: schema }];
const held = { ...asked, max_tokens: 64, tools, tool_choice: { type: "any", disable_parallel_tool_use: true } };
const made = await client.messages.create(held);
const use = made.content.find((block) => block.type === "tool_use");
assert.ok(made.stop_reason === "tool_use" && Number.isInteger(use.input.count));
const streamedUse = (await client.messages.stream(held).finalMessage()).content.find((block) => block.type === "tool_use");
assert.deepEqual(streamedUse.input, use.input);
