// Requests of this peer's clients: those under way, and of those that ended where their time went.

import { useEffect, useState } from "preact/hooks";
import { Refusal, get, post } from "../api";
import { useLive } from "../live";
import { Heading, Said, useDeed } from "../parts/small";
import { Shares, Underway, Waterfall } from "../parts/waterfall";
import type { Running, Trace, View } from "../types";
import { bytes, layers, modelName, nameOf, seconds, tokens } from "../words";

const STAGES: Record<string, string> = { queue: "waits", prefill: "its prompt is computed", decode: "is answered" };

export function RequestsView({ id }: { id: string }) {
  const { view, requests, running } = useLive();
  const [said, run, busy] = useDeed();
  const took = ({ parts }: Running) => (parts ? parts.queue + parts.prefill + parts.decode : 0);
  const by = (one: Running) => (one.stage === "prefill" ? one.prefill : one.decode);
  const most = Math.max(0, ...running.map(took));
  return (
    <>
      <Heading title="Requests">Requests</Heading>
      <section>
        <h2>Under way</h2>
        {running.length === 0 && <p class="quiet">None. What this peer is asked, in Chat or by other programs, is shown here.</p>}
        <ul class="plain">
          {running.map((one) => (
            <li key={one.request} class="row">
              <code>{one.request}</code> <span>{one.model}</span> <span>
                {STAGES[one.stage] ?? one.stage}, {tokens(one.prompt_tokens)} of prompt, {one.new_tokens} of answer
                {one.parts && one.stage === "decode" && `, the prompt in ${seconds(one.parts.queue + one.parts.prefill)}`}
                {by(one) && `, by ${nameOf(view, by(one) ?? "")}`}
              </span>{" "}
              <span class="number">{one.seconds} s</span>
              <button
                type="button"
                disabled={busy}
                aria-label={`Cancel ${one.request}`}
                onClick={() => run(() => post(`/api/requests/${one.request}/cancel`, {}))}
              >
                Cancel
              </button>
              <Underway parts={one.parts} most={most} />
            </li>
          ))}
        </ul>
        <Said text={said} />
      </section>
      {id && <One key={id} id={id} view={view} />}
      <section>
        <h2>Ended</h2>
        {requests.length === 0 ? (
          <p class="quiet">None yet. The last 256 are kept, over restarts too, without their texts.</p>
        ) : (
          <div class="wide" role="region" aria-label="Requests that ended" tabIndex={0}>
            <table>
              <thead>
                <tr>
                  <th scope="col">Request</th>
                  <th scope="col">Model</th>
                  <th scope="col">Prompt by, answer by</th>
                  <th scope="col" class="number">
                    Prompt, tokens
                  </th>
                  <th scope="col" class="number">
                    Answer, tokens
                  </th>
                  <th scope="col" class="number">
                    KV sent
                  </th>
                  <th scope="col" class="number">
                    First token after
                  </th>
                  <th scope="col" class="number">
                    In all
                  </th>
                  <th scope="col" class="number">
                    Moves
                  </th>
                </tr>
              </thead>
              <tbody>
                {requests.map((one) => {
                  const name = (peer: string) => one.peers[peer] ?? nameOf(view, peer);
                  return (
                    <tr key={one.request} class={one.request === id ? "now" : ""}>
                      <th scope="row">
                        <a href={`#/requests/${one.request}`}>{one.request.slice(0, 12)}…</a>
                      </th>
                      <td>{modelName(view, one.model)}</td>
                      <td>{one.prefill === one.decode ? name(one.decode) : `${name(one.prefill)}, ${name(one.decode)}`}</td>
                      <td class="number">{one.prompt_tokens}</td>
                      <td class="number">{one.new_tokens}</td>
                      <td class="number">{one.kv_bytes ? bytes(one.kv_bytes) : "–"}</td>
                      <td class="number">{seconds(one.ttft)}</td>
                      <td class="number">{seconds(one.total)}</td>
                      <td class="number">{one.moves || "–"}</td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
        )}
        {requests.length > 0 && (
          <p class="quiet small">
            KV is what a model remembers of a prompt: it is sent where one group computes the prompt and another the answer. An answer moves
            when its group is lost, and goes on at another.
          </p>
        )}
      </section>
    </>
  );
}

function One({ id, view }: { id: string; view: View | null }) {
  const [trace, set] = useState<Trace | null>(null);
  const [problem, say] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    get<Trace>(`/api/requests/${encodeURIComponent(id)}`, stop.signal).then(set, (error: Refusal) => {
      if (!stop.signal.aborted) say(error.message);
    });
    return () => stop.abort();
  }, [id]);
  return (
    <section class="one" aria-label="Request">
      <h2>
        <code>{id}</code>
      </h2>
      <p>
        <a href="#/requests">Close</a>
      </p>
      {problem && <p class="trouble">{problem}</p>}
      {trace && <Told trace={trace} view={view} />}
    </section>
  );
}

interface Sent {
  from: string;
  to: string;
  bytes: number;
  streams: number;
  pack: number;
  wire: number;
  unpack: number;
}

function Told({ trace, view }: { trace: Trace; view: View | null }) {
  const name = (peer: string) => trace.peers[peer] ?? nameOf(view, peer);
  const chain = (stages: Trace["prefill_stages"]) => stages.map((one) => `${name(one.peer)} (${layers(one.layers)})`).join(" → ");
  const sent = trace.deliveries as unknown as Sent[];
  return (
    <>
      <p>
        {tokens(trace.prompt_tokens)} of prompt{trace.cached_tokens > 0 && `, ${trace.cached_tokens} of them cached`}, {tokens(trace.new_tokens)}{" "}
        of answer in {seconds(trace.total)}, the first after {seconds(trace.ttft)}. Where it went, and why: {trace.reason}.
      </p>
      <Waterfall trace={trace} />
      {trace.slowest && <Slowest trace={trace} name={name} />}
      <Shares trace={trace} view={view} />
      <dl>
        <div>
          <dt>Prompt</dt>
          <dd>{chain(trace.prefill_stages)}</dd>
        </div>
        <div>
          <dt>Answer</dt>
          <dd>{chain(trace.decode_stages)}</dd>
        </div>
        {trace.predicted && (
          <div>
            <dt>Expected</dt>
            <dd>
              {seconds(trace.predicted.elsewhere)} computed elsewhere and sent, {seconds(trace.predicted.here)} computed where it is decoded
            </dd>
          </div>
        )}
      </dl>
      {trace.moves.length > 0 && (
        <>
          <h3>Moves</h3>
          <ul>
            {trace.moves.map((move, i) => (
              <li key={i}>
                at {seconds(move.at)} from {name(move.from)}, with {tokens(move.answered)} answered: {move.reason}
                {move.way && `; went on from KV: ${move.way}`}
              </li>
            ))}
          </ul>
        </>
      )}
      {sent.length > 0 && (
        <>
          <h3>KV on the wire</h3>
          <div class="wide" role="region" aria-label="KV on the wire" tabIndex={0}>
            <table>
              <thead>
                <tr>
                  {["From", "To", "Bytes", "Streams", "Packed", "Sent", "Unpacked"].map((head) => (
                    <th key={head} scope="col">
                      {head}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {sent.map((one) => (
                  <tr key={one.from + one.to}>
                    <td>{name(one.from)}</td>
                    <td>{name(one.to)}</td>
                    <td>{bytes(one.bytes)}</td>
                    <td>{one.streams}</td>
                    <td>{seconds(one.pack)}</td>
                    <td>{seconds(one.wire)}</td>
                    <td>{seconds(one.unpack)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </>
  );
}

/** The longest part, and what the peer says of its cause, field by field. */
function Slowest({ trace, name }: { trace: Trace; name: (peer: string) => string }) {
  const { part, took, cause } = trace.slowest as { part: string; took: number; cause?: Record<string, unknown> | null };
  const said = Object.entries(cause ?? {}).map(([field, value]) => {
    if (field === "kind") return String(value);
    if (typeof value === "string" && trace.peers[value]) return `${field} ${name(value)}`;
    if (typeof value === "number") return `${field} ${field === "bytes" ? bytes(value) : seconds(value)}`;
    return typeof value === "object" ? "" : `${field} ${String(value)}`;
  });
  return (
    <p>
      Slowest: <strong>{part}</strong>, {seconds(took)}
      {said.length > 0 && ` (${said.filter(Boolean).join(", ")})`}
    </p>
  );
}
