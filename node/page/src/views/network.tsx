// The network between a testnet's peers: cut in two, or one link of it slow, by a click; and whole again.

import { useDeed, Said } from "../parts/small";
import { post } from "../api";
import type { Process } from "./processes";

export function BrokenNetwork({ peers, look }: { peers: Process[]; look: () => Promise<unknown> }) {
  const [said, run, busy] = useDeed();
  const act = (wish: object) => run(() => post("/api/testnet", wish).finally(look));
  const running = peers.filter((peer) => peer.process === "runs");
  const cut = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    void act({ deed: "partition", side: form.getAll("side") });
  };
  const slow = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    void act({ deed: "slow", peer: form.get("peer"), to: form.get("to"), mbit: Number(form.get("mbit")) || null, ms: Number(form.get("ms")) });
  };
  const states = peers.flatMap((peer) => [
    ...(peer.cut_from.length ? [`${peer.name} is cut off from ${peer.cut_from.join(", ")}`] : []),
    ...peer.slow_to.map((link) => `${peer.name} to ${link.to}: ${link.mbit === null ? "all it can" : `${link.mbit} Mbit/s`}, ${link.ms} ms later`),
  ]);
  const options = running.map((peer) => (
    <option key={peer.name} value={peer.name}>
      {peer.name}
    </option>
  ));
  return (
    <>
      <h2>Network</h2>
      {states.length === 0 ? (
        <p class="quiet">It is whole.</p>
      ) : (
        <ul>
          {states.map((state) => (
            <li key={state}>{state}</li>
          ))}
        </ul>
      )}
      <form onSubmit={cut}>
        <fieldset>
          <legend>Cut in two: on the other side are</legend>
          <div class="row choices">
            {running.map((peer) => (
              <label key={peer.name} class="check">
                <input name="side" type="checkbox" value={peer.name} /> {peer.name}
              </label>
            ))}
          </div>
        </fieldset>
        <div class="buttons">
          <button disabled={busy}>Partition</button>
        </div>
      </form>
      <form onSubmit={slow}>
        <div class="fields">
          <label>
            The link between
            <select name="peer">{options}</select>
          </label>
          <label>
            and
            <select name="to" defaultValue={running[1]?.name}>
              {options}
            </select>
          </label>
          <label>
            carries (Mbit/s)
            <input name="mbit" type="number" min="0" step="any" placeholder="all it can" defaultValue="4" />
          </label>
          <label>
            and later by (ms)
            <input name="ms" type="number" min="0" max="60000" step="any" defaultValue="40" />
          </label>
        </div>
        <div class="buttons">
          <button disabled={busy}>Slow this link</button>
          <button type="button" disabled={busy} onClick={() => act({ deed: "heal" })}>
            Make the network whole
          </button>
        </div>
      </form>
      <Said text={said} />
    </>
  );
}
