// Where everything of the map lies: groups are boxes, their stages a chain in each, prefill to the left of who decodes.

import type { Group, View } from "../types";

export const NODE = { width: 136, height: 58, gap: 26 };
const BOX = { padding: 10, head: 26, gap: 18 };
/** Narrower than this, all groups are in one column. */
const TWO_COLUMNS = 720;

export interface Node {
  key: string;
  peer: string;
  x: number;
  y: number;
  /** Of a stage. */
  stage?: Group["stages"][number];
}

export interface Box {
  key: string;
  group?: Group;
  x: number;
  y: number;
  width: number;
  height: number;
  nodes: Node[];
}

export interface Layout {
  boxes: Box[];
  height: number;
  /** Whether prefill is beside decode, not above it. */
  beside: boolean;
}

export function layout(view: View, width: number): Layout {
  const groups = view.plan?.groups ?? [];
  const prefill = groups.filter((group) => group.phase === "prefill");
  const others = groups.filter((group) => group.phase !== "prefill");
  const beside = width >= TWO_COLUMNS && prefill.length > 0 && others.length > 0;
  const gutter = beside ? 110 : Math.min(56, width * 0.12);
  const column = beside ? (width - gutter) / 2 : width - gutter;
  const boxes: Box[] = [];
  const put = (group: Group, x: number, y: number) => {
    const box = boxOf(group.id, group, group.stages.map(({ peer }, i) => ({ peer, stage: group.stages[i] })), x, y, column);
    boxes.push(box);
    return y + box.height + BOX.gap;
  };
  const left = prefill.reduce((y, group) => put(group, 0, y), 0);
  const under = others.reduce((y, group) => put(group, beside ? column + gutter : 0, y), beside ? 0 : left);
  let height = Math.max(left, under);
  const working = new Set(groups.flatMap((group) => group.stages.map((stage) => stage.peer)));
  const idle = view.peers.filter((peer) => !working.has(peer.id)).map((peer) => ({ peer: peer.id }));
  if (idle.length) {
    const box = boxOf("idle", undefined, idle, 0, height, beside ? width : column);
    boxes.push(box);
    height += box.height + BOX.gap;
  }
  return { boxes, height: Math.max(height - BOX.gap, 0), beside };
}

type Of = { peer: string; stage?: Group["stages"][number] | undefined };

function boxOf(key: string, group: Group | undefined, of: Of[], x: number, y: number, width: number): Box {
  const across = Math.max(1, Math.floor((width - 2 * BOX.padding + NODE.gap) / (NODE.width + NODE.gap)));
  const rows = Math.ceil(of.length / across);
  const gap = 16;
  const nodes = of.map(({ peer, stage }, i): Node => {
    // A chain goes back as it came: its next stage is always beside or below.
    const row = Math.floor(i / across);
    const column = group && row % 2 ? across - 1 - (i % across) : i % across;
    const at = {
      key: `${key}-${i}`,
      peer,
      x: x + BOX.padding + column * (NODE.width + NODE.gap),
      y: y + BOX.head + row * (NODE.height + gap),
    };
    return stage ? { ...at, stage } : at;
  });
  const height = BOX.head + rows * NODE.height + (rows - 1) * gap + BOX.padding;
  return group ? { key, group, x, y, width, height, nodes } : { key, x, y, width, height, nodes };
}

export const middle = ({ x, y }: { x: number; y: number }) => ({ x: x + NODE.width / 2, y: y + NODE.height / 2 });

/** From one box to another: across where they are side by side, else by the right. */
export function curve(from: Box, to: Box): string {
  const [a, b] = [from.y + from.height / 2, to.y + to.height / 2];
  if (from.x + from.width < to.x) {
    const [start, end] = [from.x + from.width, to.x];
    const half = (start + end) / 2;
    return `M${start} ${a} C${half} ${a} ${half} ${b} ${end - 6} ${b}`;
  }
  const edge = Math.max(from.x + from.width, to.x + to.width);
  return `M${from.x + from.width} ${a} C${edge + 44} ${a} ${edge + 44} ${b} ${to.x + to.width + 6} ${b}`;
}
