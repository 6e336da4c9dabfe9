// Where a request's time went: its parts, one behind the other, as the gateway cut them.

import { nameOf, percent, seconds } from "../words";
import type { PartName, Running, Trace, View } from "../types";

const PARTS: [PartName, string][] = [
  ["queue", "queue: for pages and its turn"],
  ["prefill", "prefill: steps of the prompt"],
  ["pack", "pack: KV that the prefill did not hide"],
  ["wire", "wire: KV on its way"],
  ["unpack", "unpack: after the last byte"],
  ["decode", "decode: steps of the answer"],
  ["recovery", "recovery: from a lost group to the next token"],
];

export function Waterfall({ trace }: { trace: Trace }) {
  const whole = Math.max(trace.total, 1e-9);
  let from = 0;
  const rows = PARTS.map(([name, says]) => {
    const took = trace.parts[name] ?? 0;
    const row = { name, says, took, left: from };
    from += took;
    return row;
  });
  return (
    <table class="waterfall">
      <caption class="unseen">Where {seconds(trace.total)} went</caption>
      <thead class="unseen">
        <tr>
          <th scope="col">Part</th>
          <th scope="col">When</th>
          <th scope="col">Took</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(({ name, says, took, left }) => (
          <tr key={name} class={took === 0 ? "none" : ""}>
            <th scope="row" title={says}>
              {name}
            </th>
            <td class="track">
              <i class={`part ${name}`} style={{ left: `${(100 * left) / whole}%`, width: `${(100 * took) / whole}%` }} />
            </td>
            <td class="number">{seconds(took)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Of one that is under way, as far as it is: so long as `most` is all of the width. */
export function Underway({ parts, most }: { parts: Running["parts"]; most: number }) {
  if (!parts) return null;
  const whole = Math.max(most, 1e-9);
  let from = 0;
  return (
    <div class="track underway" aria-hidden="true">
      {(["queue", "prefill", "decode"] as const).map((name) => {
        const left = from;
        from += parts[name];
        const style = { left: `${(100 * left) / whole}%`, width: `${(100 * parts[name]) / whole}%` };
        return parts[name] > 0 && <i key={name} class={`part ${name}`} style={style} />;
      })}
    </div>
  );
}

/** Layers times tokens that each peer computed, as parts of all. Tokens from the cache were not computed. */
export function shares(trace: Trace): [string, number][] {
  const done = new Map<string, number>();
  const add = (stages: Trace["prefill_stages"], tokens: number) => {
    for (const { peer, layers } of stages) {
      done.set(peer, (done.get(peer) ?? 0) + (layers.end - layers.start) * tokens);
    }
  };
  add(trace.prefill_stages, Math.max(trace.prompt_tokens - trace.cached_tokens, 0));
  // The prompt's last step gives the first token.
  add(trace.decode_stages, Math.max(trace.new_tokens - 1, 0));
  const all = [...done.values()].reduce((a, b) => a + b, 0);
  return [...done].map(([peer, n]): [string, number] => [peer, all ? n / all : 0]).sort((a, b) => b[1] - a[1]);
}

export function Shares({ trace, view }: { trace: Trace; view: View | null }) {
  const all = shares(trace);
  const name = (peer: string) => trace.peers[peer] ?? nameOf(view, peer);
  return (
    <div class="shares">
      <div class="stack" aria-hidden="true">
        {all.map(([peer, part], i) => (
          <i key={peer} class={`share s${i % 6}`} style={{ width: `${100 * part}%` }} />
        ))}
      </div>
      <ul>
        {all.map(([peer, part], i) => (
          <li key={peer}>
            <i class={`dot s${i % 6}`} aria-hidden="true" /> {name(peer)} computed {percent(part)}
          </li>
        ))}
      </ul>
      <p class="quiet small">By layers times tokens{trace.moves.length ? ", of the groups that ended it" : ""}.</p>
    </div>
  );
}
