// The map: peers as buttons, groups as chains of their stages, routes and links as lines under them.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Move } from "../live";
import type { Link, Peer, View } from "../types";
import { bytes, layers, modelName, nameOf, percent, rate, seconds } from "../words";
import { NODE, curve, layout, middle, type Box, type Node } from "./layout";

/** How long a move is seen (ms), as the sheet has it. */
const SEEN = 1600;
/** With more peers, only the links of the chosen one are drawn. */
const FEW = 8;

export function linkOf(view: View, from: string, to: string): Link | undefined {
  return view.peers.find((peer) => peer.id === from)?.advert.links.find((link) => link.to === to);
}

/** 0 at 1 Mbit/s, 1 at 10 Gbit/s. */
export function strength(bandwidth: number): number {
  return Math.max(0, Math.min(1, Math.log10(Math.max((bandwidth * 8) / 1e6, 1)) / 4));
}

function useWidth() {
  const at = useRef<HTMLDivElement>(null);
  const [width, set] = useState(0);
  useEffect(() => {
    if (!at.current) return;
    const watch = new ResizeObserver(([entry]) => entry && set(Math.floor(entry.contentRect.width)));
    watch.observe(at.current);
    return () => watch.disconnect();
  }, []);
  return [at, width] as const;
}

export function SwarmMap({ view, moves }: { view: View; moves: Move[] }) {
  const [at, width] = useWidth();
  const [chosen, choose] = useState<string | null>(null);
  const peer = view.peers.find((one) => one.id === chosen);
  const { boxes, height } = width ? layout(view, width) : { boxes: [], height: 0 };
  return (
    <>
      <div class="map" ref={at} style={{ height: `${height}px` }} role="group" aria-label="Map of peers">
        {width > 0 && <Lines view={view} boxes={boxes} width={width} height={height} chosen={chosen} moves={moves} />}
        {boxes.map((box) => (
          <Frame key={box.key} box={box} view={view} chosen={chosen} choose={choose} />
        ))}
      </div>
      <p class="legend quiet small" aria-hidden="true">
        <i class="key prefill" /> prefill: prompts <i class="key decode" /> decode: answers <i class="key mixed" /> mixed: both <i class="key link" /> a link: the
        thicker, the faster
      </p>
      <div aria-live="polite">{peer && <Chosen peer={peer} view={view} close={() => choose(null)} />}</div>
    </>
  );
}

interface FrameProps {
  box: Box;
  view: View;
  chosen: string | null;
  choose: (peer: string | null) => void;
}

function Frame({ box, view, chosen, choose }: FrameProps) {
  const { group } = box;
  const ready = !group || view.ready_groups.includes(group.id);
  return (
    <>
      <div class={`box ${group?.phase ?? "idle"}`} style={place(box)}>
        <span class="phase">{group ? group.phase : "in no group"}</span>
        {group && <span class="quiet">{view.models.length > 1 ? modelName(view, group.model) : ""}</span>}
        {!ready && <span class="trouble">not up</span>}
      </div>
      {box.nodes.map((node) => {
        const peer = view.peers.find((one) => one.id === node.peer);
        const runs = peer ? peer.load.running + peer.load.waiting : 0;
        return (
          <button
            key={node.key}
            type="button"
            class={`node ${group?.phase ?? "idle"} ${runs ? "busy" : ""} ${peer ? "" : "gone"}`}
            style={place({ ...node, width: NODE.width, height: NODE.height })}
            aria-pressed={chosen === node.peer}
            onClick={() => choose(chosen === node.peer ? null : node.peer)}
          >
            <strong>{nameOf(view, node.peer)}</strong>
            <span>{node.stage ? layers(node.stage.layers) : peer?.advert.devices.length ? "spare" : peer?.advert.models.length ? "lends nothing" : "gateway"}</span>
            {runs > 0 && <span class="count">{runs}<span class="unseen"> under way</span></span>}
            {node.peer === view.me && <span class="mark">this peer</span>}
          </button>
        );
      })}
    </>
  );
}

const place = ({ x, y, width, height }: { x: number; y: number; width: number; height: number }) => ({
  left: `${x}px`,
  top: `${y}px`,
  width: `${width}px`,
  height: `${height}px`,
});

interface LinesProps {
  view: View;
  boxes: Box[];
  width: number;
  height: number;
  chosen: string | null;
  moves: Move[];
}

function Lines({ view, boxes, width, height, chosen, moves }: LinesProps) {
  const boxOf = (id: string) => boxes.find((box) => box.group?.id === id);
  const nodes = boxes.flatMap((box) => box.nodes);
  const led = (leader: string, phases: string[]) =>
    boxes.find((box) => box.group?.stages[0]?.peer === leader && phases.includes(box.group.phase));
  // Whoever comes back to the map is not shown again what was.
  const moving = moves.filter((move) => Date.now() - move.at < SEEN);
  const routes = (view.plan?.routes ?? []).filter((route) => route.prefill !== route.decode && route.share > 0.001);
  return (
    <svg width={width} height={height} aria-hidden="true">
      {links(view, nodes, chosen).map(({ a, b, bandwidth, key }) => (
        <line
          key={key}
          class="link"
          x1={middle(a).x}
          y1={middle(a).y}
          x2={middle(b).x}
          y2={middle(b).y}
          stroke-width={1 + 5 * strength(bandwidth)}
        />
      ))}
      {boxes.filter((box) => box.group).map((box) => (
        <Chain key={box.key} box={box} view={view} />
      ))}
      {routes.map((route) => {
        const [from, to] = [boxOf(route.prefill), boxOf(route.decode)];
        return from && to && <path key={`${route.prefill}-${route.decode}`} class="route" d={curve(from, to)} stroke-width={1 + 4 * route.share} />;
      })}
      {moving.map(({ n, prefill, decode }) => {
        const [from, to] = [led(prefill, ["prefill", "mixed", "decode"]), led(decode, ["decode", "mixed"])];
        return from && to && <path key={`moves-${n}`} class="moves" pathLength={1} d={from === to ? around(from) : curve(from, to)} />;
      })}
    </svg>
  );
}

const around = ({ x, y, width, height }: Box) => `M${x + 4} ${y + 4} h${width - 8} v${height - 8} h${8 - width} z`;

/** From stage to stage. */
function Chain({ box, view }: { box: Box; view: View }) {
  const steps = box.nodes.slice(1).map((node, i) => [box.nodes[i], node] as const);
  return (
    <g class={`chain ${box.group?.phase}`}>
      {steps.map(([a, b]) => {
        if (!a) return null;
        const from = middle(a);
        const to = middle(b);
        const link = linkOf(view, a.peer, b.peer);
        return (
          <line key={b.key} x1={from.x} y1={from.y} x2={to.x} y2={to.y} stroke-width={2 + 4 * strength(link?.bandwidth ?? 0)}>
            <title>{link ? rate(link.bandwidth) : "not measured"}</title>
          </line>
        );
      })}
    </g>
  );
}

/** One line for each pair: the slower of both directions. */
function links(view: View, nodes: Node[], chosen: string | null) {
  const at = new Map<string, Node>();
  for (const node of nodes) if (!at.has(node.peer)) at.set(node.peer, node);
  const pairs = new Map<string, { a: Node; b: Node; bandwidth: number; key: string }>();
  for (const { id, advert } of view.peers) {
    for (const link of advert.links) {
      if (chosen ? id !== chosen && link.to !== chosen : view.peers.length > FEW) continue;
      const [a, b] = [at.get(id), at.get(link.to)];
      const key = [id, link.to].sort().join("-");
      const slower = Math.min(link.bandwidth, pairs.get(key)?.bandwidth ?? Infinity);
      if (a && b) pairs.set(key, { a, b, bandwidth: slower, key });
    }
  }
  return [...pairs.values()];
}

function Chosen({ peer, view, close }: { peer: Peer; view: View; close: () => void }) {
  const { advert, load } = peer;
  const used = load.total_pages ? 1 - load.free_pages / load.total_pages : 0;
  const facts: [string, string][] = [
    ["Id", peer.id],
    ["Version", advert.version],
    ["Lends", advert.devices.map((d) => `${d.name}, ${bytes(d.memory_bytes)}, ${(d.flops / 1e9).toFixed(0)} GFLOP/s`).join("; ") || (advert.models.length ? "nothing now" : "nothing: a gateway")],
    ["Under way", `${load.running} running, ${load.waiting} waiting`],
    ["KV pages", load.total_pages ? `${percent(used)} of ${load.total_pages} used` : "none: it computes nothing now"],
    ["Last heard", peer.id === view.me ? "is this peer" : `${seconds(peer.silent_for)} ago`],
  ];
  return (
    <section class="chosen" aria-label={`Peer ${nameOf(view, peer.id)}`}>
      <h2>
        {nameOf(view, peer.id)}{" "}
        <button type="button" class="plain" onClick={close} aria-label="Close">
          ×
        </button>
      </h2>
      <dl>
        {facts.map(([name, fact]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{fact}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
