// What the peer tells while the page is looked at: one stream of events for all views, and none for a page that nobody sees.

import { useEffect, useState } from "preact/hooks";
import { Refusal, ask, events, get } from "./api";
import type { Link, Peer, Plan, Running, Short, View } from "./types";

/** Requests that the page remembers. */
const KEPT = 256;

export interface Followed {
  /** Seconds since 1970. */
  at: number;
  id: string;
  plan: Plan;
}

/** A prompt's KV went from who leads its prefill to who leads its decoding. */
export interface Move {
  /** Counts them. */
  n: number;
  /** When this page heard of it (ms). */
  at: number;
  prefill: string;
  decode: string;
}

/** Moves that are shown at once, at most: of more that came together people see as much. */
const MOVES = 8;

export interface State {
  view: View | null;
  requests: Short[];
  running: Running[];
  /** Plans that the peer has followed since it started, newest first. */
  plans: Followed[];
  /** The last that went on while this page was open. */
  moves: Move[];
  problem: Refusal | null;
}

let state: State = { view: null, requests: [], running: [], plans: [], moves: [], problem: null };
const listeners = new Set<(state: State) => void>();

function change(part: Partial<State>) {
  state = { ...state, ...part };
  listeners.forEach((tell) => tell(state));
}

export function useLive(): State {
  const [now, set] = useState(state);
  useEffect(() => {
    listeners.add(set);
    set(state);
    return () => void listeners.delete(set);
  }, []);
  return now;
}

interface Requests {
  requests: Short[];
  running?: Running[];
}

function take(view: View) {
  const isNew = view.plan_id !== null && state.view?.plan_id !== view.plan_id;
  change({ view, problem: null });
  if (isNew) get<{ plans: Followed[] }>("/api/plans").then(({ plans }) => change({ plans }), () => undefined);
}

/** A peer whose advert is as it was has none, but those of its links that were measured anew. */
interface Changes {
  swarm: View;
  peers: (Omit<Peer, "advert"> & Partial<Peer> & { links?: Link[] })[];
}

function takeChanges({ swarm, peers }: Changes) {
  const known = new Map(state.view?.peers.map((peer) => [peer.id, peer.advert]));
  const whole = peers.flatMap(({ links, ...peer }) => {
    const advert = peer.advert ?? known.get(peer.id);
    if (!advert) return [];
    const measured = (link: Link) => links?.find((one) => one.to === link.to) ?? link;
    return [{ ...peer, advert: links ? { ...advert, links: advert.links.map(measured) } : advert }];
  });
  take({ ...swarm, peers: whole });
}

/** Whether those that ended before the page was opened have been told. */
let caughtUp = false;
let counted = 0;

/** Prompts that are computed by now, and were not when the peer told last: of short ones nothing is heard before they have ended. */
function movedNow(fresh: Short[], running: Running[]): Move[] {
  const decoded = new Set(state.running.filter((one) => one.stage === "decode").map((one) => one.request));
  const went = [...running.filter((one) => one.stage === "decode"), ...fresh].filter((one) => !decoded.has(one.request));
  return went.flatMap(({ prefill, decode }) => (prefill && decode ? [{ n: ++counted, at: Date.now(), prefill, decode }] : []));
}

function takeRequests({ requests, running = state.running }: Requests) {
  const known = new Set(state.requests.map((one) => one.request));
  const fresh = requests.filter((one) => !known.has(one.request));
  const moves = caughtUp ? [...state.moves, ...movedNow(fresh, running)].slice(-MOVES) : [];
  caughtUp = true;
  change({ requests: [...fresh, ...state.requests].slice(0, KEPT), running, moves });
}

let following: AbortController | null = null;
let again: number | undefined;

/** A peer keeps a stream awake every 15 s: one that is silent for longer hangs (ms). */
const SILENCE = 25_000;

/** Until the stream ends or nothing comes any more: what is shown would be taken for what is. */
async function follow(stop: AbortSignal) {
  const own = new AbortController();
  const end = () => own.abort();
  stop.addEventListener("abort", end);
  let silence: number | undefined;
  let lost = false;
  const heard = () => {
    clearTimeout(silence);
    silence = window.setTimeout(() => ((lost = true), end()), SILENCE);
  };
  try {
    heard();
    const stream = await ask("/api/events?changes", { signal: own.signal });
    for await (const { event, data } of events(stream, heard)) {
      if (event === "swarm") take(JSON.parse(data) as View);
      if (event === "changes") takeChanges(JSON.parse(data) as Changes);
      if (event === "requests") takeRequests(JSON.parse(data) as Requests);
    }
  } catch (error) {
    if (lost) throw new Refusal(0, `This peer has said nothing for ${SILENCE / 1000} s: it hangs, or the network to it is down.`, 1);
    throw error;
  } finally {
    clearTimeout(silence);
    stop.removeEventListener("abort", end);
    end();
  }
  throw new Refusal(0, "This peer has ended the stream of events: it stops, or the network to it is down.", 1);
}

/** Where all places at the stream are taken: slowly, one answer at a time. */
async function look(stop: AbortSignal) {
  take(await get<View>("/api/swarm", stop));
  takeRequests(await get<Requests>("/api/requests", stop));
}

async function run(stop: AbortSignal) {
  let wait = 1;
  try {
    await follow(stop).catch(async (error: unknown) => {
      if (!(error instanceof Refusal) || error.status !== 503) throw error;
      await look(stop);
      wait = 5;
    });
  } catch (error) {
    if (stop.aborted) return;
    const problem = error instanceof Refusal ? error : new Refusal(0, String(error), 2);
    change({ problem, ...(problem.wantsKey ? { view: null, requests: [], running: [] } : {}) });
    // A key that is not good is not tried again by itself.
    if (problem.wantsKey) return;
    wait = problem.retryAfter;
  }
  if (!stop.aborted) again = window.setTimeout(() => run(stop), wait * 1000);
}

/** Begins anew, as with another key. */
export function restart() {
  pause();
  // What went on meanwhile is not shown as if it went on now.
  caughtUp = false;
  following = new AbortController();
  void run(following.signal);
}

function pause() {
  clearTimeout(again);
  following?.abort();
  following = null;
}

export function start() {
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : restart()));
  if (!document.hidden) restart();
}
