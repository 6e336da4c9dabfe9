//! A plan as a diagram: hosts with their devices, groups coloured by phase, KV flows as wide as their traffic.

use super::{begun, text};
use crate::outcome::{GroupLine, PlanOutcome};
use std::fmt::Write;
use tsnode_protocol::Phase;

const WIDTH: f64 = 1000.0;
const ROW: f64 = 58.0;
const TOP: f64 = 92.0;
const BOX: f64 = 330.0;

/// The picture, one plan under the other: prefill groups on the left, decode groups on the right, mixed groups below;
/// each group with the devices it takes from each host.
#[must_use]
pub fn svg(outcomes: &[&PlanOutcome]) -> String {
    let drawn: Vec<(f64, String)> = outcomes.iter().map(|o| plan(o)).collect();
    let height: f64 = drawn.iter().map(|d| d.0).sum();
    let mut out = begun(WIDTH, height);
    let mut y = 0.0;
    for (height, plan) in drawn {
        let _ = writeln!(out, "<g transform=\"translate(0 {y:.0})\">\n{plan}</g>");
        y += height;
    }
    out.push_str("</svg>\n");
    out
}

/// One plan: its height and what is drawn.
fn plan(outcome: &PlanOutcome) -> (f64, String) {
    let of = |phase: Phase| outcome.groups.iter().enumerate().filter(move |(_, g)| g.phase == phase).map(|(i, _)| i);
    let (left, right): (Vec<usize>, Vec<usize>) = (of(Phase::Prefill).collect(), of(Phase::Decode).collect());
    let below: Vec<usize> = of(Phase::Mixed).collect();
    let rows = left.len().max(right.len());
    let mixed_rows = below.len().div_ceil(2);
    let height = TOP + ROW * (rows + mixed_rows) as f64 + 60.0;
    let mut out = String::new();
    let title = format!(
        "{} on {}, {} at {} requests/s, {}: {:.1} % in time",
        outcome.model,
        outcome.cluster,
        outcome.workload,
        outcome.rate,
        outcome.slo,
        outcome.attainment * 100.0
    );
    text(&mut out, (20.0, 30.0), 16.0, "#1a1a1a", &title);
    legend(&mut out);
    let mut places = vec![(0.0, 0.0); outcome.groups.len()];
    for (row, &g) in left.iter().enumerate() {
        places[g] = (20.0, TOP + ROW * row as f64);
    }
    for (row, &g) in right.iter().enumerate() {
        places[g] = (WIDTH - BOX - 20.0, TOP + ROW * row as f64);
    }
    for (k, &g) in below.iter().enumerate() {
        let x = if k % 2 == 0 { 20.0 } else { WIDTH - BOX - 20.0 };
        places[g] = (x, TOP + ROW * (rows + k / 2) as f64);
    }
    for route in outcome.routes.iter().filter(|r| r.prefill != r.decode) {
        let (a, b) = (places[route.prefill], places[route.decode]);
        let (x0, y0, x1, y1) = (a.0 + BOX, a.1 + 23.0, b.0, b.1 + 23.0);
        let middle = 0.5 * (x0 + x1);
        let wide = (route.share * 60.0).max(0.6);
        let _ = writeln!(
            out,
            "<path d=\"M{x0:.1} {y0:.1} C{middle:.1} {y0:.1} {middle:.1} {y1:.1} {x1:.1} {y1:.1}\" fill=\"none\" stroke=\"#7a7a7a\" stroke-opacity=\"0.55\" stroke-width=\"{wide:.1}\"><title>{:.1} % of requests, {:.0} ms of KV, {:.1} % of them in time</title></path>",
            route.share * 100.0,
            route.kv_s * 1e3,
            route.kept * 100.0
        );
    }
    for (group, place) in outcome.groups.iter().zip(&places) {
        draw(&mut out, group, *place);
    }
    if !outcome.idle.is_empty() {
        text(&mut out, (20.0, height - 20.0), 12.0, "#666666", &format!("idle: {}", outcome.idle.join(", ")));
    }
    (height, out)
}

fn colour(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "#f2b66d",
        Phase::Decode => "#7fb2e5",
        Phase::Mixed => "#a8cf8e",
    }
}

fn legend(out: &mut String) {
    for (i, (phase, what)) in
        [(Phase::Prefill, "prefill"), (Phase::Decode, "decode"), (Phase::Mixed, "both")].into_iter().enumerate()
    {
        let x = 20.0 + 110.0 * i as f64;
        let _ =
            writeln!(out, "<rect x=\"{x}\" y=\"50\" width=\"14\" height=\"14\" rx=\"3\" fill=\"{}\"/>", colour(phase));
        text(out, (x + 20.0, 62.0), 12.0, "#333333", what);
    }
    text(out, (370.0, 62.0), 12.0, "#333333", "lines: KV, as wide as its share of requests");
}

fn draw(out: &mut String, group: &GroupLine, (x, y): (f64, f64)) {
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y:.1}\" width=\"{BOX}\" height=\"46\" rx=\"6\" fill=\"{}\" stroke=\"#555555\"/>",
        colour(group.phase)
    );
    text(out, (x + 8.0, y + 18.0), 12.0, "#111111", &group.devices.join(" + "));
    let stages: Vec<String> = group.stages.iter().map(|s| format!("tp{}·{}", s.tp, s.layers.len())).collect();
    let does = match group.phase {
        Phase::Prefill => format!("{:.0} ms a prompt", group.prompt_s * 1e3),
        Phase::Decode | Phase::Mixed => format!("{:.0} ms a token", group.token_s * 1e3),
    };
    let share = group.prefills.max(group.decodes) * 100.0;
    text(
        out,
        (x + 8.0, y + 36.0),
        11.0,
        "#333333",
        &format!("{}; {does}; {share:.0} % of requests", stages.join(" → ")),
    );
}
