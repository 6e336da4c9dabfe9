// What the owner allows: how much of the machine, and when. It is changed here, for now and for the next start.

import { useEffect, useState } from "preact/hooks";
import { get, post } from "../api";
import { Said, Trouble, useDeed, whyOf } from "../parts/small";
import { bytes } from "../words";

interface Limits {
  limits: {
    memory_bytes: number | null;
    kv_bytes: number | null;
    threads: number;
    upload_mbit: number | null;
    relay: boolean;
    model_budget_bytes: number;
    requests_per_minute: number | null;
  };
  /** As 22:00-07:00; null is all day. */
  hours: string | null;
  /** How far models are that are lent anew. */
  relending: { state: "none" | "under_way" | "done" | "refused"; said?: string; why?: string };
  /** Flags and variables that hold again at the next start, by their settings. */
  fixed: Record<string, string>;
}

const ALL_DAY: [string, string] = ["", ""];
const GIB = 2 ** 30;
/** How often it is asked whether models are lent anew (ms). */
const LOOK = 1000;

/** A field that is emptied says nothing of it: then it is as without a setting. */
const FIELDS = [
  { name: "upload_mbit", label: "Upload, Mbit/s", min: "0.75", step: "any", scale: 1, none: "no limit" },
  { name: "memory_bytes", label: "Memory, GiB", min: "0.001", step: "any", scale: GIB, none: "half of what is free" },
  { name: "threads", label: "Threads", min: "1", step: "1", scale: 1, none: "one a core" },
] as const;

export function LimitsSection() {
  const [known, set] = useState<Limits | null>(null);
  const [why, setWhy] = useState("");
  const [said, run, busy] = useDeed();
  const look = () =>
    get<Limits>("/api/limits").then(
      (limits) => (set(limits), setWhy("")),
      (error: unknown) => setWhy(whyOf(error)),
    );
  useEffect(() => void look(), []);
  const anew = known?.relending.state === "under_way";
  useEffect(() => {
    if (!anew) return;
    const looking = window.setInterval(look, LOOK);
    return () => clearInterval(looking);
  }, [anew]);
  const change = (wish: unknown) => run(() => post("/api/limits", wish).finally(look));
  return (
    <section aria-labelledby="limits">
      <h2 id="limits">Limits and hours</h2>
      {why && <Trouble what="What it is limited to is not known" why={why} again={look} />}
      {known && <Rows known={known} />}
      {known && <Amounts known={known} busy={busy || anew} change={change} />}
      {known && <Times hours={known.hours} busy={busy} change={change} />}
      <Said text={said} />
      {anew && <p role="status">Models are lent anew: others go on with what ran here. This takes up to a minute.</p>}
      {known?.relending.state === "done" && <p role="status">Memory and threads: {known.relending.said}.</p>}
      {known?.relending.state === "refused" && (
        <p class="trouble" role="alert">
          Memory and threads are as before: {known.relending.why}
        </p>
      )}
      <p class="quiet small">
        What is set here holds now and after a restart. The same at a terminal: <code>tsnode limits set</code>.
        {known && Object.keys(known.fixed).length > 0 && (
          <>
            {" "}
            This peer was started with <code>{Object.values(known.fixed).join(" ")}</code>, which holds again after a restart unless it is
            left out.
          </>
        )}
      </p>
    </section>
  );
}

function Rows({ known: { limits, hours } }: { known: Limits }) {
  const [from, to] = hours?.split("-") ?? ALL_DAY;
  const rows: [string, string][] = [
    ["Memory", limits.memory_bytes === null ? "half of what was free at the start" : `${bytes(limits.memory_bytes)} at most`],
    ["Of it for KV", limits.kv_bytes === null ? "as the model needs" : bytes(limits.kv_bytes)],
    ["Threads", String(limits.threads)],
    ["Upload", limits.upload_mbit === null ? "not limited" : `${limits.upload_mbit} Mbit/s to all together`],
    ["Carries for others", limits.relay ? "yes, between peers that do not reach each other" : "no"],
    ["Models fetched by itself", limits.model_budget_bytes ? `up to ${bytes(limits.model_budget_bytes)}` : "none"],
    ["Requests of a client", limits.requests_per_minute === null ? "not limited" : `${limits.requests_per_minute} a minute`],
    ["Hours", hours === null ? "at all hours" : `every day from ${from} to ${to}, by this machine's clock`],
  ];
  return (
    <dl>
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

interface Form {
  busy: boolean;
  change: (wish: unknown) => Promise<void>;
}

function Amounts({ known, busy, change }: Form & { known: Limits }) {
  const { limits } = known;
  const shown = ({ name, scale }: (typeof FIELDS)[number]) => {
    const value = limits[name];
    return value === null ? "" : String(Math.round((1000 * value) / scale) / 1000);
  };
  const given = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const changed = FIELDS.filter((field) => String(form.get(field.name)) !== shown(field));
    const value = (field: (typeof FIELDS)[number]) => {
      const text = String(form.get(field.name));
      if (text === "") return null;
      return field.scale === 1 ? Number(text) : Math.round(Number(text) * field.scale);
    };
    if (changed.length) void change(Object.fromEntries(changed.map((field) => [field.name, value(field)])));
  };
  return (
    <form onSubmit={given} key={FIELDS.map(shown).join()}>
      <div class="fields">
        {FIELDS.map((field) => (
          <label key={field.name}>
            {field.label}
            <input name={field.name} type="number" min={field.min} step={field.step} placeholder={field.none} defaultValue={shown(field)} />
          </label>
        ))}
      </div>
      <div class="buttons">
        <button disabled={busy}>Set these limits</button>
      </div>
      <p class="quiet small">
        Uploads are held to a limit at once. For other memory or threads the models are lent anew: other peers go on
        with what runs here meanwhile, and a peer alone serves nobody for that time.
      </p>
    </form>
  );
}

function Times({ hours, busy, change }: Form & { hours: string | null }) {
  const [from, to] = hours?.split("-") ?? ALL_DAY;
  const given = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    void change({ hours: `${form.get("from")}-${form.get("to")}` });
  };
  return (
    <form onSubmit={given} key={hours}>
      <div class="fields">
        <label>
          Lend from
          <input name="from" type="time" required defaultValue={from || "22:00"} />
        </label>
        <label>
          until
          <input name="to" type="time" required defaultValue={to || "07:00"} />
        </label>
      </div>
      <div class="buttons">
        <button disabled={busy}>Lend in these hours</button>
        <button type="button" disabled={busy || hours === null} onClick={() => change({ hours: null })}>
          Lend at all hours
        </button>
      </div>
    </form>
  );
}
