//! What a run came to, for people.

use super::{super::output, metric::time, run::PolicyRun};
use crate::cli::exit::Exit;
use tsnode_simulator::{
    outcome::PlanOutcome,
    summary::{MachineSummary, TimePercentiles},
};

/// Busier than this, a machine holds everything up.
const FULL: f64 = 0.98;

pub(super) fn run(run: &PolicyRun, plan: &PlanOutcome) -> Result<(), Exit> {
    let s = &run.summary;
    if run.cut {
        say!("cut short: what the first {} requests came to\n", s.requests);
    }
    let mut rows = vec![[run.name, "P50", "P90", "P99", "MEAN"].map(String::from).to_vec()];
    let mut row = |name: &str, t: &TimePercentiles| {
        rows.push(vec![name.to_owned(), time(t.p50), time(t.p90), time(t.p99), time(t.mean)]);
    };
    row("first token", &s.ttft);
    row("per token, by request", &s.tpot);
    if let Some(tbt) = &s.tbt {
        row("between tokens", tbt);
    }
    row("whole answer", &s.e2e);
    row("queued", &s.queued);
    row("second token", &s.second_token_gap);
    output::table(&rows)?;
    if let Some(gap) = s.longest_gap {
        say!("longest between two tokens: {}", time(gap));
    }
    say!("");
    groups(&s.machines, plan)?;
    say!("\nin time     {:.1} % of {} requests", s.attainment * 100.0, s.requests);
    say!(
        "throughput  {:.2} requests/s, {:.0} tokens/s over {:.0} s",
        s.requests_per_second,
        s.tokens_per_second,
        s.took
    );
    if s.turned_away > 0 {
        say!("turned away {} requests: the plan does not carry them in time", s.turned_away);
    }
    if run.stuck > 0 {
        say!("never ended {} requests: groups wait for memory that never comes free", run.stuck);
    }
    if let Some(groups) = &run.saturated {
        say!("saturated   {} requests were unserved when the last one came; {}", run.left, place(groups, &s.machines));
    }
    say!("simulated   {} events in {:.0} ms\n", s.events, run.took.as_secs_f64() * 1e3);
    Ok(())
}

fn groups(parts: &[MachineSummary], plan: &PlanOutcome) -> Result<(), Exit> {
    let head = ["", "PHASE", "DEVICES", "BUSY", "PROMPTS", "ANSWERS", "KV SENT (16 BIT)", "KV HELD", "PAGES"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for (i, (group, part)) in plan.groups.iter().zip(parts).enumerate() {
        rows.push(vec![
            (i + 1).to_string(),
            group.phase.to_string(),
            group.devices.join(" + "),
            format!("{:.1} %", part.busy * 100.0),
            part.prompts.to_string(),
            part.answers.to_string(),
            format!("{:.1} GB", part.sent_bytes / 1e9),
            format!("{:.1} GB", part.most_kv_bytes / 1e9),
            part.most_kv_pages.to_string(),
        ]);
    }
    output::table(&rows)?;
    say!("");
    let head = ["", "FIRST TOKEN P50", "P90", "P99", "PER TOKEN P50", "P90", "P99", "ANSWER P50", "P90", "P99"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for (i, part) in parts.iter().enumerate() {
        let three = |t: &TimePercentiles, n: usize| {
            let some = |s: f64| if n > 0 { time(s) } else { "-".to_owned() };
            [some(t.p50), some(t.p90), some(t.p99)]
        };
        let spreads = [(&part.ttft, part.prompts), (&part.tpot, part.answers), (&part.e2e, part.answers)];
        let cells = spreads.into_iter().flat_map(|(t, n)| three(t, n));
        rows.push(std::iter::once((i + 1).to_string()).chain(cells).collect());
    }
    output::table(&rows)
}

/// Where queues grew.
fn place(growing: &[usize], parts: &[MachineSummary]) -> String {
    let list = |all: Vec<usize>| all.iter().map(|g| (g + 1).to_string()).collect::<Vec<_>>().join(", ");
    if !growing.is_empty() {
        return format!("queues grew at groups {}", list(growing.to_vec()));
    }
    let full: Vec<usize> = parts.iter().enumerate().filter(|(_, p)| p.busy > FULL).map(|(i, _)| i).collect();
    if full.is_empty() {
        "no group alone held them up".to_owned()
    } else {
        format!("busy all the time: {}", list(full))
    }
}
