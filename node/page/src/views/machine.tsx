// My machine: what it lends, what it does with that, and what its owner may say: pause, lend again, leave.

import { useRef } from "preact/hooks";
import { post } from "../api";
import { useLive } from "../live";
import { Heading, Line, Meter, Said, Waits, useDeed } from "../parts/small";
import type { Peer, View } from "../types";
import { EarnedSection } from "./earned";
import { LimitsSection } from "./limits";
import { bytes, counted, layers, modelName, nameOf, percent } from "../words";

const LENDING: Record<string, string> = {
  lends: "It lends.",
  paused: "It is paused: it lends nothing until you have it lend again.",
  outside_hours: "It lends nothing now: it is outside the hours that it was told.",
  other_model: "It lends nothing: the swarm serves another model than it has. tsnode join --model NAME, with the name of a model of the swarm, lends it.",
};
const STAGES: Record<string, string> = {
  probing: "It reads its model and measures its hardware.",
  joining: "It looks for other peers.",
  planning: "It is in the swarm, and waits for a plan.",
  loading: "It loads the weights that the plan gives it.",
  ready: "It takes requests.",
  leaving: "It is leaving.",
};

export function MachineView() {
  const { view } = useLive();
  const me = view?.peers.find((peer) => peer.id === view.me);
  if (!view) {
    return (
      <>
        <Heading title="My machine">My machine</Heading>
        <Waits />
      </>
    );
  }
  return (
    <>
      <Heading title="My machine">
        My machine <span class="quiet">{me?.advert.name}</span>
      </Heading>
      {view.troubles.map((one, i) => (
        <p class="trouble" role="alert" key={i}>
          {one.kind === "twin"
            ? `Another process runs with this peer's identity${one.at ? `, at ${one.at}` : ""}: stop one of the two.`
            : one.kind === "network" ? one.said
            : `Another program has TCP port ${one.address ?? ""}: others notice seconds later when this peer ends. Start it with another --listen to mend that.`}
        </p>
      ))}
      <p>
        {STAGES[view.readiness.stage] ?? view.readiness.stage} {me?.advert.devices.length || view.lending !== "lends" ? (LENDING[view.lending] ?? view.lending) : ""}
      </p>
      <Owner view={view} />
      <EarnedSection />
      {me && <Lent me={me} view={view} />}
      <LimitsSection />
      <Role view={view} />
      {view.fetching && (
        <section>
          <h2>Fetching</h2>
          <p>
            {view.fetching.model}: {bytes(view.fetching.done)} of {bytes(view.fetching.bytes)} from{" "}
            {counted(view.fetching.holders, "peer")}.{" "}
            {view.fetching.why}
          </p>
          <Meter part={view.fetching.bytes ? view.fetching.done / view.fetching.bytes : 0} label="Fetched" />
        </section>
      )}
      {view.attainment.length > 0 && (
        <section>
          <h2>Targets for latency, over the last ten minutes</h2>
          <ul>
            {view.attainment.map((one) => (
              <li key={one.model + one.class}>
                {one.model}, {one.class}: {one.in_time} of {counted(one.requests, "request")} kept their targets
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

function Owner({ view }: { view: View }) {
  const [said, run, busy] = useDeed();
  const asks = useRef<HTMLDialogElement>(null);
  const paused = view.lending === "paused";
  const leave = () => {
    asks.current?.close();
    void run(() => post("/api/leave", {}));
  };
  return (
    <section aria-label="What it is to do">
      <div class="buttons">
        {paused ? (
          <button type="button" class="main" disabled={busy} onClick={() => run(() => post("/api/resume", {}))}>
            Lend again
          </button>
        ) : (
          <button type="button" class="main" disabled={busy} onClick={() => run(() => post("/api/pause", {}))}>
            Pause
          </button>
        )}
        <button type="button" disabled={busy} onClick={() => asks.current?.showModal()}>
          Leave the swarm…
        </button>
      </div>
      <Said text={said} />
      <p class="quiet small">Either way it is drained first: what runs here goes on elsewhere. A pause outlives a restart.</p>
      <dialog ref={asks} aria-labelledby="leaves">
        <h2 id="leaves">Leave the swarm?</h2>
        <p>What runs here goes on elsewhere, and then this peer ends, this page with it. It comes back with:</p>
        <Line text="tsnode join" label="Copy the line" />
        <div class="buttons">
          <button type="button" onClick={leave}>
            Leave
          </button>
          <button type="button" class="main" onClick={() => asks.current?.close()}>
            Stay
          </button>
        </div>
      </dialog>
    </section>
  );
}

function Lent({ me, view }: { me: Peer; view: View }) {
  const { devices, models, encoders } = me.advert;
  const { load } = me;
  const used = load.total_pages ? 1 - load.free_pages / load.total_pages : 0;
  return (
    <section>
      <h2>Lends</h2>
      {devices.length === 0 && (
        <p class="quiet">
          {view.lending !== "lends" || models.length > 0
            ? "No memory now."
            : encoders?.length
            ? "Encoders alone."
            : "Nothing: it is a gateway, which takes requests and computes none. A model lends this machine: tsnode join --model NAME"}
        </p>
      )}
      <ul>
        {devices.map((device, i) => (
          <li key={i}>
            <strong>{device.name}</strong>: {bytes(device.memory_bytes)} of memory, of it {bytes(device.kv_bytes)} for KV;{" "}
            {(device.flops / 1e9).toFixed(0)} GFLOP/s, {(device.bandwidth / 1e9).toFixed(1)} GB/s, as measured
          </li>
        ))}
      </ul>
      <dl>
        <div>
          <dt>Has</dt>
          <dd>{[...models.map((card) => card.name), ...(encoders ?? []).map((card) => `${card.name} (${card.task})`)].join(", ") || "no model"}</dd>
        </div>
        <div>
          <dt>In memory</dt>
          <dd>
            {bytes(view.in_use.weights)} of weights, {bytes(view.in_use.kv)} of KV
          </dd>
        </div>
        <div>
          <dt>Given to others</dt>
          <dd>{bytes(view.weights_given)} of weights since it started</dd>
        </div>
        <div>
          <dt>Under way</dt>
          <dd>
            {counted(load.running, "request")} running, {load.waiting} waiting
          </dd>
        </div>
      </dl>
      {load.total_pages > 0 && (
        <>
          <p id="pages">KV: {percent(used)} of {counted(load.total_pages, "page")} used</p>
          <Meter part={used} label="KV pages used" />
          <p class="quiet small">
            KV is what a model remembers of requests under way, in pages of memory that each hold it for some tokens. Where no page is free,
            requests wait.
          </p>
        </>
      )}
    </section>
  );
}

function Role({ view }: { view: View }) {
  const groups = (view.plan?.groups ?? []).filter((group) => group.stages.some((stage) => stage.peer === view.me));
  return (
    <section>
      <h2>Part in the plan</h2>
      {groups.length === 0 && (
        <p class="quiet">
          None in the plan that is in force, so it computes nothing now. Why the plan is as it is, is under <a href="#/swarm">Swarm</a>.
        </p>
      )}
      {groups.length === 0 && view.left_out && <p>{`${view.left_out.charAt(0).toUpperCase()}${view.left_out.slice(1)}.`}</p>}
      <ul>
        {groups.map((group) => {
          const mine = group.stages.filter((stage) => stage.peer === view.me);
          const leader = group.stages[0]?.peer;
          return (
            <li key={group.id}>
              <span class={`phase ${group.phase}`}>{group.phase}</span> of {modelName(view, group.model)}:{" "}
              {mine.map((stage) => layers(stage.layers)).join(", ")};{" "}
              {leader === view.me ? "leads" : leader ? `led by ${nameOf(view, leader)}` : ""}
              {!view.ready_groups.includes(group.id) && "; not up yet"}
            </li>
          );
        })}
      </ul>
      {view.loading && (
        <>
          <p>
            Loading: {bytes(view.loading.done)} of {bytes(view.loading.total)}
          </p>
          <Meter part={view.loading.total ? view.loading.done / view.loading.total : 0} label="Loaded" />
        </>
      )}
    </section>
  );
}
