// The page of a peer: what is looked at is said behind the address's #.

import { render, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, key } from "./api";
import { restart, start, useLive } from "./live";
import "./page.css";
import { ChatView } from "./views/chat";
import { JoinView } from "./views/join";
import { MachineView } from "./views/machine";
import { RequestsView } from "./views/requests";
import { SwarmView } from "./views/swarm";
import { TestnetView } from "./views/testnet";

const VIEWS = [
  ["chat", "Chat"],
  ["swarm", "Swarm"],
  ["requests", "Requests"],
  ["machine", "My machine"],
  ["join", "Join"],
  ["testnet", "Testnet"],
] as const;

const place = () => location.hash.replace(/^#\/?/, "").split("/");

function App() {
  const [[name = "", id = ""], go] = useState(place);
  const { view, problem } = useLive();
  const [breaks, setBreaks] = useState(false);
  const main = useRef<HTMLElement>(null);
  useEffect(() => {
    const moved = () => go(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    if (view) get("/api/faults").then(() => setBreaks(true), () => setBreaks(false));
  }, [view?.me]);
  const shown = VIEWS.filter(([one]) => one !== "testnet" || breaks);
  const now = shown.find(([one]) => one === name)?.[0] ?? "chat";
  const barred = problem?.status === 401;
  const before = useRef(now);
  useEffect(() => {
    if (before.current === now) return;
    before.current = now;
    // Where a screen reader goes on, once the view is there.
    main.current?.querySelector("h1")?.focus();
    window.scrollTo(0, 0);
  }, [now]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the view
      </a>
      <header>
        <span class="brand">tsnode</span>
        <span class="quiet swarm" title={view?.swarm}>
          {view && `${view.swarm.slice(0, 11)}…${view.private ? ", private" : ""}`}
        </span>
        <nav aria-label="Views">
          {shown.map(([one, title]) => (
            <a key={one} href={`#/${one}`} aria-current={one === now ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        {key.get() && !barred && (
          <button type="button" class="plain" onClick={forget}>
            Forget the key
          </button>
        )}
      </header>
      <main ref={main} id="main" tabIndex={-1}>
        {problem && !problem.wantsKey && (
          <p class="trouble" role="alert">
            {problem.message}
          </p>
        )}
        {barred ? <Key why={problem.message} /> : <Shown now={now} id={id} closed={problem?.status === 403 ? problem.message : ""} />}
      </main>
    </>
  );
}

/** A key for prompts is good for chat alone. */
function Shown({ now, id, closed }: { now: string; id: string; closed: string }): ComponentChildren {
  if (now === "chat") return <ChatView />;
  if (closed) return <Key why={closed} />;
  if (now === "swarm") return <SwarmView />;
  if (now === "requests") return <RequestsView id={id} />;
  if (now === "machine") return <MachineView />;
  if (now === "join") return <JoinView />;
  return <TestnetView />;
}

function forget() {
  key.set("");
  location.reload();
}

function Key({ why }: { why: string }) {
  const give = (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    key.set(String(new FormData(form).get("key") ?? "").trim());
    form.reset();
    restart();
  };
  return (
    <form class="login" onSubmit={give}>
      <h1 tabIndex={-1}>Key</h1>
      <p>{why}</p>
      <label>
        Key
        <input name="key" type="password" autocomplete="off" spellcheck={false} placeholder="tsk-…" required autofocus />
      </label>
      <button class="main">Show</button>
      <p class="quiet small">
        One for everything is made on the peer's host with <code>tsnode keys add NAME --scope admin</code>; one for prompts is good for Chat
        alone. This tab keeps it until it is closed, and sends it to this peer only.
      </p>
    </form>
  );
}

const app = document.getElementById("app");
if (app) render(<App />, app);
start();
