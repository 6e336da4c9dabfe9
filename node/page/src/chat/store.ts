// Conversations, kept by this browser alone.

const PLACE = "tsnode-chats";
const KEEPS = "tsnode-keeps-chats";
/** Conversations that are kept, and what they may take together (characters). */
const MOST = 50;
const ROOM = 2 << 20;

export interface Call {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

export interface Message {
  role: "user" | "assistant" | "tool";
  content: string;
  thoughts?: string;
  calls?: Call[];
  /** Of a tool's answer: the call that it answers. */
  answers?: string;
  /** Of an answer: the request, and what came of it. */
  request?: string;
  model?: string;
  ended?: string;
  error?: string;
}

export interface Chat {
  id: string;
  title: string;
  at: number;
  messages: Message[];
}

export function keeps(): boolean {
  try {
    return localStorage.getItem(KEEPS) !== "no";
  } catch {
    return false;
  }
}

export function keep(wish: boolean, chats: Chat[]) {
  try {
    localStorage.setItem(KEEPS, wish ? "yes" : "no");
    if (!wish) localStorage.removeItem(PLACE);
    else write(chats);
  } catch {
    // The browser keeps nothing for pages.
  }
}

const isChat = (one: unknown): one is Chat => {
  const chat = one as Chat;
  return typeof chat?.id === "string" && typeof chat.title === "string" && Array.isArray(chat.messages);
};

export function read(): Chat[] {
  try {
    const all = JSON.parse(localStorage.getItem(PLACE) ?? "[]") as unknown;
    return Array.isArray(all) ? all.filter(isChat) : [];
  } catch {
    return [];
  }
}

/** The newest of them, as far as there is room. */
export function write(chats: Chat[]) {
  if (!keeps()) return;
  const kept = chats.filter((chat) => chat.messages.length > 0).slice(0, MOST);
  try {
    let text = JSON.stringify(kept);
    while (text.length > ROOM && kept.length > 1) {
      kept.pop();
      text = JSON.stringify(kept);
    }
    localStorage.setItem(PLACE, text);
  } catch {
    // There is no room: what is shown stays until the tab is closed.
  }
}

export const fresh = (): Chat => ({
  id: Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0")).join(""),
  title: "New conversation",
  at: Date.now(),
  messages: [],
});
