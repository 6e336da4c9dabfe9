// Numbers and names as people read them.

import type { View } from "./types";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(n: number): string {
  const step = n < 1 ? 0 : Math.min(Math.floor(Math.log2(n) / 10), UNITS.length - 1);
  const value = n / 2 ** (10 * step);
  return `${value >= 100 || step === 0 ? value.toFixed(0) : value.toFixed(1)} ${UNITS[step]}`;
}

export function seconds(s: number): string {
  if (s >= 100) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s >= 1) return `${s.toFixed(s >= 10 ? 1 : 2)} s`;
  return s >= 0.001 ? `${(s * 1000).toFixed(s >= 0.1 ? 0 : 1)} ms` : s === 0 ? "0" : `${(s * 1e6).toFixed(0)} µs`;
}

/** Of bytes a second, as networks have it. */
export function rate(bytesPerSecond: number): string {
  const mbit = (bytesPerSecond * 8) / 1e6;
  return mbit >= 1000 ? `${(mbit / 1000).toFixed(1)} Gbit/s` : `${mbit.toFixed(mbit >= 10 ? 0 : 1)} Mbit/s`;
}

/** How long ago a time is (seconds since 1970). */
export function since(at: number): string {
  const s = Math.max(0, Date.now() / 1000 - at);
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} days`;
}

/** How many there are of something. */
export const counted = (n: number, one: string) => `${n} ${one}${n === 1 ? "" : "s"}`;
export const percent = (part: number) => `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`;
export const tokens = (n: number) => counted(n, "token");
export const short = (id: string) => `…${id.slice(-6)}`;

/** What people call a peer: its name, with the end of its id where two have the same one. */
export function nameOf(view: View | null, id: string): string {
  const name = view?.peers.find((peer) => peer.id === id)?.advert.name;
  if (!name) return short(id);
  const twice = view.peers.some((peer) => peer.id !== id && peer.advert.name === name);
  return twice ? `${name} ${short(id)}` : name;
}

export function modelName(view: View | null, id: string): string {
  return view?.models.find((card) => card.id === id)?.name ?? short(id);
}

/** Layers from the first to the last, as they are counted. */
export const layers = ({ start, end }: { start: number; end: number }) =>
  end - start === 1 ? `layer ${start}` : `layers ${start}–${end - 1}`;
