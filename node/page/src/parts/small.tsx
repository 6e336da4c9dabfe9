// Small things that several views show.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Refusal, get } from "../api";

export function Heading({ children, title }: { children: ComponentChildren; title: string }) {
  useEffect(() => {
    document.title = `${title} · tsnode`;
  }, [title]);
  return <h1 tabIndex={-1}>{children}</h1>;
}

/** Of a view of which the peer has said nothing yet. */
export const Waits = () => <p class="quiet">Waits for what this peer says. Where that takes long, look whether it still runs: tsnode status.</p>;

export const whyOf = (error: unknown) => (error instanceof Refusal ? error.message : String(error));

/** Why something is not shown, and what to do about it. */
export function Trouble({ what, why, again }: { what: string; why: string; again: () => void }) {
  return (
    <p class="trouble" role="alert">
      {what}: {why}{" "}
      <button type="button" onClick={again}>
        Ask again
      </button>
    </p>
  );
}

/** What the peer says at a path, asked anew where `about` has changed; or why it is not known. */
export function useAsked<T>(path: string, about: string) {
  const [known, set] = useState<T | null>(null);
  const [why, say] = useState("");
  const [times, ask] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    get<T>(path, stop.signal).then(
      (answer) => (set(answer), say("")),
      (error: unknown) => {
        if (!stop.signal.aborted) say(whyOf(error));
      },
    );
    return () => stop.abort();
  }, [path, about, times]);
  return { known, why, again: () => ask((n) => n + 1) };
}

export function Meter({ part, label }: { part: number; label: string }) {
  const value = Math.max(0, Math.min(1, part));
  return (
    <div class="meter" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(100 * value)}>
      <i style={{ width: `${100 * value}%` }} />
    </div>
  );
}

export function Copied({ text, label }: { text: string; label: string }) {
  const [done, set] = useState(false);
  const copy = () =>
    navigator.clipboard.writeText(text).then(
      () => {
        set(true);
        setTimeout(() => set(false), 2000);
      },
      () => undefined,
    );
  // Browsers have a clipboard where pages come by HTTPS or from this host.
  if (!navigator.clipboard) return null;
  return (
    <button type="button" class="plain" onClick={copy} aria-label={label}>
      {done ? "Copied" : "Copy"}
    </button>
  );
}

/** A line to be typed at a terminal. */
export function Line({ text, label }: { text: string; label: string }) {
  return (
    <div class="line">
      <code>{text}</code>
      <Copied text={text} label={label} />
    </div>
  );
}

/** What became of something that was asked of the peer, said aloud. */
export function useDeed(): [string, (deed: () => Promise<unknown>) => Promise<void>, boolean] {
  const [said, say] = useState("");
  const [busy, setBusy] = useState(false);
  const run = async (deed: () => Promise<unknown>) => {
    setBusy(true);
    try {
      const answer = (await deed()) as { done?: string } | string | undefined;
      say(typeof answer === "string" ? answer : (answer?.done ?? "Done."));
    } catch (error) {
      say(whyOf(error));
    }
    setBusy(false);
  };
  return [said, run, busy];
}

export const Said = ({ text }: { text: string }) => (
  <p class="said" role="status">
    {text}
  </p>
);
