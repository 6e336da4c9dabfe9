//! `tsnode plan` without a cluster: the swarm's plan as a peer knows it, and with `--why` what others lose.

use crate::{
    cli::{
        is_set,
        show::{look, name, names, print_json, table},
    },
    config::Settings,
    exit::Exit,
    view::SwarmView,
};
use clap::ArgMatches;
use serde_json::json;
use std::collections::BTreeMap;
use tsnode_coordinator::scheduler::live::{self, Why};
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
    reasons.iter().for_each(|why| explain(why, &view));
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

fn explain(why: &Why, view: &SwarmView) {
    let names = &names(view);
    let kept = |value: f64| format!("{:.2} %", value * 100.0);
    say!("\n{}: valued at {:.3} requests/s, the adopted groups are worth {}", why.model, why.rate, kept(why.adopted));
    if why.others.is_empty() {
        say!("  there is no other way to form groups of these devices");
    }
    for (n, other) in why.others.iter().enumerate() {
        let loses = why.adopted - other.value;
        let worth = if loses >= 0.0 { format!("{} less", kept(loses)) } else { format!("{} more", kept(-loses)) };
        say!("  runner-up {}: {worth}", n + 1);
        for group in &other.groups {
            say!("    {} {}", group.phase, stages(group, view, names));
        }
    }
}

fn as_json(why: &Why) -> serde_json::Value {
    let other = |o: &live::Other| json!({ "groups": o.groups, "value": o.value, "loses": why.adopted - o.value });
    json!({
        "model": why.model, "rate": why.rate, "value": why.adopted,
        "runners_up": why.others.iter().map(other).collect::<Vec<_>>(),
    })
}
