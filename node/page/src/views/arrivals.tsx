// Who came when, as this peer has seen it since it started.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { useLive } from "../live";
import { Trouble, whyOf } from "../parts/small";
import { short, since } from "../words";

interface Arrival {
  id: string;
  name: string;
  came: number;
  left: number | null;
  times: number;
}

interface Answer {
  watched_since: number | null;
  arrivals: Arrival[];
}

/** How often times are told anew (ms): they are told in minutes. */
const PERIOD = 15_000;

export function Arrivals() {
  const { view } = useLive();
  const [known, set] = useState<Answer | null>(null);
  const [why, say] = useState("");
  const [times, again] = useState(0);
  // The swarm says when somebody has gone or come.
  const there = view?.peers.map((peer) => peer.id).join();
  useEffect(() => {
    const stop = new AbortController();
    const ask = () => {
      if (document.hidden) return;
      get<Answer>("/api/arrivals", stop.signal).then(
        (answer) => (set(answer), say("")),
        (error: unknown) => void (stop.signal.aborted || say(whyOf(error))),
      );
    };
    ask();
    // The peer looks every two seconds.
    const soon = setTimeout(ask, 2500);
    const asks = setInterval(ask, PERIOD);
    return () => (clearTimeout(soon), clearInterval(asks), stop.abort());
  }, [there, times]);
  if (!known) return why ? <Trouble what="Who joined when is not known" why={why} again={() => again((n) => n + 1)} /> : null;
  const { arrivals, watched_since } = known;
  return (
    <section aria-labelledby="arrivals">
      <h2 id="arrivals">Who joined when</h2>
      {arrivals.length === 0 && <p class="quiet">Nobody else has come yet: give them the line above.</p>}
      {arrivals.length > 0 && (
        <div class="wide" role="region" aria-label="Peers that came and went" tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th scope="col">Peer</th>
                <th scope="col">Here since</th>
                <th scope="col">Now</th>
                <th scope="col" class="number">
                  Times
                </th>
              </tr>
            </thead>
            <tbody>
              {arrivals.map((one) => (
                <tr key={one.id}>
                  <th scope="row" title={one.id}>
                    {one.name || short(one.id)}
                  </th>
                  <td>
                    <When at={one.came} /> <span class="quiet">({since(one.came)} ago)</span>
                  </td>
                  <td>{one.left === null ? "here" : `gone for ${since(one.left)}`}</td>
                  <td class="number">{one.times}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {watched_since !== null && (
        <p class="quiet small">
          As this peer has seen it since it started, <When at={watched_since} />: whoever is listed from then on may have been there before.
        </p>
      )}
    </section>
  );
}

function When({ at }: { at: number }) {
  const when = new Date(at * 1000);
  const today = when.toDateString() === new Date().toDateString();
  return <time dateTime={when.toISOString()}>{today ? when.toLocaleTimeString() : when.toLocaleString()}</time>;
}
