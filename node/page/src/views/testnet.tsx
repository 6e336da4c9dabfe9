// Testnet: what is broken at this peer on purpose. Only peers started with --faults have it.

import { useEffect, useState } from "preact/hooks";
import { get, post } from "../api";
import { useLive } from "../live";
import { Heading, Said, Waits, useDeed } from "../parts/small";
import { Processes } from "./processes";
import type { Faults } from "../types";
import { nameOf } from "../words";

const NOTHING: Faults = { cut: {}, mbit: null, ms: 0, corrupt: 0, lie: 0, false_kv: 0, wedge: false, boast: null, noise: null, wall: "none" };

export function TestnetView() {
  const { view } = useLive();
  const [now, set] = useState<Faults | null>(null);
  const [said, run, busy] = useDeed();
  useEffect(() => {
    get<Faults>("/api/faults").then(set, () => undefined);
  }, []);
  if (!view || !now) {
    return (
      <>
        <Heading title="Testnet">Testnet</Heading>
        <Waits />
      </>
    );
  }
  const wish = (faults: Faults) =>
    run(async () => {
      set(await post<Faults>("/api/faults", faults));
      return "Done: others notice within seconds.";
    });
  const others = view.peers.filter((peer) => peer.id !== view.me);
  const me = nameOf(view, view.me);
  const given = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const number = (name: string) => Number(form.get(name) || 0);
    const cut = others.filter((peer) => form.get(`cut-${peer.id}`));
    void wish({
      ...now,
      cut: Object.fromEntries(cut.map((peer) => [peer.id, peer.advert.data_addresses])),
      mbit: number("mbit") || null,
      ms: number("ms"),
      corrupt: number("corrupt") / 100,
      wedge: form.get("wedge") !== null,
    });
  };
  return (
    <>
      <Heading title="Testnet">
        Testnet <span class="quiet">{me}</span>
      </Heading>
      <p>What is broken here is broken at this peer alone. Begin an answer in Chat, break something, and see it go on.</p>
      <form onSubmit={given} class="faults" key={JSON.stringify(now)}>
        <div class="fields">
          <label>
            Links from here carry at most (Mbit/s)
            <input name="mbit" type="number" min="0" step="any" placeholder="all they can" defaultValue={now.mbit === null ? "" : String(now.mbit)} />
          </label>
          <label>
            Everything leaves later by (ms)
            <input name="ms" type="number" min="0" max="60000" step="any" defaultValue={String(now.ms)} />
          </label>
          <label>
            KV tiles sent with a bit flipped (%)
            <input name="corrupt" type="number" min="0" max="100" step="any" defaultValue={String(100 * now.corrupt)} />
          </label>
        </div>
        <label class="check">
          <input name="wedge" type="checkbox" defaultChecked={now.wedge} /> Its compute thread hangs
        </label>
        <fieldset>
          <legend>Nothing from here reaches (KV and tokens; heartbeats and plans go on)</legend>
          {others.map((peer) => (
            <label key={peer.id} class="check">
              <input name={`cut-${peer.id}`} type="checkbox" defaultChecked={peer.id in now.cut} /> {nameOf(view, peer.id)}
            </label>
          ))}
        </fieldset>
        <div class="buttons">
          <button class="main" disabled={busy}>
            Break it
          </button>
          <button type="button" disabled={busy} onClick={() => wish({ ...NOTHING, wall: now.wall })}>
            Heal
          </button>
        </div>
      </form>
      <Said text={said} />
      <Processes />
    </>
  );
}
