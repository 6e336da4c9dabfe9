// The processes of a testnet and the network between them, broken by a click beside the requests under way.

import { useEffect, useState } from "preact/hooks";
import { get, post } from "../api";
import { useLive } from "../live";
import { Line, Said, useDeed } from "../parts/small";
import { nameOf } from "../words";
import { BrokenNetwork } from "./network";

export interface Process {
  name: string;
  id: string;
  process: "runs" | "stopped" | "ended";
  is_this: boolean;
  /** Who it says nothing reaches from there, and to whom its links are slow. */
  cut_from: string[];
  slow_to: { to: string; mbit: number | null; ms: number }[];
}

const SAID = { runs: "runs", stopped: "stopped", ended: "ended" };
const LAST = 5;

export function Processes() {
  const { view, running, requests } = useLive();
  const [peers, set] = useState<Process[] | null>(null);
  const [said, run, busy] = useDeed();
  const look = () => get<{ peers: Process[] }>("/api/testnet").then((answer) => set(answer.peers), () => set(null));
  // The swarm says when somebody has gone or come.
  const there = view?.peers.map((peer) => peer.id).join();
  useEffect(() => void look(), [there]);
  if (!peers) {
    return (
      <>
        <h2>Processes</h2>
        <p>Peers are killed, stopped and restarted by who started them, and by this page once their swarm is detached:</p>
        <Line text="tsnode testnet up --detach" label="Copy the line that starts one" />
      </>
    );
  }
  const act = (deed: string, peer: string) => run(() => post("/api/testnet", { deed, peer }).finally(look));
  const button = (deed: string, text: string, peer: string) => (
    <button type="button" disabled={busy} onClick={() => act(deed, peer)} aria-label={`${text} ${peer}`}>
      {text}
    </button>
  );
  return (
    <>
      <h2>Processes</h2>
      <ul class="plain">
        {peers.map((peer) => (
          <li key={peer.name} class="row">
            <strong>{peer.name}</strong> <span class={peer.process === "runs" ? "quiet" : "trouble"}>{peer.is_this ? "sends this page" : SAID[peer.process]}</span>
            {!peer.is_this && peer.process === "runs" && (
              <>
                {button("kill", "Kill", peer.name)}
                {button("stop", "Stop", peer.name)}
              </>
            )}
            {!peer.is_this && peer.process === "stopped" && (
              <>
                {button("cont", "Continue", peer.name)}
                {button("kill", "Kill", peer.name)}
              </>
            )}
            {!peer.is_this && peer.process === "ended" && button("restart", "Restart", peer.name)}
          </li>
        ))}
      </ul>
      <Said text={said} />
      <BrokenNetwork peers={peers} look={look} />
      <h3>Under way at this peer</h3>
      {running.length === 0 && <p class="quiet">Nothing.</p>}
      <ul>
        {running.map((one) => (
          <li key={one.request}>
            {one.request.slice(0, 8)}…, {one.model}: {one.new_tokens} tokens in {one.seconds} s
            {one.decode && `, answered by ${nameOf(view, one.decode)}`}
          </li>
        ))}
      </ul>
      {requests.length > 0 && (
        <>
          <h3>Ended last</h3>
          <ul>
            {requests.slice(0, LAST).map((one) => (
              <li key={one.request}>
                <a href={`#/requests/${one.request}`}>{one.request.slice(0, 8)}…</a>: {one.new_tokens} tokens
                {one.moves > 0 && `; went on elsewhere ${one.moves === 1 ? "once" : `${one.moves} times`}`}
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}
