// Vercel's AI SDK: its default provider, which speaks responses, the one for chat completions, and Anthropic's.

import assert from "node:assert";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, Output, streamText, tool } from "ai";

const baseURL = process.argv[2] + "/v1";
const models = await (await fetch(baseURL + "/models")).json();
const name = models.data[0].id;
const openai = createOpenAI({ baseURL, apiKey: "-" });
const anthropic = createAnthropic({ baseURL, apiKey: "-" });

const texts = new Set();
for (const model of [openai(name), openai.chat(name), anthropic(name)]) {
  const prompt = "Who lived in the old house?";
  const asked = { model, prompt, maxOutputTokens: 12, temperature: 0, maxRetries: 0 };
  const whole = await generateText(asked);
  assert.equal(whole.finishReason, "length");
  assert.equal(whole.usage.outputTokens, 12);
  let streamed = "";
  for await (const part of streamText(asked).textStream) {
    streamed += part;
  }
  assert.equal(streamed, whole.text);
  texts.add(whole.text);
}
assert.equal(texts.size, 1);

// A tool that has to be called, and an object of a schema.
const count = { type: "object", properties: { count: { type: "integer", minimum: 1, maximum: 40 } }, required: ["count"], additionalProperties: false };
const tools = { rooms: tool({ description: "Counts rooms", inputSchema: jsonSchema(count) }) };
for (const model of [openai(name), openai.chat(name), anthropic(name)]) {
  const asked = { model, prompt: "How many rooms?", maxOutputTokens: 64, temperature: 0, maxRetries: 0 };
  const made = await generateText({ ...asked, tools, toolChoice: "required" });
  assert.equal(made.toolCalls[0].toolName, "rooms");
  assert.ok(Number.isInteger(made.toolCalls[0].input.count));
}
for (const model of [openai(name), openai.chat(name)]) {
  const output = Output.object({ schema: jsonSchema(count) });
  const made = await generateText({ model, prompt: "How many rooms?", maxOutputTokens: 64, temperature: 0, maxRetries: 0, output });
  assert.ok(Number.isInteger(made.output.count));
}
