//! Verbs that print what a peer knows: `status`, `peers`, `models`, `invite`, `config show`, `version`.

use super::{ask::Peer, is_set, links};
use crate::{
    config::Settings,
    exit::{Exit, Kind},
    view::SwarmView,
};
use clap::ArgMatches;
use serde_json::json;
use std::collections::BTreeMap;
use tsnode_protocol::{Device, LayerProfile, ModelCard, PeerId};

pub(super) async fn look(settings: &Settings, matches: &ArgMatches) -> Result<SwarmView, Exit> {
    Peer::find(settings, matches)?.view().await
}

pub(super) async fn status(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let view = look(settings, matches).await?;
    if is_set(matches, "json") {
        return print_json(&view);
    }
    let names = names(&view);
    say!("peer         {}", view.me);
    say!("swarm        {}{}", view.swarm, if view.private { " (private)" } else { " (open)" });
    say!("state        {}", json!(view.readiness)["stage"].as_str().unwrap_or_default());
    if let Some(why) = view.why_not() {
        say!("waits        {why}");
    }
    if let Some(why) = view.lends_nothing() {
        say!("lends        nothing: {why}");
    }
    say!("peers        {}", view.peers.len());
    say!("coordinator  {}", view.coordinator.map_or("none".into(), |p| name(&names, p)));
    say!("epoch, term  {}, {}", view.epoch.0, view.term.0);
    say!("plan         {}", view.plan.as_ref().map_or("none yet", |p| p.reason.as_str()));
    let groups = view.plan.as_ref().map_or(&[][..], |p| &p.groups);
    let ready = groups.iter().filter(|g| view.ready_groups.contains(&g.id)).count();
    say!("groups       {ready} of {} take requests", groups.len());
    let others = view.ready_groups.len() - ready;
    if others > 0 {
        say!("             {others} of the plan before go on until those do");
    }
    let mark = if view.models.len() > 1 { " (default)" } else { "" };
    let model = |m: &ModelCard| format!("{}{}", m.name, if Some(m.id) == view.default_model { mark } else { "" });
    say!("models       {}", view.models.iter().map(model).collect::<Vec<_>>().join(", "));
    if let Some(own) = view.peers.iter().find(|p| p.id == view.me) {
        if !own.advert.reachable {
            let relays = own.advert.addresses.iter().filter(|a| a.contains("/p2p-circuit")).count();
            say!("reached      by nobody who was not called first; others come over relays ({relays} addresses)");
        }
        let l = own.load;
        say!(
            "here         {} running, {} waiting, {} of {} KV pages free",
            l.running,
            l.waiting,
            l.free_pages,
            l.total_pages
        );
        for LayerProfile { prompts, steps, mixed, .. } in own.advert.devices.iter().filter_map(|d| d.profile) {
            say!("times        prompts {prompts}");
            say!("             steps {steps}; with a prompt beside them {mixed}");
        }
    }
    let refused: u64 = view.rejected.values().sum();
    say!("refused      {refused} messages{}", if refused > 0 { ":" } else { "" });
    for (reason, count) in &view.rejected {
        say!("             {count} × {reason}");
    }
    for (reason, count) in &view.kv_refused {
        say!("KV refused   {count} × {reason}");
    }
    Ok(())
}

pub(super) async fn peers(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let view = look(settings, matches).await?;
    if is_set(matches, "links") {
        return links::show(&view, matches);
    }
    if is_set(matches, "json") {
        return print_json(&json!({ "peers": view.peers, "cut_off": view.cut_off }));
    }
    let mut rows =
        vec![["PEER", "ID", "DEVICES", "GFLOP/S", "OFF BY", "RUNNING", "KV FREE", "SILENT"].map(String::from).to_vec()];
    for peer in &view.peers {
        let lost = |d: &Device| if d.memory_bytes == 0 { " (lost)" } else { "" };
        let devices: Vec<String> = peer.advert.devices.iter().map(|d| format!("{}{}", d.name, lost(d))).collect();
        let flops = peer.advert.devices.iter().fold(0.0, |sum, d| sum + d.flops.0);
        let load = peer.load;
        rows.push(vec![
            format!("{}{}", peer.advert.name, if peer.id == view.me { " (this)" } else { "" }),
            peer.id.to_string(),
            match devices.is_empty() {
                true if peer.advert.models.is_empty() => "gateway only".into(),
                true => "none now".into(),
                false => devices.join(", "),
            },
            format!("{:.0}", flops / 1e9),
            off_by(peer.advert.devices.iter().find_map(|d| d.profile)),
            load.running.to_string(),
            format!("{}/{}", load.free_pages, load.total_pages),
            format!("{:.1} s", peer.silent_for),
        ]);
    }
    table(&rows)?;
    for cut in &view.cut_off {
        let who =
            if cut.name.is_empty() { cut.id.to_string() } else { format!("{} (…{})", cut.name, cut.id.short()) };
        say!("cut off: {who} {} ({} offences), for {:.0} s more", cut.reason, cut.offences, cut.seconds_left);
    }
    Ok(())
}

/// Mean errors of the times that plans count with: prompts', and answers'.
fn off_by(profile: Option<LayerProfile>) -> String {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    profile.map_or("-".into(), |p| format!("{}, {}", percent(p.prompts.mean), percent(p.steps.mean)))
}

pub(super) async fn models(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let view = look(settings, matches).await?;
    if is_set(matches, "json") {
        return print_json(&view.models);
    }
    let mut rows = vec![["MODEL", "ID", "LAYERS", "CONTEXT", "WEIGHTS", "PEERS"].map(String::from).to_vec()];
    for card in &view.models {
        let holders = view.peers.iter().filter(|p| p.advert.models.iter().any(|m| m.id == card.id)).count();
        let bytes = card.shape.stage_bytes(card.shape.all_layers());
        rows.push(vec![
            card.name.clone(),
            card.id.to_string(),
            card.shape.layers.to_string(),
            card.shape.context.to_string(),
            format!("{:.1} MB", bytes as f64 / 1e6),
            holders.to_string(),
        ]);
    }
    table(&rows)
}

pub(super) fn config(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let deepest = matches.subcommand().map_or(matches, |(_, m)| m);
    let shown = |name: &str, value: &str| {
        let secret = matches!(name, "api-key" | "invite") && !value.is_empty();
        if secret { "(set)".to_owned() } else { value.to_owned() }
    };
    if is_set(deepest, "json") {
        let all: BTreeMap<&str, _> = settings
            .iter()
            .map(|(name, value, origin)| (name, json!({ "value": shown(name, value), "origin": origin.to_string() })))
            .collect();
        return print_json(&all);
    }
    let mut rows = vec![["SETTING", "VALUE", "ORIGIN"].map(String::from).to_vec()];
    rows.extend(settings.iter().map(|(name, value, origin)| vec![name.into(), shown(name, value), origin.to_string()]));
    table(&rows)
}

pub(super) fn version(matches: &ArgMatches) -> Result<(), Exit> {
    let version = env!("CARGO_PKG_VERSION");
    if is_set(matches, "json") {
        return print_json(&json!({ "version": version, "protocol": tsnode_protocol::codec::VERSION }));
    }
    say!("tsnode {version}");
    Ok(())
}

pub(super) fn names(view: &SwarmView) -> BTreeMap<PeerId, String> {
    view.peers.iter().map(|p| (p.id, p.advert.name.clone())).collect()
}

pub(super) fn name(names: &BTreeMap<PeerId, String>, peer: PeerId) -> String {
    match names.get(&peer) {
        Some(name) if !name.is_empty() => format!("{name} (…{})", peer.short()),
        _ => format!("…{}", peer.short()),
    }
}

pub(super) fn print_json<T: serde::Serialize>(value: &T) -> Result<(), Exit> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Exit::new(Kind::Other, e.to_string()))?;
    say!("{text}");
    Ok(())
}

/// Prints columns as wide as their widest entry.
pub(super) fn table(rows: &[Vec<String>]) -> Result<(), Exit> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(text, w)| format!("{text:<w$}")).collect();
        say!("{}", cells.join("  ").trim_end());
    }
    Ok(())
}
