//! `tsnode plan` without a cluster: the swarm's plan as a peer knows it, and with `--why` what others lose.

use crate::{
    cli::{
        ask::look,
        exit::Exit,
        is_set,
        output::{name, names, print_json, table},
        status::in_words,
        swarm_settings,
        text_layout::{bytes, harmless},
    },
    config::Settings,
    view::SwarmView,
};
use clap::ArgMatches;
use serde_json::json;
use std::collections::BTreeMap;
use tsnode_coordinator::planner::{
    fetching::{self, Fetch},
    live::{self, Why},
    spare_routes::is_spare,
};
use tsnode_protocol::{Group, PeerId, Plan, Seconds, Stage};

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
    if let Some(why) = view.left_out.as_ref().filter(|_| is_set(matches, "why")) {
        say!("\n{}", harmless(why));
    }
    for unused in view.unused_devices.iter().filter(|_| is_set(matches, "why")) {
        say!("\n{}", harmless(&unused.why));
    }
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
        // One that queues alone may send requests.
        let share = if is_spare(route) { "spare".into() } else { format!("{:.0} %", route.share * 100.0) };
        rows.push(vec![route.prefill.to_string(), route.decode.to_string(), share]);
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

/// Holders that are named of those who give something.
const NAMED: usize = 3;
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
    let lacks = |plan: &Plan| id.is_some_and(|id| plan.groups.iter().all(|group| group.model != id));
    if let Some(plan) = view.plan.as_ref().filter(|plan| lacks(plan)) {
        lines.push(format!("  the adopted plan has no group for it; its reason: {}", harmless(&plan.reason)));
    }
    lines.push(format!("  {}", swarm_settings::held_against(view, id, &why.slo.to_string())));
    lines.push(format!("  {}", swarm_settings::routed(view, id)));
    lines.push(format!("  {}", swarm_settings::formed(view, id)));
    for device in &why.shared {
        let (host, part) = (name(names, device.peer), device.taken * 100.0);
        lines.push(format!(
            "  shares device {} of {host}: other models are planned to take {part:.0} % of its time",
            device.device
        ));
    }
    lines.extend(fetched(&why.fetches, names).map(|line| format!("  {line}")));
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
        lines.extend(fetched(&other.fetches, names).map(|line| format!("    {line}")));
        lines.extend(delayed(other, why.adopted).map(|line| format!("    {line}")));
    }
    let alike = why.others.len() - why.others.iter().filter(telling).count();
    if alike > 0 {
        let ways = if alike == 1 { "one other way is".into() } else { format!("{alike} other ways are") };
        lines.push(format!("  {ways} as good within {}: no reason to change", kept(TELLING)));
    }
    lines
}

/// What hosts fetch, from whom, and how long that takes: a line each.
fn fetched(fetches: &[Fetch], names: &BTreeMap<PeerId, String>) -> impl Iterator<Item = String> {
    fetches.iter().map(|fetch| {
        let layers: Vec<String> = fetch.layers.iter().map(ToString::to_string).collect();
        let from: Vec<String> = fetch.holders.iter().take(NAMED).map(|holder| name(names, *holder)).collect();
        let more = match fetch.holders.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (host, from) = (name(names, fetch.peer), from.join(", "));
        let how = match fetch.takes {
            Some(takes) => format!("from {from}{more}, about {}", about(takes)),
            None => "of which nobody has all".into(),
        };
        format!("{host} fetches layers {} ({}), {how}", layers.join(", "), bytes(fetch.bytes))
    })
}

/// What fetching takes off another plan's worth, where that is why it is not taken.
fn delayed(other: &live::Other, adopted: f64) -> Option<String> {
    let takes = fetching::takes(&other.fetches);
    let (hour, gains) = (about(fetching::HORIZON), other.value > adopted);
    match takes.0 {
        t if t <= 0.0 || !gains => None,
        t if t.is_infinite() => Some("not taken: nobody gives all that it needs".into()),
        t if t >= fetching::HORIZON.0 => Some(format!(
            "not taken: a plan must be worth its fetching within {hour}, and it would not be there by then"
        )),
        _ => {
            let worth = fetching::delayed(other.value, adopted, takes) * 100.0;
            Some(format!("with that, {worth:.1} % in time over {hour}"))
        }
    }
}

/// A time as people say it.
fn about(Seconds(seconds): Seconds) -> String {
    match seconds {
        s if s < 119.5 => format!("{s:.0} s"),
        s if s < 7170.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn as_json(why: &Why) -> serde_json::Value {
    let other = |o: &live::Other| {
        let fetches: Vec<_> = o.fetches.iter().map(fetch_as_json).collect();
        json!({ "groups": o.groups, "value": o.value, "loses": why.adopted - o.value, "fetches": fetches })
    };
    let shared = |d: &live::SharedDevice| json!({ "peer": d.peer, "device": d.device, "taken": d.taken });
    json!({
        "shared": why.shared.iter().map(shared).collect::<Vec<_>>(),
        "fetches": why.fetches.iter().map(fetch_as_json).collect::<Vec<_>>(),
        "model": why.model, "rate": why.rate, "value": why.adopted, "slo": why.slo.to_string(),
        "runners_up": why.others.iter().map(other).collect::<Vec<_>>(),
    })
}

fn fetch_as_json(fetch: &Fetch) -> serde_json::Value {
    json!({
        "peer": fetch.peer, "model": fetch.model, "layers": fetch.layers, "bytes": fetch.bytes,
        "holders": fetch.holders, "seconds": fetch.takes.map(|takes| takes.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use tsnode_coordinator::planner::live::Other;

    #[test]
    fn ways_that_differ_by_next_to_nothing_are_no_reason() {
        let other = |value| Other { groups: vec![], value, fetches: vec![] };
        let why = |values: &[f64]| Why {
            model: "tiny".into(),
            rate: 0.05,
            slo: tsnode_coordinator::scheduler::Slo::e2e(10.0),
            adopted: 0.98,
            fetches: vec![],
            shared: vec![],
            others: values.iter().map(|v| other(*v)).collect(),
        };
        let told = |values: &[f64], verbose| explained(&why(values), &view(), verbose)[4..].join("\n");
        assert_eq!(told(&[], false), "  there is no other way to form groups of these devices");
        assert_eq!(
            told(&[0.9799, 0.9795, 0.9], false),
            "  instead, 8.0 % fewer in time:\n  2 other ways are as good within 0.1 %: no reason to change"
        );
        assert_eq!(told(&[0.9799], false), "  one other way is as good within 0.1 %: no reason to change");
        assert_eq!(told(&[0.9799], true), "  instead, 0.010 % fewer in time:");
        assert!(told(&[0.99], false).starts_with("  instead, 1.0 % more by links as they are now"));
    }

    #[test]
    fn a_model_without_a_group_is_said_to_have_none_and_why() {
        use tsnode_coordinator::sample;
        let told = |model: u8| {
            let stages = vec![Stage { peer: PeerId([1; 32]), device: 0, layers: sample::card().shape.all_layers() }];
            let group = Group::new(tsnode_protocol::ModelId([model; 16]), tsnode_protocol::Phase::Mixed, stages);
            let plan = Plan { reason: "as laid out".into(), ..sample::plan(vec![group], vec![]) };
            let view = SwarmView { models: vec![sample::card()], plan: Some(plan), ..view() };
            let why = Why {
                model: sample::card().name,
                rate: 1.0,
                slo: tsnode_coordinator::scheduler::Slo::e2e(10.0),
                adopted: 0.0,
                fetches: vec![],
                shared: vec![],
                others: vec![],
            };
            explained(&why, &view, false)[1].clone()
        };
        assert_eq!(told(2), "  the adopted plan has no group for it; its reason: as laid out");
        assert_ne!(told(1), told(2));
    }

    #[test]
    fn what_is_fetched_is_said_with_from_whom_and_how_long() {
        let peer = |n: u8| PeerId([n; 32]);
        let (names, [host, a, b, c]) = (BTreeMap::new(), [1, 2, 3, 4].map(|n| format!("…{}", peer(n).short())));
        let fetch = |takes: Option<f64>| Fetch {
            peer: peer(1),
            model: tsnode_protocol::ModelId([1; 16]),
            layers: vec![tsnode_protocol::LayerRange { start: 2, end: 8 }],
            bytes: 1_500_000_000,
            holders: (2..=5).map(peer).collect(),
            takes: takes.map(Seconds),
        };
        let told = |takes| fetched(&[fetch(takes)], &names).next().unwrap();
        assert_eq!(
            told(Some(90.0)),
            format!("{host} fetches layers 2..8 (1.5 GB), from {a}, {b}, {c} and 1 more, about 90 s")
        );
        assert!(told(Some(600.0)).ends_with("about 10 min") && told(Some(9000.0)).ends_with("about 2.5 h"));
        assert_eq!(told(None), format!("{host} fetches layers 2..8 (1.5 GB), of which nobody has all"));
        let other = |value, takes| delayed(&Other { groups: vec![], value, fetches: vec![fetch(takes)] }, 0.5);
        assert_eq!(other(0.9, Some(1800.0)).unwrap(), "with that, 70.0 % in time over 60 min");
        assert!(other(0.9, Some(3600.0)).unwrap().starts_with("not taken: a plan must be worth its fetching within"));
        assert!(other(0.9, None).unwrap().starts_with("not taken: nobody"));
        assert_eq!(other(0.4, Some(1800.0)), None, "it would not be taken anyway");
    }
}
