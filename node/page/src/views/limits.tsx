// What the owner allows: limits as the peer was started with, and the hours, which may be changed here.

import { useEffect, useState } from "preact/hooks";
import { get, post } from "../api";
import { Said, useDeed } from "../parts/small";
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
}

const ALL_DAY: [string, string] = ["", ""];

export function LimitsSection() {
  const [known, set] = useState<Limits | null>(null);
  const [said, run, busy] = useDeed();
  const look = () => get<Limits>("/api/limits").then(set, () => undefined);
  useEffect(() => void look(), []);
  if (!known) return null;
  const { limits, hours } = known;
  const [from, to] = hours?.split("-") ?? ALL_DAY;
  const change = (hours: string | null) => run(() => post("/api/limits", { hours }).finally(look));
  const given = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    void change(`${form.get("from")}-${form.get("to")}`);
  };
  const rows: [string, string][] = [
    ["Memory", limits.memory_bytes === null ? "half of what was free at the start" : `${bytes(limits.memory_bytes)} at most`],
    ["Of it for KV", limits.kv_bytes === null ? "as the model needs" : bytes(limits.kv_bytes)],
    ["Threads", String(limits.threads)],
    ["Upload", limits.upload_mbit === null ? "not limited" : `${limits.upload_mbit} Mbit/s to all together`],
    ["Carries for others", limits.relay ? "yes, between peers that do not reach each other" : "no"],
    ["Models fetched by itself", limits.model_budget_bytes ? `up to ${bytes(limits.model_budget_bytes)}` : "none"],
    ["Requests of a client", limits.requests_per_minute === null ? "not limited" : `${limits.requests_per_minute} a minute`],
  ];
  return (
    <section aria-labelledby="limits">
      <h2 id="limits">Limits and hours</h2>
      <dl>
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
        <div>
          <dt>Hours</dt>
          <dd>{hours === null ? "at all hours" : `every day from ${from} to ${to}, by this machine's clock`}</dd>
        </div>
      </dl>
      <form onSubmit={given} key={hours}>
        <div class="fields">
          <label>
            Lend from
            <input name="from" type="time" required defaultValue={from || "22:00"} />
          </label>
          <label>
            until
            <input name="to" type="time" required defaultValue={to === "00:00" ? "00:00" : to || "07:00"} />
          </label>
        </div>
        <div class="buttons">
          <button disabled={busy}>Lend in these hours</button>
          <button type="button" disabled={busy || hours === null} onClick={() => change(null)}>
            Lend at all hours
          </button>
        </div>
      </form>
      <Said text={said} />
      <p class="quiet small">
        Hours that are set here hold until this peer starts again. All of it is said for good by flags of <code>tsnode join</code> or in
        the settings file (<code>memory</code>, <code>threads</code>, <code>hours</code>, <code>upload-mbit</code>).
      </p>
    </section>
  );
}
