// Chat: any model of the swarm, streamed; conversations stay in this browser.

import { useEffect, useRef, useState } from "preact/hooks";
import { Refusal, get } from "../api";
import { UNSET, request, stream, type Sampling } from "../chat/ask";
import { fresh, keep, keeps, read, write, type Call, type Chat, type Message } from "../chat/store";
import { Text } from "../chat/text";
import { useLive } from "../live";
import { Copied, Heading } from "../parts/small";
import { Shares, Waterfall } from "../parts/waterfall";
import { seconds, tokens } from "../words";
import type { Trace, View } from "../types";

interface Model {
  id: string;
  max_model_len: number;
  tsnode_task?: string;
  /** Whether a group takes requests for it. */
  tsnode_loaded?: boolean;
  /** What requests that name none get here. */
  tsnode_default?: boolean;
}

// Here and not in the view: an answer under way goes on while other views are looked at.
let chats = read();
let at = chats[0]?.id ?? "";
let stop: AbortController | null = null;
let said = "";
/** Why nothing was asked. */
let wrong = "";
let redraw = () => {};
const traces = new Map<string, Trace>();

/** Asked anew with each plan: another one may load what the last did not. */
function useModels(plan: string): [Model[], string] {
  const [models, set] = useState<Model[]>([]);
  const [problem, say] = useState("");
  useEffect(() => {
    let ends = false;
    let again: number | undefined;
    const look = () =>
      get<{ data: Model[] }>("/v1/models").then(
        ({ data }) => {
          if (ends) return;
          const chatty = data.filter((model) => !model.tsnode_task);
          set(chatty);
          say(chatty.length ? "" : "This swarm serves no model yet: it waits for a peer that lends one. What is missing, tsnode status says.");
          if (!chatty.length) again = window.setTimeout(look, 3000);
        },
        (error: Refusal) => {
          if (ends) return;
          say(error.message);
          if (!error.wantsKey) again = window.setTimeout(look, 3000);
        },
      );
    void look();
    return () => {
      ends = true;
      clearTimeout(again);
    };
  }, [plan]);
  return [models, problem];
}

/** One more answer, at the end of a conversation. */
async function answer(chat: Chat, model: string, sampling: Sampling) {
  let body: Record<string, unknown>;
  try {
    body = request(model, chat.messages, sampling);
  } catch (error) {
    wrong = `The tools are no JSON: ${String(error)}. Write a list of functions as OpenAI has it, or leave the field empty.`;
    redraw();
    return;
  }
  const control = new AbortController();
  stop = control;
  said = wrong = "";
  const place = chat.messages.length;
  const put = (message: Message) => {
    chat.messages[place] = message;
    redraw();
  };
  put({ role: "assistant", content: "" });
  try {
    const trace = await stream(body, control.signal, put);
    const message = chat.messages[place];
    if (trace && message?.request) traces.set(message.request, trace);
    said = "The answer is complete.";
  } catch (error) {
    const message = chat.messages[place] ?? { role: "assistant", content: "" };
    if (control.signal.aborted) put({ ...message, ended: "stopped" });
    else put({ ...message, error: error instanceof Error ? error.message : String(error) });
    said = control.signal.aborted ? "Stopped." : "The answer failed.";
  }
  chat.at = Date.now();
  chats = chats.includes(chat) ? [chat, ...chats.filter((one) => one !== chat)] : chats;
  write(chats);
  if (stop === control) stop = null;
  redraw();
}

export function ChatView() {
  const { view } = useLive();
  const [models, problem] = useModels(view?.plan_id ?? "");
  const [model, choose] = useState("");
  const [sampling, sample] = useState<Sampling>(UNSET);
  const [, draw] = useState(0);
  const log = useRef<HTMLDivElement>(null);
  const typed = useRef<HTMLTextAreaElement>(null);
  const stays = useRef(true);

  const chat = chats.find((one) => one.id === at) ?? chats[0];
  const first = models.find((one) => one.tsnode_default) ?? models[0];
  const served = models.some((one) => one.id === model) ? model : (first?.id ?? "");

  useEffect(() => {
    redraw = () => draw((n) => n + 1);
    return () => void (redraw = () => {});
  }, []);
  useEffect(() => {
    const box = log.current;
    if (box && stays.current) box.scrollTop = box.scrollHeight;
  });
  function begin() {
    stop?.abort();
    const next = fresh();
    chats = [next, ...chats.filter((one) => one.messages.length)];
    at = next.id;
    redraw();
    typed.current?.focus();
  }

  function send(event?: Event) {
    event?.preventDefault();
    const text = typed.current?.value.trim();
    if (!text || stop || !served) return;
    let now = chat;
    if (!now) {
      now = fresh();
      chats = [now];
      at = now.id;
    }
    if (!now.messages.length) now.title = text.slice(0, 60);
    now.messages.push({ role: "user", content: text });
    if (typed.current) typed.current.value = "";
    void answer(now, served, sampling);
  }

  function again() {
    if (!chat || stop) return;
    while (chat.messages.at(-1)?.role === "assistant") chat.messages.pop();
    if (chat.messages.length) void answer(chat, served, sampling);
  }

  function results(given: { call: Call; text: string }[]) {
    if (!chat || stop) return;
    for (const { call, text } of given) chat.messages.push({ role: "tool", content: text, answers: call.id });
    void answer(chat, served, sampling);
  }

  const messages = chat?.messages ?? [];
  return (
    <div class="chat">
      <Past begin={begin} />
      <section class="talk" aria-label="Conversation">
        <div class="top">
          <Heading title="Chat">Chat</Heading>
          <label>
            Model{" "}
            <select value={served} onChange={(event) => choose(event.currentTarget.value)} disabled={!models.length}>
              {models.map((one) => (
                <option key={one.id} value={one.id}>
                  {one.tsnode_loaded === false ? `${one.id} (not loaded)` : one.id}
                </option>
              ))}
            </select>
          </label>
        </div>
        {problem && <p class="trouble">{problem}</p>}
        <div
          class="log"
          ref={log}
          role="log"
          aria-label="Messages"
          aria-live="off"
          aria-busy={stop !== null}
          tabIndex={0}
          onScroll={(event) => {
            const box = event.currentTarget;
            stays.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
          }}
        >
          {messages.length === 0 && (
            <p class="quiet">Whatever you write goes to this peer, and is computed by peers of the swarm: they see it.</p>
          )}
          {messages.map((message, i) => (
            <Bubble
              key={`${chat?.id}-${i}`}
              message={message}
              view={view}
              runs={stop !== null && i === messages.length - 1}
              asks={!stop && i === messages.length - 1}
              results={results}
            />
          ))}
        </div>
        <p class="unseen" role="status">
          {said}
        </p>
        {wrong && (
          <p class="trouble" role="alert">
            {wrong}
          </p>
        )}
        <form class="write" onSubmit={send}>
          <label class="unseen" for="prompt">
            Message
          </label>
          <textarea
            id="prompt"
            ref={typed}
            rows={2}
            placeholder="Message (Enter sends, Shift+Enter is a new line)"
            onKeyDown={(event) => {
              if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
            }}
          />
          <div class="buttons">
            {stop ? (
              <button type="button" class="main" onClick={() => stop?.abort()}>
                Stop
              </button>
            ) : (
              <button type="submit" class="main" disabled={!served}>
                Send
              </button>
            )}
            <button type="button" onClick={again} disabled={stop !== null || !messages.length || !served}>
              Answer again
            </button>
          </div>
        </form>
        <SamplingForm sampling={sampling} sample={sample} />
      </section>
    </div>
  );
}

function Past({ begin }: { begin: () => void }) {
  const kept = keeps();
  const open = (id: string) => {
    stop?.abort();
    at = id;
    redraw();
  };
  const remove = (id: string) => {
    if (id === at) stop?.abort();
    chats = chats.filter((one) => one.id !== id);
    write(chats);
    redraw();
  };
  return (
    <aside class="past" aria-label="Conversations">
      <button type="button" class="main" onClick={begin}>
        New conversation
      </button>
      <details open={matchMedia("(min-width: 60rem)").matches}>
        <summary>Earlier ({chats.filter((one) => one.messages.length).length})</summary>
        <ul>
          {chats
            .filter((one) => one.messages.length)
            .map((one) => (
              <li key={one.id} class={one.id === at ? "now" : ""}>
                <button type="button" class="plain title" aria-current={one.id === at} onClick={() => open(one.id)}>
                  {one.title}
                </button>
                <button type="button" class="plain" aria-label={`Delete ${one.title}`} onClick={() => remove(one.id)}>
                  ×
                </button>
              </li>
            ))}
        </ul>
        <label class="check">
          <input
            type="checkbox"
            checked={kept}
            onChange={(event) => {
              keep(event.currentTarget.checked, chats);
              redraw();
            }}
          />{" "}
          Keep them in this browser
        </label>
      </details>
    </aside>
  );
}

interface BubbleProps {
  message: Message;
  view: View | null;
  runs: boolean;
  asks: boolean;
  results: (given: { call: Call; text: string }[]) => void;
}

const SPEAKERS = { user: "You", assistant: "Answer", tool: "Result of a tool" };

function Bubble({ message, view, runs, asks, results }: BubbleProps) {
  const calls = (message.calls ?? []).filter(Boolean);
  return (
    <article class={`message ${message.role}`} aria-label={SPEAKERS[message.role]}>
      {message.thoughts && (
        <details class="thoughts" open={runs && !message.content}>
          <summary>Thoughts</summary>
          <Text text={message.thoughts} />
        </details>
      )}
      <Text text={message.content} />
      {runs && <span class="cursor" aria-label="being written" role="img" />}
      {calls.map((call, i) => (
        <div class="call" key={i}>
          <span class="quiet">calls</span> <code>{call.function.name}({call.function.arguments})</code>
        </div>
      ))}
      {asks && calls.length > 0 && <Results calls={calls} results={results} />}
      {message.error && <p class="trouble">{message.error}</p>}
      {message.role === "assistant" && !runs && <Told message={message} view={view} />}
    </article>
  );
}

function Results({ calls, results }: { calls: Call[]; results: BubbleProps["results"] }) {
  const given = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    results(calls.map((call, i) => ({ call, text: String(form.get(`result-${i}`) ?? "") })));
  };
  return (
    <form class="results" onSubmit={given}>
      {calls.map((call, i) => (
        <label key={i}>
          Result of {call.function.name}
          <textarea name={`result-${i}`} rows={2} />
        </label>
      ))}
      <button>Give the results</button>
    </form>
  );
}

/** What came of an answer, and who computed it. */
function Told({ message, view }: { message: Message; view: View | null }) {
  const trace = message.request ? traces.get(message.request) : undefined;
  const how = { length: "cut at the most tokens", stopped: "stopped by you" }[message.ended ?? ""];
  const pace = trace && trace.new_tokens > 1 ? (trace.new_tokens - 1) / Math.max(trace.total - trace.ttft, 1e-9) : 0;
  return (
    <footer class="told">
      <span class="quiet">
        {[
          message.model,
          how,
          trace && tokens(trace.new_tokens),
          trace && `first after ${seconds(trace.ttft)}`,
          pace > 0 && `${pace.toFixed(pace < 10 ? 1 : 0)} tokens/s`,
        ]
          .filter(Boolean)
          .join(" · ")}
      </span>
      {message.content && <Copied text={message.content} label="Copy the answer" />}
      {trace && (
        <details>
          <summary>Who computed it</summary>
          <Shares trace={trace} view={view} />
          <Waterfall trace={trace} />
          <a href={`#/requests/${trace.request}`}>All of this request</a>
        </details>
      )}
    </footer>
  );
}

const NUMBERS: [keyof Sampling, string, number, number, string][] = [
  ["temperature", "Temperature", 0, 2, "0.1"],
  ["top_p", "Top p", 0, 1, "0.05"],
  ["top_k", "Top k", -1, 1000000, "1"],
  ["max_tokens", "Most tokens", 1, 10000000, "1"],
  ["seed", "Seed", 0, 9007199254740991, "1"],
];

function SamplingForm({ sampling, sample }: { sampling: Sampling; sample: (sampling: Sampling) => void }) {
  const set = (name: keyof Sampling) => (event: { currentTarget: { value: string } }) =>
    sample({ ...sampling, [name]: event.currentTarget.value });
  return (
    <details class="sampling">
      <summary>Sampling, system message, tools</summary>
      <p class="quiet small">What is left empty is the model's own.</p>
      <div class="fields">
        {NUMBERS.map(([name, label, min, max, step]) => (
          <label key={name}>
            {label}
            <input type="number" inputMode="decimal" value={sampling[name]} min={min} max={max} step={step} onInput={set(name)} />
          </label>
        ))}
        <label>
          Stop at
          <input value={sampling.stop} onInput={set("stop")} />
        </label>
        <label>
          Thinking
          <select value={sampling.thinking} onChange={set("thinking")}>
            <option value="">as the model does</option>
            <option value="on">on</option>
            <option value="off">off</option>
          </select>
        </label>
      </div>
      <label>
        System message
        <textarea rows={2} value={sampling.system} onInput={set("system")} />
      </label>
      <label>
        Tools, as OpenAI's list of functions in JSON
        <textarea rows={3} spellcheck={false} value={sampling.tools} onInput={set("tools")} />
      </label>
    </details>
  );
}
