// Asks the peer that sent this page, and nobody else, with the key that it was given.

const KEY = "tsnode-key";
let inMemory = "";

// For this tab alone: what a browser keeps for longer, the next to sit there would find. Where it may keep nothing, the page does.
export const key = {
  get(): string {
    try {
      return sessionStorage.getItem(KEY) ?? inMemory;
    } catch {
      return inMemory;
    }
  },
  set(value: string) {
    inMemory = value;
    try {
      if (value) sessionStorage.setItem(KEY, value);
      else sessionStorage.removeItem(KEY);
    } catch {
      // It is in memory.
    }
  },
};

/** An answer that is none: what the peer said, or that it said nothing. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly retryAfter: number,
  ) {
    super(message);
  }

  get wantsKey() {
    return this.status === 401 || this.status === 403;
  }
}

export interface Ask {
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** The one way out: every request of the page shows the key, where there is one, and goes to a path of this peer. */
export async function ask(path: string, { body, headers, signal }: Ask = {}): Promise<Response> {
  const shown = key.get();
  const sent: RequestInit = {
    method: body === undefined ? "GET" : "POST",
    headers: {
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      ...(shown ? { Authorization: `Bearer ${shown}` } : {}),
      ...headers,
    },
    cache: "no-store",
  };
  if (body !== undefined) sent.body = JSON.stringify(body);
  if (signal) sent.signal = signal;
  let answer: Response;
  try {
    answer = await fetch(path, sent);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal(0, "This peer does not answer: it has ended, or the network to it is down.", 2);
  }
  if (answer.ok) return answer;
  const said = (await answer.json().catch(() => null)) as { error?: { message?: string } } | null;
  const wait = Number(answer.headers.get("Retry-After")) || 1;
  throw new Refusal(answer.status, said?.error?.message ?? `HTTP ${answer.status}`, wait);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, signal ? { signal } : {})).json() as Promise<T>;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  return (await ask(path, { body })).json() as Promise<T>;
}

export interface ServerEvent {
  event: string;
  data: string;
}

/** Longest line of a stream that is waited for (characters). */
const LINE = 16 << 20;

/** The events of a stream, as they come; `heard` is called for whatever comes, also for what only keeps it awake. */
export async function* events(answer: Response, heard?: () => void): AsyncGenerator<ServerEvent> {
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  let rest = "";
  let event = "message";
  let data: string[] = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard?.();
      rest += value;
      if (rest.length > LINE) throw new Refusal(0, "The answer has a line without an end.", 2);
      const lines = rest.split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line === "" || line === "\r") {
          if (data.length) yield { event, data: data.join("\n") };
          event = "message";
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(5).trim());
        } else if (line.startsWith("event:")) {
          event = line.slice(6).trim();
        }
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
