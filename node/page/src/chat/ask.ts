// One turn of a conversation: what is sent, and the answer as it comes.

import { Refusal, ask, events } from "../api";
import type { Trace } from "../types";
import type { Call, Message } from "./store";

export interface Sampling {
  temperature: string;
  top_p: string;
  top_k: string;
  max_tokens: string;
  seed: string;
  stop: string;
  system: string;
  thinking: "" | "on" | "off";
  tools: string;
}

export const UNSET: Sampling = {
  temperature: "",
  top_p: "",
  top_k: "",
  max_tokens: "",
  seed: "",
  stop: "",
  system: "",
  thinking: "",
  tools: "",
};

/** Fields that are not filled in are not sent: the model's own hold then. */
export function request(model: string, messages: Message[], sampling: Sampling): Record<string, unknown> {
  const body: Record<string, unknown> = { stream: true, stream_options: { include_usage: true }, messages: said(messages, sampling) };
  if (model) body.model = model;
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"] as const) {
    if (sampling[name].trim() !== "") body[name] = Number(sampling[name]);
  }
  if (sampling.stop) body.stop = sampling.stop;
  if (sampling.thinking) body.chat_template_kwargs = { enable_thinking: sampling.thinking === "on" };
  if (sampling.tools.trim()) body.tools = JSON.parse(sampling.tools);
  return body;
}

function said(messages: Message[], { system }: Sampling) {
  const spoken = messages
    .filter((message) => !message.error || message.content)
    .map(({ role, content, calls, answers }) => ({
      role,
      content,
      ...(calls?.length ? { tool_calls: calls } : {}),
      ...(answers ? { tool_call_id: answers } : {}),
    }));
  return system.trim() ? [{ role: "system", content: system }, ...spoken] : spoken;
}

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
}

interface Part {
  model?: string;
  error?: { message: string };
  choices?: { delta?: Delta; finish_reason?: string | null }[];
  tsnode?: Trace;
}

/** Adds to the message what comes, and says so; ends with what the peer tells of the request. */
export async function stream(body: unknown, stop: AbortSignal, tell: (message: Message) => void): Promise<Trace | null> {
  const answer = await ask("/v1/chat/completions", { body, signal: stop, headers: { "x-tsnode-trace": "1" } });
  const message: Message = { role: "assistant", content: "" };
  const request = answer.headers.get("x-request-id");
  if (request) message.request = request;
  let trace: Trace | null = null;
  for await (const { data } of events(answer)) {
    if (data === "[DONE]") return trace;
    const part = JSON.parse(data) as Part;
    if (part.error) throw new Refusal(0, part.error.message, 1);
    if (part.model) message.model = part.model;
    trace = part.tsnode ?? trace;
    for (const { delta, finish_reason } of part.choices ?? []) {
      if (delta) add(message, delta);
      if (finish_reason) message.ended = finish_reason;
    }
    tell({ ...message });
  }
  throw new Refusal(0, "The answer broke off: this peer has ended, or the network to it is down.", 1);
}

function add(message: Message, { content, reasoning_content, tool_calls }: Delta) {
  message.content += content ?? "";
  if (reasoning_content) message.thoughts = (message.thoughts ?? "") + reasoning_content;
  for (const { index, id, function: made } of tool_calls ?? []) {
    const calls = (message.calls ??= []);
    const call: Call = (calls[index] ??= { id: id ?? "", type: "function", function: { name: "", arguments: "" } });
    call.function.name += made?.name ?? "";
    call.function.arguments += made?.arguments ?? "";
  }
}
