// What this machine has computed for others, and others for it: by day as bars, and by day and model as numbers.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { Trouble, whyOf } from "../parts/small";
import type { Earned, Earnings, Tokens } from "../types";

/** Days shown, and how often the peer is asked anew while the page is seen (ms): numbers of a day need no more. */
const DAYS = 14;
const PERIOD = 30_000;

const HEIGHT = 90;
const WIDTH = 22;

const all = (tokens: Tokens) => tokens.prompt_tokens + tokens.completion_tokens;
const number = (n: number) => n.toLocaleString();
const said = (tokens: Tokens) => `${number(tokens.prompt_tokens)} of prompts, ${number(tokens.completion_tokens)} of answers`;

export function EarnedSection() {
  const [earnings, set] = useState<Earnings | null>(null);
  const [why, say] = useState("");
  const [times, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const ask = () => {
      if (document.hidden) return;
      get<Earnings>(`/api/earnings?days=${DAYS}`, stop.signal).then(
        (answer) => (set(answer), say("")),
        (error: unknown) => void (stop.signal.aborted || say(whyOf(error))),
      );
    };
    ask();
    const asks = setInterval(ask, PERIOD);
    return () => (clearInterval(asks), stop.abort());
  }, [times]);
  if (!earnings) return why ? <Trouble what="What was earned is not known" why={why} again={() => again((n) => n + 1)} /> : null;
  const { earnings: lines, total } = earnings;
  return (
    <section aria-labelledby="earned">
      <h2 id="earned">Earned</h2>
      {lines.length === 0 && <p class="quiet">Nothing yet: neither has this machine computed for others, nor others for it. Tokens are counted as requests of the swarm come.</p>}
      {lines.length > 0 && (
        <>
          <p>
            Tokens computed <span class="key others" /> for others: {said(total.for_others)}. <span class="key own" /> By others for clients
            of this peer: {said(total.by_others)}.
          </p>
          <Bars lines={lines} />
          <Numbers lines={lines} />
        </>
      )}
    </section>
  );
}

interface Day {
  day: string;
  for_others: number;
  by_others: number;
}

/** The days of the calendar from the first to the last of which there is something, as many as are shown. */
function days(lines: Earned[]): Day[] {
  const first = lines[lines.length - 1]?.day ?? "";
  const found: Day[] = [];
  for (let at = Date.parse(lines[0]?.day ?? ""); found.length < DAYS; at -= 86_400_000) {
    const day = Number.isNaN(at) ? "" : new Date(at).toISOString().slice(0, 10);
    if (day < first || !day) break;
    const sum = (side: "for_others" | "by_others") => lines.filter((one) => one.day === day).reduce((n, one) => n + all(one[side]), 0);
    found.unshift({ day, for_others: sum("for_others"), by_others: sum("by_others") });
  }
  return found;
}

function Bars({ lines }: { lines: Earned[] }) {
  const shown = days(lines);
  const most = Math.max(1, ...shown.flatMap((one) => [one.for_others, one.by_others]));
  const tall = (tokens: number) => (tokens ? Math.max(1, (HEIGHT * tokens) / most) : 0);
  const width = WIDTH * 2 * shown.length;
  const text = shown.map((one) => `${one.day}: ${number(one.for_others)} for others, ${number(one.by_others)} by others`).join("; ");
  return (
    <svg class="bars" role="img" aria-label={`Tokens by day. ${text}`} viewBox={`0 0 ${width} ${HEIGHT + 16}`} width={width} height={HEIGHT + 16}>
      {shown.map((one, i) => {
        const left = WIDTH * 2 * i;
        return (
          <g key={one.day}>
            <rect class="others" x={left + 4} y={HEIGHT - tall(one.for_others)} width={WIDTH - 5} height={tall(one.for_others)} />
            <rect class="own" x={left + WIDTH} y={HEIGHT - tall(one.by_others)} width={WIDTH - 5} height={tall(one.by_others)} />
            <text x={left + WIDTH} y={HEIGHT + 13}>
              {one.day.slice(5)}
            </text>
          </g>
        );
      })}
      <line x1="0" x2={width} y1={HEIGHT} y2={HEIGHT} />
    </svg>
  );
}

function Numbers({ lines }: { lines: Earned[] }) {
  return (
    <div class="wide" tabIndex={0} role="region" aria-label="Tokens by day and model">
      <table>
        <thead>
          <tr>
            <th>Day (UTC)</th>
            <th>Model</th>
            <th class="number">Prompts, for others</th>
            <th class="number">Answers, for others</th>
            <th class="number">Prompts, by others</th>
            <th class="number">Answers, by others</th>
          </tr>
        </thead>
        <tbody>
          {lines.map((one) => (
            <tr key={one.day + one.model_id}>
              <th>{one.day}</th>
              <td>{one.model || `${one.model_id.slice(0, 8)}…`}</td>
              <td class="number">{number(one.for_others.prompt_tokens)}</td>
              <td class="number">{number(one.for_others.completion_tokens)}</td>
              <td class="number">{number(one.by_others.prompt_tokens)}</td>
              <td class="number">{number(one.by_others.completion_tokens)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
