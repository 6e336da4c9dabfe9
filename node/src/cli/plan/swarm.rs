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
use tsnode_protocol::{Group, PeerId, Plan};

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
    reasons.iter().for_each(|why| explain(why, &names(&view)));
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
        rows.push(vec![group.id.to_string(), group.phase.to_string(), stages(group, &names), up.into()]);
    }
    table(&rows)?;
    say!("");
    let mut rows = vec![["PREFILL", "DECODE", "SHARE"].map(String::from).to_vec()];
    for route in &plan.routes {
        rows.push(vec![route.prefill.to_string(), route.decode.to_string(), format!("{:.0} %", route.share * 100.0)]);
    }
    table(&rows)
}

fn stages(group: &Group, names: &BTreeMap<PeerId, String>) -> String {
    let all: Vec<String> =
        group.stages.iter().map(|s| format!("{} [layers {}]", name(names, s.peer), s.layers)).collect();
    all.join(" → ")
}

fn explain(why: &Why, names: &BTreeMap<PeerId, String>) {
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
            say!("    {} {}", group.phase, stages(group, names));
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
