// What the peer's HTTP answers, as far as the page shows it (docs/reference/http.md).

export type Phase = "prefill" | "decode" | "mixed";

export interface Stage {
  peer: string;
  device: number;
  layers: { start: number; end: number };
}

export interface Group {
  id: string;
  model: string;
  phase: Phase;
  stages: Stage[];
}

export interface Route {
  prefill: string;
  decode: string;
  share: number;
}

export interface Plan {
  epoch: number;
  term: number;
  groups: Group[];
  routes: Route[];
  reason: string;
}

export interface Device {
  kind: unknown;
  name: string;
  memory_bytes: number;
  kv_bytes: number;
  flops: number;
  bandwidth: number;
}

export interface Link {
  to: string;
  latency: number;
  bandwidth: number;
  path: "direct" | { relayed: { via: string } };
}

export interface Card {
  id: string;
  name: string;
  shape: { layers: number; context: number };
}

export interface Load {
  running: number;
  waiting: number;
  free_pages: number;
  total_pages: number;
}

export interface Peer {
  id: string;
  advert: {
    name: string;
    version: string;
    data_addresses: string[];
    devices: Device[];
    models: Card[];
    /** Where it has them from, as far as it knows. */
    origins?: { model: string; source: string; licence: string | null }[];
    encoders?: { name: string; task: string }[];
    links: Link[];
    reachable: boolean;
  };
  load: Load;
  silent_for: number;
  /** It is missed, and not given up yet. */
  silent?: boolean;
  leaving: boolean;
}

export interface Tokens {
  prompt_tokens: number;
  completion_tokens: number;
}

/** A day's work on a model. */
export interface Earned {
  day: string;
  model: string;
  model_id: string;
  for_others: Tokens;
  by_others: Tokens;
}

export interface Earnings {
  earnings: Earned[];
  total: { for_others: Tokens; by_others: Tokens };
}

export interface View {
  me: string;
  swarm: string;
  private: boolean;
  readiness: { stage: string };
  waiting?: unknown;
  lending: string;
  left_out?: string | null;
  loading?: { done: number; total: number } | null;
  weights: { stages: number; bytes: number };
  in_use: { weights: number; kv: number };
  epoch: number;
  term: number;
  coordinator: string | null;
  plan_id: string | null;
  plan: Plan | null;
  attainment: { model: string; class: string; requests: number; in_time: number }[];
  ready_groups: string[];
  peers: Peer[];
  models: Card[];
  default_model?: string | null;
  short: { [field: string]: unknown }[];
  cut_off: { id: string; name: string; reason: string; offences: number; seconds_left: number }[];
  spec_decode: { proposed?: number; accepted?: number };
  link_ages: Record<string, number>;
  link_ends?: Record<string, string>;
  fetching?: { model: string; bytes: number; done: number; holders: number; why: string | null } | null;
  weights_given: number;
  troubles: { kind: string; at?: string | null; address?: string; said?: string }[];
  addresses: string[];
  http: string | null;
}

export interface Short {
  request: string;
  model: string;
  prefill: string;
  decode: string;
  prompt_tokens: number;
  new_tokens: number;
  kv_bytes: number;
  ttft: number;
  total: number;
  moves: number;
  peers: Record<string, string>;
}

export interface Running {
  request: string;
  model: string;
  seconds: number;
  stage: "queue" | "prefill" | "decode";
  /** Seconds in each so far. */
  parts?: Record<"queue" | "prefill" | "decode", number>;
  prompt_tokens: number;
  new_tokens: number;
  prefill: string | null;
  decode: string | null;
}

export type PartName = "queue" | "prefill" | "pack" | "wire" | "unpack" | "decode" | "recovery";

export interface Trace {
  request: string;
  model: string;
  prefill: string;
  decode: string;
  prefill_stages: Stage[];
  decode_stages: Stage[];
  reason: string;
  predicted: { elsewhere: number; here: number } | null;
  prompt_tokens: number;
  cached_tokens: number;
  new_tokens: number;
  codec: string;
  kv_codec: string | null;
  kv_bytes: number;
  ttft: number;
  total: number;
  parts: Record<PartName, number>;
  deliveries: { [field: string]: unknown }[];
  moves: { from: string; reason: string; answered: number; at: number; way?: string | null }[];
  slowest: { [field: string]: unknown } | null;
  peers: Record<string, string>;
}

export interface Faults {
  cut: Record<string, string[]>;
  mbit: number | null;
  ms: number;
  corrupt: number;
  lie: number;
  false_kv: number;
  wedge: boolean;
  boast: number | null;
  noise: string | null;
  wall: string;
}
