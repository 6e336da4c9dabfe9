// Swarm: who is there and does what, by which plan and why, and how fast the links between them are.

import { useLive } from "../live";
import { Heading, Meter, Waits } from "../parts/small";
import { SwarmMap, linkOf, strength } from "../parts/map";
import type { Link, View } from "../types";
import { bytes, counted, layers, modelName, nameOf, percent, rate, seconds, short, tokens } from "../words";

export function SwarmView() {
  const { view, moves, plans } = useLive();
  if (!view) {
    return (
      <>
        <Heading title="Swarm">Swarm</Heading>
        <Waits />
      </>
    );
  }
  const waits = view.peers.reduce((sum, peer) => sum + peer.load.waiting, 0);
  const runs = view.peers.reduce((sum, peer) => sum + peer.load.running, 0);
  return (
    <>
      <Heading title="Swarm">Swarm</Heading>
      <p>
        {counted(view.peers.length, "peer")}, {counted(view.plan?.groups.length ?? 0, "group")}; {counted(runs, "request")} running, {waits}{" "}
        waiting.{view.coordinator && <> It is {nameOf(view, view.coordinator)}'s turn to plan</>} (epoch {view.epoch}, term {view.term}).
      </p>
      <SwarmMap view={view} moves={moves} />
      <section>
        <h2>Plan</h2>
        <p>
          {view.plan
            ? view.plan.reason
            : "There is no plan yet: it takes peers that lend memory enough for a model. What is missing, tsnode status says."}
        </p>
        {plans.length > 0 && (
          <details>
            <summary>Plans since this peer started ({plans.length})</summary>
            <ol class="plans">
              {plans.map((one) => (
                <li key={one.id + one.at}>
                  <time dateTime={new Date(one.at * 1000).toISOString()}>{new Date(one.at * 1000).toLocaleTimeString()}</time>, epoch{" "}
                  {one.plan.epoch}, term {one.plan.term}: {one.plan.reason}
                  <ul>
                    {one.plan.groups.map((group) => (
                      <li key={group.id}>
                        <span class={`phase ${group.phase}`}>{group.phase}</span>{" "}
                        {group.stages.map((stage) => `${nameOf(view, stage.peer)} (${layers(stage.layers)})`).join(" → ")}
                      </li>
                    ))}
                  </ul>
                </li>
              ))}
            </ol>
          </details>
        )}
        <Routes view={view} />
      </section>
      <section>
        <h2>Peers</h2>
        <Peers view={view} />
      </section>
      <section>
        <h2>Links</h2>
        <Matrix view={view} />
      </section>
      <Models view={view} />
      {view.cut_off.length > 0 && (
        <section>
          <h2>Cut off</h2>
          <ul>
            {view.cut_off.map((one) => (
              <li key={one.id}>
                {one.name || short(one.id)}: {one.reason}; another chance in {seconds(one.seconds_left)}
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

function Routes({ view }: { view: View }) {
  const plan = view.plan;
  if (!plan?.routes.length) return null;
  const led = (id: string) => {
    const leader = plan.groups.find((group) => group.id === id)?.stages[0]?.peer;
    return leader ? nameOf(view, leader) : short(id);
  };
  return (
    <div class="wide" role="region" aria-label="Routes" tabIndex={0}>
      <table>
        <caption class="unseen">Routes</caption>
        <thead>
          <tr>
            <th scope="col">Prompts computed by the group of</th>
            <th scope="col">Answers by the group of</th>
            <th scope="col">Model</th>
            <th scope="col" class="number">
              Share
            </th>
          </tr>
        </thead>
        <tbody>
          {plan.routes.map((route) => (
            <tr key={`${route.prefill}-${route.decode}`}>
              <td>{led(route.prefill)}</td>
              <td>{led(route.decode)}</td>
              <td>{modelName(view, plan.groups.find((group) => group.id === route.decode)?.model ?? "")}</td>
              <td class="number">{percent(route.share)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Peers({ view }: { view: View }) {
  return (
    <div class="wide" role="region" aria-label="Peers" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Peer</th>
            <th scope="col">Lends</th>
            <th scope="col" class="number">
              Running
            </th>
            <th scope="col" class="number">
              Waiting
            </th>
            <th scope="col">KV pages used</th>
            <th scope="col" class="number">
              Silent for
            </th>
          </tr>
        </thead>
        <tbody>
          {view.peers.map((peer) => {
            const { load, advert } = peer;
            const used = load.total_pages ? 1 - load.free_pages / load.total_pages : 0;
            const marks = [
              peer.id === view.coordinator && "coordinator",
              peer.id === view.me && "this peer",
              peer.leaving && "leaving",
              !advert.reachable && "not reachable",
            ].filter(Boolean);
            return (
              <tr key={peer.id}>
                <th scope="row">
                  {nameOf(view, peer.id)} {marks.length > 0 && <span class="quiet">({marks.join(", ")})</span>}
                </th>
                <td>
                  {advert.devices.map((d) => `${d.name}, ${bytes(d.memory_bytes)}, ${(d.flops / 1e9).toFixed(0)} GFLOP/s`).join("; ") ||
                    (advert.models.length ? "nothing now" : "gateway only")}
                </td>
                <td class="number">{load.running}</td>
                <td class="number">{load.waiting}</td>
                <td>{load.total_pages ? <Meter part={used} label={`KV pages used: ${nameOf(view, peer.id)}`} /> : "–"}</td>
                <td class="number">{peer.id === view.me ? "–" : `${seconds(peer.silent_for)}${peer.silent ? ", missed" : ""}`}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** Straight, by a hole punched from both sides (known of this peer's links alone), or over another peer. */
function wayOf(view: View, from: string, link: Link): "direct" | "hole-punched" | "relayed" {
  if (link.path !== "direct") return "relayed";
  const [here, there] = [from, link.to].map((id) => view.peers.find((peer) => peer.id === id)?.advert);
  const end = view.link_ends?.[link.to];
  const called = !here || !there || here.reachable || there.reachable || !end || there.data_addresses.includes(end);
  return from !== view.me || called ? "direct" : "hole-punched";
}

function Matrix({ view }: { view: View }) {
  if (view.peers.length < 2) return (
      <p class="quiet">
        Nobody else is here. How others come in is under <a href="#/join">Join</a>.
      </p>
    );
  return (
    <>
      <p class="quiet small">From each row to each column: bandwidth, and latency one way, as the row's peer measured it.</p>
      <div class="wide" role="region" aria-label="Links" tabIndex={0}>
        <table class="matrix">
          <thead>
            <tr>
              <td />
              {view.peers.map((peer) => (
                <th key={peer.id} scope="col">
                  {nameOf(view, peer.id)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {view.peers.map((from) => (
              <tr key={from.id}>
                <th scope="row">{nameOf(view, from.id)}</th>
                {view.peers.map((to) => {
                  if (to.id === from.id) return <td key={to.id} class="self" />;
                  const link = linkOf(view, from.id, to.id);
                  if (!link) return <td key={to.id}>–</td>;
                  return (
                    <td key={to.id} style={{ "--strength": `${Math.round(100 * strength(link.bandwidth))}%` }}>
                      {rate(link.bandwidth)}
                      <span class="small"> {seconds(link.latency)}</span>
                      {wayOf(view, from.id, link) !== "direct" && <span class="small"> {wayOf(view, from.id, link)}</span>}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Models({ view }: { view: View }) {
  const groups = (id: string) => view.plan?.groups.filter((group) => group.model === id).length ?? 0;
  const origin = (id: string) => view.peers.flatMap((peer) => peer.advert.origins ?? []).find((one) => one.model === id);
  return (
    <section>
      <h2>Models</h2>
      {view.models.length === 0 && (
        <p class="quiet">
          None: nobody here has one. <code>tsnode models search</code> finds some, and <code>tsnode join --model NAME</code> brings one.
        </p>
      )}
      <ul>
        {view.models.map((card) => (
          <li key={card.id}>
            <strong>{card.name}</strong>: {counted(card.shape.layers, "layer")}, at most {tokens(card.shape.context)} with the answer,{" "}
            {groups(card.id) ? counted(groups(card.id), "group") : "in no group, so that nobody serves it now"}
            {card.id === view.default_model && ", answers where none is named"}
            {origin(card.id) && `; from ${origin(card.id)?.source}, licence ${origin(card.id)?.licence ?? "not known"}`}
          </li>
        ))}
      </ul>
    </section>
  );
}
