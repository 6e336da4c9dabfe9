// OpenAI's client for Node: chat completions and responses, whole and streamed.

import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "-", maxRetries: 0, timeout: 60_000 });
const model = (await client.models.list()).data[0].id;

const messages = [{ role: "user", content: "Who lived in the old house?" }];
const chat = { model, messages, max_tokens: 12, temperature: 0 };
const text = (await client.chat.completions.create(chat)).choices[0].message.content;
let streamed = "";
for await (const part of await client.chat.completions.create({ ...chat, stream: true })) {
  streamed += part.choices[0]?.delta?.content ?? "";
}
assert.ok(text);
assert.equal(streamed, text);

const asked = { model, input: messages, max_output_tokens: 12, temperature: 0 };
const whole = await client.responses.create(asked);
assert.equal(whole.output_text, text);
const final = await client.responses.stream(asked).finalResponse();
assert.equal(final.output_text, text);
assert.equal(final.usage.output_tokens, 12);
await assert.rejects(client.responses.create({ ...asked, background: true }), OpenAI.BadRequestError);

const rooms = { type: "object", properties: { count: { type: "integer", minimum: 1, maximum: 40 } }, required: ["count"], additionalProperties: false };
const tools = [{ type: "function", name: "rooms", description: "Counts rooms", parameters: rooms, strict: true }];
const held = { ...asked, max_output_tokens: 64, tools, tool_choice: "required", parallel_tool_calls: false };
const call = (await client.responses.create(held)).output.find((item) => item.type === "function_call");
assert.ok(Number.isInteger(JSON.parse(call.arguments).count));
const streamedCall = (await client.responses.stream(held).finalResponse()).output.find((item) => item.type === "function_call");
assert.equal(streamedCall.arguments, call.arguments);
