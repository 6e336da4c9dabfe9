//! `tsnode plan` without a cluster: the swarm's plan as a peer knows it, and with `--why` what others lose.

use crate::{
    cli::{
        ask::look,
        exit::Exit,
        is_set,
        layout::harmless,
        output::{name, names, print_json, table},
        status::in_words,
        swarm_settings,
    },
    config::Settings,
    view::SwarmView,
};
use clap::ArgMatches;
use serde_json::json;
use std::collections::BTreeMap;
use tsnode_coordinator::planner::live::{self, Why};
use tsnode_protocol::{Group, PeerId, Plan, Stage};

pub(super) async fn plan(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let view = look(settings, matches).await?;
    let reasons = match &view.plan {
        Some(plan) if is_set(matches, "why") => reasons(&view, plan),
        _ => Vec::new(),
    };
    if is_set(matches, "json") {
        let mut document = json!(view.plan);
        if is_set(matches, "why") && view.plan.is_some() {
            document["why"] = reasons.iter().map(as_json).collect();
        }
        return print_json(&document);
    }
    let Some(plan) = &view.plan else {
        say!("no plan has been adopted yet");
        return Ok(());
    };
    print(&view, plan)?;
    for why in &reasons {
        say!("\n{}", explained(why, &view, is_set(matches, "verbose")).join("\n"));
    }
    Ok(())
}

/// What this peer's view says of other plans. Links are measured all the time, so values drift from those that the
/// coordinator saw; a plan in force is replaced only by one that is clearly better.
fn reasons(view: &SwarmView, plan: &Plan) -> Vec<Why> {
    let members = view.peers.iter().filter(|p| !p.leaving).map(|p| (p.id, &p.advert)).collect();
    live::why(plan, &members, view.split)
}

fn print(view: &SwarmView, plan: &Plan) -> Result<(), Exit> {
    let names = names(view);
    say!("{} (epoch {}, term {}): {}\n", plan.id(), plan.epoch.0, plan.term.0, plan.reason);
    let mut rows = vec![["GROUP", "PHASE", "STAGES", "STATE"].map(String::from).to_vec()];
    for group in &plan.groups {
        let up = if view.ready_groups.contains(&group.id) { "up" } else { "not up" };
        rows.push(vec![group.id.to_string(), group.phase.to_string(), stages(group, view, &names), up.into()]);
    }
    table(&rows)?;
    say!("");
    let mut rows = vec![["PREFILL", "DECODE", "SHARE"].map(String::from).to_vec()];
    for route in &plan.routes {
        rows.push(vec![route.prefill.to_string(), route.decode.to_string(), format!("{:.0} %", route.share * 100.0)]);
    }
    table(&rows)
}

/// Each stage's peer and layers, and its device where the peer has several.
fn stages(group: &Group, view: &SwarmView, names: &BTreeMap<PeerId, String>) -> String {
    let device = |stage: &Stage| {
        let devices = &view.peers.iter().find(|peer| peer.id == stage.peer)?.advert.devices;
        devices.get(usize::from(stage.device)).filter(|_| devices.len() > 1).map(|device| device.kind)
    };
    let stage = |stage: &Stage| {
        let on = device(stage).map_or_else(String::new, |kind| format!(" {kind}"));
        format!("{}{on} [layers {}]", name(names, stage.peer), stage.layers)
    };
    group.stages.iter().map(stage).collect::<Vec<_>>().join(" → ")
}

/// Other ways that are worth as much within this part of requests are no reason for or against anything.
const TELLING: f64 = 1e-3;

/// Why these groups: what they are worth, and what the next best ones would lose; `verbose` has those that lose next to nothing.
fn explained(why: &Why, view: &SwarmView, verbose: bool) -> Vec<String> {
    let names = &names(view);
    let kept = |value: f64| format!("{:.1} %", value * 100.0);
    let rate = why.rate;
    let mut lines = vec![format!(
        "{}: of {rate:.3} requests/s, these groups answer {} in time",
        harmless(&why.model),
        kept(why.adopted)
    )];
    let id = view.models.iter().find(|m| m.name == why.model).map(|m| m.id);
    lines.push(format!("  {}", swarm_settings::held_against(view, id, &why.slo.to_string())));
    lines.push(format!("  {}", swarm_settings::routed(view, id)));
    for device in &why.shared {
        let (host, part) = (name(names, device.peer), device.taken * 100.0);
        lines.push(format!(
            "  shares device {} of {host}: other models are planned to take {part:.0} % of its time",
            device.device
        ));
    }
    if why.others.is_empty() {
        lines.push("  there is no other way to form groups of these devices".into());
    }
    let telling = |other: &&live::Other| verbose || (why.adopted - other.value).abs() >= TELLING;
    for other in why.others.iter().filter(telling) {
        let loses = why.adopted - other.value;
        let worth = match loses {
            l if l.abs() < TELLING => format!("{:.3} % fewer in time", 100.0 * l),
            l if l > 0.0 => format!("{} fewer in time", kept(l)),
            l => format!("{} more by links as they are now; a plan is changed for what is clearly better", kept(-l)),
        };
        lines.push(format!("  instead, {worth}:"));
        lines.extend(other.groups.iter().map(|g| format!("    {} {}", stages(g, view, names), in_words(g.phase))));
    }
    let alike = why.others.len() - why.others.iter().filter(telling).count();
    if alike > 0 {
        let ways = if alike == 1 { "one other way is".into() } else { format!("{alike} other ways are") };
        lines.push(format!("  {ways} as good within {}: no reason to change", kept(TELLING)));
    }
    lines
}

fn as_json(why: &Why) -> serde_json::Value {
    let other = |o: &live::Other| json!({ "groups": o.groups, "value": o.value, "loses": why.adopted - o.value });
    let shared = |d: &live::SharedDevice| json!({ "peer": d.peer, "device": d.device, "taken": d.taken });
    json!({
        "shared": why.shared.iter().map(shared).collect::<Vec<_>>(),
        "model": why.model, "rate": why.rate, "value": why.adopted, "slo": why.slo.to_string(),
        "runners_up": why.others.iter().map(other).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use tsnode_coordinator::planner::live::Other;

    #[test]
    fn ways_that_differ_by_next_to_nothing_are_no_reason() {
        let other = |value| Other { groups: vec![], value };
        let why = |values: &[f64]| Why {
            model: "tiny".into(),
            rate: 0.05,
            slo: tsnode_coordinator::scheduler::Slo::e2e(10.0),
            adopted: 0.98,
            shared: vec![],
            others: values.iter().map(|v| other(*v)).collect(),
        };
        let told = |values: &[f64], verbose| explained(&why(values), &view(), verbose)[3..].join("\n");
        assert_eq!(told(&[], false), "  there is no other way to form groups of these devices");
        assert_eq!(
            told(&[0.9799, 0.9795, 0.9], false),
            "  instead, 8.0 % fewer in time:\n  2 other ways are as good within 0.1 %: no reason to change"
        );
        assert_eq!(told(&[0.9799], false), "  one other way is as good within 0.1 %: no reason to change");
        assert_eq!(told(&[0.9799], true), "  instead, 0.010 % fewer in time:");
        assert!(told(&[0.99], false).starts_with("  instead, 1.0 % more by links as they are now"));
    }
}
